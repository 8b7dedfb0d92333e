"""evaluate, compare and reliability against brute force and against what is known."""

import numpy as np
import pytest
from samples import make, make_tied
from scipy import stats

from distilcal import InputError, Predictions, compare, evaluate
from distilcal.metrics import (
    ALL_METRICS,
    CALIBRATION_ERRORS,
    METRICS,
    binomial_interval,
    definition,
    ece,
    holm,
    metric,
    replicates,
)
from distilcal.metrics.bootstrap import bootstrap_weights, calibrated_labels
from distilcal.metrics.rows import Rows
from distilcal.selective import aurc

SOLVED = {"smooth_ece": 1e-9}  # a root found by iteration, not a sum
SETS = [make(53, 5), make(7, 3, seed=4), make_tied()]


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.parametrize("p", SETS, ids=repr)
def test_a_resample_scores_what_its_copied_rows_score(name, p):
    rows = Rows.of(p)
    (weights,) = bootstrap_weights(rows, 20, seed=3)
    assert (weights.sum(axis=1) == len(p)).all()
    got = METRICS[name].on_rows(rows.resampled(weights))
    for value, w in zip(got, weights, strict=True):
        index = np.repeat(np.arange(len(p)), w)
        assert value == pytest.approx(METRICS[name](p.probs[index], p.labels[index]), abs=SOLVED.get(name, 1e-12))


@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("block", [1, 1_000_000])
def test_class_wise_errors_of_resamples_do_not_depend_on_how_classes_are_taken_together(monkeypatch, closed, block):
    """Tied scores on the edges of bins, and classes one by one or all at once."""
    monkeypatch.setattr("distilcal.metrics.class_wise.BLOCK_NUMBERS", block)
    p = make_tied()
    (weights,) = bootstrap_weights(Rows.of(p), 20, seed=3)
    got = METRICS["sce"].on_rows(Rows.of(p).resampled(weights), bins=4, closed=closed)
    for value, w in zip(got, weights, strict=True):
        index = np.repeat(np.arange(len(p)), w)
        assert value == pytest.approx(METRICS["sce"](p.probs[index], p.labels[index], bins=4, closed=closed), abs=1e-12)


@pytest.mark.parametrize("name", [*sorted(METRICS), "aurc"])
@pytest.mark.parametrize("p", SETS, ids=repr)
def test_a_resample_of_clusters_scores_what_its_copied_rows_score(name, p):
    """Clusters differ in size, so resamples do: no metric may divide by the rows of the set."""
    clusters = np.arange(len(p)) ** 2 % 5
    (weights,) = bootstrap_weights(Rows.of(p), 20, seed=3, clusters=clusters)
    assert len(set(weights.sum(axis=1))) > 1
    for cluster in np.unique(clusters):
        assert (weights[:, clusters == cluster] == weights[:, clusters == cluster][:, :1]).all()
    got = ALL_METRICS[name].on_rows(Rows.of(p).resampled(weights))
    for value, w in zip(got, weights, strict=True):
        index = np.repeat(np.arange(len(p)), w)
        assert value == pytest.approx(ALL_METRICS[name](p.probs[index], p.labels[index]), abs=SOLVED.get(name, 1e-12))


def test_rows_that_are_copies_of_one_source_are_no_evidence():
    p = make(60, 3)
    copies = Predictions.from_logits(np.repeat(p.logits, 5, axis=0), np.repeat(p.labels, 5))
    wanted = {"accuracy": {"metric": "accuracy"}}
    spread = [
        replicates(predictions, wanted, 400, clusters=clusters)["accuracy"][1].std()
        for predictions, clusters in ((p, None), (copies, np.repeat(np.arange(60), 5)), (copies, None))
    ]
    assert spread[1] == pytest.approx(spread[0], rel=1e-12)
    assert spread[2] < 0.6 * spread[0]


@pytest.mark.parametrize("p", SETS, ids=repr)
def test_aurc_is_that_of_predictions(p):
    assert ALL_METRICS["aurc"](p.probs, p.labels) == pytest.approx(aurc(p), abs=1e-12)
    assert "aurc" not in evaluate(p, intervals=None).metrics  # only where it is named
    assert evaluate(p, ["aurc"], intervals=20)["aurc"].value == pytest.approx(aurc(p), abs=1e-12)


