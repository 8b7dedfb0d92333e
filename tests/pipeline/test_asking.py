"""Teachers that are called: asked in chunks, checked, kept while a call is interrupted, matched by class name."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from tiny import reviews

pytest.importorskip("torch")

from distilcal.data import Dataset, Images, Vectors, choices, texts
from distilcal.data.splits import Splits
from distilcal.errors import InputError
from distilcal.pipeline import asking
from distilcal.pipeline.asking import ask_teacher, callable_teacher, estimator_teacher, forget_answers


@pytest.fixture
def splits():
    return Splits(*(reviews(n, seed, name=name) for n, seed, name in ((25, 0, "train"), (8, 1, "dev"), (9, 2, "test"))))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(asking, "CHUNK", 10)


def praise(examples):
    """Probabilities of neg and pos by the length of the text."""
    positive = np.array([0.1 + 0.8 * (len(text) % 7) / 7 for text in examples])
    return np.column_stack([1 - positive, positive])


class Counting:
    def __init__(self, answer=praise, stop=None):
        self.answer, self.stop, self.sizes = answer, stop, []

    def __call__(self, examples):
        if len(self.sizes) == self.stop:
            raise KeyboardInterrupt
        self.sizes.append(len(examples))
        return self.answer(examples)


COUNTED = Counting()


def counted(examples):
    return COUNTED(examples)


def test_every_example_is_asked_about_once_in_chunks(splits, tmp_path):
    twice = Splits(splits.train, splits.dev, splits.train.with_role("test", "test"))
    teacher, steps = Counting(), []
    predictions = ask_teacher(callable_teacher(teacher), twice, tmp_path, on_progress=lambda *step: steps.append(step))
    assert teacher.sizes == [10, 10, 5, 8]
    assert steps == [(10, 33), (20, 33), (25, 33), (33, 33)]
    assert not predictions.is_labelled.any()
    expected = praise(splits.train.inputs.text)
    assert np.allclose(predictions.select(splits.train.ids).probs, expected)


def test_answers_of_an_interrupted_call_are_kept(splits, tmp_path):
    COUNTED.sizes, COUNTED.stop = [], 2
    with pytest.raises(KeyboardInterrupt):
        ask_teacher(callable_teacher(counted), splits, tmp_path)
    COUNTED.sizes, COUNTED.stop = [], None
    predictions = ask_teacher(callable_teacher(counted), splits, tmp_path)
    assert COUNTED.sizes == [5, 8, 9]
    assert np.allclose(predictions.select(splits.train.ids).probs, praise(splits.train.inputs.text))
    forget_answers(tmp_path)
    COUNTED.sizes = []
    ask_teacher(callable_teacher(counted), splits, tmp_path)
    assert sum(COUNTED.sizes) == 42


def test_answers_belong_to_the_code_of_the_function(splits, tmp_path):
    calls = []

    def first(examples):
        calls.append("first")
        return praise(examples)

    def second(examples):
        calls.append("second")
        return praise(examples)[:, ::-1]

    ask_teacher(callable_teacher(first), splits, tmp_path)
    ask_teacher(callable_teacher(partial(second)), splits, tmp_path)
    assert calls.count("second") == calls.count("first") == 5
    assert callable_teacher(lambda x: [0.1 for _ in x]).identity != callable_teacher(lambda x: [0.2 for _ in x]).identity
    flipped = ask_teacher(callable_teacher(praise), splits, tmp_path, labels=("pos", "neg"))
    assert flipped.classes == ("pos", "neg")


class Prompted:
    def __init__(self, prompt):
        self.prompt = prompt

    def __call__(self, examples):
        return self.prompt

    def ask(self, examples):
        return self.prompt


def prompted(examples, prompt="a", *, options=()):
    return prompt, options


def enclosed(prompt):
    return lambda examples: prompt


def with_default(prompt):
    def ask(examples, prompt=prompt):
        return prompt

    return ask


def with_keyword(prompt):
    def ask(examples, *, prompt=prompt):
        return prompt

    return ask


BUILDERS = [
    Prompted, enclosed, with_default, with_keyword, lambda prompt: Prompted(prompt).ask,
    lambda prompt: partial(prompted, prompt), lambda prompt: partial(prompted, options=prompt),
    lambda prompt: enclosed(enclosed(prompt)),
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDERS)
def test_answers_belong_to_the_values_that_a_function_is_built_with(build):
    values = ["a", "b", ["a"], ("a",), {"a", "b"}, {"a": 1}, {"a": 2}, None, 1, True, 1.5]
    identities = [callable_teacher(build(value)).identity for value in values]
    assert all(identities)
    assert len(set(identities)) == len(values)
    assert identities == [callable_teacher(build(value)).identity for value in values]
    for unknown in (object(), [object()], np.zeros(3), np.sin):
        assert not callable_teacher(build(unknown)).identity


def test_answers_of_what_cannot_be_told_apart_are_not_kept(splits, tmp_path):
    def refers_to_itself(examples):
        return refers_to_itself

    assert not callable_teacher(refers_to_itself).identity
    assert not callable_teacher(np.sin).identity
    ask_teacher(callable_teacher(Counting(praise, stop=np.int64(9))), splits, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_function_is_the_same_in_every_process(tmp_path):
    (tmp_path / "teacher.py").write_text(
        "from distilcal.pipeline.asking import callable_teacher\n"
        "def teacher(texts, known=frozenset(('one', 'two', 'three'))):\n"
        "    return [text in {'alpha', 'beta', 'gamma', 'delta'} for text in texts]\n"
        "print(callable_teacher(teacher).identity)\n"
    )
    identities = set()
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, tmp_path / "teacher.py"], env=environment, capture_output=True, check=True)
        identities.add(done.stdout.strip())
    assert len(identities) == 1
    assert identities != {b""}


class Estimator:
    classes_ = np.array(["pos", "neg"])

    def predict_proba(self, examples):
        return praise(examples)[:, ::-1]


def test_classes_of_an_estimator_are_matched_by_name_and_nothing_is_kept(splits, tmp_path):
    predictions = ask_teacher(estimator_teacher(Estimator()), splits, tmp_path)
    assert predictions.classes == ("pos", "neg")
    same = predictions.reorder_classes(("neg", "pos")).select(splits.train.ids)
    assert np.allclose(same.probs, praise(splits.train.inputs.text))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: praise(x)[:, :1], "10 examples of train from row 0: expected probabilities of shape (10, 2), got (10, 1)"),
        (lambda x: praise(x)[1:], "expected probabilities of shape (10, 2), got (9, 2)"),
        (lambda x: praise(x).ravel(), "got (20,); return one row for each example, and one column for each of 'neg', 'pos'"),
        (lambda x: praise(x) * np.nan, "row 0 of the answer, [nan, nan], is no distribution"),
        (lambda x: praise(x) * 2, "is no distribution; return probabilities that are finite and sum to 1"),
        (lambda x: praise(x) - [[2, -2]], "is no distribution"),
        (lambda x: ["pos"] * len(x), "expected an array of probabilities, got list; return one of shape (N, K)"),
        (lambda x: None, "expected probabilities of shape (10, 2), got ()"),
    ],
)
def test_answers_are_checked(splits, tmp_path, answer, words):
    with pytest.raises(InputError) as caught:
        ask_teacher(callable_teacher(answer), splits, tmp_path)
    assert words in str(caught.value)


def test_the_chunk_is_named(splits, tmp_path):
    bad = Counting(lambda x: praise(x) if len(x) == 10 else praise(x) * 3)
    with pytest.raises(InputError, match="teacher Counting, 5 examples of train from row 20: row 0 of the answer"):
        ask_teacher(callable_teacher(bad), splits, tmp_path)


def test_other_classes_are_refused(splits, tmp_path):
    class Other(Estimator):
        classes_ = np.array([0, 1])

    with pytest.raises(InputError, match="the teacher Other knows the classes '0', '1', the data have 'neg', 'pos'; name"):
        ask_teacher(estimator_teacher(Other()), splits, tmp_path)
    named = ask_teacher(estimator_teacher(Other()), splits, tmp_path, labels=("pos", "neg"))
    assert named.classes == ("pos", "neg")


def test_an_id_of_two_examples_is_refused(splits, tmp_path):
    data = Dataset(texts(["one", "two"]), [0, 1], ("neg", "pos"), ids=splits.train.ids[:2], name="dev")
    with pytest.raises(InputError, match="two examples that differ have the id"):
        ask_teacher(callable_teacher(praise), Splits(splits.train, data, splits.test), tmp_path)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (texts(["a", "b"], ["c", "d"]), [("a", "c"), ("b", "d")]),
        (choices(["a", "b"], [["c", "d"], ["e", "f"]]), [("a", ["c", "d"]), ("b", ["e", "f"])]),
        (Vectors(np.eye(2, dtype=np.float32)), [[1.0, 0.0], [0.0, 1.0]]),
        (Images(np.stack([np.zeros((1, 1, 3)), np.ones((1, 1, 3))]).astype(np.uint8)), [[[[0, 0, 0]]], [[[1, 1, 1]]]]),
    ],
)
def test_inputs_as_a_teacher_gets_them(inputs, expected, tmp_path):
    data = Dataset(inputs, [0, 1], ("0", "1"), name="train")
    received = []

    def teacher(examples):
        received.extend(examples.tolist() if hasattr(examples, "tolist") else examples)
        return np.full((len(examples), 2), 0.5)

    ask_teacher(callable_teacher(teacher), Splits(data, data, data), tmp_path)
    assert received == expected


def test_tensors_are_answers(splits, tmp_path):
    torch = pytest.importorskip("torch")
    predictions = ask_teacher(callable_teacher(lambda x: torch.tensor(praise(x), requires_grad=True)), splits, tmp_path)
    assert np.allclose(predictions.select(splits.train.ids).probs, praise(splits.train.inputs.text))
