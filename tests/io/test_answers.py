"""Answers of language models: what they mean as probabilities, how votes are averaged, and what is refused."""

import json
import logging
import math
from contextlib import suppress

import numpy as np
import pytest

from distilcal import InputError, Predictions
from distilcal.data import Dataset, texts
from distilcal.io.answers import SMALLEST_PROBABILITY, is_answer, read_answers, text_id
from distilcal.io.predictions import read_predictions

CLASSES = ("negative", "neutral", "positive")


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def probs(tmp_path, *records, classes=CLASSES):
    return read_answers(write(tmp_path / "answers.jsonl", *records), classes=classes).probs


def logs(**by_class):
    return {name: math.log(value) for name, value in by_class.items()}


# ---- one answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (logs(positive=0.7, negative=0.2, neutral=0.1), [0.2, 0.1, 0.7]),
        (logs(positive=0.4, negative=0.1, neutral=0.3), [0.125, 0.375, 0.5]),  # all named: divided by their sum
        (logs(positive=0.9), [0.05, 0.05, 0.9]),  # the rest is spread over the others
        (logs(positive=0.9, negative=0.06), [0.06, 0.04, 0.9]),
        (logs(Positive=0.9), [0.05, 0.05, 0.9]),
        ({"positive": 0.0004, "negative": -9.0}, [math.exp(-9), 0.0, 1.0]),  # above 1 by rounding
        ({"positive": 0.0}, [0.0, 0.0, 1.0]),
        ({"positive": 0, "negative": -(10**400)}, [0.0, 0.0, 1.0]),
        ({"positive": -0.1, "negative": -9999.0, "neutral": -math.inf}, [0.0, 0.0, 1.0]),
    ],
)
def test_log_probabilities_of_classes(tmp_path, scores, expected):
    [got] = probs(tmp_path, {"id": 1, "top_logprobs": scores})
    np.testing.assert_allclose(got, expected, atol=2e-4)
    assert got.min() >= SMALLEST_PROBABILITY / 2
    assert got.sum() == pytest.approx(1.0, abs=1e-15)


def test_tokens_are_matched_whole_and_the_rest_of_the_mass_is_shared(tmp_path):
    tokens = [
        {"token": " positive", "logprob": math.log(0.5), "bytes": [32, 112]},
        {"token": "Positive", "logprob": math.log(0.2)},  # the same class: added
        {"token": "pos", "logprob": math.log(0.1)},  # the beginning of a class is not guessed at
        {"token": "\n", "logprob": math.log(0.05)},
        {"token": "NEGATIVE ", "logprob": math.log(0.1)},
    ]
    [got] = probs(tmp_path, {"id": 1, "top_logprobs": tokens})
    np.testing.assert_allclose(got, [0.1, 0.2, 0.7], atol=1e-12)


def test_an_answer_that_names_no_class_is_even_and_reported(tmp_path, caplog):
    tokens = [{"token": "I", "logprob": -0.1}]
    with caplog.at_level(logging.WARNING, logger="distilcal"):
        got = probs(tmp_path, {"id": 1, "top_logprobs": tokens}, {"id": 2, "top_logprobs": logs(positive=0.9)})
    np.testing.assert_allclose(got, [[1 / 3] * 3, [0.05, 0.05, 0.9]])
    assert "1 answers name none of the classes" in caplog.text


def test_labels_alone_are_answers_without_a_confidence(tmp_path):
    got = read_answers(
        write(tmp_path / "a.jsonl", {"id": 1, "label": "positive"}, {"id": 2, "label": " NEUTRAL"}), classes=CLASSES
    )
    assert got.probs.tolist() == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    assert got.one_hot
    assert not got.is_labelled.any()


def test_a_label_beside_log_probabilities_is_the_true_class(tmp_path):
    records = [
        {"id": 1, "top_logprobs": logs(positive=0.9), "label": "neutral"},
        {"id": 2, "top_logprobs": logs(positive=0.9)},
        {"id": 1, "top_logprobs": logs(positive=0.7), "label": "neutral"},
    ]
    got = read_answers(write(tmp_path / "a.jsonl", *records), classes=CLASSES)
    assert got.labels.tolist() == [1, -1]
    records[2]["label"] = "positive"
    with pytest.raises(
        InputError, match="line 3: the label is 'positive', of an earlier answer about the same example 'neutral'"
    ):
        read_answers(write(tmp_path / "a.jsonl", *records), classes=CLASSES)


def test_classes_that_differ_in_case_only_are_told_apart(tmp_path):
    got = probs(tmp_path, {"id": 1, "label": "US"}, {"id": 2, "label": "us"}, classes=("US", "us", "other"))
    assert got.argmax(axis=1).tolist() == [0, 1]
    with pytest.raises(InputError, match="there is no class 'Us'"):
        probs(tmp_path, {"id": 1, "label": "Us"}, classes=("US", "us", "other"))


