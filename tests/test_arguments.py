"""Arguments of a wrong type are one clear line that names the argument, in every public function."""

import inspect

import numpy as np
import pytest

import distilcal as dc
from distilcal import calibrate, metrics, selective
from distilcal.calibrate import FitReport, Temperature, calibrator_from_json
from distilcal.errors import InputError

ROWS = 12
LOGITS = np.random.default_rng(0).normal(size=(ROWS, 3))
P = dc.Predictions.from_logits(LOGITS, np.arange(ROWS) % 3, ids=[f"r{row}" for row in range(ROWS)])
NOT_WHOLE = (15.0, True, "15", None, np.array([1, 2]), 1 + 2j)


@pytest.mark.parametrize("wrong", NOT_WHOLE, ids=repr)
@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (metrics.evaluate, "bins"),
        (metrics.reliability, "bins"),
        (metrics.evaluate, "seed"),
        (calibrate.fit_histogram, "bins"),
        (calibrate.cross_fitted, "folds"),
    ],
)
def test_what_is_no_whole_number_is_refused_by_name(function, argument, wrong):
    with pytest.raises(InputError, match=rf"^{argument}: expected a whole number, got .+; see help\({function.__name__}\)$"):
        function(P, **{argument: wrong})


@pytest.mark.parametrize("wrong", [15.0, True, "15"], ids=repr)
def test_parameters_of_metrics_are_checked_too(wrong):
    for call in (lambda: metrics.ece(P.probs, P.labels, bins=wrong), lambda: metrics.evaluate(P, {"sce": {"bins": wrong}})):
        with pytest.raises(InputError, match="bins: expected a whole number"):
            call()


@pytest.mark.parametrize("wrong", [None, LOGITS, "p.npz", [P]], ids=["none", "array", "path", "list"])
def test_what_is_not_predictions_is_refused(wrong):
    functions = (metrics.evaluate, metrics.reliability, calibrate.fit_temperature, selective.threshold, selective.aurc)
    for function in functions:
        with pytest.raises(InputError, match="predictions: expected Predictions, got"):
            function(wrong)
    with pytest.raises(InputError, match="b: expected Predictions, got"):
        dc.compare(P, wrong)


def test_scalars_of_numpy_are_numbers_and_any_seed_from_0_is_one():
    few = {"metrics": ["ece"], "intervals": np.int64(5)}
    assert metrics.evaluate(P, **few, bins=np.int64(5), level=np.float32(0.5), seed=2**70)["ece"].params["bins"] == 5
    with pytest.raises(InputError, match="seed: -1 is less than 0"):
        metrics.evaluate(P, **few, seed=-1)
    with pytest.raises(InputError, match="level: expected a number, got '0.9'"):
        metrics.evaluate(P, **few, level="0.9")
    with pytest.raises(InputError, match="closed: expected 'right' or 'left', got 'both'"):
        metrics.evaluate(P, **few, closed="both")


def test_more_bins_than_memory_holds_are_refused():
    with pytest.raises(InputError, match="at most 10,000"):
        metrics.ece(P.probs, P.labels, bins=10**9)


def test_one_text_in_place_of_a_list_is_told_to_be_put_in_brackets():
    with pytest.raises(InputError, match=r"in brackets: \['ece'\]"):
        metrics.evaluate(P, "ece")
    with pytest.raises(InputError, match="a int for metrics; give a list of names"):
        metrics.evaluate(P, 3)
    with pytest.raises(InputError, match="metric 'ece' has 5 for parameters; give a dict"):
        metrics.evaluate(P, {"ece": 5})


def test_python_itself_refuses_unknown_arguments():
    with pytest.raises(TypeError, match=r"reliability\(\) got an unexpected keyword argument 'bin'"):
        metrics.reliability(P, bin=3)


@pytest.mark.parametrize(
    "classes",
    [3, True, [["a", "b"], ["c", "d"], ["e", "f"]], "abc", object()],
    ids=["number", "truth", "nested", "text", "object"],
)
def test_class_names_of_another_form_are_refused(classes):
    for call in (lambda: dc.Predictions.from_logits(LOGITS, classes=classes), lambda: P.reorder_classes(classes)):
        with pytest.raises(InputError, match="class name"):
            call()


@pytest.mark.parametrize("rows", [1.5, [0.0, 1.0], [[0], [1]], [0, ROWS], [-ROWS - 1], True, [2**70]], ids=repr)
def test_rows_that_cannot_be_selected_are_refused(rows):
    with pytest.raises(InputError, match="rows|id"):
        P.select(rows)


@pytest.mark.parametrize("probs", [P, "", {"a": 1}, [[0.5, 0.5], [1.0]], LOGITS + 1j], ids=lambda probs: type(probs).__name__)
def test_a_metric_of_something_else_is_refused(probs):
    with pytest.raises(InputError, match="expected an array of probabilities, got"):
        metrics.ece(probs, [0])


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "1", None, True, [1.0]], ids=repr)
def test_a_temperature_is_a_positive_number(value):
    good = Temperature(classes=("no", "yes"), fit=FitReport(50, 0.9, 0.8, True), value=np.float64(1.5))
    with pytest.raises(InputError, match="is not a positive number"):
        Temperature(classes=good.classes, fit=good.fit, value=value)
    if value in (0, -1.0):
        with pytest.raises(InputError, match="is not a positive number"):
            calibrator_from_json({**good.to_json(), "value": value})


def test_labels_of_rounds_are_by_row_number_and_a_cascade_needs_dev():
    rounds = selective.label_rounds(P, 10, 0.5, 0.5)
    with pytest.raises(InputError, match="labels: expected a whole number, got 'a'"):
        selective.next_rows(rounds, {"a": 1})
    with pytest.raises(InputError, match="teacher: there are no predictions on 'dev'"):
        selective.evaluate_cascade({"dev": P}, {"test": P})


def test_replicates_refuse_counts_and_sources_that_do_not_fit():
    with pytest.raises(InputError, match="count: 0 is not from 1"):
        metrics.replicates(P, {"e": {"metric": "ece"}}, 0)
    with pytest.raises(InputError, match="clusters: sources of shape"):
        metrics.replicates(P, {"e": {"metric": "ece"}}, 3, clusters=np.arange(3))
    with pytest.raises(InputError, match="there is no metric 'ecee'; did you mean ece"):
        metrics.definition("ecee", {})


def test_the_annotations_of_every_checked_function_are_known():
    from distilcal.arguments import resolved_annotations

    for module in (dc, calibrate, selective, metrics):
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function) and hasattr(function, "__wrapped__"):
                assert resolved_annotations(inspect.unwrap(function)), name
