"""Promises about the pair of a student and a teacher: exact tests, searches that cost nothing, and what simulation says."""

import functools
import json

import numpy as np
import pytest
from samples import make, make_tied
from scipy import stats

from distilcal import InputError, Predictions
from distilcal.selective import CascadeThreshold, PromiseCheck, check_promise, loss_threshold, output_threshold, threshold
from distilcal.selective.bounds import loss_p_value, paired_score


def pair_of(confidence, right, teacher_right, **names):
    student = Predictions.from_confidences(confidence, right, **names)
    return student, Predictions.from_confidences(np.full(len(right), 0.9), teacher_right, **names)


def draw_pair(rng, rows, *, lost=0.4, gained=0.2):
    """A calibrated student whose teacher corrects a share of its mistakes and spoils some right answers."""
    confidence = 1 - 0.5 * rng.beta(0.6, 2.0, rows)
    right = rng.random(rows) < confidence
    corrected = rng.random(rows) < np.where(right, 1 - gained * (1 - confidence), lost)
    return confidence, right, corrected


def true_rates(*, lost=0.4, gained=0.2):
    """Confidences of many rows, falling, with the output's error and the loss if all down to each are kept."""
    confidence = np.sort(1 - 0.5 * np.random.default_rng(123).beta(0.6, 2.0, 400_000))[::-1]
    error = 1 - confidence
    return confidence, np.cumsum(error) / len(error), np.cumsum(lost * error - gained * error * confidence) / len(error)


# ---- the whole output --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [make(400, 3, scale=4), make_tied(300), make(1500, 4)], ids=repr)
def test_output_threshold_is_the_lowest_that_passes_the_exact_test(p):
    found = output_threshold(p, accuracy=0.8, confidence=0.9)
    passing = []
    for score in np.unique(p.confidence):
        wrong = int((~p.correct & (p.confidence >= score)).sum())
        if stats.binomtest(wrong, len(p), 0.2, alternative="less").pvalue <= 0.1:
            passing.append(score)
    assert found.confidence == (min(passing) if passing else None)
    if found.reached:
        kept = p.confidence >= found.confidence
        wrong = int((kept & ~p.correct).sum())
        assert (found.coverage, found.handed_over) == pytest.approx((kept.mean(), 1 - kept.mean()))
        assert found.value == pytest.approx(1 - wrong / len(p))
        bound = stats.binomtest(wrong, len(p)).proportion_ci(0.8, "exact").high
        assert found.guaranteed == pytest.approx(1 - bound)
        assert found.guaranteed >= 0.8


def test_passing_is_nested():
    """A lower threshold passes only if every higher one does, so the search needs no correction."""
    p = make(700, 3, scale=3)
    wrong = np.cumsum(~p.correct[np.argsort(-p.confidence)])
    passes = stats.binom.cdf(wrong, 700, 0.1) <= 0.05
    assert not (np.diff(passes.astype(int)) > 0).any()
    assert output_threshold(p, accuracy=0.9).coverage == pytest.approx(passes.sum() / 700)


def count_broken_outputs(draws, rows, accuracy):
    confidence, error, _ = true_rates()
    rng = np.random.default_rng(rows)
    broken = 0
    for _ in range(draws):
        scores, right, _ = draw_pair(rng, rows)
        found = output_threshold(Predictions.from_confidences(scores, right), accuracy=accuracy)
        if found.confidence is not None:
            kept = np.searchsorted(-confidence, -found.confidence, side="right")
            broken += bool(kept) and error[kept - 1] > 1 - accuracy
    return broken


def test_the_promise_about_the_output_holds():
    assert stats.binomtest(count_broken_outputs(200, 500, 0.93), 200, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 300, 1000, 5000])
@pytest.mark.parametrize("accuracy", [0.9, 0.93])
def test_the_promise_about_the_output_holds_in_many_draws(rows, accuracy):
    assert stats.binomtest(count_broken_outputs(1500, rows, accuracy), 1500, 0.05, alternative="greater").pvalue > 0.01


# ---- the loss to the teacher -------------------------------------------------------------------------------------------


def test_the_p_value_is_near_that_of_losses_alone_where_nothing_is_gained():
    for rows, losses in ((1000, 0), (1000, 1), (3000, 7)):
        of_losses = stats.binom.cdf(losses, rows, 0.005)
        assert of_losses <= loss_p_value(losses, 0, rows, 0.005, nuisance_error=of_losses / 100) <= 1.75 * of_losses