@pytest.mark.parametrize("name", CALIBRATION_ERRORS)
@pytest.mark.parametrize("p", SETS, ids=repr)
def test_drawn_labels_score_what_a_relabelled_copy_scores(name, p):
    rows = Rows.of(p)
    (draws,) = calibrated_labels(rows, 20, seed=3)
    got = METRICS[name].on_rows(rows.relabelled(draws))
    for value, labels in zip(got, draws, strict=True):
        assert value == pytest.approx(METRICS[name](p.probs, labels), abs=SOLVED.get(name, 1e-12))


@pytest.mark.parametrize(("name", "variant"), [("ace", "p004"), ("ada_ece", "author"), ("ks", "author"), ("tace", "gce")])
def test_variants_of_released_code_have_intervals_too(name, variant):
    figure = evaluate(make(), {name: {"variant": variant}}, intervals=50)[name]
    assert figure.low <= figure.value <= figure.high
    assert variant in figure.definition


def test_labels_are_drawn_from_the_probabilities():
    p = Predictions.from_probs([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], [0, 1, 0])
    (draws,) = calibrated_labels(Rows.of(p), 20000, seed=0)
    shares = np.stack([np.bincount(column, minlength=3) for column in draws.T]) / 20000
    np.testing.assert_allclose(shares, p.probs, atol=0.015)
    assert shares[1, 0] == 0
    assert shares[2, 0] == 1


def test_chunks_do_not_change_results(monkeypatch):
    p = make()
    whole = evaluate(p, intervals=40)
    monkeypatch.setattr("distilcal.metrics.bootstrap.CHUNK_BYTES", 40 * len(p) * 7)
    parts = evaluate(p, intervals=40)
    for name in METRICS:
        assert parts[name].low == pytest.approx(whole[name].low)
        assert parts[name].high == pytest.approx(whole[name].high)


def test_every_figure_lies_in_its_interval_and_the_seed_decides():
    for p in SETS:
        one, same, other = (evaluate(p, intervals=60, seed=s) for s in (0, 0, 1))
        for name, figure in one.metrics.items():
            assert figure.low <= figure.value <= figure.high, name
            assert (figure.null is not None) == (name in CALIBRATION_ERRORS)
            assert figure == same[name]
        assert any(one[name].low != other[name].low for name in METRICS)


def test_values_alone_are_the_metrics(predictions):
    found = evaluate(predictions, intervals=None)
    assert list(found.metrics) == list(METRICS)
    for name, function in METRICS.items():
        assert found[name].value == pytest.approx(function(predictions.probs, predictions.labels), rel=1e-12)
        assert found[name].low is None
        assert found[name].null is None
    assert found.values["ece"] == found["ece"].value
    assert "top-label, 15 equal-width bins, (lo, hi], L1 norm" in str(found)


def test_interval_of_accuracy_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        right = rng.random(150) < 0.8
        figure = evaluate(Predictions.from_confidences(np.full(150, 0.8), right), ["accuracy"], 200, seed=trial)["accuracy"]
        covered += figure.low <= 0.8 <= figure.high
    assert 0.89 <= covered / 200 <= 0.99


def test_a_calibrated_model_is_beyond_chance_in_one_case_of_twenty():
    rng = np.random.default_rng(1)
    names = ["ece", "sce", "ks"]
    beyond = dict.fromkeys(names, 0)
    for trial in range(200):
        logits = rng.normal(size=(120, 3))
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        found = evaluate(Predictions.from_logits(logits, labels), names, 2, seed=trial)
        for name in names:
            beyond[name] += found[name].beyond_chance
    for name, count in beyond.items():
        assert stats.binomtest(count, 200, 0.05).pvalue > 0.001, (name, count)


def test_an_overconfident_model_is_beyond_chance():
    found = evaluate(make(800, 5), intervals=20)
    assert all(found[name].beyond_chance for name in ("ece", "ada_ece", "sce", "ks", "smooth_ece", "debiased_ece"))


