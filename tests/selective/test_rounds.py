"""Rows labelled in rounds, and the promise that their labels make."""

import numpy as np
import pytest
from scipy import stats

from distilcal import InputError, Predictions
from distilcal.selective import label_rounds, next_rows, rounds_threshold, stopping_bounds, threshold


def pool_of(rng, rows=3000, *, overconfident=1.0):
    """Rows and their labels; the accuracy is the confidence, or less if the classifier is overconfident."""
    accuracy = 1 - 0.5 * rng.beta(0.8, 1.5, rows)
    confidence = 1 - (1 - accuracy) / overconfident
    pool = Predictions.from_probs(np.column_stack([confidence, 1 - confidence]))
    return pool, np.where(rng.random(rows) < accuracy, 0, 1)


def ask_all(plan, truth, n=10):
    labels = {}
    while len(rows := next_rows(plan, labels, n)):
        labels |= {row: truth[row] for row in rows.tolist()}
    return labels


def first_of(plan, position, count, truth):
    """Labels of the first rows of a slice's order."""
    return {row: truth[row] for row in plan.order[position, :count].tolist()}


# ---- the bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "accuracy", "error"), [(60, 0.8, 0.05), (400, 0.9, 0.05), (5000, 0.95, 0.1)])
def test_a_slice_with_just_too_many_mistakes_passes_with_at_most_the_error_probability(size, accuracy, error):
    looks = np.arange(1, min(size, 200) + 1)
    bounds = stopping_bounds((size,), tuple(looks.tolist()), accuracy, error)[0]
    assert (np.diff(bounds) >= 0).all()
    wrong_rows = int((1 - accuracy) * size + 1e-9) + 1
    rng = np.random.default_rng(size)
    passed = 0
    for _ in range(3000):
        drawn = rng.permutation(size)[: looks[-1]] < wrong_rows
        passed += (np.cumsum(drawn) <= bounds).any()
    assert stats.binomtest(passed, 3000, error, alternative="greater").pvalue > 0.01
    assert passed / 3000 > 0.75 * error  # exact, not merely safe


def test_a_single_look_is_the_exact_test():
    for size in (300, 4000):
        wrong_rows = size // 10 + 1
        chances = stats.hypergeom.cdf(np.arange(40), size, wrong_rows, 200)
        assert stopping_bounds((size,), (200,), 0.9, 0.05).tolist() == [[int((chances <= 0.05).sum()) - 1]]


def test_more_looks_cost_something():
    seldom, often = (stopping_bounds((4000,), looks, 0.9, 0.05)[0, -1] for looks in ((400,), tuple(range(1, 401))))
    assert often < seldom


def test_no_slice_passes_with_more_labels_than_rows():
    assert stopping_bounds((50,), (40, 50, 60), 0.9, 0.05).tolist()[0][2] == -1
    assert stopping_bounds((50,), (40, 50, 60), 0.9, 0.05).tolist()[0][1] == 5  # all labels known: 45 of 50 are right


# ---- slices and rounds -------------------------------------------------------------------------------------------------


def test_slices_are_nested_and_keep_equal_confidences_together():
    rng = np.random.default_rng(0)
    scores = np.round(rng.uniform(0.5, 1, 2000), 2)
    pool = Predictions.from_probs(np.column_stack([scores, 1 - scores]))
    plan = label_rounds(pool, 300, accuracy=0.9, seed=3)
    assert plan.sizes[-1] == 2000
    assert (np.diff(plan.sizes) > 0).all()
    for size, limit, order in zip(plan.sizes, plan.confidences, plan.order, strict=True):
        assert (pool.confidence >= limit).sum() == size
        rows = order[order >= 0]
        assert len(rows) == min(size, 300) == len(set(rows.tolist()))
        assert (pool.confidence[rows] >= limit).all()
    assert (label_rounds(pool, 300, accuracy=0.9, seed=3).order == plan.order).all()
    assert (label_rounds(pool, 300, accuracy=0.9, seed=4).order != plan.order).any()


def test_labels_of_a_slice_count_for_the_next():
    """The order of a slice is that of the next without the rows that only the next has."""
    pool, _ = pool_of(np.random.default_rng(0))
    plan = label_rounds(pool, 200, accuracy=0.9)
    for smaller, larger, limit in zip(plan.order[:-1], plan.order[1:], plan.confidences[:-1], strict=True):
        shared = larger[pool.confidence[larger] >= limit]
        assert (smaller[: len(shared)] == shared).all()


