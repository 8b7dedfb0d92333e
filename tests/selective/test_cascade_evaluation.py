"""A cascade that is chosen on dev and checked on every other split, and the one sentence about it."""

import json

import numpy as np
import pytest
from samples import make
from test_promises import draw_pair, pair_of

from distilcal.calibrate import fit_temperature
from distilcal.evaluation import calibrate_splits
from distilcal.selective import CascadeEvaluation, check_promise, evaluate_cascade, loss_threshold, output_threshold, threshold


def splits_of_pair(*, shifted=False):
    rng = np.random.default_rng(5)
    student, teacher = {}, {}
    for name in ("train", "dev", "test"):
        student[name], teacher[name] = pair_of(*draw_pair(rng, 3000), name=f"{name} rows")
    if shifted:
        sure = rng.uniform(0.9, 1.0, 3000)
        student["tweets"], teacher["tweets"] = pair_of(sure, rng.random(3000) < 0.7, rng.random(3000) < 0.9)
    del teacher["train"]
    return student, teacher


def test_dev_chooses_and_the_others_check():
    student, teacher = splits_of_pair()
    result = evaluate_cascade(student, teacher, accuracy=0.95, max_loss=0.01, costs=(1, 40), unit="ms")
    assert list(result.splits) == ["dev", "test"]
    assert result.accepted.confidence == threshold(student["dev"], 0.95).confidence
    assert result.output.confidence == output_threshold(student["dev"], 0.95).confidence
    assert result.loss.confidence == loss_threshold(student["dev"], teacher["dev"], 0.01).confidence
    assert result.splits["dev"].checks == {}
    check = result.splits["test"].checks["loss"]
    assert check == check_promise(result.loss, student["test"].rename("test"), teacher["test"])
    cost = (1 + 40 * (1 - check.coverage)) / 40
    within = "accuracy as the teacher's within 1 point (95%)"
    assert result.sentence == f"{check.coverage:.0%} stay with the student; {within}; {cost:.0%} of its cost"
    assert (result.student, result.teacher, result.alone, result.costs) == ("student", "teacher", None, (1, 40))


def test_it_is_stored_and_read_back():
    student, teacher = splits_of_pair(shifted=True)
    for accuracy in (0.9, 0.9999):
        result = evaluate_cascade(student, teacher, teacher, names=("small", "large", "alone"), accuracy=accuracy, points=5)
        text = json.dumps(result.to_dict(), allow_nan=False)
        again = CascadeEvaluation.from_dict(json.loads(text))
        assert json.dumps(again.to_dict(), allow_nan=False) == text
        assert repr(again.accepted) == repr(result.accepted)
        assert again.accepted.reached == (accuracy == 0.9)
        assert again.splits["test"].alone.student == "alone"
        assert again.splits["test"].cascade.student == "small"


def test_a_broken_promise_is_named():
    student, teacher = splits_of_pair(shifted=True)
    result = evaluate_cascade(student, teacher, max_loss=0.01)
    check = result.splits["tweets"].checks["loss"]
    assert check.broken
    assert result.sentence.endswith(f"; the promise is broken on tweets ({-100 * check.value:+.1f} points)")
    assert "cost" not in result.sentence


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"max_loss": 0.0005}, "no threshold can promise a loss of at most 0.05 points"), ({"costs": (30, 40)}, "the pair costs")],
)
def test_do_not_is_an_answer(options, reason):
    result = evaluate_cascade(*splits_of_pair(), **options)
    assert result.sentence.startswith("do not: ")
    assert reason in result.sentence


def test_dev_is_calibrated_fold_by_fold():
    dev, test = make(300, 3), make(200, 3, seed=1)
    fitted = fit_temperature(dev)
    calibrated = calibrate_splits({"dev": dev, "test": test}, fitted)
    np.testing.assert_allclose(calibrated["test"].probs, fitted(test).probs)
    ratio = dev.logits[:, 0] - dev.logits[:, 1]
    log_ratio = np.log(calibrated["dev"].probs[:, 0] / calibrated["dev"].probs[:, 1])
    assert len(np.unique((ratio / log_ratio).round(6))) == 5
    assert calibrate_splits({"test": test}, None) == {"test": test}
