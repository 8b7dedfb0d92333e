"""Intervals, differences, verdicts and claims."""

from __future__ import annotations

import numpy as np
import pytest

from distilcal.study.analysis import Sample, StudyResults, check_claim, difference, interval, verdict
from distilcal.study.expand import expand


def sample(values, spread, seed, shared=None, n=200):
    rng = np.random.default_rng(seed)
    draws = np.array(values)[:, None] + rng.normal(size=(len(values), 500)) * spread
    return Sample(tuple(range(len(values))), np.array(values), draws if shared is None else draws + shared, n)


def test_the_interval_grows_with_the_spread_over_seeds_and_over_examples():
    calm, seeds, rows = sample([0.2, 0.2, 0.2], 0.001, 0), sample([0.1, 0.2, 0.3], 0.001, 0), sample([0.2, 0.2, 0.2], 0.05, 0)
    widths = [interval(s)[2] - interval(s)[1] for s in (calm, seeds, rows)]
    assert widths[0] < 0.01
    assert widths[1] > 0.1
    assert widths[2] > 0.05
    assert interval(seeds)[0] == pytest.approx(0.2)


def test_differences_are_paired():
    """What is common to two methods, in a seed or in a resample, cancels."""
    common = np.random.default_rng(9).normal(size=500) * 0.1
    base = np.array([0.1, 0.3, 0.5])
    a, b = sample(base + 0.02, 0.001, 1, common), sample(base, 0.001, 2, common)
    value, low, high, p = difference(a, b)
    assert value == pytest.approx(0.02)
    assert 0.015 < low < high < 0.025
    assert p < 0.05
    assert interval(a)[2] - interval(a)[1] > 0.2
    assert difference(a, sample(base, 0.1, 2, n=100)) is None  # other examples
    some = Sample((2, 1), a.values[[2, 1]], a.draws[[2, 1]], 200)
    assert difference(some, b)[0] == pytest.approx(0.02)  # matched by seed, not by position


# One seed knows nothing of the spread between trainings, as the documentation says: there it is 0.
@pytest.mark.parametrize(("seeds", "between"), [(1, 0.0), *((s, b) for s in (2, 3, 5) for b in (0.0, 1.0, 10.0))])
def test_equal_methods_are_rarely_called_different(seeds, between):
    """Differences of rows and of trainings that are nothing but chance: about one in twenty is significant."""
    rng = np.random.default_rng(1)
    called = 0
    for _ in range(400):
        rows = rng.normal()  # the same test rows for every seed
        values = rows + between * rng.normal(size=seeds)
        draws = values[:, None] + rng.normal(size=300)[None] + np.zeros((seeds, 300))
        other = Sample(tuple(range(seeds)), np.zeros(seeds), np.zeros((seeds, 300)), 200)
        called += difference(Sample(tuple(range(seeds)), values, draws, 200), other)[3] < 0.05
    assert called / 400 < (0.09 if seeds != 2 else 0.15)  # of two seeds the spread is hardly known


@pytest.mark.parametrize(
    ("parts", "need", "word"),
    [
        (["holds"] * 4, 0, "holds"),
        (["holds", "undecided"], 0, "undecided"),
        (["holds", "fails"], 0, "fails"),
        (["holds", "holds", "holds", "fails"], 3, "holds"),
        (["holds", "fails", "fails", "undecided"], 3, "fails"),
        (["holds", "fails", "undecided", "undecided"], 3, "undecided"),
    ],
)
def test_verdicts(parts, need, word):
    assert verdict(parts, need)["verdict"] == word


def test_a_claim_that_is_turned_round_turns_its_verdict(finished_study):
    folder, study, outcome, _ = finished_study
    results = StudyResults(study, expand(study), outcome, folder / "store")
    claim = study.claims[0]
    said = check_claim(results, claim)
    other = check_claim(results, claim.replace(higher="", lower="Large"))
    turned = {"holds": "fails", "fails": "holds", "undecided": "undecided"}
    assert turned[said["verdict"]] == other["verdict"]
    assert said["parts"][0]["value"] == other["parts"][0]["value"]
