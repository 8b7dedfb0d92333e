"""Real model outputs: figures that are known from elsewhere. Skipped where the data are not."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from distilcal import Predictions, compare, ensemble, evaluate
from distilcal.calibrate import FITS, fit_temperature
from distilcal.metrics import accuracy, ece
from distilcal.selective import threshold

DATA = Path(os.environ.get("DISTILCAL_DATA", Path(__file__).parents[2] / "shared" / "data"))
pytestmark = pytest.mark.skipif(
    not (DATA / "model_outputs").is_dir(),
    reason="no real model outputs: set DISTILCAL_DATA to a folder that holds model_outputs/",
)
NLI = ("entailment", "neutral", "contradiction")


def cifar(file: str, *, votes: bool = False) -> Predictions:
    with np.load(DATA / "model_outputs" / file) as arrays:
        log_probs, labels = arrays["logprobs"].astype(np.float64), arrays["labels"]
    probs = np.exp(log_probs)
    label_probs = None
    if votes:
        with np.load(DATA / "cifar10h" / "counts.npz") as arrays:
            label_probs = arrays["counts"] / arrays["counts"].sum(axis=1, keepdims=True)
    return Predictions.from_probs(probs / probs.sum(axis=1, keepdims=True), labels, label_probs=label_probs, name="cifar")


def nli(split: str, model: str) -> Predictions:
    with np.load(DATA / "model_outputs" / f"{split}.npz") as arrays:
        logits, labels, ids = arrays[f"logits_{model}"], arrays["labels"], arrays["uid"]
    return Predictions.from_logits(logits, labels, ids=ids, classes=NLI, name=split.replace("test", "eval"))


@pytest.mark.parametrize(
    ("file", "right", "error"),
    [
        ("wideresnet-16-4_cifar10_test.npz", 0.911, 0.054),
        ("lenet-5_cifar10_test.npz", 0.531, 0.108),
        ("wideresnet-16-4_cifar100_test.npz", 0.754, 0.058),
        ("densenet-bc-100_cifar100_test.npz", 0.754, 0.142),
    ],
)
def test_published_accuracy_and_ece(file, right, error):
    p = cifar(file)
    assert accuracy(p.probs, p.labels) == pytest.approx(right, abs=5e-4)
    assert ece(p.probs, p.labels) == pytest.approx(error, abs=5e-4)


@pytest.mark.slow
def test_every_calibrator_repairs_a_real_network():
    dev, test = cifar("wideresnet-16-4_cifar10_test.npz").rename("cifar").split(0.5, seed=0)
    before = evaluate(test, intervals=None).values
    for name, fit in FITS.items():
        fixed = {"penalty": 0.01, "bias_penalty": 0.01} if name == "dirichlet" else {}  # no search: this is about the repair
        calibrator = fit(dev, **fixed)
        after = evaluate(calibrator(test), intervals=None).values
        assert after["ece"] < 0.5 * before["ece"], name
        if np.isfinite(after["nll"]):
            assert after["nll"] < before["nll"], name


def test_humans_disagree_and_the_network_does_not_know():
    p = cifar("wideresnet-16-4_cifar10_test.npz", votes=True)
    found = evaluate(p, intervals=100)
    # Against people's votes instead of one label the network is still overconfident, and far from their distribution.
    assert found["human_ece"].value > 0.03
    assert 0 < found["human_tv"].value < 0.2
    assert found["human_cross_entropy"].value > -np.mean(
        np.sum(p.label_probs * np.log(np.maximum(p.label_probs, 1e-12)), axis=1)
    )
    assert found["human_ece"].low < found["human_ece"].value < found["human_ece"].high
    calibrated = evaluate(fit_temperature(p)(p), intervals=None)
    assert calibrated["human_cross_entropy"].value < found["human_cross_entropy"].value


def test_chaosnli_votes_against_desai_and_durrett_outputs():
    votes = {}
    with gzip.open(DATA / "chaosnli" / "chaosNLI_snli.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            item = json.loads(line)
            votes[item["uid"]] = item["label_dist"]
    p = next(_models("snli_test"))
    shared = p.select(np.isin(p.ids, list(votes)))
    assert len(shared) == 785
    with_votes = Predictions.from_logits(
        shared.logits, shared.labels, ids=shared.ids, classes=NLI, label_probs=[votes[i] for i in shared.ids], name="chaos"
    )
    found = evaluate(with_votes, intervals=100)
    assert found["human_ece"].value > 0.1  # items chosen for disagreement: the model is far too sure
    assert found["human_tv"].value > 0.2


def _models(split: str):
    with np.load(DATA / "model_outputs" / f"{split}.npz") as arrays:
        names = sorted(k.removeprefix("logits_") for k in arrays if k.startswith("logits_"))
    for name in names:
        yield nli(split, name)


def test_in_and_out_of_domain_with_a_threshold():
    dev, test = next(_models("snli_dev")), next(_models("snli_test"))
    calibrator = fit_temperature(dev)
    before, after = evaluate(test, intervals=None), evaluate(calibrator(test), intervals=None)
    assert after["ece"].value < before["ece"].value
    limit = threshold(calibrator(dev), accuracy=0.95)
    accepted = calibrator(test).confidence >= limit.confidence
    assert calibrator(test).correct[accepted].mean() > 0.94
    assert 0.2 < accepted.mean() < 0.95


def test_an_ensemble_of_seeds_beats_its_members():
    members = list(_models("snli_test"))
    both = ensemble(members)
    for member in members:
        assert both.row_nll.mean() < member.row_nll.mean()
    assert compare(members[0], both, ["nll"], 200)["nll"].better == "b"


def test_vader_raters_as_votes():
    probs, votes, labels = [], [], []
    with gzip.open(DATA / "vader" / "ratings.tsv.gz", "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            domain, _, _, _, ratings, _ = line.rstrip("\n").split("\t", 5)
            if domain != "movie":
                continue
            given = np.array([int(r) for r in ratings.split(",")])
            first, second = given[::2], given[1::2]  # half of the raters predict the other half
            shares = [np.mean(half > 0) for half in (first, second)]
            probs.append([1 - shares[0], shares[0]])
            votes.append([1 - shares[1], shares[1]])
            labels.append(int(np.mean(second) > 0))
    p = Predictions.from_probs(probs, labels, label_probs=votes, name="raters")
    found = evaluate(p, intervals=None)
    # Raters agree with other raters far better than chance; unanimous halves overstate how sure people are.
    assert found["human_tv"].value < 0.12
    assert found["human_ece"].value < 0.05
    assert found["accuracy"].value > 0.9
