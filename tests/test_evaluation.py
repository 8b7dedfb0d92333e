"""The whole answer: overlap between sets, the threshold's origin, and what is said in words."""

from dataclasses import replace

import numpy as np
import pytest
from samples import make

from distilcal import InputError, Predictions
from distilcal.evaluation import class_scores, evaluate_model, macro_f1, shared_rows
from distilcal.report.evaluations.sentences import next_steps, reading


def calibrated(rows, seed, *, scale=1.0, name="test"):
    rng = np.random.default_rng(seed)
    z = 2.5 * rng.normal(size=(rows, 4))
    return Predictions.from_logits(scale * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), name=name)


def words(*sets, **settings):
    return " ".join(reading(evaluate_model(*sets, intervals=40, **settings)))


def test_overlap_is_found_by_content_in_any_order():
    dev, test = make(400, 4, seed=1), make(200, 4, seed=2, name="test")
    assert shared_rows(test, dev).rows == 0
    mixed = Predictions.from_logits(
        np.concatenate([dev.logits, test.logits[::-4]]), np.concatenate([dev.labels, test.labels[::-4]]), name="dev"
    )
    assert shared_rows(test, mixed).share == 0.25
    assert "25.0% of the rows of test are in dev too (by chance about 0 of 200 would be)" in words(test, mixed)
    with pytest.raises(InputError, match="100% of the rows"):
        evaluate_model(test, test.select(np.random.default_rng(0).permutation(200)).rename("dev"), intervals=20)
    single = Predictions.from_logits(test.logits.astype(np.float32), test.labels)
    assert shared_rows(test, single).share > 0.95
    assert shared_rows(test, Predictions.from_probs(test.probs, test.labels)).share > 0.95


def test_rounded_predictions_are_no_proof_of_overlap():
    rng = np.random.default_rng(0)
    for rows, classes in ((100, 2), (10, 2), (1000, 3)):
        sets = []
        for size in (rows, 300):
            probs = np.round(rng.dirichlet(np.ones(classes), size), 2)
            probs[:, 0] = 1 - probs[:, 1:].sum(axis=1)
            sets.append(Predictions.from_probs(np.abs(probs), rng.integers(0, classes, size)))
        assert shared_rows(*sets).rows == 0


def two_classes(rows, seed, *, ids=None, decimals=None):
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=rows)
    probs = 1 / (1 + np.exp(-np.column_stack([z, -z])))
    if decimals is not None:
        probs = np.column_stack([probs[:, 0].round(decimals), 1 - probs[:, 0].round(decimals)])
    return Predictions.from_probs(probs, (rng.random(rows) > probs[:, 0]).astype(int), ids=ids)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("decimals", [None, 4, 3, 2])
