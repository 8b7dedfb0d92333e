"""What a run warns of: each check on predictions or data made for it, and where the sentences go."""

import json
import re

import numpy as np
import pytest
from run_cases import recipe_file
from shell import command

from distilcal import Predictions
from distilcal.calibrate import fit_temperature
from distilcal.config.loading import load_recipe
from distilcal.data import Dataset, texts
from distilcal.data.splits import Splits
from distilcal.pipeline import run_recipe
from distilcal.pipeline.checks import MOST_CLASSES, check_calibration, check_data, check_model, other_order


def answered(labels, predicted, classes=("a", "b", "c"), name="test"):
    """Predictions with these labels and these most probable classes."""
    return Predictions.from_logits(3 * np.eye(len(classes))[predicted], labels, classes=classes, name=name)


def splits_with(labels, classes=("a", "b", "c")):
    train = Dataset(texts(["x", "y"]), [0, 1], classes, name="train")
    dev = Dataset(texts([f"text {i}" for i in range(len(labels))]), labels, classes, name="dev")
    return Splits(train, dev, train)


def test_a_small_dev_set_is_warned_of_before_training():
    [sentence] = check_data(splits_with([0, 1, 2] * 20))
    assert sentence.startswith("dev has 60 rows, too few to choose an epoch or fit a temperature on")
    assert "data.dev_fraction" in sentence
    assert check_data(splits_with([0, 1, 2] * 40)) == []


def test_classes_that_dev_hardly_has_are_named():
    [sentence] = check_data(splits_with([0] * 100 + [1] * 9))
    assert sentence.startswith("dev has fewer than 10 rows of b (9), c (0):")
    many = tuple(f"c{i}" for i in range(30))
    [sentence] = check_data(splits_with([0] * 100, many))
    assert "c1 (0), c2 (0), c3 (0) and 26 more classes:" in sentence


@pytest.mark.parametrize("other", ["Pos", "pos ", "po\u200bs", "POS"])
def test_classes_that_read_alike_are_named(other):
    [sentence] = check_data(splits_with([0, 1, 2] * 40, ("neg", "pos", other)))
    assert sentence.startswith(f"the classes 'pos', {other!r} read alike and are trained as different ones")


def test_letters_are_alike_however_unicode_writes_them():
    [sentence] = check_data(splits_with([0, 1, 2] * 40, ("caf\u00e9", "cafe\u0301", "cafe")))
    assert "'café', 'cafe\u0301' read alike" in sentence


@pytest.mark.parametrize(
    ("labels", "predicted", "start"),
    [
        ([0, 1] * 50, [0] * 100, "student predicts 'a' for all 100 rows of test, which is the label of 50.0%"),
        ([0, 1] * 50, [0] * 97 + [1] * 3, "student predicts 'a' for 97.0% of the 100 rows of test"),
        ([0] * 97 + [1] * 3, [0] * 97 + [1] * 3, None),  # rare classes are rarely predicted
        ([0] * 97 + [1] * 3, [0] * 99 + [1], "student predicts 'a' for 99.0% of the 100 rows of test"),
        ([0] * 100, [0] * 100, None),
        ([0, 1] * 50, [0, 1] * 50, None),
    ],
)
def test_a_model_that_predicts_one_class(labels, predicted, start):
    sentences = check_model("student", answered(labels, predicted))
    assert [sentence.startswith(start) for sentence in sentences] == ([] if start is None else [True])


def test_a_model_below_the_majority_rate_is_named_with_both_rates():
    labels = np.array([0] * 60 + [1] * 40)
    many = np.tile(labels, 10)
    [sentence] = check_model("student", answered(many, np.where(np.arange(1000) % 4 < 2, many, 2)))
    assert sentence.startswith(
        "student is right on 50.0% of test, less than the 60.0% of always predicting 'a' (difference -0.100"
    )
    few = labels[::10]
    assert check_model("student", answered(few, np.roll(few, 2))) == []  # 6 of 10 against 6 of 10


