"""Calibrators: goldens, properties that hold for every one, and the hard cases of a temperature fit."""

import json

import numpy as np
import pytest
from golden_cases import cases
from samples import make, make_tied

from distilcal import InputError, Predictions
from distilcal.calibrate import (
    CALIBRATORS,
    FITS,
    FitReport,
    Temperature,
    calibrator_from_json,
    cross_fitted,
    fit_dirichlet,
    fit_histogram,
    fit_isotonic,
    fit_matrix,
    fit_temperature,
    fit_vector,
    load_calibrator,
    odir_objective,
)
from distilcal.calibrate.base import log_softmax
from distilcal.metrics import ece

TEMPERATURE = cases("temperature_scaling.json")
SCALING = cases("posthoc_scaling.json")


def golden_predictions(case):
    return Predictions.from_logits(case["inputs"]["logits"], case["inputs"]["labels"], name="dev")


# ---- temperature -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TEMPERATURE.values(), ids=TEMPERATURE.keys())
def test_temperature_goldens(case):
    p, expected = golden_predictions(case), case["expected"]
    found = fit_temperature(p)
    assert found.value == pytest.approx(expected["exact_optimum"]["T"], abs=1e-6)
    assert found.fit.nll_after == pytest.approx(expected["exact_optimum"]["nll"], abs=1e-12)
    assert found.fit.nll_before == pytest.approx(expected["nll_at_T1"])
    assert found.fit.converged
    after = found(p)
    assert ece(p.probs, p.labels) == pytest.approx(expected["ece_right_15_before"])
    assert ece(after.probs, after.labels) == pytest.approx(expected["ece_right_15_after_exact"], abs=1e-7)
    assert ece(after.probs, after.labels, bins=10, closed="left") == pytest.approx(
        expected["ece_left_10_after_exact"], abs=1e-7
    )


@pytest.mark.parametrize("case", TEMPERATURE.values(), ids=TEMPERATURE.keys())
def test_temperature_grids_of_the_papers(case):
    p, expected = golden_predictions(case), case["expected"]
    paper = fit_temperature(p, grid=(0.01, 5.0, 0.01))
    assert paper.value == expected["grid_0.01_5.00"]["T"]
    assert paper.fit.nll_after == pytest.approx(expected["grid_0.01_5.00"]["nll"], rel=1e-12)
    assert fit_temperature(p, grid=(0.01, 10.0, 0.01)).value == expected["desai_author_grid_0.01_10.00"]["T"]
    assert fit_temperature(p, grid=(0.1, 10.0, 0.1)).value == pytest.approx(
        expected["focal_calibration_grid_0.1_10"]["T_by_nll"]
    )


def scan(p, points):
    """What a loop over a grid chooses: strict improvement, so that the smallest T wins ties."""
    best, chosen = np.inf, None
    for t in points:
        nll = float(-log_softmax(p.logits / t)[np.arange(len(p)), p.labels].mean())
        if nll < best - 1e-15:
            best, chosen = nll, t
    return chosen


def test_grid_equals_the_scan_with_few_passes():
    rng = np.random.default_rng(0)
    points = [round(0.01 * i, 10) for i in range(1, 501)]
    for trial in range(40):
        z = rng.normal(size=(rng.integers(2, 60), rng.integers(2, 6))) * 10 ** rng.uniform(-1, 1.2)
        labels = (z / 10 ** rng.uniform(-0.5, 1) + rng.gumbel(size=z.shape)).argmax(axis=1)
        p = Predictions.from_logits(z, labels, name="dev")
        found = fit_temperature(p, grid=(0.01, 5.0, 0.01))
        assert found.value == scan(p, points), trial
        assert found.fit.steps < 30