def test_metrics_with_parameters_and_own_functions(predictions):
    def wrong(probs, labels):
        return float((probs.argmax(axis=1) != labels).mean())

    @metric
    def squared_confidence(rows):
        return rows.mean(rows.confidence**2)

    found = evaluate(
        predictions,
        {"ece": {"bins": 10, "closed": "left"}, "wrong": wrong, "squared_confidence": squared_confidence},
        intervals=50,
    )
    assert found["ece"].value == ece(predictions.probs, predictions.labels, bins=10, closed="left")
    assert found["ece"].definition == "top-label, 10 equal-width bins, [lo, hi), L1 norm"
    assert found["wrong"].value == 1 - predictions.correct.mean()
    assert found["wrong"].low < found["wrong"].value < found["wrong"].high
    assert found["squared_confidence"].value == pytest.approx((predictions.confidence**2).mean())
    with pytest.raises(InputError, match="did you mean ece"):
        evaluate(predictions, ["ecee"])
    with pytest.raises(InputError, match="no parameter 'bin'"):
        evaluate(predictions, {"ece": {"bin": 3}})
    for bad in ({"intervals": 1}, {"intervals": 10, "level": 1.5}):
        with pytest.raises(InputError):
            evaluate(predictions, **bad)


def test_bins_and_side_reach_every_metric_that_has_them(predictions):
    found = evaluate(predictions, intervals=None, bins=7, closed="left")
    for name, figure in found.metrics.items():
        if "bins" in figure.params:
            assert figure.params["bins"] == 7
            assert "7 equal" in figure.definition
        assert figure.definition == definition(name, dict(figure.params))


def test_confidences_only_give_top_label_figures():
    p = Predictions.from_confidences([0.9, 0.3, 0.6], [1, 0, 1])
    found = evaluate(p, intervals=20)
    assert "ece" in found.metrics
    assert "nll" not in found.metrics
    assert found["confidence"].value == pytest.approx(0.6)
    with pytest.raises(InputError, match="needs class probabilities"):
        evaluate(p, ["nll"])


def test_infinite_nll_is_told_as_it_is():
    p = Predictions.from_probs([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]], [1, 0, 1])
    figure = evaluate(p, ["nll"], 50)["nll"]
    assert figure.value == np.inf
    assert figure.high == np.inf


def test_progress_goes_to_one(predictions):
    seen = []
    evaluate(predictions, intervals=30, on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


# ---- compare -----------------------------------------------------------------------------------------------------------


def test_a_model_compared_with_itself_does_not_differ(predictions):
    for d in compare(predictions, predictions, intervals=50).differences.values():
        assert d.difference == 0
        assert d.p_value == d.p_holm == 1
        assert d.better is None


def test_compare_finds_the_overconfident_one_whatever_the_order_of_rows_and_classes():
    sharp = make(800, 5)
    mild = Predictions.from_logits(sharp.logits / 2, sharp.labels, ids=sharp.ids, name="mild")
    shuffled = mild.select(np.random.default_rng(0).permutation(800)).reorder_classes(mild.classes[::-1])
    found = compare(sharp, shuffled, intervals=200)
    assert found["ece"].better == "b"
    assert found["nll"].better == "b"
    assert found["accuracy"].difference == 0
    assert found["confidence"].better is None  # neither more nor less is better
    back = compare(shuffled, sharp, intervals=200)
    assert back["ece"].difference == pytest.approx(-found["ece"].difference)
    assert back["ece"].better == "a"


def test_compare_uses_shared_rows_only():
    p = make(60, 3)
    found = compare(p.select(np.arange(40)), p.select(np.arange(20, 60)), ["accuracy"], 20)
    assert found.rows == 20


def test_p_values_are_uniform_enough_when_nothing_differs():
    rng = np.random.default_rng(5)
    small = 0
    for trial in range(150):
        logits = rng.normal(size=(150, 3))
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        a, b = (Predictions.from_logits(logits + 0.7 * rng.normal(size=logits.shape), labels) for _ in range(2))
        small += compare(a, b, ["nll"], 150, seed=trial)["nll"].p_value < 0.05
    assert stats.binomtest(small, 150, 0.05).pvalue > 0.001


def test_few_resamples_do_not_hide_a_large_difference():
    sharp = make(800, 5)
    mild = Predictions.from_logits(sharp.logits / 2, sharp.labels, ids=sharp.ids)
    assert compare(sharp, mild, intervals=50)["nll"].p_holm < 0.01


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_binomial_interval_is_clopper_pearson():
    low, high = binomial_interval(np.array([0.0, 3.0, 10.0, 0.0]), np.array([10.0, 10.0, 10.0, 0.0]))
    for i, k in enumerate((0, 3, 10)):
        exact = stats.binomtest(k, 10).proportion_ci(0.95, "exact")
        assert low[i] == pytest.approx(exact.low)
        assert high[i] == pytest.approx(exact.high)
    assert np.isnan(low[3])


def test_very_few_rows_prove_nothing():
    a, b = (Predictions.from_probs([[p, 1 - p]], [0], name=n) for n, p in (("a", 0.9), ("b", 0.8)))
    assert all(d.p_value == 1 for d in compare(a, b, intervals=50).differences.values())
    a, b = (Predictions.from_confidences([p] * 8, [1] * 8, name=n) for n, p in (("a", 0.9), ("b", 0.8)))
    assert compare(a, b, intervals=50)["confidence"].p_value == 2.0**-7


def test_bare_confidences_of_two_models_can_be_compared():
    a = Predictions.from_confidences([0.9, 0.8, 0.3], [1, 0, 1], name="a")
    b = Predictions.from_confidences([0.9, 0.8, 0.7], [1, 1, 1], name="b")
    assert compare(a, b, intervals=20)["accuracy"].difference == pytest.approx(1 / 3)


def test_own_functions_may_bear_the_name_of_a_metric(predictions):
    assert evaluate(predictions, {"sce": lambda p, y: 0.25}, intervals=None)["sce"].value == 0.25
    with pytest.raises(InputError):
        evaluate(predictions, {"ace": {"variant": "sound"}}, intervals=None)


def test_an_error_within_chance_does_not_exclude_zero():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 3))
    figure = evaluate(Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(1)), ["ece"], 100)["ece"]
    assert not figure.beyond_chance
    assert figure.low == 0


