"""Unlabelled examples in data: label -1, read from empty cells and from sources of their own, after the labelled rows."""

import json

import numpy as np
import pytest

from distilcal.config.schema import DataSettings
from distilcal.data import (
    Choices,
    Dataset,
    Images,
    Vectors,
    add_unlabelled,
    choices,
    labelled_first,
    read_dataset,
    read_unlabelled,
    texts,
)
from distilcal.data.splits import read_splits
from distilcal.errors import InputError

WORDS = [f"text {i}" for i in range(60)]


def some_labelled(labels=(-1, 0, 1, -1, 1), **more):
    return Dataset(texts(WORDS[: len(labels)]), np.array(labels), ("no", "yes"), **more)


def write_rows(path, rows, header="text,label"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


# ---- Dataset -----------------------------------------------------------------------------------------------------------


def test_minus_one_is_an_unlabelled_example():
    data = some_labelled()
    assert data.is_labelled.tolist() == [False, True, True, False, True]
    assert not Dataset(texts(["a"])).is_labelled.any()
    assert data.with_classes(("yes", "maybe", "no")).labels.tolist() == [-1, 2, 0, -1, 0]
    assert data.select([3, 4]).labels.tolist() == [-1, 1]
    assert data.fingerprint != some_labelled((0, 0, 1, -1, 1)).fingerprint
    with pytest.raises(InputError, match="label -2 is not between 0 and 1, nor -1 for none"):
        some_labelled((0, -2))


def test_soft_labels_of_unlabelled_examples_are_zeros():
    probs = np.array([[0.2, 0.8], [np.nan, np.nan], [3.0, 3.0]])
    data = Dataset(texts(WORDS[:3]), [1, -1, -1], ("no", "yes"), label_probs=probs)
    np.testing.assert_array_equal(data.label_probs, [[0.2, 0.8], [0, 0], [0, 0]])


def test_a_split_holds_out_labelled_examples_only():
    labels = np.tile([0, 1, -1], 20)
    held_out, rest = some_labelled(labels).split(0.25, seed=0)
    assert held_out.is_labelled.all()
    assert len(held_out) == 10
    assert len(rest) == 50
    assert (~rest.is_labelled).sum() == 20
    sample = some_labelled(labels).sample(30, seed=0)
    assert np.bincount(sample.labels + 1).tolist() == [10, 10, 10]


def test_an_unlabelled_example_of_a_held_out_group_is_left_out():
    groups = np.repeat([f"writer {i}" for i in range(20)], 3)
    data = some_labelled(np.tile([0, 1, -1], 20), groups=groups)
    held_out, rest = data.split(0.25, seed=0)
    assert not set(held_out.groups) & set(rest.groups)
    assert len(held_out) + len(rest) == 60 - len(held_out) // 2


# ---- putting together --------------------------------------------------------------------------------------------------


def test_labelled_rows_come_first():
    data = add_unlabelled(some_labelled(name="train"), [Dataset(texts(["new"])), Dataset(texts(["newer"]), [0], ("a", "b"))])
    assert data.labels.tolist() == [0, 1, 1, -1, -1, -1, -1]
    assert data.inputs.text.tolist() == ["text 1", "text 2", "text 4", "text 0", "text 3", "new", "newer"]
    assert (data.name, data.classes) == ("train", ("no", "yes"))
    assert labelled_first(data) is data


@pytest.mark.parametrize(
    "inputs",
    [
        texts(["a", "b"], ["c", "d"]),
        choices(["a", "b"], [["c", "d"], ["e", "f"]]),
        Images(np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)),
        Vectors(np.eye(2, dtype=np.float32)),
    ],
    ids=["pairs", "choices", "images", "vectors"],
)
def test_all_kinds_of_inputs_can_be_unlabelled(inputs):
    train = Dataset(inputs, [0, 1], ("no", "yes"), label_probs=[[0.9, 0.1], [0.2, 0.8]], groups=["a", "b"])
    both = add_unlabelled(train, [Dataset(inputs)])
    assert both.content_keys.tolist() == [*train.content_keys, *train.content_keys]
    assert both.label_probs.tolist() == [[0.9, 0.1], [0.2, 0.8], [0, 0], [0, 0]]
    assert both.groups.tolist() == ["a", "b", "", ""]
    assert len(set(both.ids)) == 4