@pytest.mark.parametrize("rows", [40, 200, 1500])
def test_the_p_value_is_valid_at_every_rate_of_gains(rows):
    """P(p ≤ level) ≤ level if the loss is exactly the one that is excluded, summed over all counts that can happen."""
    margin = 0.05 if rows < 1000 else 0.005
    for gain_rate in (0.0, 0.003, 0.02, 0.1):
        rates = [gain_rate + margin, gain_rate, 1 - 2 * gain_rate - margin]
        counts = np.random.default_rng(0).multinomial(rows, rates, size=3000)
        pairs, repeats = np.unique(counts[:, :2], axis=0, return_counts=True)
        p_values = np.array([loss_p_value(int(b), int(c), rows, margin, nuisance_error=0.0005) for b, c in pairs])
        rejected = int(repeats[p_values <= 0.05].sum())
        assert stats.binomtest(rejected, 3000, 0.05, alternative="greater").pvalue > 0.005


@pytest.mark.parametrize("margin", [0.1, 0.2, 0.6, 0.7])
def test_the_p_value_of_few_rows_sums_every_count_that_can_happen(margin):
    """With few rows the rate of gains may be so high that every row is a loss or a gain."""
    rows, losses, gains = 10, 0, 1
    counts = [(b, c) for c in range(rows + 1) for b in range(rows + 1 - c)]
    score = paired_score(np.array([1.0]), np.array([0.0]), rows, -margin)
    scores = paired_score(np.array([float(c) for _, c in counts]), np.array([float(b) for b, _ in counts]), rows, -margin)
    extreme = [count for count, own in zip(counts, scores, strict=True) if own >= score - 1e-9]
    high = min(stats.beta.ppf(1 - 0.0005 / 2, gains + 1, rows - gains), (1 - margin) / 2)
    low = min(stats.beta.ppf(0.0005 / 2, gains, rows - gains + 1), high)
    rates = np.linspace(low, high, 200)
    at_rate = [
        sum(stats.multinomial.pmf([b, c, rows - b - c], rows, [q + margin, q, max(1 - 2 * q - margin, 0)]) for b, c in extreme)
        for q in rates
    ]
    assert loss_p_value(losses, gains, rows, margin, nuisance_error=0.0005) == pytest.approx(max(at_rate) + 0.0005, rel=0.02)


def test_the_p_value_falls_with_gains_and_rises_with_losses():
    grid = np.array([[loss_p_value(b, c, 900, 0.01, nuisance_error=0.0005) for b in range(12)] for c in range(14)])
    assert (np.diff(grid, axis=1) >= -1e-12).all()
    assert (np.diff(grid, axis=0) <= 1e-12).all()


def test_a_loss_that_no_number_of_rows_could_promise():
    rows = Predictions.from_confidences(np.full(50, 0.9), np.ones(50))
    assert "even without a loss that takes inf rows" in loss_threshold(rows, rows, max_loss=1e-310).message


def test_loss_threshold_stops_at_the_first_failure():
    rng = np.random.default_rng(3)
    student, teacher = pair_of(*draw_pair(rng, 1500))
    found = loss_threshold(student, teacher, max_loss=0.01)
    order = np.argsort(-student.confidence)
    losses = np.cumsum((teacher.correct & ~student.correct)[order])
    gains = np.cumsum((student.correct & ~teacher.correct)[order])
    p_value = functools.cache(loss_p_value)  # most rows are neither a loss nor a gain, so counts stay for a while
    passes = [p_value(int(b), int(c), 1500, 0.01, nuisance_error=0.0005) <= 0.05 for b, c in zip(losses, gains, strict=True)]
    first = passes.index(False)
    assert found.coverage == pytest.approx(first / 1500)
    assert found.value == pytest.approx((losses[first - 1] - gains[first - 1]) / 1500)
    assert found.value < found.guaranteed <= 0.01


def test_rows_of_equal_confidence_stay_together():
    student, teacher = pair_of(np.repeat([0.9, 0.8], 1000), np.ones(2000), np.ones(2000))
    assert loss_threshold(student, teacher).coverage == 1
    right = np.ones(2000)
    right[1000:] = 0
    student, teacher = pair_of(np.repeat([0.9, 0.8], 1000), right, np.ones(2000))
    assert (loss_threshold(student, teacher).coverage, loss_threshold(student, teacher).confidence) == (0.5, 0.9)
    student, teacher = pair_of(np.full(2000, 0.9), right, np.ones(2000))
    for found in (loss_threshold(student, teacher), output_threshold(student)):
        assert not found.reached
        assert "most confident 2,000" in found.message


def test_a_teacher_that_is_worse_leaves_everything_to_the_student():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 1, 900)
    student, teacher = pair_of(confidence, rng.random(900) < 0.95, rng.random(900) < 0.6)
    found = loss_threshold(student, teacher)
    assert found.coverage == 1
    assert found.value < 0
    assert "+" in found.message


@pytest.fixture
def each_p_value_once(monkeypatch):
    """Many draws give the same counts of losses and gains, and a p-value depends on nothing else."""
    monkeypatch.setattr("distilcal.selective.promises.loss_p_value", functools.cache(loss_p_value))