def test_votes_are_scored_from_the_logits():
    p = Predictions.from_logits([[1e4, -1e4]], [0], label_probs=[[0.5, 0.5]])
    assert evaluate(p, ["human_cross_entropy"], None)["human_cross_entropy"].value == 1e4


def test_own_functions_keep_their_own_range(predictions):
    own = {"accuracy": lambda p, y: 100 * float((p.argmax(1) == y).mean()), "ece": lambda p, y: -float(p.max())}
    found = evaluate(predictions, own, intervals=60)
    assert found["accuracy"].low < found["accuracy"].value < found["accuracy"].high <= 100
    assert found["ece"].low <= found["ece"].value < 0
    assert found["ece"].null is None
    assert compare(predictions, predictions, own, intervals=20)["accuracy"].better is None


def test_replicates_are_those_of_evaluate_and_paired_for_sets_of_one_size():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 90)
    one, two = (Predictions(rng.normal(size=(90, 3)), labels) for _ in range(2))
    asked = {"ten": {"metric": "ece", "bins": 10, "closed": "left"}, "accuracy": {"metric": "accuracy"}}
    first, second = (replicates(p, asked, 50) for p in (one, two))
    assert first["ten"][0] == ece(one.probs, one.labels, bins=10, closed="left")
    weights = np.concatenate(list(bootstrap_weights(Rows.of(one), 50, 0)))
    for predictions, found in ((one, first), (two, second)):  # the same rows for both
        right = (weights * predictions.correct).sum(axis=1) / 90
        np.testing.assert_allclose(found["accuracy"][1], right)
    repeated = Predictions(np.repeat(one.logits, weights[7], axis=0), np.repeat(one.labels, weights[7]))
    assert first["ten"][1][7] == pytest.approx(ece(repeated.probs, repeated.labels, bins=10, closed="left"))


def test_the_name_of_one_metric_is_no_list_of_letters():
    with pytest.raises(InputError, match=r"the text 'ece' for metrics; put it in brackets: \['ece'\]"):
        evaluate(make(20, 3), "ece")


def test_intervals_of_functions_that_are_undefined_or_infinite_in_some_resamples():
    p = make(rows=10)
    lone = p.probs[:, 0].argmax()  # of ten rows, many a resample lacks this one

    def interval(missing):
        def score(probs, labels):
            return float(probs.mean()) if (probs[:, 0] == p.probs[lone, 0]).any() else missing

        figure = evaluate(p, {"mine": score}, intervals=50)["mine"]
        return figure.value, figure.low, figure.high

    value, low, high = interval(np.nan)
    assert np.isfinite(value)
    assert np.isnan([low, high]).all()
    value, low, high = interval(-np.inf)
    assert (low, high) == (-np.inf, value)
    value, low, high = interval(np.inf)
    assert (low, high) == (value, np.inf)


def test_functions_without_names_are_refused():
    with pytest.raises(InputError, match="is no name of a metric; give names, or functions by name"):
        evaluate(make(rows=10), [ece])