def test_ids_from_content_are_numbered_and_others_refused():
    train = Dataset(texts(["a", "b", "a"]), [0, 1, 1], ("no", "yes"))
    both = add_unlabelled(train.select([1, 2]), [Dataset(texts(["a", "a"])), Dataset(texts(["a", "b", "c"]))])
    a, b = train.ids[0], train.ids[1]
    assert both.ids[:-1].tolist() == [b, f"{a}-2", a, f"{a}-3", f"{a}-4", f"{b}-2"]
    named = Dataset(texts(["a", "b"]), [0, 1], ("no", "yes"), ["1", "2"])
    with pytest.raises(InputError, match="the id '2' of an unlabelled example is the id of another example"):
        add_unlabelled(named, [Dataset(texts(["c"]), ids=np.array(["2"]))])


def test_an_unlabelled_example_that_is_in_train_under_its_id_comes_once():
    named = Dataset(texts(["a", "b"]), [0, 1], ("no", "yes"), ["1", "2"])
    both = add_unlabelled(named, [Dataset(texts(["b", "a", "c"]), ids=np.array(["2", "3", "4"]))])
    assert both.ids.tolist() == ["1", "2", "3", "4"]
    assert both.labels.tolist() == [0, 1, -1, -1]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Dataset(Vectors(np.eye(2, dtype=np.float32))), "train holds texts, 'data' vectors"),
        (Dataset(texts(["a"], ["b"])), "train holds single texts, 'data' pairs of texts"),
    ],
)
def test_other_kinds_of_data_are_refused(other, words):
    with pytest.raises(InputError, match=words):
        add_unlabelled(some_labelled(), [other])
    vectors = Dataset(Vectors(np.eye(2, dtype=np.float32)), [0, 1], ("a", "b"))
    with pytest.raises(InputError, match="2 numbers per example, .data. 3"):
        add_unlabelled(vectors, [Dataset(Vectors(np.eye(3, dtype=np.float32)))])
    two, three = (Choices(np.array(["a"], object), np.array([["b"] * n], object)) for n in (2, 3))
    with pytest.raises(InputError, match="2 choices"):
        add_unlabelled(Dataset(two, [0], ("0", "1")), [Dataset(three)])


@pytest.mark.parametrize("split", ["dev", "test", "ood"])
def test_pairs_are_not_tested_on_where_train_holds_single_texts(split):
    single = Dataset(texts([f"text {i}" for i in range(40)]), [0, 1] * 20, ("no", "yes"))
    pairs = Dataset(texts(["a", "b"], ["no", "yes"]), [0, 1], ("no", "yes"), name="other")
    named = {"train": "train.jsonl", split: ("other.jsonl",) if split == "ood" else "other.jsonl"}
    with pytest.raises(InputError, match=r"train holds single texts, '\w+' pairs of texts"):
        read_splits(DataSettings(**named), {"train.jsonl": single, "other.jsonl": pairs})


def test_another_domain_may_have_one_text_where_train_has_two():
    both = Dataset(texts([f"text {i}" for i in range(40)], ["b"] * 40), [0, 1] * 20, ("no", "yes"))
    single = Dataset(texts(["c", "d"]), [0, 1], ("no", "yes"), name="other")
    splits = read_splits(DataSettings(train="train.jsonl", ood=("other.jsonl",)), {"train.jsonl": both, "other.jsonl": single})
    assert splits.ood[0].inputs.pair is None


