"""Intervals, p-values and verdicts of differences: properties, and how often they err when nothing but chance is there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from distilcal.metrics import holm
from distilcal.study.inference import (
    FAILS,
    HOLDS,
    NO_EFFECT,
    NOT_MET,
    UNDECIDED,
    Estimate,
    Sample,
    combine_comparisons,
    combine_controls,
    corrected_intervals,
    decide,
    estimate_each,
    holm_factors,
    moderated_variances,
    paired_difference,
)

values = st.floats(-1, 1)
variances = st.floats(1e-8, 1.0)
estimates = st.builds(Estimate, values, variances, variances, st.floats(1, 50))
several = st.lists(estimates, min_size=1, max_size=6)
deltas = st.one_of(st.none(), st.floats(1e-3, 2.0))


def sample(values, spread, seed, shared=None, n=200):
    rng = np.random.default_rng(seed)
    draws = np.array(values)[:, None] + rng.normal(size=(len(values), 500)) * spread
    return Sample(tuple(range(len(values))), np.array(values), draws if shared is None else draws + shared, n)


# ---- verdicts ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(several, deltas, st.booleans())
def test_a_verdict_never_contradicts_its_interval(some, delta, expects_higher):
    corrected = holm([estimate.p_value() for estimate in some])
    for estimate, (low, high), p in zip(some, corrected_intervals(some, delta), corrected, strict=True):
        verdict = decide((low, high), expects_higher=expects_higher, delta=delta)
        assert low <= estimate.value <= high
        if verdict in (HOLDS, FAILS):
            assert low > 0 or high < 0
            assert (verdict == HOLDS) == ((estimate.value > 0) == expects_higher)
            assert p < 0.05 + 1e-6
            assert delta is None or not (-delta < low and high < delta)
        elif verdict == NO_EFFECT:
            assert -delta < low <= high < delta
            assert estimate.equivalence_p_value(delta) < 0.05
        else:
            assert verdict == UNDECIDED
            assert low <= 0 <= high
            assert delta is None or low <= -delta or high >= delta


@settings(deadline=None, max_examples=40)
@given(several, deltas)
def test_a_claim_that_is_turned_round_turns_its_verdicts(some, delta):
    turned = {HOLDS: FAILS, FAILS: HOLDS}
    for ends in corrected_intervals(some, delta):
        verdict = decide(ends, expects_higher=True, delta=delta)
        assert decide(ends, expects_higher=False, delta=delta) == turned.get(verdict, verdict)
        mirrored = (-ends[1], -ends[0])
        assert decide(mirrored, expects_higher=False, delta=delta) == verdict
        assert decide(ends, expects_higher=True, delta=delta, unmet=["a premise"]) == NOT_MET
    assert decide(None, expects_higher=True, delta=delta) == UNDECIDED


@settings(deadline=None, max_examples=60)
@given(estimates, st.floats(1e-6, 0.999))
def test_the_p_value_is_the_level_at_which_the_interval_ends_at_zero(estimate, alpha):
    low, high = estimate.interval(alpha)
    if abs(estimate.half_width(alpha) - abs(estimate.value)) > 1e-9:
        assert (estimate.p_value() < alpha) == (low > 0 or high < 0)


def test_without_seeds_or_rows_it_is_the_normal_and_student_s_test():
    assert Estimate(0.2, 0.01).p_value() == pytest.approx(2 * stats.norm.sf(2.0), rel=1e-6)
    assert Estimate(0.2, 0.0, 0.01, 4).p_value() == pytest.approx(2 * stats.t.sf(2.0, 4), rel=1e-6)
    assert Estimate(-0.2, 0.0, 0.01, 4).interval() == pytest.approx(stats.t.interval(0.95, 4, -0.2, 0.1))
    assert Estimate(0.1, 0.01).equivalence_p_value(0.3) == pytest.approx(stats.norm.sf(2.0), rel=1e-6)
    assert Estimate(0.3, 0.01).equivalence_p_value(0.3) == 1.0
    assert Estimate(0.0, 0.0).p_value() == 1.0
    assert Estimate(0.1, 0.0).p_value() < 1e-20


def test_holm_factors_are_those_of_holm():
    p = [0.01, 0.04, 0.03, 0.005]
    corrected = [factor * value for factor, value in zip(holm_factors(p), p, strict=True)]
    assert corrected == pytest.approx(holm(p))


@pytest.mark.parametrize(
    ("parts", "share", "word", "need"),
    [
        ([HOLDS] * 4, 1, HOLDS, "all of 4"),
        ([HOLDS, UNDECIDED], 1, UNDECIDED, "all of 2"),
        ([HOLDS, FAILS], 1, FAILS, "all of 2"),
        ([HOLDS, HOLDS, HOLDS, FAILS], 3 / 4, HOLDS, "3 of 4"),
        ([HOLDS, FAILS, FAILS, UNDECIDED], 3 / 4, FAILS, "3 of 4"),
        ([HOLDS, FAILS, UNDECIDED, UNDECIDED], 3 / 4, UNDECIDED, "3 of 4"),
        ([NO_EFFECT, UNDECIDED], 1, NO_EFFECT, "all of 2"),
        ([NO_EFFECT, HOLDS], 1, FAILS, "all of 2"),  # it does not hold everywhere
        ([NO_EFFECT, FAILS], 1, FAILS, "all of 2"),
        ([NOT_MET, NOT_MET, HOLDS], 1, NOT_MET, "all of 1"),
        ([NOT_MET, HOLDS, HOLDS], 1, HOLDS, "all of 2"),
        ([HOLDS, HOLDS, UNDECIDED], 11 / 12, UNDECIDED, "all of 3"),  # 11 of 12, of which three are distinct
        ([], 1, UNDECIDED, "all of 0"),
    ],
)
def test_verdicts_on_claims(parts, share, word, need):
    assert combine_comparisons(parts, share) == (word, need)


def test_a_comparison_holds_only_against_all_its_controls():
    assert combine_controls([HOLDS, HOLDS]) == HOLDS
    assert combine_controls([HOLDS, UNDECIDED]) == UNDECIDED
    assert combine_controls([UNDECIDED, NO_EFFECT]) == NO_EFFECT
    assert combine_controls([FAILS, HOLDS]) == FAILS
    assert combine_controls([HOLDS, NOT_MET]) == NOT_MET


# ---- variances ---------------------------------------------------------------------------------------------------------


def test_differences_are_paired():
    """What is common to two methods, in a seed or in a resample, cancels."""
    common = np.random.default_rng(9).normal(size=500) * 0.1
    base = np.array([0.1, 0.3, 0.5])
    a, b = sample(base + 0.02, 0.001, 1, common), sample(base, 0.001, 2, common)
    (estimate,) = estimate_each([paired_difference(a, b)])
    low, high = estimate.interval()
    assert estimate.value == pytest.approx(0.02)
    assert 0.015 < low < high < 0.025
    assert estimate.p_value() < 0.05
    assert paired_difference(a, sample(base, 0.1, 2, n=100)) is None  # other examples
    some = Sample((2, 1), a.values[[2, 1]], a.draws[[2, 1]], 200)
    assert paired_difference(some, b).values.mean() == pytest.approx(0.02)  # matched by seed, not by position
    assert paired_difference(Sample((7,), a.values[:1], a.draws[:1], 200), b) is None
    assert paired_difference(Sample((0,), np.array([np.inf]), a.draws[:1], 200), b) is None


def test_models_with_equal_figures_are_told_apart_by_their_logits():
    draws = np.zeros((2, 5))
    one, same, other = (
        Sample((0, 1), np.array([0.5, 0.7]), draws, 10, models) for models in (("a", "b"), ("a", "b"), ("a", "c"))
    )
    assert one.content == same.content
    assert one.content != other.content
    assert one.of([0]).content == other.of([0]).content  # of seed 0 they are the same model
    third = Sample((0, 1), np.array([0.4, 0.4]), draws, 10, ("d", "e"))
    assert paired_difference(one, third).content == paired_difference(same, third).content
    assert paired_difference(one, third).content != paired_difference(other, third).content


def test_variances_that_are_alike_are_pooled_and_others_are_not():
    rng = np.random.default_rng(0)
    alike = rng.normal(size=(200, 3))
    variance, freedom = moderated_variances(alike)
    assert freedom > 8
    assert variance.std() < 0.4 * alike.var(axis=1, ddof=1).std()
    unlike = alike * np.exp(rng.normal(size=(200, 1)) * 2)
    assert moderated_variances(unlike)[1] < 4
    assert moderated_variances(alike[:1]) == (pytest.approx([alike[0].var(ddof=1)]), 2.0)
    constant = np.vstack([alike[:5], np.zeros((1, 3))])
    assert (moderated_variances(constant)[0] > 0).all()  # what did not vary by accident is not certain


def test_copies_of_one_row_are_no_evidence():
    rng = np.random.default_rng(0)
    scales = np.exp(0.1 * rng.normal(size=(30, 1)))
    copies = rng.normal(size=(1, 3)) * scales
    assert moderated_variances(copies)[1] == pytest.approx(2.0)


def test_seeds_that_differ_are_not_mixed():
    a, b = sample([0.1, 0.2, 0.4], 0.01, 0), sample([0.1, 0.3], 0.01, 1)
    together, alone = estimate_each([a, b]), [estimate_each([a])[0], estimate_each([b])[0]]
    assert together == alone
    assert estimate_each([sample([0.1], 0.01, 0)])[0].seed_variance == 0
    assert math.isinf(estimate_each([sample([0.1], 0.01, 0)])[0].freedom)


# ---- how often they err ------------------------------------------------------------------------------------------------

CORRELATED = ("none", "shared teacher", "groups of sets", "one set")


def noise(rng, rows, seeds, correlated):
    """Differences over seeds of so many comparisons: independent, with a common teacher, or on versions of the same data."""
    own = rng.normal(size=(rows, seeds))
    if correlated == "shared teacher":
        return (own + rng.normal(size=(1, seeds))) / math.sqrt(2)
    if correlated == "groups of sets":
        return math.sqrt(0.3) * own + math.sqrt(0.7) * rng.normal(size=(rows, seeds))[np.arange(rows) // 4]
    if correlated == "one set":
        return math.sqrt(0.1) * own + math.sqrt(0.9) * rng.normal(size=(1, seeds))
    return own


def simulated(rng, rows, seeds, correlated, unlike, of_rows):
    """Differences whose true value is 0; test rows are shared by all comparisons, and their noise is half common."""
    spread = np.exp(unlike / 2 * rng.normal(size=(rows, 1)))
    values = noise(rng, rows, seeds, correlated) * spread
    row_deviation = of_rows / math.sqrt(seeds)
    common = math.sqrt(0.5) * rng.normal() + math.sqrt(0.5) * rng.normal(size=(rows, 1))
    return values + row_deviation * common, row_deviation


def error_rates(seeds, rows, correlated, unlike, of_rows, runs):
    """How often any of the comparisons is called different, and any called equivalent whose difference is exactly δ."""
    rng = np.random.default_rng([seeds, rows, CORRELATED.index(correlated)])
    draws = rng.normal(size=200)
    draws = (draws - draws.mean()) / draws.std()
    different = equivalent = 0
    delta = 4.0
    for _ in range(runs):
        differences, row_deviation = simulated(rng, rows, seeds, correlated, unlike, of_rows)
        samples = [
            Sample(tuple(range(seeds)), values, np.broadcast_to(row_deviation * draws, (seeds, 200)), 500)
            for values in differences
        ]
        alpha = 0.05 / rows  # Holm's first step: nothing else is called different unless this is
        for estimate in (estimates := estimate_each(samples)):
            low, high = estimate.interval(alpha)
            if low > 0 or high < 0:
                different += 1
                break
        for estimate in estimates:  # the same noise about δ, at Holm's first step of the tests of equivalence
            moved = Estimate(estimate.value + delta, estimate.row_variance, estimate.seed_variance, estimate.freedom)
            low, high = moved.interval(2 * alpha)
            if -delta < low and high < delta:
                equivalent += 1
                break
    return different / runs, equivalent / runs


@pytest.mark.slow
@pytest.mark.parametrize("correlated", CORRELATED)
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_family_wise_error_of_a_claim_is_at_most_six_per_cent(seeds, correlated):
    """Also if variances over seeds differ by a factor of fifty, and with or without noise of the test rows."""
    runs = 1000
    bound = 0.06 + 2 * math.sqrt(0.06 * 0.94 / runs)  # two standard errors of a share of so many
    for rows in (4, 12):
        for unlike, of_rows in ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)):
            different, equivalent = error_rates(seeds, rows, correlated, unlike, of_rows, runs)
            assert different <= bound, (rows, unlike, of_rows)
            assert equivalent <= bound, (rows, unlike, of_rows)


def test_pooling_makes_intervals_of_few_seeds_narrower():
    """The reason for it: with three seeds and twelve comparisons the corrected interval is half as wide."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(100):
        samples = [Sample((0, 1, 2), row, np.zeros((3, 2)), 500) for row in rng.normal(size=(12, 3))]
        alone = [estimate_each([one])[0].half_width(0.05 / 12) for one in samples]
        pooled = [estimate.half_width(0.05 / 12) for estimate in estimate_each(samples)]
        ratios.append(np.mean(pooled) / np.mean(alone))
    assert np.mean(ratios) < 0.6
