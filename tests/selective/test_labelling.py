"""Which rows to label, and the promise that their labels make."""

import numpy as np
import pytest
from scipy import stats

from distilcal import InputError, Predictions
from distilcal.selective import labelled_threshold, threshold, to_label


def pool_of(rng, rows=4000, *, overconfident=1.0):
    """Rows whose accuracy is known: the confidence, less if the classifier is overconfident."""
    accuracy = 1 - 0.5 * rng.beta(0.8, 1.5, rows)
    confidence = 1 - (1 - accuracy) / overconfident
    right = rng.random(rows) < accuracy
    pool = Predictions.from_probs(np.column_stack([confidence, 1 - confidence]), ids=[f"row{i}" for i in range(rows)])
    return pool, np.where(right, 0, 1), accuracy


def test_rows_are_drawn_from_the_most_confident():
    pool, labels, _ = pool_of(np.random.default_rng(0))
    plan = to_label(pool, 300, accuracy=0.9, seed=3)
    assert len(set(plan.rows.tolist())) == 300
    assert (pool.confidence[plan.rows] >= plan.confidence).all()
    assert plan.coverage == pytest.approx((pool.confidence >= plan.confidence).mean())
    assert plan.expected_accuracy == pytest.approx(pool.confidence[pool.confidence >= plan.confidence].mean())
    assert (plan.sample.ids == pool.ids[plan.rows]).all()
    assert not plan.sample.is_labelled.any()
    assert (to_label(pool, 300, accuracy=0.9, seed=3).rows == plan.rows).all()
    assert (to_label(pool, 300, accuracy=0.9, seed=4).rows != plan.rows).any()
    labelled = Predictions.from_probs(pool.probs, labels)
    assert (to_label(labelled, 300, accuracy=0.9, seed=3).rows == plan.rows).all()
    assert f"most confident {plan.coverage:.1%}" in plan.message


def test_the_slice_should_pass_and_the_next_row_should_not():
    pool, _, _ = pool_of(np.random.default_rng(0))
    plan = to_label(pool, 300, accuracy=0.9)
    size = round(plan.coverage * len(pool))
    ordered = np.sort(pool.confidence)[::-1]

    def success(labels, rows):
        needed = next(k for k in range(labels + 2) if stats.binom.sf(k - 1, labels, 0.9) <= 0.05)
        return stats.binom.sf(needed - 1, labels, ordered[:rows].mean())

    assert success(300, size) >= 0.3 > success(300, size + 1)
    assert plan.start < 300
    assert success(plan.start, int(np.ceil(plan.start * size / 300))) > 0.5


def test_a_slice_that_passes_is_accepted_as_a_whole():
    pool, labels, _ = pool_of(np.random.default_rng(1))
    plan = to_label(pool, 400, accuracy=0.9)
    found = labelled_threshold(plan, np.zeros(400, dtype=int))
    assert found.confidence == plan.confidence
    assert found.coverage == pytest.approx(plan.coverage)
    assert found.guaranteed == pytest.approx(0.05 ** (1 / 400))
    named = labelled_threshold(plan, [pool.classes[k] for k in labels[plan.rows]])
    assert named == labelled_threshold(plan, labels[plan.rows])


def test_a_slice_that_fails_leaves_a_smaller_part():
    """Overconfident by far: the whole slice fails, but its most confident part can still be accepted."""
    rng = np.random.default_rng(2)
    pool, labels, _ = pool_of(rng, 6000, overconfident=3.0)
    plan = to_label(pool, 600, accuracy=0.85)
    found = labelled_threshold(plan, labels[plan.rows])
    assert found.reached
    assert plan.confidence < found.confidence
    assert found.coverage == pytest.approx((pool.confidence >= found.confidence).mean())
    kept = plan.sample.confidence >= found.confidence
    assert found.accuracy == pytest.approx((labels[plan.rows] == 0)[kept].mean())
    nothing = labelled_threshold(plan, np.ones(600, dtype=int))
    assert (nothing.reached, nothing.coverage) == (False, 0)
    assert f"0 of the most confident {plan.start} are right" in nothing.message


def test_more_is_accepted_than_with_labels_drawn_from_all_rows():
    rng = np.random.default_rng(3)
    pool, labels, _ = pool_of(rng, 8000)
    drawn = rng.permutation(8000)[:300]
    plain = threshold(Predictions.from_probs(pool.probs[drawn], labels[drawn]), accuracy=0.9)
    plan = to_label(pool, 300, accuracy=0.9)
    assert labelled_threshold(plan, labels[plan.rows]).coverage > 1.5 * plain.coverage


def count_broken(draws, labels_to_give, accuracy, overconfident):
    rng = np.random.default_rng(labels_to_give)
    broken = 0
    for seed in range(draws):
        pool, labels, true_accuracy = pool_of(rng, 3000, overconfident=overconfident)
        plan = to_label(pool, labels_to_give, accuracy=accuracy, seed=seed)
        found = labelled_threshold(plan, labels[plan.rows])
        if found.confidence is not None:
            broken += true_accuracy[pool.confidence >= found.confidence].mean() < accuracy
    return broken


def test_the_promise_holds():
    assert stats.binomtest(count_broken(60, 200, 0.88, 1.3), 60, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("overconfident", [1.0, 1.15, 1.3, 2.0])
@pytest.mark.parametrize("labels", [100, 400])
def test_the_promise_holds_in_many_draws(labels, overconfident):
    broken = count_broken(800, labels, 0.85, overconfident)
    assert stats.binomtest(broken, 800, 0.05, alternative="greater").pvalue > 0.01


def test_equal_confidences_are_one_slice():
    pool = Predictions.from_probs(np.tile([0.9, 0.1], (500, 1)))
    plan = to_label(pool, 100, accuracy=0.85)
    assert plan.coverage == 1
    assert labelled_threshold(plan, np.zeros(100, dtype=int)).coverage == 1
    assert not labelled_threshold(plan, np.arange(100) % 2).reached


def test_what_cannot_work_is_refused_before_anything_is_labelled():
    pool, _, _ = pool_of(np.random.default_rng(0), 100)
    with pytest.raises(InputError, match="58 labels cannot promise 95%") as caught:
        to_label(pool, 58, accuracy=0.95)
    assert "at least 59 rows" in str(caught.value)
    with pytest.raises(InputError, match="only 100 rows"):
        to_label(pool, 101)
    with pytest.raises(InputError, match="accuracy 2 "):
        to_label(pool, 10, accuracy=2)
    plan = to_label(pool, 80, accuracy=0.9)
    with pytest.raises(InputError, match="1 of the 80 rows"):
        labelled_threshold(plan, [-1] + [0] * 79)
    with pytest.raises(InputError, match="79 labels for 80 rows"):
        labelled_threshold(plan, [0] * 79)