@pytest.mark.parametrize("split", ["dev", "test", "ood", "unlabelled"])
@pytest.mark.parametrize(
    ("inputs", "others", "words"),
    [
        (
            Vectors(np.arange(120, dtype=np.float32).reshape(40, 3)),
            Vectors(np.ones((2, 4), np.float32)),
            r"train has 3 numbers per example, '\w+' 4; give the same features",
        ),
        (
            Images(np.arange(40 * 192).reshape(40, 8, 8, 3).astype(np.uint8)),
            Images(np.zeros((2, 6, 8, 3), np.uint8)),
            r"images of train have 8 × 8 pixels, those of '\w+' 8 × 6 pixels; scale them all",
        ),
    ],
    ids=["vectors", "images"],
)
def test_vectors_and_images_of_another_size_are_refused(split, inputs, others, words):
    data = Dataset(inputs, [0, 1] * 20, ("no", "yes"))
    other = Dataset(others, [0, 1], ("no", "yes"), ids=["a", "b"], name="other")
    named = {"train": "train.npz", split: ("other.npz",) if split in ("ood", "unlabelled") else "other.npz"}
    with pytest.raises(InputError, match=words):
        read_splits(DataSettings(**named), {"train.npz": data, "other.npz": other})


# ---- reading -----------------------------------------------------------------------------------------------------------


def test_empty_cells_are_unlabelled_where_that_is_allowed(tmp_path):
    path = write_rows(tmp_path / "a.csv", ["good,pos", "so so,", "bad,neg", "hm, "])
    data = read_dataset(path, partly=True)
    assert data.classes == ("neg", "pos")
    assert data.labels.tolist() == [1, -1, 0, -1]
    with pytest.raises(InputError, match=r"a\.csv, line 3: column 'label' has no value"):
        read_dataset(path)
    path = write_rows(tmp_path / "b.csv", ["good,pos", "so so,", "bad,neg", "hm,odd"])
    with pytest.raises(InputError, match=r"b\.csv, line 5: .*'odd'"):
        read_dataset(path, partly=True, classes=("neg", "pos"))
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ({"text": "a", "label": 3}, {"text": "b"}, {"text": "c", "label": 0})))
    assert read_dataset(path, partly=True).labels.tolist() == [1, -1, 0]


def test_soft_labels_may_be_empty_too(tmp_path):
    rows = ["good,0.1,0.9", "so so,,", "bad,1,0"]
    path = write_rows(tmp_path / "a.csv", rows, "text,label_prob_neg,label_prob_pos")
    data = read_dataset(path, partly=True)
    assert data.labels.tolist() == [1, -1, 0]
    assert data.label_probs.tolist() == [[0.1, 0.9], [0, 0], [1, 0]]
    write_rows(path, ["good,0.1,0.9", "so so,0.5,", "bad,1,0"], "text,label_prob_neg,label_prob_pos")
    with pytest.raises(InputError, match="line 3: '' in column 'label_prob_pos' is not a number"):
        read_dataset(path, partly=True)


@pytest.mark.parametrize("stored", [(), ("neg", "pos")])
@pytest.mark.parametrize("labels", [[1, -1, 0], ["1", "", "0"]])
def test_arrays_with_minus_one(tmp_path, stored, labels):
    path = tmp_path / "a.npz"
    classes = {"classes": np.array(stored)} if stored else {}
    np.savez(path, vectors=np.eye(3), labels=np.array(labels), **classes)
    data = read_dataset(path, partly=True)
    assert data.labels.tolist() == [1, -1, 0]
    assert data.classes == (stored or ("0", "1"))
    if stored and labels[1] == -1:
        with pytest.raises(InputError, match=r"row 1 .*: this example has no label"):
            read_dataset(path)
    assert read_unlabelled(path).labels is None
    np.savez(path, vectors=np.eye(3), labels=np.eye(3))
    with pytest.raises(InputError, match=r"labels of shape \(3, 3\)"):
        read_dataset(path, partly=True)