def test_classes_may_be_numbers(tmp_path):
    got = probs(tmp_path, {"id": 1, "label": 4}, {"id": 2, "top_logprobs": {"2": -0.01}}, classes=("2", "4"))
    assert got.argmax(axis=1).tolist() == [1, 0]


# ---- several votes -----------------------------------------------------------------------------------------------------


def test_votes_are_averaged_as_probabilities(tmp_path):
    records = [
        {"id": "a", "label": "positive"},
        {"id": "b", "labels": ["negative", "negative", "positive"]},
        {"id": "a", "label": "negative"},
        {"id": "c", "label": "neutral"},
        {"id": "a", "top_logprobs": logs(positive=0.5, negative=0.3)},
    ]
    got = read_answers(write(tmp_path / "a.jsonl", *records), classes=CLASSES)
    assert got.ids.tolist() == ["a", "b", "c"]
    expected = [[1.3 / 3, 0.2 / 3, 1.5 / 3], [2 / 3, 0, 1 / 3], [0, 1, 0]]
    np.testing.assert_allclose(got.probs, expected, atol=1e-12)
    assert not got.one_hot


def test_an_answer_given_twice_changes_nothing(tmp_path):
    record = {"id": "a", "top_logprobs": logs(positive=0.5, negative=0.3)}
    np.testing.assert_allclose(probs(tmp_path, record), probs(tmp_path, record, record), rtol=1e-15)


# ---- which example -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["good", "Ünïcode ☃", " spaces  stay ", "two\nlines", "half \ud83d of a pair"])
def test_texts_have_the_ids_that_data_gives_them(text):
    data = Dataset(texts([text, "other"]))
    assert data.ids[0] == text_id(text)
    pairs = Dataset(texts([text, "other"], ["second", "x"]))
    assert pairs.ids[0] == text_id(text, "second")


def test_answers_are_about_ids_or_texts(tmp_path):
    records = [{"text": "good", "label": "positive"}, {"id": 7, "text": "not read", "label": "positive"}]
    records += [{"text": "good", "pair": "bad", "label": "positive"}, {"text": "good", "label": "neutral"}]
    got = read_answers(write(tmp_path / "a.jsonl", *records), classes=CLASSES)
    assert got.ids.tolist() == [text_id("good"), "7", text_id("good", "bad")]
    assert got.probs[0].tolist() == [0.0, 0.5, 0.5]


# ---- classes -----------------------------------------------------------------------------------------------------------


def test_classes_of_the_data_or_of_the_file(tmp_path):
    path = write(tmp_path / "a.jsonl", {"id": 1, "label": "positive"}, {"id": 2, "label": "negative"})
    assert read_answers(path).classes == ("negative", "positive")
    assert read_answers(path, classes=CLASSES[::-1]).classes == CLASSES[::-1]
    with pytest.raises(InputError, match=r"a.jsonl, line 2: there is no class 'negative'; the classes are 'positive', 'other'"):
        read_answers(path, classes=["positive", "other"])
    with pytest.raises(InputError, match="all answers name one class, 'positive'"):
        read_answers(write(tmp_path / "a.jsonl", {"id": 1, "label": "positive"}))


def test_read_predictions_tells_answers_from_predictions(tmp_path):
    for record, answer in [
        ({"id": 1, "label": "a"}, True),
        ({"id": 1, "labels": ["a", "b"]}, True),
        ({"id": 1, "top_logprobs": {"a": -0.1, "b": -3}}, True),
        ({"id": 1, "label": "a", "top_logprobs": {"a": -0.1, "b": -3}}, True),
        ({"id": 1, "label": "a", "probs": {"a": 0.9, "b": 0.1}}, False),
        ({"id": 1, "label": "a", "logits": [0.9, 0.1], "top_logprobs": None}, False),
        ({"label": "a", "confidence": 0.9, "correct": 1}, False),
        ({"text": "only"}, False),
    ]:
        assert is_answer(record) == answer, record
    path = write(tmp_path / "gpt.jsonl", {"id": 1, "label": "a"}, {"id": 2, "label": "b"})
    assert repr(read_predictions(path)) == "Predictions('gpt', 2 rows, 2 classes, no labels)"
    assert Predictions.load(path, classes=["b", "a", "c"], name="x").probs.tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(InputError, match="gpt.jsonl: there is no label column"):
        read_predictions(path, labelled=True)
    with pytest.raises(InputError, match="gpt.jsonl: it holds answers"):
        read_predictions(path, unit="probs")