def test_grid_takes_the_smallest_of_equals():
    flat = Predictions.from_logits(np.ones((4, 3)), [0, 1, 2, 0], name="dev")
    assert fit_temperature(flat, grid=(0.01, 5.0, 0.01)).value == 0.01
    certain = Predictions.from_logits(1e4 * np.eye(3), [0, 1, 2], name="dev")  # NLL is exactly 0 over a whole range of T
    assert fit_temperature(certain, grid=(0.01, 5.0, 0.01)).value == 0.01
    assert fit_temperature(certain, grid=(2.0, 2.0, 1.0)).value == 2.0
    hopeless = Predictions.from_logits(np.eye(3), [1, 2, 0], name="dev")
    found = fit_temperature(hopeless, grid=(0.01, 5.0, 0.01))
    assert found.value == 5.0
    assert "end of the grid" in found.fit.message
    with pytest.raises(InputError):
        fit_temperature(flat, grid=(0.0, 5.0, 0.01))


def test_a_known_temperature_is_recovered():
    rng = np.random.default_rng(0)
    for truth in (0.1, 1.0, 4.0):
        z = rng.normal(size=(20000, 4))
        labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        assert fit_temperature(Predictions.from_logits(truth * z, labels, name="dev")).value == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("scale", [1e-290, 1e-3, 1.0, 1e4, 1e8, 1e60, 1e145])
def test_the_scale_of_the_logits_scales_the_temperature(scale):
    p = make(300, 4)
    found = fit_temperature(Predictions.from_logits(scale * p.logits, p.labels, name="dev"))
    assert found.value == pytest.approx(scale * fit_temperature(p).value, rel=1e-6)
    assert found.fit.converged


@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        (5 * np.eye(3), [0, 1, 2], "every label is the most probable.*T = 1 was kept"),
        ([[0.1, 0.2]], [1], "T = 0.144 is the optimum with one right and one wrong row"),
        ([[1.0, 2.0]], [0], "upper bound"),
        (np.ones((5, 3)), [0, 1, 2, 0, 1], "does not depend on T"),
        (np.eye(3)[[0, 1, 2, 0]], [1, 2, 0, 2], "upper bound.*say nothing.*check that labels and classes match"),
        (np.array([[1e4, -1e4], [-1e4, 1e4]]), [0, 1], "T = 1 was kept"),
        ([[0.2, 0.2, 0.0], [0.0, 0.1, 0.0]], [0, 1], "is the optimum with one right and one wrong row more"),
    ],
)
def test_fits_without_an_optimum_say_so(logits, labels, said):
    p = Predictions.from_logits(logits, labels, name="dev")
    found = fit_temperature(p)
    assert not found.fit.converged
    assert found.value > 0
    assert found.fit.nll_after <= found.fit.nll_before
    import re

    assert re.search(said, found.fit.message)
    assert np.isfinite(found(p).probs).all()


