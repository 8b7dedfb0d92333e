"""Risk, coverage and the guaranteed threshold."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from samples import make, make_tied
from scipy import stats

from distilcal import InputError, Predictions
from distilcal.selective import aurc, excess_aurc, output_threshold, risk_coverage, threshold, to_label


def test_curve_by_hand():
    p = Predictions.from_confidences([0.9, 0.8, 0.8, 0.6], [1, 0, 1, 1])
    curve = risk_coverage(p)
    assert curve.confidence.tolist() == [0.9, 0.8, 0.6]
    assert curve.accepted.tolist() == [1, 3, 4]
    assert curve.risk.tolist() == [0, 1 / 3, 1 / 4]


def loop_aurc(order, wrong):
    return np.mean([np.mean([wrong[i] for i in order[: j + 1]]) for j in range(len(order))])


def test_aurc_is_the_mean_over_all_orders_of_equal_confidences():
    confidence, correct = [0.9, 0.8, 0.8, 0.8, 0.6], [1, 0, 1, 1, 0]
    orders = [o for o in permutations(range(5)) if all(confidence[a] >= confidence[b] for a, b in pairwise(o))]
    expected = np.mean([loop_aurc(o, [1 - c for c in correct]) for o in orders])
    assert aurc(Predictions.from_confidences(confidence, correct)) == pytest.approx(expected)


@pytest.mark.parametrize("p", [make(), make_tied(), make(1, 3), make(400, 3)], ids=repr)
def test_aurc_and_its_excess(p):
    shuffled = p.select(np.random.default_rng(0).permutation(len(p)))
    assert aurc(shuffled) == pytest.approx(aurc(p))
    assert 0 <= excess_aurc(p) <= aurc(p) <= 1
    perfect = Predictions.from_confidences(np.where(p.correct, 0.9, 0.6), p.correct)
    separated = Predictions.from_confidences(np.linspace(0.9, 0.6, len(p)), np.sort(p.correct)[::-1])
    assert excess_aurc(separated) == pytest.approx(0, abs=1e-12)
    assert excess_aurc(perfect) <= excess_aurc(p) + 1e-12


def test_threshold_is_exact_binomial():
    p = make(3000, 4, scale=4)
    found = threshold(p, accuracy=0.9, confidence=0.95)
    accepted = p.confidence >= found.confidence
    assert found.coverage == pytest.approx(accepted.mean())
    assert found.to_human == pytest.approx(1 - accepted.mean())
    assert found.accuracy == pytest.approx(p.correct[accepted].mean())
    bound = stats.binomtest(int(p.correct[accepted].sum()), int(accepted.sum())).proportion_ci(1 - 2 * 0.005, "exact").low
    assert found.guaranteed == pytest.approx(bound)
    assert found.guaranteed >= 0.9
    # It is the lowest: one more distinct confidence and the bound of that set, or of all beyond it, fails.
    lower = np.max(p.confidence[p.confidence < found.confidence])
    more = p.confidence >= lower
    worse = stats.binomtest(int(p.correct[more].sum()), int(more.sum())).proportion_ci(1 - 2 * 0.005, "exact").low
    assert worse < 0.9


def test_threshold_keeps_its_promise():
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(300):
        sure = rng.uniform(0.5, 1.0, 600)
        found = threshold(Predictions.from_confidences(sure, rng.random(600) < sure), accuracy=0.85, confidence=0.8)
        if found.reached:
            broken += (found.confidence + 1) / 2 < 0.85  # the true accuracy above a threshold of uniform, calibrated confidence
    assert stats.binomtest(broken, 300, 0.2, alternative="greater").pvalue > 0.001
    assert broken / 300 < 0.2


def test_a_threshold_that_cannot_be_reached_is_said_so():
    for p, said in (
        (make(400, 4).select(~make(400, 4).correct), "best that can be promised"),
        (make(20, 3), "takes 104 accepted rows"),
        (Predictions.from_confidences([0.9], [1]), "104 accepted rows"),
    ):
        found = threshold(p)
        assert not found.reached
        assert found.confidence is None
        assert found.to_human == 1
        assert said in found.message


def test_a_perfect_model_accepts_everything():
    found = threshold(Predictions.from_confidences(np.linspace(0.6, 0.99, 500), np.ones(500)))
    assert found.coverage == 1
    assert found.confidence == pytest.approx(0.6)


def test_bad_targets_are_refused(predictions):
    for bad in ({"accuracy": 95}, {"confidence": 1.0}, {"accuracy": 0}):
        with pytest.raises(InputError):
            threshold(predictions, **bad)


def test_no_number_of_rows_can_promise_an_accuracy_of_one():
    perfect = Predictions.from_confidences(np.linspace(0.6, 0.99, 500), np.ones(500))
    for found in (threshold(perfect, accuracy=1.0), output_threshold(perfect, accuracy=1)):
        assert not found.reached
        assert found.coverage == 0
        assert "promise" in found.message
        assert "100%" in found.message
        assert "a mistake may still come" in found.message
        assert "inf" not in found.message
    almost = threshold(perfect, accuracy=0.98)
    assert almost.reached
    with pytest.raises(InputError, match="no number of labels can promise 100% accuracy"):
        to_label(perfect, 100, accuracy=1)
