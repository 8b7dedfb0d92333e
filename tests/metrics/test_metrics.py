"""Metrics: goldens, properties that hold for every member of METRICS, and second implementations."""

import inspect

import numpy as np
import pytest
from golden_cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import make, make_tied

from distilcal import InputError, Predictions, evaluate
from distilcal.metrics import (
    ALL_METRICS,
    CALIBRATION_ERRORS,
    HUMAN_METRICS,
    METRICS,
    TOP_LABEL,
    ace,
    ada_ece,
    debiased_ece,
    definition,
    ece,
    human_ece,
    ks,
    reliability,
    rmsce,
    sce,
    smooth_ece,
    tace,
)
from distilcal.metrics.rows import Rows

GOLDEN = cases("metrics.json")
ALL = sorted(METRICS)
SHAPES = [make(53, 5), make(7, 3, seed=4), make(2, 2, seed=5), make(1, 3, seed=6), make_tied()]


def golden_predictions(case):
    inputs = case["inputs"]
    if "probs" in inputs:
        return Predictions.from_probs(inputs["probs"], inputs["labels"])
    return Predictions.from_logits(inputs["logits"], inputs["labels"])


# Golden name → metric and the parameters that reproduce it.
REPRODUCED = {
    "accuracy": ("accuracy", {}),
    "mean_confidence": ("confidence", {}),
    "nll": ("nll", {}),
    "brier": ("brier", {}),
    "mean_entropy": ("entropy", {}),
    "sce_15": ("sce", {}),
    "classwise_ece_focal_calibration_15": ("sce", {"variant": "focal"}),
    "ace_p004_15": ("ace", {"variant": "p004"}),
    "tace_p004_15_th0.01": ("tace", {"variant": "p004"}),
    "adaece_15": ("ada_ece", {"variant": "author"}),
    "gce_ece_15": ("ece", {"variant": "gce"}),
    "gce_sce_15": ("sce", {"variant": "gce"}),
    "gce_ace_15": ("ace", {"variant": "gce"}),
    "gce_tace_15_th0.01": ("tace", {"variant": "gce"}),
    "gce_rmsce_15": ("rmsce", {"variant": "gce"}),
    "rm_ace_15": ("ace", {"variant": "gce"}),
    "rm_rmsce_15": ("rmsce", {"variant": "gce"}),
    "ks": ("ks", {"variant": "author"}),
    **{
        f"{name}_{closed}_{bins}": (name, {"bins": bins, "closed": closed})
        for name in ("ece", "oe", "mce")
        for closed in ("right", "left")
        for bins in (10, 15)
    },
}
NOT_METRICS = {"max_entropy_possible", "bins10_right", "bins10_left"}


@pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN.keys())
def test_goldens_are_reproduced_by_documented_parameters(case):
    p = golden_predictions(case)
    assert set(case["expected"]) <= set(REPRODUCED) | NOT_METRICS
    for golden, expected in case["expected"].items():
        if golden in REPRODUCED:
            name, params = REPRODUCED[golden]
            got = METRICS[name](p.probs, p.labels, **params)
            assert got == pytest.approx(expected, rel=case["tolerance"]["rtol"], abs=case["tolerance"]["atol"]), golden


@pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN.keys())
@pytest.mark.parametrize("closed", ["right", "left"])
def test_golden_reliability_bins(case, closed):
    r = reliability(golden_predictions(case), bins=10, closed=closed)
    got = np.column_stack([r.count, np.nan_to_num(r.confidence), np.nan_to_num(r.accuracy)])
    np.testing.assert_allclose(got, case["expected"][f"bins10_{closed}"], atol=1e-12)