def count_broken_losses(draws, rows, max_loss, **pair):
    confidence, _, loss = true_rates(**pair)
    rng = np.random.default_rng(rows)
    broken = 0
    for _ in range(draws):
        found = loss_threshold(*pair_of(*draw_pair(rng, rows, **pair)), max_loss=max_loss)
        if found.confidence is not None:
            kept = np.searchsorted(-confidence, -found.confidence, side="right")
            broken += bool(kept) and loss[kept - 1] > max_loss
    return broken


@pytest.mark.usefixtures("each_p_value_once")
def test_the_promise_about_the_loss_holds():
    assert stats.binomtest(count_broken_losses(60, 800, 0.01), 60, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("each_p_value_once")
@pytest.mark.parametrize(("rows", "max_loss"), [(100, 0.03), (300, 0.02), (1000, 0.005), (2000, 0.01), (5000, 0.005)])
@pytest.mark.parametrize("pair", [{"lost": 0.4, "gained": 0.2}, {"lost": 0.7, "gained": 0.0}, {"lost": 0.5, "gained": 0.4}])
def test_the_promise_about_the_loss_holds_in_many_draws(rows, max_loss, pair):
    assert stats.binomtest(count_broken_losses(300, rows, max_loss, **pair), 300, 0.05, alternative="greater").pvalue > 0.01


# ---- both --------------------------------------------------------------------------------------------------------------


def test_too_few_rows_are_refused_with_the_number_it_takes():
    student, teacher = pair_of(np.linspace(0.6, 0.9, 50), np.ones(50), np.ones(50), name="dev")
    for found, rows in ((output_threshold(student), "59 rows"), (loss_threshold(student, teacher), "600 rows")):
        assert (found.confidence, found.coverage, found.handed_over) == (None, 0, 1)
        assert rows in found.message
        assert "50 rows of dev" in found.message
    for rows in (59, 58):
        assert output_threshold(Predictions.from_confidences(np.full(rows, 0.9), np.ones(rows))).reached == (rows == 59)


def test_promises_are_checked_where_they_were_not_chosen():
    rng = np.random.default_rng(5)
    dev, dev_teacher = pair_of(*draw_pair(rng, 3000), name="dev")
    test, test_teacher = pair_of(*draw_pair(rng, 3000), name="test")
    confidence = rng.uniform(0.9, 1.0, 3000)  # shifted: sure of itself and wrong
    away, away_teacher = pair_of(confidence, rng.random(3000) < 0.7, rng.random(3000) < 0.9, name="tweets")
    limits = [threshold(dev, 0.95), output_threshold(dev, 0.95), loss_threshold(dev, dev_teacher, 0.01)]
    for limit in limits:
        there = check_promise(limit, away, away_teacher)
        assert there.broken
        assert not there.held
        assert there.message.startswith("tweets: ")
        assert there.message.endswith("is broken")
        home = check_promise(limit, test, test_teacher)
        assert not home.broken
        assert home.low <= home.value <= home.high
    kept = test.confidence >= limits[2].confidence
    pair_accuracy = np.where(kept, test.correct, test_teacher.correct).mean()
    assert check_promise(limits[2], test, test_teacher).value == pytest.approx(test_teacher.correct.mean() - pair_accuracy)
    kept = test.confidence >= limits[1].confidence
    assert check_promise(limits[1], test).value == pytest.approx((test.correct | ~kept).mean())


def test_a_promise_of_nothing_keeps_no_row_and_holds():
    student, teacher = pair_of(np.linspace(0.6, 0.9, 50), np.ones(50), np.ones(50), name="dev")
    check = check_promise(loss_threshold(student, teacher), student, teacher)
    assert (check.coverage, check.held, check.broken) == (0, True, False)
    assert "keeps no row" in check.message
    assert repr(PromiseCheck.from_dict(json.loads(json.dumps(check.to_dict(), allow_nan=False)))) == repr(check)


def test_a_value_short_of_its_target_may_be_chance():
    student = Predictions.from_confidences(np.full(100, 0.9), np.arange(100) < 94)
    limit = threshold(Predictions.from_confidences(np.full(500, 0.9), np.ones(500)), 0.95)
    check = check_promise(limit, student)
    assert (check.held, check.broken) == (False, False)
    assert "within chance" in check.message


def test_thresholds_are_stored_and_read_back():
    rng = np.random.default_rng(5)
    student, teacher = pair_of(*draw_pair(rng, 900))
    for limit in (output_threshold(student), output_threshold(student.select([0])), loss_threshold(student, teacher)):
        text = json.dumps(limit.to_dict(), allow_nan=False)
        assert repr(CascadeThreshold.from_dict(json.loads(text))) == repr(limit)


def test_impossible_targets_are_refused():
    student, teacher = pair_of(np.linspace(0.6, 0.9, 50), np.ones(50), np.ones(50))
    with pytest.raises(InputError, match="accuracy 95"):
        output_threshold(student, accuracy=95)
    with pytest.raises(InputError, match="max_loss 0 "):
        loss_threshold(student, teacher, max_loss=0)