@pytest.mark.parametrize("order", [(1, 0, 2), (1, 2, 0)])
def test_a_model_whose_classes_are_in_another_order_is_told(order):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 120)
    right = np.where(rng.random(120) < 0.9, labels, rng.integers(0, 3, 120))
    [sentence] = check_model("teacher", answered(labels, np.array(order)[right]))
    assert re.match(r"teacher is right on [\d.]+% of test, but on 87\.5% if one reads 'a' as ", sentence)
    assert "in another order than those of the data" in sentence
    assert check_model("teacher", answered(labels, right)) == []


def test_some_order_always_fits_a_model_that_guesses_and_is_not_told():
    rng = np.random.default_rng(0)
    for classes, rows in ((2, 100), (3, 60), (20, 200), (77, 300)):
        names = tuple(f"c{k}" for k in range(classes))
        for _ in range(10):
            guesses = answered(rng.integers(0, classes, rows), rng.integers(0, classes, rows), names)
            assert not any("another order" in sentence for sentence in check_model("teacher", guesses))


def test_classes_that_are_never_predicted_are_named_from_a_hundredth_of_the_rows():
    labels = np.array([0] * 500 + [1] * 480 + [2] * 20)
    [sentence] = check_model("student", answered(labels, np.minimum(labels, 1)))
    assert sentence.startswith("student never predicts c (2.0% of the rows) on test:")
    labels = np.array([0] * 500 + [1] * 495 + [2] * 5)
    assert check_model("student", answered(labels, np.minimum(labels, 1))) == []


def test_a_calibration_on_few_mistakes_is_doubtful():
    labels = np.arange(200) % 2
    right = answered(labels, labels, ("a", "b"), "dev")
    few = right.select(np.arange(150))
    wrong = answered(labels, np.where(np.arange(200) < 4, 1 - labels, labels), ("a", "b"), "dev")
    [sentence] = check_calibration("student", wrong, fit_temperature(wrong))
    assert sentence.startswith("student makes 4 mistakes on the 200 rows of dev, too few to fit its calibration (temperature)")
    sentences = check_calibration("student", few, fit_temperature(few))  # all right: the best temperature is 0
    assert sentences[0].startswith("student makes 0 mistakes on the 150 rows of dev")
    assert "is doubtful: " in sentences[1]
    many = answered(labels, np.where(np.arange(200) < 40, 1 - labels, labels), ("a", "b"), "dev")
    assert check_calibration("student", many, fit_temperature(many)) == []


def test_warnings_are_logged_early_and_stored(place, tmp_path, caplog):
    recipe = load_recipe(recipe_file(place, tmp_path / "r.toml"), ["stages.teacher.train.lr=1e-12"])
    run_recipe(recipe, tmp_path / "run", tmp_path / "store")
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert lines[0].startswith("dev has ")
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    of_stages = [sentence for stage in facts["stages"].values() for sentence in stage["warnings"]]
    assert facts["warnings"] == [lines[0], *of_stages]
    assert any(sentence.startswith("teacher predicts ") and " of test" in sentence for sentence in of_stages)
    assert any(line.startswith("teacher predicts ") and " of dev" in line for line in lines)


def test_a_dry_run_warns_of_the_data(place, tmp_path):
    path = recipe_file(place, tmp_path / "r.toml")
    printed = command("run", path, "--store", tmp_path / "store", "--dry-run").stdout.splitlines()
    assert printed[1].startswith("warning: dev has ")


def test_another_order_of_very_many_classes_is_not_looked_for():
    classes = [str(k) for k in range(MOST_CLASSES + 1)]
    labels = np.random.default_rng(0).integers(0, 2, 400)
    logits = np.zeros((400, len(classes)))
    logits[np.arange(400), 1 - labels] = 5.0  # the first two are swapped
    assert other_order("teacher", Predictions.from_logits(logits, labels, classes=classes)) is None
    assert other_order("teacher", Predictions.from_logits(logits[:, :10], labels, classes=classes[:10]))