def test_every_metric_is_listed_and_documented():
    assert len(METRICS) == 16
    for name, function in METRICS.items():
        text = inspect.getdoc(function)
        assert ">>>" in text, name
        assert "Range [" in text, f"{name} does not say its range"
        assert "is better" in text or "no direction" in text, f"{name} does not say its direction"
        for section in ("Parameters", "Returns", "Examples"):
            assert f"{section}\n---" in text, f"{name} has no {section}"
        assert definition(name, {}), name
        assert list(inspect.signature(function).parameters)[:2] == ["probs", "labels"]
    assert set(CALIBRATION_ERRORS) < set(METRICS)
    assert set(TOP_LABEL) < set(ALL_METRICS)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("p", SHAPES, ids=repr)
class TestEveryMetric:
    def test_is_in_its_range(self, name, p):
        value = METRICS[name](p.probs, p.labels)
        highest = {"nll": np.inf, "brier": 2.0, "entropy": np.log(len(p.classes)) + 1e-12}.get(name, 1.0)
        assert 0.0 <= value <= highest

    def test_row_order_changes_nothing(self, name, p):
        order = np.random.default_rng(1).permutation(len(p))
        got = METRICS[name](p.probs[order], p.labels[order])
        assert got == pytest.approx(METRICS[name](p.probs, p.labels), abs=1e-12)

    def test_every_row_said_twice_changes_nothing(self, name, p):
        if name == "debiased_ece":
            return  # it corrects for the number of rows: see test_debiased_ece_takes_copies_for_evidence
        got = METRICS[name](np.repeat(p.probs, 2, axis=0), np.repeat(p.labels, 2))
        assert got == pytest.approx(METRICS[name](p.probs, p.labels), abs=1e-12)

    def test_classes_in_another_order_change_nothing(self, name, p):
        q = p.reorder_classes(p.classes[::-1])
        if (np.sort(p.probs, axis=1)[:, -1] == np.sort(p.probs, axis=1)[:, -2]).any():
            return  # the first of two equally probable classes is predicted, so their order matters there
        assert METRICS[name](q.probs, q.labels) == pytest.approx(METRICS[name](p.probs, p.labels), abs=1e-12)

    def test_a_constant_added_to_all_logits_changes_nothing(self, name, p):
        if p.given_probs is not None:
            return
        q = Predictions.from_logits(p.logits + 3.5, p.labels)
        assert METRICS[name](q.probs, q.labels) == pytest.approx(METRICS[name](p.probs, p.labels), abs=1e-12)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32])
    def test_precision_is_raised_before_anything_is_computed(self, name, p, dtype):
        low = p.probs.astype(dtype)
        assert METRICS[name](low, p.labels) == METRICS[name](low.astype(np.float64), p.labels)

    def test_a_perfect_and_certain_model_has_no_error(self, name, p):
        if name in CALIBRATION_ERRORS:
            assert METRICS[name](np.eye(len(p.classes))[p.labels], p.labels) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_logits_of_every_precision_and_size(name):
    for scale, dtype in ((1e4, np.float64), (1e4, np.float32), (3, np.float16)):
        p = make(31, 4, scale=scale)
        p = Predictions.from_logits(p.logits.astype(dtype), p.labels)
        assert np.isfinite(METRICS[name].on_rows(Rows.of(p)))


def test_nll_from_logits_survives_where_a_probability_underflows():
    p = Predictions.from_logits([[1e4, 0.0]], [1])
    assert p.probs[0, 1] == 0.0
    assert METRICS["nll"].on_rows(Rows.of(p)) == 1e4
    assert METRICS["nll"](p.probs, p.labels) == np.inf


def test_debiased_ece_takes_copies_for_evidence():
    p = make(80, 4)
    once, twice = debiased_ece(p.probs, p.labels), debiased_ece(np.repeat(p.probs, 2, 0), np.repeat(p.labels, 2))
    assert once < twice < ece(p.probs, p.labels)


