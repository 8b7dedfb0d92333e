# Everything a newcomer needs. `make demo` runs the main job, `make test` the tests; both set up .venv first.
PYTHON ?= python3.11
VENV := .venv
BENCH := .venv-bench
PIP := pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check bench clean

demo: $(VENV)/ready
	$(VENV)/bin/python examples/make_predictions.py demo
	$(VENV)/bin/distilcal eval demo/test.csv --calib demo/dev.csv --ood demo/shifted.csv --compare demo/rival.csv \
		--html demo/report.html --save-calibrator demo/temperature.json

test: $(VENV)/ready-train
	$(VENV)/bin/python -m pytest

check: $(VENV)/ready-train
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(BENCH)/ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/bench_measure.py

clean:
	rm -rf $(VENV) $(BENCH) demo

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/$(PIP) -e '.[dev]'
	touch $@

# torch is large and only the losses need it: the demo does without.
$(VENV)/ready-train: $(VENV)/ready
	$(VENV)/bin/$(PIP) -e '.[dev,train]'
	touch $@

# The peers live apart: none of them is needed by distilcal. torch comes first and pinned, see constraints.txt.
$(BENCH)/ready: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/$(PIP) torch==2.13.0
	$(BENCH)/bin/$(PIP) -e . -r benchmarks/requirements.txt
	touch $@