def test_rounds_go_to_the_first_slice_that_has_not_passed():
    pool, _ = pool_of(np.random.default_rng(1))
    plan = label_rounds(pool, 300, accuracy=0.9)
    right = np.zeros(len(pool), dtype=int)
    needed = int(plan.looks[np.flatnonzero(plan.most_wrong[0] >= 0)[0]])
    assert next_rows(plan, {}, needed).tolist() == plan.order[0, :needed].tolist()
    assert not rounds_threshold(plan, first_of(plan, 0, needed - 1, right)).reached
    passed = first_of(plan, 0, needed, right)
    assert rounds_threshold(plan, passed).confidence == plan.confidences[0]
    following = next_rows(plan, passed, 5)
    assert set(following.tolist()) <= set(plan.order[1].tolist()) - set(passed)


def test_no_label_is_asked_for_twice_or_in_vain():
    pool, truth = pool_of(np.random.default_rng(2))
    plan = label_rounds(pool, 250, accuracy=0.9)
    labels = {}
    while len(rows := next_rows(plan, labels, 7)):
        assert len(rows) <= 7
        assert not set(rows.tolist()) & set(labels)
        labels |= {row: truth[row] for row in rows.tolist()}
    assert len(labels) <= 250
    # A first slice full of mistakes cannot pass any more, and the other labels are spared.
    assert len(ask_all(plan, np.ones(len(pool), dtype=int))) < 100
    assert len(next_rows(plan, dict.fromkeys(range(len(pool)), 0))) == 0


def test_the_threshold_is_the_last_slice_before_the_first_that_fails():
    pool, truth = pool_of(np.random.default_rng(4))
    plan = label_rounds(pool, 400, accuracy=0.85)
    labels = ask_all(plan, truth)
    passed = 0
    for order, most_wrong in zip(plan.order, plan.most_wrong, strict=True):
        known = [row in labels for row in order.tolist()]
        usable = known.index(False) if False in known else len(known)
        wrong = np.cumsum(truth[order[:usable]])
        if not any(look <= usable and wrong[look - 1] <= most for look, most in zip(plan.looks, most_wrong, strict=True)):
            break
        passed += 1
    found = rounds_threshold(plan, labels)
    assert 0 < passed < len(plan.sizes)
    assert found.confidence == plan.confidences[passed - 1]
    assert found.coverage == plan.sizes[passed - 1] / len(pool) == pytest.approx((pool.confidence >= found.confidence).mean())
    assert found.guaranteed == 0.85 < found.accuracy < 1
    assert f"{found.coverage:.1%}" in found.message


def test_class_names_and_labels_of_other_rows_are_welcome():
    pool, truth = pool_of(np.random.default_rng(5))
    plan = label_rounds(pool, 300, accuracy=0.9)
    labels = ask_all(plan, truth)
    found = rounds_threshold(plan, labels)
    assert rounds_threshold(plan, {row: pool.classes[label] for row, label in labels.items()}) == found
    others = np.flatnonzero(pool.confidence < plan.confidences[5])[:50]  # in no slice before the sixth
    assert rounds_threshold(plan, labels | {int(row): 1 for row in others}).coverage <= found.coverage


# ---- the promise -------------------------------------------------------------------------------------------------------


def count_broken(draws, budget, accuracy, overconfident, n=10):
    """Draws in which fewer of the accepted rows are right than was promised, and the mean share that is accepted."""
    rng = np.random.default_rng(budget)
    pool, truth = pool_of(rng, overconfident=overconfident)  # one pool: what is promised is about its rows
    broken, coverages = 0, []
    for seed in range(draws):
        plan = label_rounds(pool, budget, accuracy=accuracy, seed=seed)
        found = rounds_threshold(plan, ask_all(plan, truth, n))
        coverages.append(found.coverage)
        if found.confidence is not None:
            broken += (truth[pool.confidence >= found.confidence] == 0).mean() < accuracy
    return broken, np.mean(coverages)


def test_the_promise_holds():
    broken, coverage = count_broken(40, 200, 0.85, 1.3, n=40)
    assert stats.binomtest(broken, 40, 0.05, alternative="greater").pvalue > 0.01
    assert coverage > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("overconfident", [1.0, 1.3, 2.0])
@pytest.mark.parametrize("budget", [100, 400])
def test_the_promise_holds_in_many_draws(budget, overconfident):
    broken, _ = count_broken(400, budget, 0.8, overconfident)
    assert stats.binomtest(broken, 400, 0.05, alternative="greater").pvalue > 0.01