def test_other_files_must_have_just_the_classes_of_the_data(tmp_path):
    (tmp_path / "t.csv").write_text("id,prob_b,prob_a\nx,0.9,0.1\n")
    assert read_predictions(tmp_path / "t.csv", classes=["a", "b"]).probs.tolist() == [[0.1, 0.9]]
    with pytest.raises(InputError, match=r"t.csv: 't' has classes 'b', 'a', not 'a', 'b', 'c'"):
        read_predictions(tmp_path / "t.csv", classes=["a", "b", "c"])


# ---- what is refused ---------------------------------------------------------------------------------------------------

MISTAKES = {
    "no example": ({"label": "positive"}, "the answer names no example; give its 'id' or its 'text'"),
    "no answer": ({"id": 1, "reply": "yes"}, "the object has id, reply; an answer needs 'top_logprobs', 'label' or 'labels'"),
    "list as id": ({"id": [1], "label": "positive"}, r"id \[1\] is neither text nor a number"),
    "number as text": ({"text": 3, "label": "positive"}, "text 3 is not a text"),
    "text and pair": ({"text": 3, "pair": "a", "label": "positive"}, "text 3 is not a text"),
    "number as pair": ({"text": "a", "pair": 3, "label": "positive"}, "pair 3 is not a text"),
    "unknown label": (
        {"id": 1, "label": "fine"},
        "there is no class 'fine'; the classes are 'negative', 'neutral', 'positive'",
    ),
    "unknown vote": ({"id": 1, "labels": ["positive", "fine"]}, "there is no class 'fine'"),
    "unknown score": ({"id": 1, "top_logprobs": {"fine": -0.1}}, "there is no class 'fine'"),
    "blank label": ({"id": 1, "label": " "}, "class ' ' is not a name"),
    "true": ({"id": 1, "label": True}, "class True is not a name"),
    "no votes": ({"id": 1, "labels": []}, r"labels \[\] is not a list of classes"),
    "one vote": ({"id": 1, "labels": "positive"}, "labels 'positive' is not a list"),
    "number": ({"id": 1, "top_logprobs": 3}, "top_logprobs 3 is neither an object nor a list"),
    "probabilities": ({"id": 1, "top_logprobs": {"positive": 0.9, "negative": 0.1}}, "'positive' is 0.9, above 0"),
    "base 2": ({"id": 1, "top_logprobs": {"positive": -0.1, "negative": -0.2}}, "sum to 1.7"),
    "text as number": ({"id": 1, "top_logprobs": {"positive": "-0.1"}}, "'positive' is '-0.1', not a number"),
    "nan": ({"id": 1, "top_logprobs": {"positive": math.nan}}, "is nan, not a number"),
    "null": ({"id": 1, "top_logprobs": [{"token": "a", "logprob": None}]}, "'a' is None, not a number"),
    "many digits": ({"id": 1, "top_logprobs": {"positive": 10**400}}, "'positive' is 1.0, above 0"),
    "no token": ({"id": 1, "top_logprobs": [{"logprob": -0.1}]}, "is not a token"),
    "strings": ({"id": 1, "top_logprobs": ["positive"]}, "'positive' is not a token"),
    "predictions": ({"id": 1, "label": "positive", "probs": [0, 0, 1]}, "'probs' among answers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_name_file_line_and_remedy(tmp_path, name):
    record, message = MISTAKES[name]
    path = write(tmp_path / "answers.jsonl", {"id": 0, "label": "positive"})
    path.write_text(path.read_text() + "\n" + json.dumps(record) + "\n")
    with pytest.raises(InputError, match=message) as error:
        read_predictions(path, classes=CLASSES)
    assert (error.value.source, error.value.line) == (str(path), 3)
    assert error.value.remedy


def test_mistakes_of_whole_files(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"id": 1, "label": "a"}\n{"id": 2, "la')
    with pytest.raises(InputError, match="line 2: not JSON"):
        read_predictions(path)
    path.write_text("\n\n")
    with pytest.raises(InputError, match="there are no answers"):
        read_answers(path)
    tokens = {"id": 1, "top_logprobs": [{"token": "a", "logprob": -0.1}]}
    with pytest.raises(InputError, match="line 1: a list of tokens does not tell which of them are classes"):
        read_predictions(write(path, tokens))
    with pytest.raises(InputError, match="no answer names a class"):
        read_answers(write(path, {"id": 1, "top_logprobs": {}}))


def test_damaged_bytes_give_predictions_or_one_clear_error(tmp_path):
    path = tmp_path / "answers.jsonl"
    records = [{"id": 1, "top_logprobs": logs(positive=0.7)}, {"text": "é", "labels": ["neutral", "positive"]}]
    records += [
        {"id": 2, "top_logprobs": [{"token": " positive", "logprob": -0.1}], "label": "negative"},
        {"id": 1, "label": "neutral"},
    ]
    whole = write(path, *records).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, len(data))] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        with suppress(InputError):  # anything else fails the test
            read_predictions(path, classes=CLASSES)