@pytest.mark.parametrize("k", [2, 3, 100])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0])
def test_rows_without_a_mistake_are_not_made_certain(k, scale):
    """The fit is that of the rows with a typical one twice more, once right and once wrong; a surer model stays as it is."""
    rng = np.random.default_rng(k)
    for rows in (1, 7, 40, 3000):
        logits = scale * rng.normal(size=(rows, k))
        labels = logits.argmax(axis=1)
        p = Predictions.from_logits(logits, labels, name="dev")
        found = fit_temperature(p)
        ranked = np.sort(logits, axis=1)
        typical = np.argsort(ranked[:, -1] - ranked[:, -2], kind="stable")[rows // 2]
        classes = logits[typical].argsort()
        more = Predictions.from_logits(
            np.concatenate([logits, logits[[typical, typical]]]), [*labels, classes[-1], classes[-2]], name="dev"
        )
        assert found.value == pytest.approx(min(1.0, fit_temperature(more).value), rel=1e-9)
        assert not found.fit.converged
        assert (found.fit.rows, "no optimum" in found.fit.message) == (rows, True)
        assert found.fit.nll_after <= found.fit.nll_before
        twice = Predictions.from_logits(np.repeat(logits, 2, axis=0), np.repeat(labels, 2), name="dev")
        assert fit_temperature(twice).value <= found.value  # more rows without a mistake allow more confidence
        assert fit_temperature(p, bounds=(2.0, 3.0)).value == 2.0


@pytest.mark.parametrize("rows", [1, 10, 500])
def test_equal_rows_without_a_mistake_follow_the_rule_of_succession(rows):
    p = Predictions.from_logits(np.tile([0.2, 0.0], (rows, 1)), np.zeros(rows, int), name="dev")
    assert fit_temperature(p)(p).confidence == pytest.approx(np.full(rows, (rows + 1) / (rows + 2)))


def test_certain_rows_say_nothing_about_the_lead_of_the_others():
    """Probabilities of exactly 0 and 1 beside others: the typical row is one that could have been a mistake."""
    probs = [[1.0, 0.0]] * 8 + [[0.6, 0.4], [0.45, 0.55], [0.5, 0.5]]
    p = Predictions.from_probs(probs, [0] * 9 + [1, 0], name="dev")
    found = fit_temperature(p)
    assert 0.01 < found.value < 1
    assert np.isfinite(found.fit.nll_after)


def test_one_mistake_among_many_gives_an_optimum():
    logits = np.random.default_rng(0).normal(size=(40, 3))
    labels = logits.argmax(axis=1)
    labels[0] = logits[0].argmin()
    found = fit_temperature(Predictions.from_logits(logits, labels, name="dev"))
    assert found.fit.converged
    assert not found.fit.message


def test_one_label_class_only():
    p = make(80, 3)
    only = p.select(p.labels == 1)
    found = fit_temperature(only)
    assert found.fit.nll_after <= found.fit.nll_before


def test_user_bounds_hold():
    found = fit_temperature(make(300, 4), bounds=(5.0, 9.0))
    assert found.value == 5.0
    assert "optimum lies below" in found.fit.message
    assert fit_temperature(make(300, 4), bounds=(0.1, 0.5)).value == 0.5
    with pytest.raises(InputError):
        fit_temperature(make(), bounds=(0.0, 1.0))


def test_impossible_labels_are_explained():
    p = Predictions.from_probs([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], [2, 0], name="dev")
    found = fit_temperature(p)
    assert found.value == 1.0
    assert "probability 0" in found.fit.message


# ---- affine maps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in SCALING if "objective" not in n])
def test_scaling_goldens(name):
    case = SCALING[name]
    p, expected = golden_predictions(case), case["expected"]
    if name.startswith("vector"):
        found = fit_vector(p)
        np.testing.assert_allclose(found.weight, expected["w"], rtol=1e-5)
        np.testing.assert_allclose(found.bias, expected["bias_centred"], rtol=1e-4, atol=1e-6)
    elif name.startswith("matrix"):
        found = fit_matrix(p)
    else:
        found = fit_dirichlet(p, penalty=case["params"]["lambda"], bias_penalty=case["params"]["mu"])
        np.testing.assert_allclose(found.weight, expected["W"], rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(found.bias, expected["b"], rtol=2e-4, atol=2e-5)
        inputs = log_softmax(p.logits)
        value, _, _ = odir_objective(found.weight, found.bias, inputs, p.labels, found.penalty, found.bias_penalty)
        assert value == pytest.approx(expected["objective"], rel=1e-9)
    np.testing.assert_allclose(found(p).probs[:5], expected["probs_first5"], rtol=1e-5, atol=1e-6)
    assert found.fit.nll_after == pytest.approx(expected["nll"], rel=1e-7)
    assert found.fit.converged


def test_odir_objective_golden():
    case = SCALING["dirichlet_objective_p004:150x3"]
    inputs, expected, params = case["inputs"], case["expected"], case["params"]
    value, grad_weight, grad_bias = odir_objective(
        np.array(inputs["W"]),
        np.array(inputs["b"]),
        log_softmax(np.array(inputs["logits"])),
        np.array(inputs["labels"]),
        params["lambda"] / 6,
        params["mu"] / 3,
    )
    assert value == pytest.approx(expected["objective"], rel=1e-9)
    np.testing.assert_allclose(grad_weight, expected["grad_W"], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(grad_bias, expected["grad_b"], rtol=1e-9, atol=1e-11)


def test_cross_validation_prefers_a_penalty_when_rows_are_few():
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(60, 6))
    labels = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)
    p = Predictions.from_logits(z, labels, name="dev")
    found = fit_dirichlet(p)
    assert found.penalty > 0
    assert "5-fold" in found.fit.message
    fresh = 2 * rng.normal(size=(4000, 6))
    test = Predictions.from_logits(fresh, (fresh / 2 + rng.gumbel(size=fresh.shape)).argmax(axis=1))
    assert found(test).row_nll.mean() < fit_matrix(p)(test).row_nll.mean()
    assert fit_dirichlet(p, penalty=0.5).penalty == 0.5
    assert fit_dirichlet(p, bias_penalty=0.5).bias_penalty == 0.5


# ---- every calibrator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FITS)
class TestEveryCalibrator:
    def test_gives_probabilities_and_lowers_nll_on_its_own_split(self, name):
        for p in (make(400, 4), make(60, 3, seed=2), make_tied(200)):
            found = FITS[name](p)
            after = found(p)
            np.testing.assert_allclose(after.probs.sum(axis=1), 1.0)
            assert after.labels.tolist() == p.labels.tolist()
            if p.given_probs is None and name in ("temperature", "vector", "matrix"):
                assert found.fit.nll_after <= found.fit.nll_before
            if np.isfinite(found.fit.nll_after):
                assert found.fit.nll_after == pytest.approx(after.row_nll.mean(), rel=1e-9)
            assert found.fit.rows == len(p)

    def test_repairs_an_overconfident_model_on_other_rows(self, name):
        dev, test = make(4000, 4, seed=1), make(4000, 4, seed=2, name="test")
        after = FITS[name](dev)(test)
        assert ece(after.probs, after.labels) < 0.3 * ece(test.probs, test.labels)

    @pytest.mark.parametrize("suffix", [".json", ".npz"])
    def test_is_the_same_after_saving(self, name, suffix, tmp_path):
        p = make(80, 3)
        found = FITS[name](p)
        found.save(tmp_path / f"c{suffix}")
        back = load_calibrator(tmp_path / f"c{suffix}")
        assert type(back) is type(found)
        assert back.fit == found.fit
        assert back.classes == found.classes
        np.testing.assert_array_equal(back(p).logits, found(p).logits)

    def test_matches_classes_by_name(self, name):
        p = make(80, 3)
        found = FITS[name](p)
        moved = found(p.reorder_classes(["2", "0", "1"]))
        assert moved.classes == ("2", "0", "1")
        np.testing.assert_allclose(moved.reorder_classes(p.classes).probs, found(p).probs, atol=1e-12)
        with pytest.raises(InputError, match="same names"):
            found(Predictions.from_logits(p.logits, p.labels, classes=["a", "b", "c"]))

    def test_refuses_test_splits_and_bare_confidences(self, name):
        for split in ("test", "sst2_test", "Test.v2"):
            with pytest.raises(InputError, match="named a test split"):
                FITS[name](make().rename(split))
        FITS[name](make().rename("contest"))
        with pytest.raises(InputError, match="confidences only"):
            FITS[name](Predictions.from_confidences([0.8, 0.7], [1, 0]))
        with pytest.raises(InputError, match="confidences only"):
            FITS[name](make())(Predictions.from_confidences([0.8, 0.7], [1, 0]))

    def test_row_order_changes_nothing(self, name):
        p = make(90, 3)
        order = np.random.default_rng(0).permutation(90)
        np.testing.assert_allclose(FITS[name](p.select(order))(p).probs, FITS[name](p)(p).probs, atol=2e-5)


def test_temperature_keeps_every_prediction():
    p = make(500, 6)
    np.testing.assert_array_equal(fit_temperature(p)(p).predicted, p.predicted)
    tied = make_tied(100)
    after = fit_temperature(tied)(tied)
    np.testing.assert_array_equal(after.probs == 0, tied.probs == 0)


def test_isotonic_is_monotone_and_pools_ties():
    p = make_tied(200)
    found = fit_isotonic(p)
    for start, end in zip(found.starts[:-1], found.starts[1:], strict=True):
        assert (np.diff(found.knots[start:end]) > 0).all()
        assert (np.diff(found.values[start:end]) >= 0).all()


def test_histogram_gives_the_frequencies_of_its_bins():
    p = Predictions.from_probs([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.2, 0.8]], [0, 0, 1, 1], name="dev")
    found = fit_histogram(p, bins=2)
    assert found.values.tolist() == [[0.0, 2 / 3], [1 / 3, 1.0]]
    with pytest.raises(InputError):
        fit_histogram(p, bins=0)


