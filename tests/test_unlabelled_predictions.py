"""Predictions whose labels are unknown: what works without labels, and that everything that needs them refuses."""

from dataclasses import replace

import numpy as np
import pytest
from samples import make

from distilcal import InputError, Predictions, ensemble, join
from distilcal.calibrate import FITS, cross_fitted, fit_temperature
from distilcal.evaluation import (
    bootstrap_splits,
    check_threshold,
    compare_models,
    evaluate_model,
    evaluate_set,
    evaluate_splits,
)
from distilcal.metrics import METRICS, compare, evaluate, reliability, replicates
from distilcal.selective import aurc, excess_aurc, risk_coverage, threshold


def without_labels(predictions: Predictions, rows: object = slice(None)) -> Predictions:
    labels = predictions.labels.copy()
    labels[rows] = -1
    return replace(predictions, labels=labels)


NONE = without_labels(make())
SOME = without_labels(make(), [3, 8])
PROBS = Predictions.from_probs(make().probs, ids=make().ids, name="dev")

NEED_LABELS = {
    "correct": lambda p: p.correct,
    "row_nll": lambda p: p.row_nll,
    "evaluate": evaluate,
    "reliability": reliability,
    "compare": lambda p: compare(make(), p),
    "compare, first": lambda p: compare(p, make()),
    "replicates": lambda p: replicates(p, {"ece": {"metric": "ece"}}, 10),
    "cross_fitted": cross_fitted,
    "risk_coverage": risk_coverage,
    "aurc": aurc,
    "excess_aurc": excess_aurc,
    "threshold": threshold,
    "check_threshold": lambda p: check_threshold(threshold(Predictions.from_confidences([0.001] * 999, [1] * 999)), p),
    "evaluate_set": evaluate_set,
    "evaluate_model": evaluate_model,
    "evaluate_model, calib": lambda p: evaluate_model(make(80, seed=1, name="test"), calib=p),
    "evaluate_splits": lambda p: evaluate_splits({"dev": p}, method="temperature", accuracy=0.9),
    "compare_models": lambda p: compare_models(make(), [p]),
    "bootstrap_splits": lambda p: bootstrap_splits({"dev": p}, ["dev"], {"ece": {"metric": "ece"}}, resamples=5),
    **{f"metric {name}": lambda p, name=name: evaluate(p, [name], intervals=0) for name in METRICS},
    **{f"fit {name}": fit for name, fit in FITS.items()},
}


@pytest.mark.parametrize("name", NEED_LABELS)
@pytest.mark.parametrize(
    ("predictions", "message", "row"),
    [
        (NONE, "'dev.*' has no labels; add a label column", None),
        (PROBS, "'dev.*' has no labels; add a label column", None),
        (SOME, "2 of the 53 rows of 'dev.*' have no label", 3),
    ],
    ids=["none", "probs", "some"],
)
def test_what_needs_labels_refuses_rows_without(name, predictions, message, row):
    with pytest.raises(InputError, match=message) as error:
        NEED_LABELS[name](predictions)
    assert error.value.row == row


@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_arrays_refuse_unknown_labels(name):
    with pytest.raises(InputError, match="labels are not all between 0 and 4"):
        METRICS[name](SOME.probs, SOME.labels)


def test_the_labelled_rows_measure_as_ever():
    rest = SOME.select(SOME.is_labelled)
    assert rest.has_labels
    assert len(rest) == 51
    np.testing.assert_array_equal(rest.row_nll, np.delete(make().row_nll, [3, 8]))
    assert fit_temperature(rest).value == fit_temperature(make().select(SOME.is_labelled)).value


@pytest.mark.parametrize("predictions", [NONE, SOME, PROBS], ids=["none", "some", "probs"])
def test_what_needs_no_labels_is_the_same_without(predictions):
    p = make()
    np.testing.assert_allclose(predictions.probs, p.probs, rtol=1e-12)
    np.testing.assert_array_equal(predictions.predicted, p.predicted)
    np.testing.assert_allclose(predictions.confidence, p.confidence, rtol=1e-12)
    np.testing.assert_allclose(predictions.row_entropy, p.row_entropy, rtol=1e-9)
    calibrated = fit_temperature(p)(predictions)
    np.testing.assert_allclose(calibrated.probs, fit_temperature(p)(p).probs, rtol=1e-9)
    np.testing.assert_array_equal(calibrated.labels, predictions.labels)
    moved = predictions.reorder_classes(["4", "2", "0", "1", "3"])
    np.testing.assert_array_equal(moved.is_labelled, predictions.is_labelled)
    np.testing.assert_array_equal(moved.reorder_classes(p.classes).labels, predictions.labels)
    first, second = predictions.split(0.5, seed=0)
    assert len(first) + len(second) == 53
    np.testing.assert_allclose(ensemble([predictions, p]).probs, p.probs, rtol=1e-9)
    joined, _ = join(predictions, p)  # a label that one of the two does not know is no contradiction
    np.testing.assert_array_equal(joined.labels, predictions.labels)


def test_human_votes_need_no_labels():
    p = make()
    votes = np.random.default_rng(0).dirichlet(np.ones(5), size=53)
    voted = replace(p, label_probs=votes)
    np.testing.assert_allclose(replace(voted, labels=NONE.labels).row_vote_nll, voted.row_vote_nll, rtol=1e-12)
    by_votes = Predictions.from_logits(p.logits, label_probs=votes)
    np.testing.assert_array_equal(by_votes.labels, votes.argmax(axis=1))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (None, [-1, -1, -1]),
        ([-1, 0, 1], [-1, 0, 1]),
        ([-1.0, 0.0, 1.0], [-1, 0, 1]),
        (["", "a", "b"], [-1, 0, 1]),
        ([None, "a", "b"], [-1, 0, 1]),
        ([None, 0, 1], [-1, 0, 1]),
        (["-1", "0", "1"], [-1, 0, 1]),
        (["", "", ""], [-1, -1, -1]),
    ],
)
def test_every_way_to_write_an_unknown_label(labels, expected):
    p = Predictions.from_logits(np.eye(3)[:, :2], labels, classes=["a", "b"])
    assert p.labels.tolist() == expected
    assert p.is_labelled.tolist() == [label >= 0 for label in expected]
    assert p.has_labels == (min(expected) >= 0)


def test_an_unknown_label_is_no_excuse_for_a_wrong_one():
    with pytest.raises(InputError, match="label 'c' is not a class name") as error:
        Predictions.from_logits(np.eye(3)[:, :2], ["", "a", "c"], classes=["a", "b"])
    assert error.value.row == 2
    numbers = Predictions.from_logits(np.eye(3)[:, :2], ["-1", "1", "-1"], classes=["-1", "1"])
    assert numbers.labels.tolist() == [0, 1, 0]


def test_the_repr_tells_how_many_labels_are_known():
    assert repr(make()) == "Predictions('dev', 53 rows, 5 classes)"
    assert repr(NONE) == "Predictions('dev', 53 rows, 5 classes, no labels)"
    assert repr(SOME) == "Predictions('dev', 53 rows, 5 classes, 51 labels)"
