"""Unlabelled rows and a teacher that knows some rows only, in two processes: the weights and numbers of one."""

import json
from pathlib import Path

import numpy as np
import pytest
from processes import launch
from tiny import save_model

PROGRAM = """
import json
import sys
from dataclasses import replace
from pathlib import Path
import numpy as np, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[3])
from tiny import reviews
from distilcal.config.schema import ModelSettings, TrainSettings, ViewSettings
from distilcal.dynamics import Recorder
from distilcal.models import build_classifier
from distilcal.predictions import Predictions
from distilcal.training import Features, fit
from distilcal.training.distributed import build_accelerator
from distilcal.views import VIEWS, build_term, build_view

out, model, cases = Path(sys.argv[1]), sys.argv[2], sys.argv[4].split(",")
train, dev = reviews(75, 0), reviews(31, 1)
train = replace(train, labels=np.where(np.arange(75) < 25, train.labels, -1))
rng = np.random.default_rng(5)
logits, features = rng.normal(size=(75, 2)).astype(np.float32), rng.normal(size=(75, 4)).astype(np.float32)
known = np.arange(75) >= 7
teacher = {
    "teacher": Predictions(logits[known], ids=train.ids[known], classes=train.classes),
    "teacher_features": Features(train.ids[known], features[known]),
}
labels = torch.from_numpy(train.labels[:25])
context = {"n_data": 25, "classes": 2, "labels": labels, "features": 16, "teacher_features": 4}
found = {}
for case in cases:
    name, _, how = case.partition("+")
    made = build_classifier(ModelSettings(name=model, dropout=0.0), train)
    torch.manual_seed(0)
    settings = {"negatives": 10} if name == "crd" else {}
    view = "mixed" if how == "mixed" else "plain"
    terms = [build_term("cross_entropy", 0.4, view), build_term("kd", 0.4), build_term("confidence_penalty", 0.1)]
    terms.append(build_term(name, 0.3, settings=settings, context=context))
    recorder = Recorder(train.ids[:25], train.labels[:25], train.classes, once=True)
    result = fit(
        made, train, dev, terms,
        TrainSettings(epochs=2, batch=24, lr=0.05, optimizer="sgd", choose="last", labelled_share=0.5,
                      accumulate=3 if how == "parts" else 1),
        views={**VIEWS, "mixed": build_view(ViewSettings(kind="manifold"), 2)}, recorder=recorder, **teacher)
    weights = torch.cat([p.detach().flatten() for p in made.network.state_dict().values() if p.is_floating_point()])
    found[case] = {
        "weights": weights.tolist(),
        "history": [h["losses"] | h["dev"] for h in result.history],
        "recorded": recorder.dynamics().confidence.tolist(),
    }
if build_accelerator("float32").is_main_process:
    (out / "found.json").write_text(json.dumps(found))
"""
CASES = ("brier", "brier+parts", "brier+mixed", "mdca", "mdca+parts", "rkd", "crl", "pskd", "crd")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    save_model(folder / "model", head=False)
    (folder / "program.py").write_text(PROGRAM)
    results = {}
    for processes in (1, 2):
        out = folder / str(processes)
        out.mkdir()
        arguments = [folder / "program.py", out, folder / "model", Path(__file__).parents[1], ",".join(CASES)]
        done = launch(arguments, processes)
        assert done.returncode == 0, done.stderr[-3000:]
        results[processes] = json.loads((out / "found.json").read_text())
    return results


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_the_weights_of_one(found, case):
    one, two = found[1][case], found[2][case]
    np.testing.assert_allclose(two["weights"], one["weights"], atol=3e-5)
    for a, b in zip(one["history"], two["history"], strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose(list(a.values()), list(b.values()), atol=2e-4)
    np.testing.assert_allclose(two["recorded"], one["recorded"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["brier", "mdca"])
def test_parts_train_the_weights_of_the_whole(found, case):
    np.testing.assert_allclose(found[2][f"{case}+parts"]["weights"], found[1][case]["weights"], atol=3e-5)