def test_cross_fitted_rows_are_scored_by_fits_that_have_not_seen_them():
    p = make(50, 3)
    whole = cross_fitted(p, folds=5)
    assert whole.labels.tolist() == p.labels.tolist()
    ratios = (p.logits[:, 0] - p.logits[:, 1]) / (whole.logits[:, 0] - whole.logits[:, 1])  # the temperature of each row
    assert len(np.unique(ratios.round(9))) == 5
    assert fit_temperature(p).value not in ratios
    with pytest.raises(InputError):
        cross_fitted(p.select([0]))


def test_foreign_and_damaged_calibrators_are_refused(tmp_path):
    found = fit_temperature(make())
    path = tmp_path / "c.json"
    found.save(path)
    content = json.loads(path.read_text())
    del content["digest"]
    for change in ({"kind": "magic"}, {"format": "other"}, {"value": -1.0}, {"value": "x" * 3}, {"extra": 1}):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(InputError):
            load_calibrator(path)
    for text in ("{", "[]", "{}"):
        path.write_text(text)
        with pytest.raises(InputError, match="not a saved calibrator"):
            load_calibrator(path)
    with pytest.raises(InputError, match="no such file"):
        load_calibrator(tmp_path / "missing.json")
    np.savez(tmp_path / "c.npz", head=np.array([object()], dtype=object))
    with pytest.raises(InputError, match="pickled"):
        load_calibrator(tmp_path / "c.npz")
    for bad in (tmp_path / "c.txt",):
        with pytest.raises(InputError):
            found.save(bad)
        bad.write_text("x")
        with pytest.raises(InputError):
            load_calibrator(bad)


