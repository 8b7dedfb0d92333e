"""Data in memory beside files: classes, names and labels mean the same as with files alone."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import sentences, write_csv

import distilcal as dc
from distilcal.errors import InputError


def halves(examples):
    return np.full((len(examples), 2), 0.5)


def planned(train, tmp_path, **settings):
    where = {"out": tmp_path / "run", "store": tmp_path / "store"}
    return dc.distill(train, halves, "distilbert-base-uncased", dry_run=True, **where, **settings)


def numbered(count, seed):
    """Texts and labels of which 0 is pos: the order of the names is another one."""
    text, label = sentences(count, seed)
    return text, [int(name == "neg") for name in label]


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(*numbered(60, 5), strict=True)))
    return path


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("kind", ["file", "named file", "lists"])
def test_numbers_are_no_indices_of_classes_that_nobody_listed(tmp_path, numbers, in_memory, kind):
    write_csv(tmp_path / "train.csv", 200, 0)
    train = sentences(200, 0) if in_memory else tmp_path / "train.csv"
    other = {"file": {"test": numbers}, "named file": {"ood": {"far": numbers}}, "lists": {"test": numbered(60, 5)}}[kind]
    with pytest.raises(InputError, match="labels are numbers .* where the classes are 'neg', 'pos'; write names, or list"):
        planned(train, tmp_path, **other)
    listed = planned(train, tmp_path, classes=["pos", "neg"], **other)
    data = listed.splits.test if "test" in other else listed.splits.ood[0]
    assert data.classes == ("pos", "neg")
    assert data.labels.tolist() == numbered(60, 5)[1]


def test_an_object_that_names_the_order_of_its_classes_says_what_numbers_mean(tmp_path, numbers):
    pandas = pytest.importorskip("pandas")
    text, label = sentences(200, 0)
    for categories in (["pos", "neg"], ["neg", "pos"]):
        frame = pandas.DataFrame({"text": text, "label": pandas.Categorical(label, categories=categories)})
        test = planned(frame, tmp_path, test=numbers).splits.test
        assert test.classes == tuple(categories)
        assert test.labels.tolist() == numbered(60, 5)[1]
    unusual = dc.Dataset(dc.load_dataset((text, label)).inputs, label, ("pos", "neg"))
    assert planned(unusual, tmp_path, test=numbers).splits.test.labels.tolist() == numbered(60, 5)[1]


def test_domains_whose_names_read_alike_are_numbered(tmp_path):
    domains = {"a b": sentences(40, 7), "a-b": sentences(50, 8), "a/b": sentences(30, 9)}
    found = planned(sentences(200, 0), tmp_path, ood=domains).splits.ood
    assert [(data.name, len(data)) for data in found] == [("a-b", 40), ("a-b-2", 50), ("a-b-3", 30)]


@pytest.mark.parametrize("split", ["dev", "test", "ood"])
def test_a_file_with_some_labels_beside_data_in_memory(tmp_path, split):
    rows = zip(*sentences(300, 0), strict=True)
    lines = [f"{text},{label if row % 4 else ''}\n" for row, (text, label) in enumerate(rows)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(lines))
    assert "(75 unlabelled)" in planned(tmp_path / "train.csv", tmp_path, **{split: sentences(50, 3)}).sizes


def test_numbers_of_vectors_are_no_indices_either():
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    names = np.where(x[:, 0] > 0, "a", "b")
    with pytest.raises(InputError, match="test: labels are numbers"):
        dc.distill((x, names), halves, "linear", test=(x, (x[:, 0] > 0).astype(int)), dry_run=True)
