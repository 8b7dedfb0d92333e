"""A student keeps what it is confident in; a teacher answers the rest, once, and every row tells who answered."""

import numpy as np
import pytest
from served import dev_rows, length_student, undecided_student
from small_onnx import write_word_student

from distilcal.data import Dataset, texts
from distilcal.errors import InputError, TeacherError
from distilcal.inference import Student
from distilcal.predictions import Predictions
from distilcal.selective import loss_threshold

# The confidences of these are .95, .73, .88, .73, .73 and 1.
EXAMPLES = ["ab", "abcdef", "abcdefg", "abcd", "abcdef", "abcdefghijklmno"]
SURE = 0.8


class Teacher:
    """Remembers what it was asked, and answers with the first letters."""

    def __init__(self, answer=lambda asked: ["long"] * len(asked)):
        self.calls = []
        self.answer = answer

    def __call__(self, asked):
        self.calls.append(asked)
        return self.answer(asked)


def test_only_what_is_below_the_threshold_is_deferred_once_and_in_order():
    teacher = Teacher(lambda asked: ["short" if text == "abcdef" else "long" for text in asked])
    answers = length_student().predict(EXAMPLES, confidence=SURE, defer_to=teacher)
    assert teacher.calls == [["abcdef", "abcd"]]
    assert [answer.label for answer in answers] == ["short", "short", "long", "long", "short", "long"]
    assert [answer.deferred for answer in answers] == [False, True, False, True, True, False]
    assert [answer.answered_by for answer in answers] == ["student", "teacher", "student", "teacher", "teacher", "student"]
    probs = length_student().predict_proba(EXAMPLES).max(axis=1)
    assert [answer.confidence for answer in answers] == [probs[0], None, probs[2], None, None, probs[5]]


def test_the_threshold_itself_is_kept():
    confidence = float(length_student().predict_proba(["abcdef"]).max())
    kept = length_student().predict(["abcdef"], confidence=confidence, defer_to=Teacher())
    above = length_student().predict(["abcdef"], confidence=np.nextafter(confidence, 1), defer_to=Teacher())
    assert (kept[0].answered_by, above[0].answered_by) == ("student", "teacher")


def test_an_accuracy_chooses_the_threshold():
    student = length_student(dev=dev_rows(), required_accuracy=0.9)
    for settings, accuracy in (({"accuracy": 0.95}, 0.95), ({}, 0.9)):
        lowest = student.threshold(accuracy).confidence
        answers = student.predict(EXAMPLES, defer_to=Teacher(), **settings)
        expected = (student.predict_proba(EXAMPLES).max(axis=1) < lowest).tolist()
        assert [answer.deferred for answer in answers] == expected
        assert len(set(expected)) == 2


def test_nothing_deferred_asks_nobody():
    teacher = Teacher()
    answers = length_student().predict(EXAMPLES, confidence=0.5, defer_to=teacher)
    assert teacher.calls == []
    assert {answer.answered_by for answer in answers} == {"student"}
    assert length_student().predict([], confidence=0.5, defer_to=teacher) == []


def test_everything_may_be_deferred():
    teacher = Teacher()
    answers = length_student().predict(EXAMPLES[:3], confidence=1, defer_to=teacher)
    assert teacher.calls == [EXAMPLES[:3]]
    assert [answer.label for answer in answers] == ["long"] * 3


def test_without_a_teacher_a_human_answers():
    answers = length_student().predict(EXAMPLES, confidence=SURE)
    assert [answer.label for answer in answers] == ["short", None, "long", None, None, "long"]
    assert answers[1].confidence == length_student().predict_proba(["abcdef"]).max()
    assert (answers[1].answered_by, answers[1].deferred) == (None, True)


def test_a_teacher_may_leave_a_row_to_a_human():
    answers = length_student().predict(["abcdef", "abcd"], confidence=SURE, defer_to=Teacher(lambda asked: ["long", None]))
    assert [(answer.label, answer.answered_by, answer.deferred) for answer in answers] == [
        ("long", "teacher", True),
        (None, None, True),
    ]


