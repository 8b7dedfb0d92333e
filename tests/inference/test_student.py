"""A student gives labels and calibrated probabilities, and hands over what it cannot promise."""

import numpy as np
import pandas
import pytest

from distilcal.calibrate import Temperature
from distilcal.data import Dataset, texts
from distilcal.errors import InputError
from distilcal.inference import Answer, Student, as_inputs
from distilcal.predictions import Predictions


class Lengths:
    """Logits that grow with the length of a text."""

    def compute_logits(self, data, on_progress=None):
        return np.array([[0.0, len(text) - 5.0] for text in data.inputs.text])


def student(**settings):
    return Student(Lengths(), ("short", "long"), "texts", **settings)


def dev_rows(count=2000):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, count)
    return Predictions.from_confidences(confidence, rng.random(count) < confidence, name="dev")


def test_probabilities_are_those_of_the_calibrator():
    probs = student(calibrator=Temperature(value=2.0, classes=("short", "long"), fit=None)).predict_proba(["abcdefg", "a"])
    expected = 1 / (1 + np.exp(-np.array([2.0, -4.0]) / 2))
    assert probs[:, 1] == pytest.approx(expected)
    assert probs.sum(axis=1) == pytest.approx([1, 1])


def test_labels_are_the_most_probable_classes():
    assert student().predict(["abcdefg", "a"]) == ["long", "short"]
    assert student().predict(np.array(["abcdefg", "a"])) == ["long", "short"]


def test_what_cannot_be_promised_is_handed_over():
    model = student(dev=dev_rows())
    lowest = model.threshold(0.9).confidence
    answers = model.predict(["abcdef", "a" * 30], accuracy=0.9)
    assert answers[0] == Answer(None, pytest.approx(1 / (1 + np.exp(-1))), None, True)
    assert answers[0].confidence < lowest < answers[1].confidence
    assert answers[1].label == "long"


def test_all_is_handed_over_where_nothing_can_be_promised():
    few = Predictions.from_confidences([0.9] * 5, [1] * 5, name="dev")
    assert [answer.label for answer in student(dev=few).predict(["a", "b" * 20], accuracy=0.95)] == [None, None]


def test_a_promise_needs_dev_rows():
    with pytest.raises(InputError, match="no dev predictions"):
        student().predict(["a"], accuracy=0.9)


def test_predictions_take_ids_and_labels_of_the_data():
    data = Dataset(texts(["abcdefg", "a"]), ["long", "long"], ("long", "short"), np.array(["x", "y"]))
    predictions = student().predictions(data)
    assert predictions.ids.tolist() == ["x", "y"]
    assert predictions.correct.tolist() == [True, False]


def test_no_examples_give_no_answers():
    assert student().predict([]) == []
    assert student().predict_proba([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ("a fine film", "one text where a list"),
        (["fine", None], "expected a text, got None"),
        (["fine", ""], "row 1 .counting from 0.: expected a text, got ''"),
        ([" \n"], "expected a text, got ' "),
        ([("a", "b"), ("a", "")], "expected a pair of texts, got .'a', ''"),
        ([("a", ["b", "c"]), ("a", ["b", " "])], "expected a prompt with its endings"),
        ([3, 4], "neither a text"),
        ([("a", "b"), ("c",)], "expected a pair of texts"),
        (np.zeros((2, 3)), "reads texts, got vectors"),
        (np.zeros((2, 8, 8, 3), dtype=np.uint8), "reads texts, got images"),
    ],
)
def test_other_inputs_are_refused(examples, message):
    with pytest.raises(InputError, match=message):
        student().predict(examples)


def test_another_number_of_choices_is_refused_whatever_runs_the_network():
    class Equal:
        def compute_logits(self, data, on_progress=None):
            return np.zeros(data.inputs.endings.shape)

    model = Student(Equal(), ("0", "1"), "choices")
    assert model.predict_proba([("a", ["b", "c"])]).tolist() == [[0.5, 0.5]]
    with pytest.raises(InputError, match="student reads 2 choices, got 3; give as many endings everywhere"):
        model.predict([("a", ["b", "c", "d"])])


def test_prompts_with_endings_are_choices():
    inputs = as_inputs([("The cat", ["sleeps.", "divides."])])
    assert inputs.endings.tolist() == [["sleeps.", "divides."]]


@pytest.mark.parametrize("kind", [dict, pandas.DataFrame])
def test_a_table_is_not_taken_for_a_list_of_its_columns(kind):
    table = kind({"text": ["good", "bad"]})
    with pytest.raises(InputError, match="with its columns where a list of examples"):
        student().predict(table)
    assert student().predict(table["text"]) == ["short", "short"]


def test_a_student_is_shown_in_one_line():
    assert repr(student()) == "Student('student', texts, 2 classes)"


def test_something_else_is_refused():
    with pytest.raises(InputError, match="expected a list of examples, got 3"):
        student().predict(3)
