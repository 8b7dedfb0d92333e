"""Endpoints: means over domains of a model and its control, over rows and runs."""

import numpy as np
import pytest

from distilcal import Predictions
from distilcal.endpoints import compare_endpoints, scale_by_dev
from distilcal.errors import InputError
from distilcal.metrics import METRICS


def model(strength, rows, seed, *, scale=1.0):
    """A two-class model whose logits point the right way by its strength, on rows that depend on their number only."""
    labels = np.random.default_rng(rows).integers(0, 2, rows)
    noise = np.random.default_rng([seed, rows]).normal(size=(rows, 2))
    return Predictions.from_logits(scale * (strength * np.eye(2)[labels] + noise), labels)


def test_the_means_are_those_of_the_metrics_over_splits_and_runs():
    runs = [
        ({"test": model(2, 300, s), "far": model(1, 200, s)}, {"test": model(1, 300, s + 9), "far": model(1, 200, s + 9)})
        for s in (0, 1)
    ]
    for endpoint in compare_endpoints(runs, ["accuracy", "nll", "ece"], resamples=50):
        metric = METRICS[endpoint.metric]
        for values, which in ((endpoint.main, 0), (endpoint.control, 1)):
            expected = np.mean([metric(p.probs, p.labels) for run in runs for p in run[which].values()])
            assert values == pytest.approx(expected)
        assert endpoint.difference == pytest.approx(endpoint.main - endpoint.control)
        assert endpoint.low < endpoint.difference < endpoint.high


def test_better_follows_the_direction_of_the_metric():
    runs = [({"test": model(3, 500, s)}, {"test": model(1, 500, s + 9)}) for s in range(3)]
    assert [endpoint.better for endpoint in compare_endpoints(runs, ["accuracy", "nll"], resamples=100)] == [True, True]
    swapped = [(control, main) for main, control in runs]
    assert [endpoint.better for endpoint in compare_endpoints(swapped, ["accuracy", "nll"], resamples=100)] == [False, False]
    equal = [({"test": model(1, 500, s)}, {"test": model(1, 500, s)}) for s in range(3)]
    assert compare_endpoints(equal, ["accuracy"], resamples=100)[0].better is None


def test_intervals_hold_where_nothing_differs():
    """With new rows and new seeds in every repetition, an interval of 95 % misses a difference of 0 in about 5 %."""
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(200):
        labels = rng.integers(0, 2, 150)
        shared = rng.normal(size=(150, 2))  # both models and all seeds find the same rows hard
        runs = []
        for _ in range(3):
            pair = []
            for _ in range(2):
                logits = 1.5 * np.eye(2)[labels] + shared + 0.7 * rng.normal(size=(150, 2))
                pair.append({"test": Predictions.from_logits(logits, labels)})
            runs.append(tuple(pair))
        [endpoint] = compare_endpoints(runs, ["accuracy"], resamples=60)
        misses += endpoint.better is not None
    assert misses <= 18  # 5 % of 200 and three standard errors


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_intervals_hold_however_many_rows_are_shared(overlap):
    """Seeds draw their rows from a pool; the interval of 95 % misses the true difference of 0 in about 5 %."""
    rng = np.random.default_rng(1)
    rows, misses, draws = 120, 0, 150
    for _ in range(draws):
        pool = 4 * rows
        labels, hard = rng.integers(0, 2, pool), rng.normal(size=(2, pool, 2))
        runs = []
        for number in range(3):
            own = np.arange(rows, 2 * rows) + number * rows if overlap < 1 else np.arange(rows)
            chosen = np.where(rng.random(rows) < overlap, np.arange(rows), own % pool)
            pair = []
            for which in range(2):  # each model has rows that it finds hard with every seed
                logits = 1.5 * np.eye(2)[labels[chosen]] + hard[which][chosen] + 0.5 * rng.normal(size=(rows, 2))
                pair.append({"test": Predictions.from_logits(logits, labels[chosen], ids=chosen.astype(str))})
            runs.append(tuple(pair))
        [endpoint] = compare_endpoints(runs, ["accuracy"], resamples=60)
        misses += endpoint.better is not None
    assert misses <= 0.05 * draws + 3 * np.sqrt(0.05 * 0.95 * draws)


def test_temperatures_are_those_of_dev():
    scaled = scale_by_dev({"dev": model(1, 400, 0, scale=8), "test": model(1, 300, 0, scale=8)})
    assert list(scaled) == ["test"]
    assert METRICS["nll"](scaled["test"].probs, scaled["test"].labels) < 0.8


def test_other_rows_are_refused():
    with pytest.raises(InputError, match="different splits or rows"):
        compare_endpoints([({"test": model(1, 30, 0)}, {"test": model(1, 31, 0)})])
    with pytest.raises(InputError, match="no run"):
        compare_endpoints([])