def test_two_classes_are_no_alarm_and_a_real_overlap_is(seed, decimals):
    rng = np.random.default_rng(seed)
    rows, other_rows = rng.integers(20, 3000, 2)
    numbers = [str(i) for i in range(3000)]  # ids that count the rows of each file
    test = two_classes(rows, 2 * seed, ids=numbers[:rows], decimals=decimals)
    dev = two_classes(other_rows, 2 * seed + 1, ids=numbers[:other_rows], decimals=decimals)
    assert shared_rows(test, dev).rows == 0
    assert shared_rows(replace(test, ids=None), dev).rows == 0
    assert shared_rows(test, test.select(rng.permutation(rows))).share == 1
    if decimals is None:
        half = test.select(np.arange(rows // 2))
        assert shared_rows(replace(test, ids=None), half).share == pytest.approx(0.5, abs=0.03)


def test_labels_without_confidence_are_compared_by_id():
    rng = np.random.default_rng(0)
    sets = [
        Predictions.from_probs(np.eye(2)[rng.integers(0, 2, 400)], rng.integers(0, 2, 400), ids=[str(i) for i in range(400)])
        for _ in range(2)
    ]
    found = shared_rows(*sets)
    assert found.rows == 0
    assert found.by_chance > 50
    assert shared_rows(sets[0], sets[0]).share == 1


@pytest.mark.parametrize("seed", range(30))
def test_reading_and_next_steps_never_contradict_each_other(seed):
    rng = np.random.default_rng(seed)
    scale = 10 ** rng.uniform(-0.7, 0.7, 3)
    sizes = rng.integers(2, 400, 3)
    dev, test, away = (
        calibrated(int(n), seed * 3 + i, scale=s, name=f"set{i}") for i, (n, s) in enumerate(zip(sizes, scale, strict=True))
    )
    method = ["temperature", "vector", "isotonic", "histogram"][seed % 4]
    found = evaluate_model(test, dev, test if seed % 2 else None, [away], method=method, intervals=20)
    said, steps = " ".join(reading(found)), " ".join(next_steps(found))
    for odd in ("nan", "None", " inf", " 1 rows"):
        assert odd not in said + steps
    assert ("makes it worse" in said or "does not help" in said) == ("Do not use this calibration" in steps)
    assert ("fixes" in said) == ("keep the fit" in steps.lower())
    if not found.threshold.reached:
        assert "Do not use the threshold" not in steps


def test_reading_of_over_under_and_well_calibrated_models():
    assert words(calibrated(3000, 1, scale=2)).startswith("Overconfident by")
    assert words(calibrated(3000, 1, scale=0.5)).startswith("Underconfident by")
    assert words(calibrated(3000, 1)).startswith("No miscalibration can be told from chance")


def test_reading_of_calibration():
    dev = calibrated(3000, 2, scale=2, name="dev")
    assert "fixes all of it that can be told from chance" in words(calibrated(3000, 1, scale=2), dev)
    assert "makes it worse" in words(calibrated(3000, 1), calibrated(3000, 2, scale=0.4, name="dev"))


def test_threshold_is_chosen_on_dev_and_checked_elsewhere():
    dev, test, away = (calibrated(3000, s, scale=2, name=n) for s, n in ((1, "dev"), (2, "test"), (3, "away")))
    found = evaluate_model(test, dev, ood=[away], intervals=20)
    assert found.threshold_on == "dev"
    assert [c.name for c in found.checks] == ["test", "away"]
    assert found.checks[0].accuracy >= 0.95
    alone = evaluate_model(test, intervals=20)
    assert alone.threshold_on == "test"
    assert "chosen on these same rows" in " ".join(reading(alone))
    assert any("development split" in step for step in next_steps(alone))


def test_unknown_method_and_form_are_refused():
    with pytest.raises(InputError, match="unknown calibration method"):
        evaluate_model(make(), method="magic")
    bare = Predictions.from_confidences([0.9, 0.8], [1, 0])
    with pytest.raises(InputError, match="differ in form"):
        evaluate_model(make(), ood=[bare])


def test_precision_recall_and_f1_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 97)
    predictions = Predictions.from_logits(rng.normal(size=(97, 5)) + np.eye(5)[labels], labels)
    scores = class_scores(predictions)
    expected = metrics.precision_recall_fscore_support(labels, predictions.predicted, labels=range(5), zero_division=np.nan)
    for name, values in zip(("precision", "recall", "f1", "rows"), expected, strict=True):
        np.testing.assert_allclose([getattr(row, name) for row in scores], values, err_msg=name)
    assert [row.predicted for row in scores] == np.bincount(predictions.predicted, minlength=5).tolist()
    assert macro_f1(scores) == pytest.approx(metrics.f1_score(labels, predictions.predicted, average="macro"))


def test_a_class_that_does_not_occur_does_not_count_in_macro_f1():
    predictions = Predictions.from_logits(np.eye(3)[[0, 1, 1]], [0, 1, 0], classes=("a", "b", "never"))
    scores = class_scores(predictions)
    assert np.isnan(scores[2].f1)
    assert macro_f1(scores) == pytest.approx((2 / 3 + 2 / 3) / 2)
