"""Words, marks and shown intervals of a difference never contradict one another."""

import re

import numpy as np
import pytest

from distilcal import Predictions
from distilcal.evaluation import evaluate_model
from distilcal.metrics import Comparison, Difference, MetricValue, compare, is_significant
from distilcal.report.evaluations.sentences import reading
from distilcal.report.formatting import format_signed
from distilcal.report.studies.cells import arrow, comparison_state
from distilcal.report.studies.sentences import cell_lines
from distilcal.report.verdicts import difference_verdict, verdict_words, winner

DECIDED = ("better", "worse", "differs")


def excludes_zero(low, high):
    return low > 0 or high < 0


def random_comparison(rng):
    """Two related models on few or many rows, with more or fewer metrics: decided, undecided and everything between."""
    rows, classes = int(rng.integers(20, 400)), int(rng.integers(2, 5))
    logits = rng.normal(size=(rows, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    first = Predictions.from_logits(logits + rng.normal(size=logits.shape) * rng.uniform(0, 1), labels, name="first")
    second = Predictions.from_logits(logits * rng.uniform(0.5, 2.5), labels, name="second")
    metrics = ["accuracy", "confidence", "nll", "brier", "ece"][: int(rng.integers(1, 6))]
    return compare(first, second, metrics, intervals=100)


def test_words_winners_and_intervals_agree():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(150):
        c = random_comparison(rng)
        for name, d in c.differences.items():
            words = difference_verdict(c, name)
            seen.add(re.sub(r"\d+", "N", words))
            shown = [format_signed(bound) for bound in (d.low, d.high)]
            assert [float(text) > 0 for text in shown] == [d.low > 0, d.high > 0]  # digits do not hide the sign
            if words in DECIDED:
                assert excludes_zero(d.low, d.high)
                assert d.p_holm < 0.05
                assert winner(c, name) == {"better": "second", "worse": "first", "differs": "differs"}[words]
            else:
                assert d.better is None
                assert winner(c, name) == "–"
                assert ("not beyond chance" in words) == excludes_zero(d.low, d.high)
                if "correcting" in words:
                    assert d.p_holm >= 0.05
    assert {"better", "worse", "differs", "may be chance", "not beyond chance after correcting for N comparisons"} <= seen


def test_a_stored_verdict_that_contradicts_its_interval_is_not_repeated():
    stored = Difference("ece", 0.05, 0.04, -0.01, -0.02, 0.001, p_value=0.03, p_holm=0.03, better="b")
    c = Comparison("alone", "student", 100, {"ece": stored}, 1000)
    assert difference_verdict(c, "ece") == "may be chance"
    assert winner(c, "ece") == "–"


def test_cells_of_studies_agree_with_their_words():
    rng = np.random.default_rng(1)
    results = {"level": 0.95}
    for _ in range(300):
        value, half, p = rng.normal(), rng.uniform(0, 2), rng.uniform() ** 3
        low, high = value - half * rng.uniform(0.5, 1.5), value + half
        significant = is_significant(low, high, p)
        better = None if not significant or rng.random() < 0.3 else bool(rng.random() < 0.5)
        difference = {"against": "ERM", "value": value, "low": low, "high": high, "p": p, "better": better}
        cell = dict.fromkeys(("chosen", "failed", "missing", "definition", "task", "set", "method", "metric"), "")
        cell |= {
            "difference": difference | {"significant": significant},
            "mean": None,
            "paper": None,
            "percent": False,
            "digits": 3,
        }
        line = next(line for line in cell_lines(results, cell) if line.startswith("against"))
        state = comparison_state(cell)
        assert bool(arrow(cell)) == line.endswith(DECIDED) == bool(state)
        if state:
            assert line.endswith(f", {state}")
            assert excludes_zero(low, high)
        else:
            assert line.endswith("over the table") == excludes_zero(low, high)


@pytest.mark.parametrize(("value", "low", "expected"), [(0.05, 0.01, True), (0.05, 0.0, False), (0.02, 0.0, False)])
def test_a_marked_calibration_error_has_an_interval_without_zero(value, low, expected):
    assert MetricValue("ece", value, low, 0.1, null=0.02, null_high=0.03).beyond_chance is expected


def test_a_single_comparison_is_not_said_to_be_corrected():
    assert verdict_words(False, None, 0.01, 0.02, "") == "not beyond chance by its p-value"


def test_the_sentence_of_an_evaluation_names_differences_without_a_better_side():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(500, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    test = Predictions.from_logits(logits, labels, name="mild")
    other = Predictions.from_logits(3 * logits, labels, name="sharp")
    sentence = list(reading(evaluate_model(test, other=other, intervals=200)))[-1]
    assert "mild is better on" in sentence
    assert "they differ in confidence" in sentence
    assert "not beyond chance, corrected for" in sentence
    same = list(reading(evaluate_model(test, other=test.rename("same"), intervals=200)))[-1]
    assert "cannot be told apart on any metric" in same