def test_hub_data_with_minus_one(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    saved = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, -1, 0]}, features=features)
    saved.save_to_disk(tmp_path / "data")
    assert read_dataset(tmp_path / "data", partly=True).labels.tolist() == [1, -1, 0]
    assert read_unlabelled(tmp_path / "data").labels is None
    with pytest.raises(InputError, match="-1"):
        read_dataset(tmp_path / "data")


def test_hub_pictures_with_minus_one(tmp_path):
    datasets, pillow = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    pictures = [pillow.fromarray(np.full((4, 4, 3), i, np.uint8)) for i in range(3)]
    saved = datasets.Dataset.from_dict({"image": pictures, "label": [1, -1, 0]}, features=features)
    saved.save_to_disk(tmp_path / "data")
    assert read_dataset(tmp_path / "data", partly=True).labels.tolist() == [1, -1, 0]
    assert read_unlabelled(tmp_path / "data").labels is None
    with pytest.raises(InputError, match=r"row 1 .*: this example has no label"):
        read_dataset(tmp_path / "data")


def test_labels_of_unlabelled_data_are_never_read(tmp_path):
    rows = ["good,7,x", "bad,,y"]
    path = write_rows(tmp_path / "a.csv", rows, "text,label,label_prob_x")
    data = read_unlabelled(path)
    assert (data.labels, data.label_probs, data.classes, data.name) == (None, None, (), "a")