@given(
    st.lists(st.one_of(st.floats(0, 1), st.integers(0, 60).map(lambda i: i / 60)), min_size=1, max_size=40),
    st.integers(1, 30),
    st.sampled_from(["right", "left"]),
)
@settings(max_examples=200, deadline=None)
def test_every_sample_is_in_exactly_one_bin(first, bins, closed):
    p = np.array(first)
    probs = np.column_stack([p, 1 - p])
    r = reliability(Predictions.from_probs(probs, np.zeros(len(p), int)), bins=bins, closed=closed)
    confidence = np.maximum(p, 1 - p)
    assert r.count.sum() == len(p)
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = (confidence > low) & (confidence <= high) if closed == "right" else (confidence >= low) & (confidence < high)
        if closed == "right" and b == 0:
            inside |= confidence == 0
        if closed == "left" and b == bins - 1:
            inside |= confidence == 1
        assert r.count[b] == inside.sum()


# ---- second implementations: loops over examples, classes and bins -----------------------------------------------------


def loop_width_bins(score, hit, bins, closed):
    """(share, gap) of each bin by comparing every score with every edge."""
    found = []
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        members = []
        for s, h in zip(score, hit, strict=True):
            inside = low < s <= high if closed == "right" else low <= s < high
            if (closed == "right" and b == 0 and s == 0) or (closed == "left" and b == bins - 1 and s == 1):
                inside = True
            if inside:
                members.append((s, h))
        if members:
            s, h = np.mean(members, axis=0)
            found.append((len(members) / len(score), h - s, s))
    return found


def loop_mass_bins(score, hit, bins, rows_below):
    """(share, gap) of equal-mass bins: a row is in the first bin whose last member scores no less."""
    ordered = sorted(score)
    limits = [ordered[min(rows_below(b), len(ordered)) - 1] for b in range(1, bins)] + [np.inf]
    members = [[] for _ in range(bins)]
    for s, h in zip(score, hit, strict=True):
        members[next(b for b in range(bins) if s <= limits[b])].append((s, h))
    return [(len(m) / len(score), *(np.mean(m, axis=0)[::-1] @ np.array([[1, 0], [-1, 0]]))[:1]) for m in members if m]