@pytest.mark.parametrize("change", [{"starts": []}, {"knots": [[0.5]]}, {"values": -1}, {"values": [float("nan")]}])
def test_a_calibrator_whose_numbers_are_not_those_of_its_classes_is_refused(change):
    """Also where it is not a file, as in an .onnx: it would fail at the first example."""
    with pytest.raises(InputError, match="not those of its classes"):
        calibrator_from_json({**FITS["isotonic"](make()).to_json(), **change})


def test_every_kind_can_be_loaded():
    assert set(CALIBRATORS) == set(FITS)


@pytest.mark.parametrize("grid", [(1.0, 3.0, 1.0), (0.2, 2.8, 0.2), (0.5, 0.9, 0.1), (0.1, 10.0, 0.1), (2.0, 7.0, 0.5)])
def test_coarse_grids_equal_the_scan(grid):
    rng = np.random.default_rng(1)
    first, last, step = grid
    points = [round(first + i * step, 10) for i in range(round((last - first) / step) + 1)]
    for _ in range(25):
        z = rng.normal(size=(rng.integers(3, 80), rng.integers(2, 5))) * 10 ** rng.uniform(-1, 1)
        labels = (z / 10 ** rng.uniform(-0.7, 0.7) + rng.gumbel(size=z.shape)).argmax(axis=1)
        p = Predictions.from_logits(z, labels, name="dev")
        assert fit_temperature(p, grid=grid).value == scan(p, points)


@pytest.mark.parametrize("change", ["mask -1e4", "mask -1e9", "outliers", "tiny and hopeless"])
def test_odd_logits_do_not_shut_out_the_optimum(change):
    p = make(2000, 3)
    z = p.logits.copy()
    if change.startswith("mask"):
        z = np.column_stack([z, np.full(2000, float(change.split()[1]))])
    elif change == "outliers":
        z[:20] = 0
        z[np.arange(20), p.labels[:20]] = 1e6
    else:
        z = -1e-3 * z
    found = fit_temperature(Predictions.from_logits(z, p.labels, name="dev"))
    assert found.fit.nll_after <= found.fit.nll_before
    if change.startswith("mask"):
        assert found.value == pytest.approx(fit_temperature(p).value, rel=1e-6)
    elif change == "outliers":
        assert found.fit.converged


