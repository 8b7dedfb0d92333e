"""Two processes × 16 train the weights of one × 32: really launched, with gloo, for every loss that looks at the batch."""

import json
from pathlib import Path

import numpy as np
import pytest
from processes import launch
from tiny import save_model, write_csv

PROGRAM = """
import sys
import numpy as np, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from tiny import reviews
from distilcal.predictions import Predictions
from distilcal.training import Features, fit
from distilcal.training.distributed import build_accelerator
from distilcal.models import build_classifier
from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.views import build_term
import json
out, model = Path(sys.argv[1]), sys.argv[2]
train, dev = reviews(75, 0), reviews(31, 1)
rng = np.random.default_rng(5)
logits = rng.normal(size=(75, 2)).astype(np.float32)
teacher = Predictions(logits, train.labels, ids=train.ids, classes=train.classes)
teacher_features = Features(train.ids, rng.normal(size=(75, 4)).astype(np.float32))
known = {"n_data": 75, "classes": 2, "labels": torch.from_numpy(train.labels), "features": 16, "teacher_features": 4}
found = {}
for name in sys.argv[4].split(","):
    made = build_classifier(ModelSettings(name=model, dropout=0.0), train)
    torch.manual_seed(0)
    settings = {"negatives": 10} if name == "crd" else {}
    terms = [build_term("cross_entropy", 0.5), build_term(name, 0.5, settings=settings, context=known)]
    if name == "rkd":
        terms = terms[1:]  # a loss that never looks at the logits
    # SGD: Adam would blow rounding up to steps of full size where a gradient is nearly 0
    how = TrainSettings(epochs=2, batch=32, lr=0.05, optimizer="sgd", choose="last", accumulate=2 if name == "mdca" else 1)
    small_dev = dev.select([0]) if name == "kd" else dev
    result = fit(made, train, small_dev, terms, how, teacher=teacher, teacher_features=teacher_features,
                 checkpoint_dir=out / name)
    weights = torch.cat([p.detach().flatten() for p in made.network.state_dict().values() if p.is_floating_point()])
    state = [b.double().flatten().tolist() for b in terms[-1].loss.buffers()] if hasattr(terms[-1].loss, "buffers") else []
    found[name] = {"weights": weights.tolist(), "history": [h["losses"] | h["dev"] for h in result.history], "state": state}
assert build_accelerator("float32").num_processes == int(sys.argv[5])
if build_accelerator("float32").is_main_process:
    (out / "found.json").write_text(json.dumps(found))
"""
NAMES = ("kd", "mdca", "mmce_weighted", "rkd", "crl", "adafocal", "pskd", "crd")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    save_model(folder / "model", head=False)
    (folder / "program.py").write_text(PROGRAM)
    made = {}
    for processes in (1, 2):
        out = folder / str(processes)
        out.mkdir()
        done = launch(
            [folder / "program.py", out, folder / "model", Path(__file__).parents[1], ",".join(NAMES), processes], processes
        )
        assert done.returncode == 0, done.stderr[-3000:]
        made[processes] = json.loads((out / "found.json").read_text())
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_train_the_weights_of_one(found, name):
    one, two = found[1][name], found[2][name]
    np.testing.assert_allclose(two["weights"], one["weights"], atol=3e-5)
    for a, b in zip(one["history"], two["history"], strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose(list(a.values()), list(b.values()), atol=2e-4)
    for a, b in zip(one["state"], two["state"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.slow
def test_a_whole_run_in_two_processes(tmp_path):
    save_model(tmp_path / "model", head=False)
    write_csv(tmp_path / "train.csv", 240, 0)
    arguments = [
        "-m",
        "distilcal",
        "distill",
        "--train",
        tmp_path / "train.csv",
        "--teacher",
        tmp_path / "model",
        "--epochs",
        "1",
    ]
    results = []
    for processes in (1, 2):
        out = tmp_path / f"run{processes}"
        more = ["--out", out, "--store", tmp_path / f"store{processes}", "--no-alone"]
        for stage in ("teacher", "student"):
            more += ["--set", f"stages.{stage}.model.dropout=0.0", "--set", f"stages.{stage}.train.optimizer=sgd"]
        done = launch([*arguments, *more], processes)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("Wrote") == 1
        assert json.loads((out / "environment.json").read_text())["processes"] == processes
        results.append(json.loads((out / "metrics.json").read_text())["stages"])
    for stage in ("teacher", "student"):
        a, b = (r[stage]["sets"]["test"]["given"] for r in results)
        assert a["nll"]["value"] == pytest.approx(b["nll"]["value"], abs=1e-4)


DEV_PROGRAM = """
import atexit, sys
import numpy as np, torch
torch.set_num_threads(1)
atexit.register(lambda: print("open" if torch.distributed.is_initialized() else "closed"))
sys.path.insert(0, sys.argv[1])
from small import pictures
from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.models import build_classifier
from distilcal.training import fit
from distilcal.training.distributed import build_accelerator
from distilcal.training.prediction import compute_outputs
from distilcal.views import build_term
train, dev = pictures(20, 0), pictures(5, 1)
classifier = build_classifier(ModelSettings(name="resnet8"), train)
settings = TrainSettings(epochs=1, batch=10, lr=0.05, choose="last")
result = fit(classifier, train, dev, [build_term("cross_entropy")], settings)
if build_accelerator("float32").is_main_process:
    np.testing.assert_allclose(result.dev_logits, compute_outputs(classifier, dev)["logits"], atol=1e-3)
"""


@pytest.mark.slow
def test_the_logits_on_dev_of_two_processes_are_those_of_the_network_that_is_kept(tmp_path):
    """Each process computes a part of dev, and its batch norms have seen its own part of every batch."""
    (tmp_path / "program.py").write_text(DEV_PROGRAM)
    done = launch([tmp_path / "program.py", Path(__file__).parents[1]], 2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["closed", "closed"]  # connections, before Python ends: open ones may abort it


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    from distilcal.errors import InputError
    from distilcal.training.distributed import build_accelerator

    build_accelerator("float32")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="2 processes were started but 1 train together"):
        build_accelerator("float32")