@pytest.mark.parametrize("p", SHAPES, ids=repr)
@pytest.mark.parametrize("bins", [1, 4, 15])
class TestAgainstLoops:
    @pytest.mark.parametrize("closed", ["right", "left"])
    def test_equal_width(self, p, bins, closed):
        found = loop_width_bins(p.confidence, p.correct, bins, closed)
        params = {"bins": bins, "closed": closed}
        expected = {
            "ece": sum(w * abs(g) for w, g, _ in found),
            "mce": max(abs(g) for _, g, _ in found),
            "oe": sum(w * s * max(-g, 0) for w, g, s in found),
            "sce": np.mean(
                [
                    sum(w * abs(g) for w, g, _ in loop_width_bins(p.probs[:, k], p.labels == k, bins, closed))
                    for k in range(len(p.classes))
                ]
            ),
        }
        for name, value in expected.items():
            assert METRICS[name](p.probs, p.labels, **params) == pytest.approx(value, abs=1e-12), name

    def test_equal_mass(self, p, bins):
        def up(n):
            return lambda b: -(-b * n // bins)

        def down(n):
            return lambda b: b * n // bins + 1

        n = len(p)
        top = loop_mass_bins(p.confidence, p.correct, bins, up(n))
        assert rmsce(p.probs, p.labels, bins=bins) == pytest.approx(np.sqrt(sum(w * g**2 for w, g in top)), abs=1e-12)
        lower = loop_mass_bins(p.confidence, p.correct, bins, down(n))
        assert ada_ece(p.probs, p.labels, bins=bins) == pytest.approx(sum(w * abs(g) for w, g in lower), abs=1e-12)
        classes = range(len(p.classes))
        by_class = [loop_mass_bins(p.probs[:, k], p.labels == k, bins, up(n)) for k in classes]
        expected = np.mean([sum(w * abs(g) for w, g in found) for found in by_class])
        assert ace(p.probs, p.labels, bins=bins) == pytest.approx(expected, abs=1e-12)
        kept = [p.probs[:, k] >= 0.05 for k in classes]
        thresholded = [
            sum(w * abs(g) for w, g in loop_mass_bins(p.probs[m, k], p.labels[m] == k, bins, up(m.sum())))
            for k, m in zip(classes, kept, strict=True)
            if m.any()
        ]
        assert tace(p.probs, p.labels, bins=bins, threshold=0.05) == pytest.approx(np.mean(thresholded), abs=1e-12)


def test_nixon_is_the_plain_mean_over_equal_bins_when_they_divide_the_rows():
    p = make(60, 3)
    parts = []
    for k in range(3):
        order = np.argsort(p.probs[:, k])
        for part in np.array_split(order, 15):
            parts.append(abs(np.mean(p.labels[part] == k) - p.probs[part, k].mean()))
    assert ace(p.probs, p.labels) == pytest.approx(np.mean(parts), abs=1e-12)


def test_adaece_of_the_authors_loses_only_the_smallest_confidence():
    p = make(75, 4)
    lost = p.confidence.argmin()
    bins = loop_mass_bins(p.confidence, p.correct, 15, lambda b: b * 75 // 15 + 1)
    assert ada_ece(p.probs, p.labels) == pytest.approx(sum(w * abs(g) for w, g in bins))
    difference = abs(ada_ece(p.probs, p.labels) - ada_ece(p.probs, p.labels, variant="author"))
    assert 0 < difference <= max(p.confidence[lost], 1) / 75


def test_ks_by_definition_and_with_ties():
    for p in SHAPES:
        gaps = [abs(np.sum((p.confidence - p.correct)[p.confidence <= t])) / len(p) for t in p.confidence]
        assert ks(p.probs, p.labels) == pytest.approx(max(gaps), abs=1e-12)


@pytest.mark.parametrize("p", [make(200, 4), make(53, 5), make_tied()], ids=repr)
def test_smooth_ece_by_quadrature(p):
    t = np.linspace(0, 1, 4001)
    r, residual = p.confidence, p.correct - p.confidence

    def smoothed(sigma):
        def kernel(x):
            return np.exp(-(x**2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))

        images = [2 * m + sign * r for m in range(-3, 4) for sign in (1, -1)]
        density = sum(kernel(t[:, None] - image[None]) for image in images)
        return np.trapezoid(np.abs(density @ residual), t) / len(p)

    sigma = smooth_ece(p.probs, p.labels)
    assert smoothed(sigma) == pytest.approx(sigma, rel=2e-3)


def test_smooth_ece_does_not_depend_on_its_grid():
    p = make(500, 3)
    assert smooth_ece(p.probs, p.labels, grid=4096) == pytest.approx(smooth_ece(p.probs, p.labels), abs=1e-5)


def test_debiased_l2_is_the_estimator_of_kumar_et_al():
    p = make(300, 3)
    found = loop_width_bins(p.confidence, p.correct, 15, "right")
    total = sum(w * (g**2 - (g + s) * (1 - g - s) / (w * 300 - 1)) for w, g, s in found if round(w * 300) > 1)
    assert debiased_ece(p.probs, p.labels, norm=2) == pytest.approx(np.sqrt(max(total, 0)), abs=1e-12)


@pytest.mark.parametrize("norm", [1, 2])
def test_debiasing_removes_most_of_what_chance_adds(norm):
    rng = np.random.default_rng(3)
    plain, debiased = [], []
    for _ in range(200):
        sure = rng.uniform(0.5, 1, 400)
        wrong_by = np.where(rng.random(400) < sure - 0.05, 0, 1)  # 5 points overconfident: the true ECE is 0.05
        probs = np.column_stack([sure, 1 - sure])
        plain.append(ece(probs, wrong_by))
        debiased.append(debiased_ece(probs, wrong_by, norm=norm))
    assert abs(np.mean(debiased) - 0.05) < 0.5 * abs(np.mean(plain) - 0.05)


def test_human_votes():
    p = make(40, 3)
    one_vote = np.eye(3)[p.labels]
    rows = Rows(p.probs, p.labels, votes=one_vote)
    assert HUMAN_METRICS["human_ece"].on_rows(rows) == pytest.approx(ece(p.probs, p.labels))
    assert HUMAN_METRICS["human_cross_entropy"].on_rows(rows) == pytest.approx(METRICS["nll"](p.probs, p.labels))
    same = Rows(p.probs, p.labels, votes=p.probs)
    assert HUMAN_METRICS["human_tv"].on_rows(same) == 0
    assert HUMAN_METRICS["human_ece"].on_rows(same) == pytest.approx(0, abs=1e-12)
    assert HUMAN_METRICS["human_cross_entropy"].on_rows(same) == pytest.approx(METRICS["entropy"](p.probs, p.labels))
    assert human_ece(p.probs, one_vote) == pytest.approx(ece(p.probs, p.labels))
    with pytest.raises(InputError, match="label_probs"):
        HUMAN_METRICS["human_ece"].on_rows(Rows(p.probs, p.labels))
    with pytest.raises(InputError, match=r"human label probabilities of shape \(40,\) are not a table"):
        human_ece(p.probs, p.labels)


@pytest.mark.parametrize("name", HUMAN_METRICS)
def test_votes_that_are_no_distributions_are_refused(name):
    p = make(40, 3)
    for votes, said in (
        (np.round(10 * p.probs), "is not a probability"),
        (0.5 * p.probs, "sum to 0.5"),
        (np.nan * p.probs, "nan is not"),
        (np.ones((40, 1)), "only one class"),
        (np.full((40, 4), 0.25), r"have shape \(40, 4\), the predictions \(40, 3\)"),
    ):
        with pytest.raises(InputError, match=said):
            HUMAN_METRICS[name](p.probs, votes)


@pytest.mark.parametrize(
    ("probs", "labels", "said"),
    [
        ([[0.5, 0.5]], [0, 1], "do not match"),
        ([[1.0]], [0], "do not match"),
        ([[2.0, -1.0]], [0], "outside"),
        ([[np.nan, 1.0]], [0], "outside"),
        ([[0.5, 0.2]], [0], "sum to 0.7"),
        ([[0.5, 0.5]], [2], "between 0 and 1"),
    ],
)
def test_bad_arrays_are_refused(probs, labels, said):
    for function in METRICS.values():
        with pytest.raises(InputError, match=said):
            function(probs, labels)


def test_unknown_variants_and_bins_are_refused():
    p = make(9, 3)
    for call in (
        lambda: ece(p.probs, p.labels, variant="nixon"),
        lambda: ece(p.probs, p.labels, closed="both"),
        lambda: ece(p.probs, p.labels, bins=0),
        lambda: ace(p.probs, p.labels, variant="sound"),
        lambda: sce(p.probs, p.labels, variant="nope"),
        lambda: debiased_ece(p.probs, p.labels, norm=3),
    ):
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize("threshold", [-0.1, 1.5, np.nan])
@pytest.mark.parametrize("variant", ["nixon", "p004", "gce"])
def test_a_threshold_that_is_no_probability_is_refused(threshold, variant):
    with pytest.raises(InputError, match="threshold .* is not between 0 and 1"):
        tace([[0.9, 0.1], [0.2, 0.8]], [0, 0], threshold=threshold, variant=variant)


def test_tace_of_nothing_is_no_value():
    p = Predictions.from_logits(np.zeros((7, 150)), np.arange(7))  # no probability reaches 0.01
    assert np.isnan(tace(p.probs, p.labels))
    value = evaluate(p, ["tace"], 5)["tace"]
    assert np.isnan([value.value, value.low, value.high]).all()
    assert not value.beyond_chance
