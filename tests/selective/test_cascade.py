"""The pair of a student and a teacher at every share handed over."""

import json

import numpy as np
import pytest
from samples import make, make_tied
from scipy import stats

from distilcal import InputError, Predictions
from distilcal.metrics import ece, nll, reliability
from distilcal.selective import cascade, paired_rate_interval


def teacher_of(student, *, seed=7, noise=1.0):
    """Another model on the same rows: it sees the label through less noise."""
    rng = np.random.default_rng(seed)
    logits = 2 * np.eye(len(student.classes))[student.labels] + noise * rng.normal(size=student.logits.shape)
    return Predictions.from_logits(logits, student.labels, ids=student.ids, classes=student.classes, name="teacher")


STUDENTS = {
    "many classes": make(),
    "three classes": make(211, 3),
    "ties": make_tied(),
    "one row": make(1, 3),
    "equal confidences": Predictions.from_probs([[0.7, 0.3], [0.3, 0.7], [0.7, 0.3]], [0, 0, 1]),
}


@pytest.fixture(params=STUDENTS.values(), ids=STUDENTS)
def student(request):
    return request.param


def test_every_point_equals_a_plain_computation(student):
    teacher = teacher_of(student)
    pair = cascade(student, teacher, costs=(2, 30), points=None)
    assert len(pair) == len(np.unique(student.confidence)) + 1
    for i in range(len(pair)):
        point = pair.point(i)
        kept = student.confidence >= point.confidence
        probs = np.where(kept[:, None], student.probs, teacher.probs)
        correct = np.where(kept, student.correct, teacher.correct)
        assert point.handed_over == pytest.approx(1 - kept.mean())
        assert point.accuracy == pytest.approx(correct.mean())
        assert point.nll == pytest.approx(nll(probs, student.labels))
        assert point.ece == pytest.approx(ece(probs, student.labels), abs=1e-12)
        assert point.cost == pytest.approx(2 + 30 * (1 - kept.mean()))
        assert point.difference == pytest.approx(correct.mean() - teacher.correct.mean())
        assert point.difference_low <= point.difference <= point.difference_high
        exact = stats.binomtest(int(correct.sum()), len(student)).proportion_ci(0.95, "exact")
        assert (point.accuracy_low, point.accuracy_high) == pytest.approx((exact.low, exact.high))
        if kept.any():
            assert point.kept_accuracy == pytest.approx(student.correct[kept].mean())
        else:
            assert np.isnan(point.kept_accuracy)


def test_the_ends_are_the_two_models_alone(student):
    teacher = teacher_of(student)
    pair = cascade(student, teacher, costs=(2, 30))
    assert pair.student_alone.accuracy == pytest.approx(student.correct.mean())
    assert pair.student_alone.cost == 2
    assert pair.teacher_alone.accuracy == pytest.approx(teacher.correct.mean())
    assert pair.teacher_alone.cost == 30
    assert pair.cost[-1] == 32
    assert (pair.teacher_alone.difference, pair.teacher_alone.confidence) == (0, np.inf)


def test_few_points_are_points_of_the_whole_curve():
    student = make(2000, 3)
    teacher = teacher_of(student)
    full, thin = cascade(student, teacher, points=None), cascade(student, teacher, points=11)
    assert thin.handed_over == pytest.approx(np.linspace(0, 1, 11), abs=0.001)
    rows = np.searchsorted(full.confidence, thin.confidence)
    for name in ("confidence", "accuracy", "nll", "ece", "kept_accuracy", "difference", "difference_low"):
        np.testing.assert_allclose(getattr(thin, name), getattr(full, name)[rows], atol=1e-12)


def test_rows_are_matched_by_id_and_classes_by_name():
    student = make(97, 3)
    teacher = teacher_of(student)
    shuffled = teacher.select(np.random.default_rng(0).permutation(97)).reorder_classes(("2", "0", "1"))
    np.testing.assert_allclose(cascade(student, shuffled).nll, cascade(student, teacher).nll)
    with pytest.raises(InputError, match="share no id"):
        cascade(student, Predictions.from_logits(teacher.logits, teacher.labels, ids=[f"other{i}" for i in range(97)]))


def test_it_is_stored_as_strict_json_and_read_back():
    student = Predictions.from_probs([[1.0, 0.0], [0.6, 0.4], [0.3, 0.7]], [1, 0, 1], name="student")
    pair = cascade(student, teacher_of(student), unit="ms")
    text = json.dumps(pair.to_dict(), allow_nan=False)
    again = type(pair).from_dict(json.loads(text))
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    assert np.isinf(again.nll[0])
    assert np.isfinite(again.nll[-1])
    assert (again.student, again.teacher, again.costs, again.unit) == ("student", "teacher", None, "ms")
    np.testing.assert_array_equal(again.kept_accuracy, pair.kept_accuracy)


def test_confidences_without_classes_have_no_nll():
    student = Predictions.from_confidences([0.9, 0.6, 0.7], [1, 0, 1])
    pair = cascade(student, Predictions.from_confidences([0.8, 0.8, 0.8], [1, 1, 0]))
    assert pair.accuracy.tolist() == pytest.approx([2 / 3, 1, 2 / 3, 2 / 3])
    assert np.isnan(pair.nll).all()


@pytest.mark.parametrize("costs", [(0, 1), (1, -2), (1, np.inf), (np.nan, 1)])
def test_impossible_costs_are_refused(costs):
    with pytest.raises(InputError, match="the cost of the"):
        cascade(make(), teacher_of(make()), costs=costs)


def test_a_curve_needs_two_points():
    with pytest.raises(InputError, match="no curve"):
        cascade(make(), teacher_of(make()), points=1)


def test_the_paired_interval_covers():
    rng = np.random.default_rng(0)
    for rows, rates in ((40, (0.1, 0.05)), (500, (0.01, 0.03)), (2000, (0.1, 0.1))):
        counts = rng.multinomial(rows, [*rates, 1 - sum(rates)], size=2000)
        low, high = paired_rate_interval(counts[:, 0], counts[:, 1], rows)
        covered = ((low <= rates[0] - rates[1]) & (rates[0] - rates[1] <= high)).mean()
        assert 0.935 < covered < 0.98
    low, high = paired_rate_interval([0], [0], 100)
    assert low[0] < -0.02
    assert high[0] > 0.02


@pytest.mark.parametrize("level", [0, 1, 95, np.nan])
def test_a_level_that_is_no_share_is_refused(level):
    p = make(rows=20)
    for measure in (lambda: cascade(p, p, level=level), lambda: reliability(p, level=level)):
        with pytest.raises(InputError, match="level .* is not between 0 and 1"):
            measure()


@pytest.mark.parametrize("costs", [(), (1,), (1, 2, 3), 5])
def test_costs_that_are_not_two_are_refused(costs):
    p = make(rows=20)
    with pytest.raises(InputError, match=r"costs: expected \(a number, a number\) or None, got"):
        cascade(p, p, costs=costs)