@pytest.mark.parametrize(
    ("answer", "label", "confidence"),
    [
        ([[0.9, 0.1]], "short", 0.9),
        (np.array([[0.25, 0.75]]), "long", 0.75),
        (np.array(["long"]), "long", None),
        (("short",), "short", None),
        ([{"label": "short", "score": 0.7}], "short", 0.7),
        ([[{"label": "long", "score": 0.6}, {"label": "short", "score": 0.4}]], "long", 0.6),
        ([[{"label": "short", "score": 0.4}, {"label": "long", "score": 0.6}]], "long", 0.6),
        (np.array([[0.0, 1.0009]]), "long", 1.0),
    ],
    ids=["list of probabilities", "array", "labels", "tuple", "pipeline", "top_k", "classes in their order", "above 1"],
)
def test_functions_return_labels_or_probabilities(answer, label, confidence):
    found = length_student().predict(["abcd"], confidence=SURE, defer_to=lambda asked: answer)[0]
    assert (found.label, found.confidence, found.answered_by) == (label, confidence, "teacher")


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_tensors_are_probabilities(kind):
    import torch

    answer = torch.tensor([[0.25, 0.75]], dtype=getattr(torch, kind), requires_grad=True)
    found = length_student().predict(["abcd"], confidence=SURE, defer_to=lambda asked: answer)[0]
    assert (found.label, found.confidence) == ("long", 0.75)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["medium"], "does not know the class 'medium'"),
        ([1], "does not know the class '1'"),
        (["long", "long"], "expected 1 answers, got 2"),
        ([], "expected 1 answers, got 0"),
        ("long", "expected labels or probabilities, got str"),
        ({"abcd": "long"}, "got dict"),
        (None, "got NoneType"),
        ([[0.9, 0.9]], "is no distribution"),
        ([["many", "few"]], "expected an array of probabilities, got list"),
        ([[1.0]], r"expected probabilities of shape \(1, 2\), got \(1, 1\)"),
        ([{"label": "long", "score": "high"}], "the score 'high' is not a probability"),
        ([{"label": "long", "score": 7.5}], "the score 7.5 is not a probability"),
        ([{"label": "long", "score": -0.1}], "the score -0.1 is not a probability"),
        ([{"label": "long", "score": float("nan")}], "the score nan is not a probability"),
        ([{"label": "long", "score": True}], "the score True is not a probability"),
        (np.ma.array([[0.9, 0.1]], mask=[[False, True]]), "some probabilities are masked"),
    ],
)
def test_nonsense_is_one_clear_error(answer, message):
    with pytest.raises(TeacherError, match=message):
        length_student().predict(["abcd"], confidence=SURE, defer_to=Teacher(lambda asked: answer))


def test_a_teacher_that_fails_is_named():
    def overloaded(asked):
        raise RuntimeError("no credit")

    with pytest.raises(TeacherError, match=r"overloaded: it failed on 1 example: RuntimeError: no credit") as caught:
        length_student().predict(["abcd"], confidence=SURE, defer_to=overloaded)
    assert isinstance(caught.value.__cause__, RuntimeError)


class Ends:
    """Logits by the last letter of a text."""

    def compute_logits(self, data, on_progress=None):
        return np.array([[0.0, 3.0 if text.endswith("f") else -3.0] for text in data.inputs.text])


def test_the_classes_of_another_student_are_matched_by_name():
    for classes, labels in ((("short", "long"), ["long", "short"]), (("long", "short"), ["short", "long"])):
        teacher = Student(Ends(), classes, "texts")
        answers = length_student().predict(["abcdef", "abcd"], confidence=SURE, defer_to=teacher)
        assert [answer.label for answer in answers] == labels
        assert [answer.confidence for answer in answers] == pytest.approx([1 / (1 + np.exp(-3))] * 2)


def test_a_teacher_may_know_fewer_classes_but_no_others():
    student = undecided_student(("medium", "long", "short"))
    assert student.predict(["abcdef"], confidence=SURE, defer_to=Student(Ends(), ("short", "long"), "texts"))[0].label == "long"
    with pytest.raises(InputError, match="the student does not know the class 'medium'; use the names of its classes"):
        length_student().predict(["abc"], confidence=SURE, defer_to=student)


def test_a_teacher_that_reads_something_else_is_refused():
    with pytest.raises(InputError, match="it reads vectors, the student texts"):
        length_student().predict(["abc"], confidence=SURE, defer_to=Student(Ends(), ("short", "long"), "vectors"))


@pytest.mark.parametrize("teacher", [3, ["long"], {"a": 1}, object()])
def test_what_cannot_answer_is_refused(teacher):
    with pytest.raises(InputError, match=f"defer_to: a {type(teacher).__name__} cannot answer for a student"):
        length_student().predict(["abc"], confidence=SURE, defer_to=teacher)