def hopeless_pool(rows=3000):
    """No slice has the accuracy of 0.9: just too many rows are wrong, evenly spread over all confidences."""
    truth = np.zeros(rows, dtype=int)
    truth[::9] = 1
    scores = np.linspace(0.999, 0.6, rows)
    return Predictions.from_probs(np.column_stack([scores, 1 - scores])), truth


@pytest.mark.slow
def test_where_nothing_may_be_accepted_the_promise_breaks_no_more_often_than_it_says():
    pool, truth = hopeless_pool()
    accepted = sum(
        rounds_threshold(plan, ask_all(plan, truth)).reached
        for plan in (label_rounds(pool, 300, accuracy=0.9, seed=seed) for seed in range(500))
    )
    assert stats.binomtest(accepted, 500, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.slow
def test_labels_chosen_in_rounds_are_no_random_sample():
    """They are denser where confidence is high and were looked at before, so the test of a random sample promises too much."""
    rng = np.random.default_rng(0)
    scores = np.linspace(0.999, 0.6, 3000)
    truth = (rng.random(3000) > np.where(np.arange(3000) < 500, 0.99, 0.84)).astype(int)
    pool = Predictions.from_probs(np.column_stack([scores, 1 - scores]))
    broken_from = (
        int(np.argmax(np.cumsum(truth)[500:] > 0.1 * np.arange(501, 3001))) + 501
    )  # the fewest rows with too many wrong
    naive = ours = 0
    for seed in range(60):
        plan = label_rounds(pool, 400, accuracy=0.9, seed=seed)
        labels, furthest = {}, 0
        while len(rows := next_rows(plan, labels)):
            labels |= {row: truth[row] for row in rows.tolist()}
            labelled = np.array(list(labels))  # rows are in the order of their confidence
            inside = labelled < plan.sizes[:, None]
            chances = stats.binom.cdf((inside * truth[labelled]).sum(axis=1), inside.sum(axis=1), 0.1)
            passed = int(np.argmax(np.append(chances, 1) > 0.05))
            furthest = max(furthest, plan.sizes[passed - 1] if passed else 0)
        naive += furthest >= broken_from
        ours += rounds_threshold(plan, labels).coverage * 3000 >= broken_from
    assert stats.binomtest(int(naive), 60, 0.05, alternative="greater").pvalue < 1e-4
    assert stats.binomtest(int(ours), 60, 0.05, alternative="greater").pvalue > 0.01


def test_more_is_accepted_than_with_labels_drawn_from_all_rows():
    rng = np.random.default_rng(3)
    pool, truth = pool_of(rng, 8000)
    drawn = rng.permutation(8000)[:300]
    plain = threshold(Predictions.from_probs(pool.probs[drawn], truth[drawn]), accuracy=0.9)
    plan = label_rounds(pool, 300, accuracy=0.9)
    assert rounds_threshold(plan, ask_all(plan, truth)).coverage > 1.2 * plain.coverage


def test_what_cannot_work_is_refused_before_anything_is_labelled():
    pool, _ = pool_of(np.random.default_rng(0), 100)
    with pytest.raises(InputError, match="58 labels cannot promise 95%") as caught:
        label_rounds(pool, 58, accuracy=0.95)
    assert "at least 59 rows" in str(caught.value)
    with pytest.raises(InputError, match="only 100 rows"):
        label_rounds(pool, 101)
    with pytest.raises(InputError, match="accuracy 2 "):
        label_rounds(pool, 10, accuracy=2)
    plan = label_rounds(pool, 80, accuracy=0.9)
    for call in (next_rows, rounds_threshold):
        with pytest.raises(InputError, match="1 of the 2 rows"):
            call(plan, {3: -1, 5: 0})
        for row in (-1, 100):
            with pytest.raises(InputError, match=f"label for row {row}"):
                call(plan, {row: 0, 5: 0})
    with pytest.raises(InputError, match="cannot have 0 rows"):
        next_rows(plan, {}, 0)


@pytest.mark.parametrize("scores", [np.full(500, 0.9), np.full(500, 0.51), np.ones(500)])
def test_equal_confidences_are_one_slice(scores):
    pool = Predictions.from_probs(np.column_stack([scores, 1 - scores]))
    plan = label_rounds(pool, 100, accuracy=0.85)
    assert plan.sizes.tolist() == [500]
    assert rounds_threshold(plan, ask_all(plan, np.zeros(500, dtype=int))).coverage == 1
    nothing = rounds_threshold(plan, ask_all(plan, np.arange(500) % 2))
    assert (nothing.reached, nothing.coverage, nothing.to_human) == (False, 0, 1)