def test_impossible_labels_keep_t_at_one_on_a_grid_too():
    p = Predictions.from_probs([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], [2, 0], name="dev")
    found = fit_temperature(p, grid=(0.01, 5.0, 0.01))
    assert found.value == 1.0
    assert not found.fit.converged


def test_binned_maps_keep_ties_and_edges():
    p = Predictions.from_probs([[0.8, 0.2]] * 10 + [[0.2, 0.8]] * 10, [0] * 9 + [1] + [1] * 10, name="dev")
    for name in ("isotonic", "histogram"):
        after = FITS[name](p)(p)
        assert len(np.unique(after.confidence[:10])) == 1
        assert after.confidence[0] == 0.9


def test_infinite_reports_are_saved_as_json(tmp_path):
    p = Predictions.from_probs([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], name="dev")
    found = fit_temperature(Predictions.from_probs([[1.0, 0.0], [0.3, 0.7]], [1, 1], name="dev"))
    found.save(tmp_path / "c.json")
    json.loads((tmp_path / "c.json").read_text(), parse_constant=pytest.fail)
    assert load_calibrator(tmp_path / "c.json").fit == found.fit
    for bad in ({"penalty": -1.0}, {"grid": ()}, {"folds": 1}):
        with pytest.raises(InputError):
            fit_dirichlet(p, **bad)
    assert fit_dirichlet(p, grid=np.array([0.1, 1.0]), bias_penalty=0.1).penalty in (0.1, 1.0)


def test_a_changed_digit_of_a_saved_temperature_is_noticed(tmp_path):
    path = tmp_path / "c.json"
    Temperature(classes=("no", "yes"), fit=FitReport(50, 0.9, 0.8, True), value=1.25).save(path)
    content = path.read_text()
    assert load_calibrator(path).value == 1.25
    path.write_text(content.replace("1.25", "1.75"))
    with pytest.raises(InputError, match=r"c\.json: the file is damaged.*fit it again"):
        load_calibrator(path)
    by_hand = json.loads(content)
    del by_hand["digest"]
    path.write_text(json.dumps({**by_hand, "value": 1.75}))
    assert load_calibrator(path).value == 1.75


@pytest.mark.parametrize(
    "changes",
    [{"format": "distilcal.calibrator/2"}, {"format": 1},
     {"classes": "ny"}, {"classes": [1, 2]}, {"value": float("inf")}, {"value": [1.0, 2.0]},
     {"value": "x"}, {"value": None}, {"fit": []}, {"fit": {"rows": 1}}, {"kind": []}, {"kind": "magic"}, {"more": 1}],
    ids=repr,
)  # fmt: skip
def test_values_of_another_shape_are_one_clear_error(tmp_path, changes):
    content = Temperature(classes=("no", "yes"), fit=FitReport(50, 0.9, 0.8, True), value=1.25).to_json()
    (tmp_path / "c.json").write_text(json.dumps({**content, **changes}))
    with pytest.raises(InputError, match="c.json"):
        load_calibrator(tmp_path / "c.json")


@pytest.mark.parametrize("kind", FITS)
def test_a_file_whose_numbers_do_not_fit_its_classes_is_refused(tmp_path, kind):
    content = FITS[kind](make(60, 3)).to_json()
    numbers = [name for name in content if name in ("value", "weight", "bias", "starts", "knots", "values")]
    for name in numbers:
        for odd in ([], [[1.0, 2.0]], float("nan")):
            (tmp_path / "c.json").write_text(json.dumps({**content, name: odd}))
            with pytest.raises(InputError, match=r"c\.json: .*(fit it again|give what Calibrator\.save wrote)"):
                load_calibrator(tmp_path / "c.json")


def test_logits_that_are_almost_nothing_stop_at_the_lower_bound():
    p = make(rows=60)
    report = fit_temperature(Predictions.from_logits(1e-320 * p.logits, p.labels, name="dev")).fit
    assert not report.converged
    assert "stopped at the lower bound" in report.message