def test_classifiers_of_scikit_learn_answer():
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    words, labels = ["abcdef", "abcd", "ab", "abcdefgh"], np.array(["short", "long", "short", "long"])
    probable = make_pipeline(CountVectorizer(), LogisticRegression(C=100)).fit(words, labels)
    answers = length_student().predict(["abcdef", "abcd"], confidence=SURE, defer_to=probable)
    assert [answer.label for answer in answers] == ["short", "long"]
    assert [answer.confidence for answer in answers] == pytest.approx(probable.predict_proba(["abcdef", "abcd"]).max(axis=1))
    labelling = make_pipeline(CountVectorizer(), LinearSVC()).fit(words, labels)
    answers = length_student().predict(["abcdef", "abcd"], confidence=SURE, defer_to=labelling)
    assert [(answer.label, answer.confidence) for answer in answers] == [("short", None), ("long", None)]
    other = make_pipeline(CountVectorizer(), LogisticRegression()).fit(words, [0, 1, 0, 1])
    with pytest.raises(InputError, match="does not know the classes '0', '1'"):
        length_student().predict(["abcd"], confidence=SURE, defer_to=other)


def test_an_onnx_is_a_teacher_by_its_path(tmp_path):
    path = write_word_student(tmp_path / "words.onnx")
    student = undecided_student(("pos", "neg"))
    for teacher in (path, str(path), student.teacher(path)):
        assert [answer.label for answer in student.predict(["bad", "good"], confidence=SURE, defer_to=teacher)] == [
            "neg",
            "pos",
        ]
    with pytest.raises(InputError, match="there is no such file"):
        student.predict(["bad"], confidence=SURE, defer_to=tmp_path / "missing.onnx")


def test_teachers_are_checked_before_the_student_runs():
    class Fails:
        def compute_logits(self, data, on_progress=None):
            raise AssertionError

    with pytest.raises(InputError, match="cannot answer"):
        Student(Fails(), ("short", "long"), "texts").predict(["a"], confidence=SURE, defer_to=3)


def test_pairs_and_vectors_are_given_as_they_came():
    teacher = Teacher()
    undecided_student().predict([("a", "b"), ("c", "d")], confidence=SURE, defer_to=teacher)
    assert teacher.calls == [[("a", "b"), ("c", "d")]]
    teacher = Teacher()
    undecided_student(input_kind="vectors").predict(np.eye(3), confidence=SURE, defer_to=teacher)
    assert teacher.calls[0].tolist() == np.eye(3).tolist()
    teacher = Teacher()
    undecided_student(input_kind="choices").predict([("the cat", ["sleeps", "divides"])], confidence=SURE, defer_to=teacher)
    assert teacher.calls == [[("the cat", ["sleeps", "divides"])]]


def test_a_dataset_is_deferred_too():
    data = Dataset(texts(EXAMPLES), ids=np.array(list("abcdef")))
    assert length_student().predict(data, confidence=SURE, defer_to=Teacher()) == length_student().predict(
        EXAMPLES, confidence=SURE, defer_to=Teacher()
    )


def test_a_loss_to_the_teacher_chooses_the_threshold():
    dev = dev_rows()
    right = np.random.default_rng(1).random(len(dev)) < 0.9
    student = length_student(dev=dev, teacher_correct=right)
    teacher = Predictions.from_confidences(dev.confidence, right)
    limit = loss_threshold(dev, teacher, 0.02)
    assert student.loss_threshold(0.02) == limit
    assert 0.7 < limit.confidence < 0.95
    answers = student.predict(EXAMPLES, max_loss=0.02, defer_to=Teacher())
    expected = (student.predict_proba(EXAMPLES).max(axis=1) < limit.confidence).tolist()
    assert [answer.deferred for answer in answers] == expected
    assert len(set(expected)) == 2
    assert student.acceptance(max_loss=0.02).message == limit.message
    nothing = student.acceptance(max_loss=1e-5)
    assert nothing.confidence is None
    assert {answer.answered_by for answer in student.predict(EXAMPLES, max_loss=1e-5, defer_to=Teacher())} == {"teacher"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_loss": 0.01}, "no dev predictions of its teacher, so no loss can be promised"),
        ({"max_loss": 0.01, "accuracy": 0.9}, "accuracy and max_loss each choose the threshold; give one of them"),
        ({"confidence": [0.5]}, "confidence: expected a number, got"),
        ({"confidence": 1.5}, "the confidence 1.5 is not between 0 and 1"),
        ({"confidence": float("nan")}, "not between 0 and 1"),
        ({"confidence": 0.8, "accuracy": 0.9}, "each choose the threshold; give one of them"),
        ({}, "no dev predictions"),
    ],
)
def test_thresholds_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        length_student().predict(["a"], defer_to=Teacher(), **settings)