def test_pictures_of_any_folder_can_be_unlabelled(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    for i, name in enumerate(("a.png", "x/b.png", "x/y/c.png")):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(np.full((4, 4, 3), i, np.uint8)).save(tmp_path / "all" / name)
    data = read_unlabelled(tmp_path / "all")
    assert data.ids.tolist() == ["all/a.png", "all/x/b.png", "all/x/y/c.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there are no pictures in it"):
        read_unlabelled(tmp_path / "empty")


# ---- splits ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    labelled = [f"{word},{'pos' if i % 2 else 'neg'}" for i, word in enumerate(WORDS)]
    write_rows(tmp_path / "plain.csv", labelled)
    mixed = [row for i, labelled_row in enumerate(labelled) for row in (labelled_row, f"extra {i},")]
    write_rows(tmp_path / "train.csv", mixed)
    write_rows(tmp_path / "more.csv", [f"more {i},?" for i in range(10)] + ["text 3,"])
    write_rows(tmp_path / "test.csv", ["fine,pos", "MORE 4,neg", "text 5,neg"])
    return tmp_path


def test_unlabelled_rows_are_the_last_of_train_and_change_nothing_else(files):
    plain = read_splits(DataSettings(train=str(files / "plain.csv")))
    both = read_splits(DataSettings(train=str(files / "train.csv"), unlabelled=[str(files / "more.csv")]))
    labelled = both.train.select(both.train.is_labelled)
    assert both.labelled.fingerprint == plain.train.fingerprint
    assert labelled.content_keys.tolist() == plain.train.content_keys.tolist()
    assert (both.dev.fingerprint, both.test.fingerprint) == (plain.dev.fingerprint, plain.test.fingerprint)
    assert both.train.is_labelled.tolist() == [True] * len(labelled) + [False] * 71
    assert both.train.inputs.text[-1] == "text 3"
    limited = read_splits(DataSettings(train=str(files / "train.csv"), unlabelled=[str(files / "more.csv")], limit=8))
    assert np.bincount(limited.train.labels + 1).tolist() == [71, 4, 4]


def test_unlabelled_rows_can_be_limited(files):
    sources = {"train": str(files / "plain.csv"), "unlabelled": [str(files / "more.csv")]}
    whole = read_splits(DataSettings(**sources))
    some = read_splits(DataSettings(**sources, limit_unlabelled=2))
    assert int((~some.train.is_labelled).sum()) == 2
    assert some.labelled.fingerprint == whole.labelled.fingerprint
    assert set(some.train.ids) < set(whole.train.ids)
    assert read_splits(DataSettings(**sources, limit_unlabelled=10**6)).train.fingerprint == whole.train.fingerprint


def test_overlaps_with_unlabelled_rows_are_named_apart(files):
    settings = DataSettings(train=str(files / "plain.csv"), test=str(files / "test.csv"), unlabelled=[str(files / "more.csv")])
    found = {(o.first, o.second): o.rows for o in read_splits(settings).overlaps()}
    assert found[("train (unlabelled)", "test")] == 1
    assert found.get(("train", "test"), 0) + found.get(("dev", "test"), 0) == 1


def test_an_empty_label_of_dev_test_or_ood_is_named(files):
    empty = write_rows(files / "empty.csv", ["fine,pos", "hm,"])
    for settings in ({"dev": str(empty)}, {"test": str(empty)}, {"ood": [str(empty)]}):
        with pytest.raises(InputError, match=r"empty\.csv, line 3: column 'label' has no value"):
            read_splits(DataSettings(train=str(files / "plain.csv"), **settings))


def test_data_in_memory_are_treated_alike(files):
    train, more = some_labelled(np.tile([0, 1, -1], 20)), Dataset(texts(["new"]))
    settings = DataSettings(train="frame", test="other", unlabelled=["more"])
    splits = read_splits(settings, {"frame": train, "more": more, "other": some_labelled((0, 1))})
    assert (~splits.train.is_labelled).sum() == 21
    with pytest.raises(InputError, match=r"other, row 0 .*: this example has no label"):
        read_splits(settings, {"frame": train, "more": more, "other": some_labelled((-1, 1))})


def test_train_may_be_wholly_unlabelled_if_everything_else_is_named(files):
    unlabelled = str(write_rows(files / "none.csv", [f"{word}," for word in WORDS]))
    named = {"dev": str(files / "plain.csv"), "test": str(files / "test.csv"), "classes": ["neg", "pos"]}
    splits = read_splits(DataSettings(train=unlabelled, limit=5, **named))
    assert (splits.train.labels == -1).all()
    assert next(o.first for o in splits.overlaps()) == "train (unlabelled)"
    with pytest.raises(InputError, match=r"none\.csv: no row has a label; label some rows, or list the classes"):
        read_splits(DataSettings(train=unlabelled, dev=named["dev"], test=named["test"]))
    with pytest.raises(InputError, match=r"dev cannot be held out of .*none\.csv.*, which has no labels"):
        read_splits(DataSettings(train=unlabelled, test=named["test"], classes=["neg", "pos"]))


def test_a_benchmark_can_be_unlabelled(monkeypatch, files):
    import distilcal.data.splits as splits

    data = Dataset(texts(["u", "v"]), [0, 1], ("x", "y"), name="train")
    monkeypatch.setattr(splits, "load_benchmark", lambda name, source: {"train": data})
    both = read_splits(DataSettings(train=str(files / "plain.csv"), unlabelled=["benchmark:other"]))
    assert both.train.labels[-2:].tolist() == [-1, -1]
    assert both.train.classes == ("neg", "pos")


def test_splits_of_a_benchmark_are_named(monkeypatch):
    import distilcal.data.splits as splits

    parts = {}
    for name, words in (("train", "abcdefgh"), ("dev", "ij"), ("test", "kl")):
        votes = np.tile([0.5, 0.5], (len(words), 1))
        parts[name] = Dataset(texts(list(words)), [0, 1] * (len(words) // 2), ("x", "y"), list(words), votes, name=name)
    monkeypatch.setattr(splits, "load_benchmark", lambda name, source: parts)
    data = read_splits(DataSettings(train="benchmark:b@train", test="benchmark:b@dev+test", dev_fraction=0.25))
    assert data.test.ids.tolist() == ["i", "j", "k", "l"]
    assert data.test.label_probs.shape == (4, 2)
    assert len(data.train) + len(data.dev) == 8
    with pytest.raises(InputError, match="b has no split 'tset'; it has train, dev, test"):
        read_splits(DataSettings(train="benchmark:b", ood=["benchmark:b@tset"]))
