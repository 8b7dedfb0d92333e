"""Datasets: ids that stay, splits that do not leak, sources that say what is wrong where."""

import base64
import csv
import gzip
import json
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import reviews, sentences

from distilcal.config.schema import DataSettings
from distilcal.data import Choices, Columns, Dataset, Images, Texts, Vectors, choices, overlap, read_dataset, texts
from distilcal.data.sources import read_unlabelled
from distilcal.data.splits import read_splits
from distilcal.errors import InputError
from distilcal.serve.images import decode_images


def numbers(n=7, width=3, seed=0):
    rng = np.random.default_rng(seed)
    return Dataset(Vectors(rng.normal(size=(n, width)).astype(np.float32)), rng.integers(0, 2, n), ("a", "b"))


def pairs():
    return Dataset(texts([f"a {i}" for i in range(40)], [f"b {i % 7}" for i in range(40)]), np.arange(40) % 3, ("x", "y", "z"))


def questions():
    endings = [[f"e{i}", "f", "g"] for i in range(40)]
    return Dataset(choices([f"p {i}" for i in range(40)], endings), np.arange(40) % 3, ("0", "1", "2"))


def pictures():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 4, 5, 3), dtype=np.uint8)
    return Dataset(Images(pixels), np.arange(40) % 2, ("a", "b"))


KINDS = {"texts": lambda: reviews(40), "pairs": pairs, "choices": questions, "images": pictures, "vectors": lambda: numbers(40)}


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_keeps_its_id_wherever_it_stands(kind):
    data = KINDS[kind]()
    order = np.random.default_rng(1).permutation(len(data))
    shuffled = data.select(order)
    again = Dataset(shuffled.inputs, shuffled.labels, shuffled.classes)
    distinct = ~np.char.endswith(data.ids[order].astype(str), "-2")
    assert (np.array([i.split("-")[0] for i in again.ids]) == np.array([i.split("-")[0] for i in data.ids[order]])).all()
    assert distinct.any()
    assert len(set(again.ids)) == len(again)
    assert (shuffled.content_keys == data.content_keys[order]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_tells_what_training_would_see(kind):
    data = KINDS[kind]()
    assert data.fingerprint == KINDS[kind]().fingerprint
    assert data.fingerprint != data.select(np.arange(len(data))[::-1]).fingerprint
    assert data.labels is not None
    other = data.labels.copy()
    other[0] = (other[0] + 1) % len(data.classes)
    assert data.fingerprint != Dataset(data.inputs, other, data.classes).fingerprint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.6])
def test_a_split_is_a_partition_in_proportion(kind, fraction):
    data = KINDS[kind]()
    a, b = data.split(fraction, seed=3)
    assert sorted([*a.ids, *b.ids]) == sorted(data.ids)
    assert abs(len(a) - fraction * len(data)) <= 3
    assert not len(overlap(a, b))
    again, _ = data.split(fraction, seed=3)
    assert (again.ids == a.ids).all()
    assert not np.array_equal(data.split(fraction, seed=4)[0].ids, a.ids)


def test_a_split_keeps_classes_in_their_share():
    data = Dataset(texts([f"t{i}" for i in range(1000)]), (np.arange(1000) % 10 == 0).astype(int), ("many", "few"))
    a, b = data.split(0.2, seed=0)
    assert abs(a.labels.mean() - 0.1) < 0.01
    assert abs(b.labels.mean() - 0.1) < 0.01


def test_groups_are_never_split_and_large_ones_have_no_better_chance():
    rng = np.random.default_rng(0)
    groups = np.r_[np.arange(300), np.repeat(np.arange(300, 400), 3)]
    data = Dataset(texts([f"t{i}" for i in range(600)]), rng.integers(0, 2, 600), ("a", "b"), groups=groups)
    large = []
    for seed in range(20):
        a, b = data.split(0.5, seed=seed)
        assert not set(a.groups) & set(b.groups)
        assert abs(len(a) - 300) <= 3
        large.append((a.groups.astype(int) >= 300).mean())
    assert abs(np.mean(large) - 0.5) < 0.06


def test_equal_texts_stay_together_without_groups():
    data = Dataset(texts(["Same  text", "same text", "other", "third", "fourth", "fifth"]), [0, 1, 0, 1, 0, 1], ("a", "b"))
    for seed in range(10):
        a, b = data.split(0.4, seed=seed)
        assert not len(overlap(a, b))


def test_sample_takes_so_many_of_each_class():
    data = reviews(200)
    part = data.sample(50, seed=0)
    assert len(part) == 50
    assert abs(part.labels.mean() - data.labels.mean()) < 0.03
    assert data.sample(500, seed=0) is data


def test_classes_are_matched_by_name():
    data = Dataset(texts(["a", "b", "c"]), ["no", "yes", "no"], ("no", "yes"), label_probs=[[0.9, 0.1], [0.2, 0.8], [1, 0]])
    other = data.with_classes(("yes", "maybe", "no"))
    assert [other.classes[i] for i in other.labels] == ["no", "yes", "no"]
    assert other.label_probs.tolist() == [[0.1, 0, 0.9], [0.8, 0, 0.2], [0, 0, 1]]
    with pytest.raises(InputError, match="'yes', which is not among"):
        data.with_classes(("no", "maybe"))


def test_soft_labels_alone_give_the_most_voted_class():
    data = Dataset(texts(["a", "b"]), classes=("x", "y"), label_probs=np.array([[0.2, 0.8], [0.6, 0.4]]))
    assert data.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dataset(texts([]), [], ("a", "b")), "no examples"),
        (lambda: Dataset(texts(["a"]), [0], ("a",)), "1 class"),
        (lambda: Dataset(texts(["a"]), [2], ("a", "b")), "not between 0 and 1"),
        (lambda: Dataset(texts(["a", "b"]), [0], ("a", "b")), r"labels of shape \(1,\) for 2"),
        (lambda: Dataset(texts(["a", "b"]), [0, 1], ("a", "b"), ids=np.array(["i", "i"])), "duplicate id 'i'"),
        (lambda: Dataset(texts(["a"]), ["c"], ("a", "b")), "'c' is not"),
        (lambda: Dataset(texts(["a"]), classes=("a", "b"), label_probs=[[0.5, 0.2]]), "no distribution"),
        (lambda: Dataset(texts(["a"]), classes=("a", "b"), label_probs=[["a", "b"]]), "label_probs are no numbers"),
        (lambda: choices(["p", "q"], [["a", "b"], ["a"]]), "same number"),
        (lambda: Vectors(np.array([[1.0, np.nan]], dtype=np.float32)), "not finite"),
        (lambda: Images(np.zeros((2, 3, 3), np.uint8)), "shape"),
    ],
)
def test_bad_data_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


# ---- sources -----------------------------------------------------------------------------------------------------------

ROWS = [("good film", "pos"), ('he said "no, never"', "neg"), ("line\nbreak", "pos"), ("ünïcode ☂", "neg")]


def write(path, rows=ROWS, header=("text", "label")):
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    suffix = path.suffixes[0]
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        if suffix == ".jsonl":
            for row in rows:
                file.write(json.dumps(dict(zip(header, row, strict=True))) + "\n")
        else:
            writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",")
            writer.writerow(header)
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["d.csv", "d.tsv", "d.jsonl", "d.csv.gz", "d.jsonl.xz", "d.parquet"])
def test_every_kind_of_table_gives_the_same_data(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": [r[0] for r in ROWS], "label": [r[1] for r in ROWS]}), path)
    else:
        write(path)
    data = read_dataset(path)
    assert isinstance(data.inputs, Texts)
    assert data.inputs.text.tolist() == [r[0] for r in ROWS]
    assert data.classes == ("neg", "pos")
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert data.ids.tolist() == Dataset(texts([r[0] for r in ROWS]), data.labels, data.classes).ids.tolist()


@pytest.mark.parametrize("ending", ["null", '" "'])
def test_a_list_of_choices_has_no_empty_one(tmp_path, ending):
    (tmp_path / "q.jsonl").write_text(f'{{"q": "the cat", "ends": ["sleeps", {ending}], "label": "0"}}\n')
    with pytest.raises(InputError, match="line 1: a choice in column 'ends' is empty"):
        read_dataset(tmp_path / "q.jsonl", columns=Columns(text="q", choices=("ends",)))


def test_pairs_choices_ids_groups_and_soft_labels_are_found(tmp_path):
    pair = read_dataset(write(tmp_path / "p.csv", [("a", "b", "1"), ("c", "d", "0")], ("premise", "hypothesis", "label")))
    assert pair.inputs.pair.tolist() == ["b", "d"]
    assert pair.classes == ("0", "1")
    path = tmp_path / "c.jsonl"
    path.write_text('{"q": "go", "ends": ["x", "y", "z"], "label": 2}\n{"q": "stop", "ends": ["u", "v", "w"], "label": 0}\n')
    many = read_dataset(path, columns=Columns(text="q", choices=("ends",)))
    assert isinstance(many.inputs, Choices)
    assert many.classes == ("0", "1", "2")
    assert many.labels.tolist() == [2, 0]
    columns = ("id", "text", "who", "label_prob_no", "label_prob_yes")
    soft = read_dataset(
        write(tmp_path / "s.csv", [("i1", "a", "w", ".25", ".75"), ("i2", "b", "w", "1", "0")], columns),
        columns=Columns(group="who"),
    )
    assert soft.labels.tolist() == [1, 0]
    assert soft.label_probs.tolist() == [[0.25, 0.75], [1, 0]]
    assert soft.ids.tolist() == ["i1", "i2"]
    assert soft.groups.tolist() == ["w", "w"]
    flipped = read_dataset(tmp_path / "s.csv", classes=("yes", "no"))
    assert flipped.label_probs.tolist() == [[0.75, 0.25], [0, 1]]


def test_numbers_as_classes_are_in_numerical_order(tmp_path):
    rows = [(f"t{i}", str(i % 12)) for i in range(24)]
    assert read_dataset(write(tmp_path / "n.csv", rows)).classes == tuple(str(i) for i in range(12))


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("text,label\ngood,pos\nbad,\n", {}, "d.csv, line 3: column 'label' has no value"),
        ("text,label\ngood,pos\n ,neg\n", {}, "d.csv, line 3: column 'text' has no value"),
        ("words,label\ngood,pos\n", {}, "no column 'text'; it has words, label"),
        ("text,mood\ngood,pos\n", {}, "no column 'label'; it has text, mood"),
        ("text,label\ngood,pos\nbad,neutral\n", {"classes": ("neg", "pos")}, "d.csv, line 3: label 'neutral' is not"),
        ("text,label\ngood,pos,x\n", {}, "d.csv, line 2: 3 fields where the header has 2"),
        ("id,text,label\n1,a,x\n1,b,y\n", {}, "d.csv, line 3: duplicate id '1'"),
        ("text,label\n", {}, "no rows"),
        ("text,label\na,x\nb,x\n", {}, "1 class"),
        ("text,label_prob_a,label_prob_b\nt,one,0\n", {}, "d.csv, line 2: 'one' in column 'label_prob_a' is not a number"),
        ('text,label\n"open,x\n', {}, "not readable as CSV"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path, text, options, words):
    path = tmp_path / "d.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_dataset(path, **options)


@pytest.mark.parametrize("name", ["no.csv", "no.xlsx", "no"])
def test_what_is_not_there_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="no such"):
        read_dataset(tmp_path / name)
    (tmp_path / "d.xlsx").write_bytes(b"x")
    with pytest.raises(InputError, match="cannot read '.xlsx'"):
        read_dataset(tmp_path / "d.xlsx")


def test_damaged_files_are_one_line(tmp_path):
    for name, content in (
        ("a.csv.gz", b"\x1f\x8bnothing"),
        ("a.jsonl", b"{"),
        ("a.csv", b"text,label\n\xff,a"),
        ("a.parquet", b"PAR1"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            read_dataset(tmp_path / name)


def test_unlabelled_data_can_be_read_to_predict_on(tmp_path):
    path = write(tmp_path / "u.csv", [("a",), ("b",)], ("text",))
    data = read_dataset(path, labelled=False)
    assert data.labels is None
    assert len(data) == 2
    with pytest.raises(InputError, match="no column 'label'"):
        read_dataset(path)


def test_the_images_of_every_source_are_scaled(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "i.npz", images=rng.integers(0, 255, (60, 8, 8, 3), dtype=np.uint8), labels=np.arange(60) % 2)
    splits = read_splits(DataSettings(train=str(tmp_path / "i.npz"), size=4, corrupt=("fog:1",)))
    assert {data.inputs.pixels.shape[1:] for data in splits} == {(4, 4, 3)}


def test_a_folder_of_pictures(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "pics" / label).mkdir(parents=True)
        for i in range(3):
            Image.new("L" if i else "RGB", (6, 5), i * 40).save(tmp_path / "pics" / label / f"{i}.png")
    data = read_dataset(tmp_path / "pics")
    assert data.inputs.pixels.shape == (6, 5, 6, 3)
    assert data.classes == ("cat", "dog")
    assert data.ids[0] == "cat/0.png"
    assert read_dataset(tmp_path / "pics", size=8).inputs.pixels.shape == (6, 8, 8, 3)
    Image.new("RGB", (7, 7)).save(tmp_path / "pics" / "cat" / "odd.png")
    with pytest.raises(InputError, match="odd.png.*7 × 7"):
        read_dataset(tmp_path / "pics")
    (tmp_path / "pics" / "cat" / "odd.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="odd.png.*cannot be read"):
        read_dataset(tmp_path / "pics")


def test_a_folder_of_pictures_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    """It is of another user: without its pictures the data would be others."""
    for name in ("cat/old", "dog"):
        (tmp_path / "pics" / name).mkdir(parents=True)
        Image.new("RGB", (6, 5)).save(tmp_path / "pics" / name / "a.png")
    listed = os.scandir

    def refused(path="."):
        if Path(path).name == "old":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError, match="old"):
        read_dataset(tmp_path / "pics")


def test_grey_pictures_of_16_bits_keep_their_shades(tmp_path):
    shades = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    for label in ("cat", "dog"):
        (tmp_path / "pics" / label).mkdir(parents=True)
        Image.fromarray(shades).save(tmp_path / "pics" / label / "a.png")
    pixels = read_dataset(tmp_path / "pics").inputs.pixels
    np.testing.assert_array_equal(pixels[1, :, :, 2], (shades // 257).astype(np.uint8))


def test_a_picture_with_a_damaged_part_is_named(tmp_path):
    file = tmp_path / "pics" / "cat" / "a.png"
    file.parent.mkdir(parents=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(file)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"IDAT", b"\xb8;jq"))
    with pytest.raises(InputError, match=r"a\.png: this picture cannot be read"):
        read_dataset(tmp_path / "pics")


def test_arrays_in_npz(tmp_path):
    np.savez(
        tmp_path / "i.npz", images=np.zeros((4, 3, 3), np.uint8), labels=np.array([0, 1, 1, 0]), classes=np.array(["a", "b"])
    )
    data = read_dataset(tmp_path / "i.npz")
    assert data.inputs.pixels.shape == (4, 3, 3, 3)
    np.savez(tmp_path / "v.npz", vectors=np.ones((3, 2)), labels=np.array(["x", "y", "x"]))
    assert read_dataset(tmp_path / "v.npz").labels.tolist() == [0, 1, 0]
    np.savez(tmp_path / "n.npz", other=np.ones(3))
    with pytest.raises(InputError, match="it holds other"):
        read_dataset(tmp_path / "n.npz")


def test_hugging_face_datasets_from_a_saved_folder(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])})
    saved = datasets.Dataset.from_dict({"sentence": ["a", "b", "c"], "label": [1, 0, 1]}, features=features)
    saved.save_to_disk(str(tmp_path / "hf"))
    data = read_dataset(tmp_path / "hf")
    assert data.classes == ("bad", "good")
    assert data.labels.tolist() == [1, 0, 1]
    datasets.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "dict"))
    with pytest.raises(InputError, match="splits train"):
        read_dataset(tmp_path / "dict")
    assert len(read_dataset(tmp_path / "dict" / "train")) == 3


def test_a_hub_name_goes_through_load_dataset(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(name, config, split):
        asked.append((name, config, split))
        if name == "no/such":
            raise ConnectionError("the hub cannot be reached\nat all")
        return datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["x", "y"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(read_dataset("hub:owner/name/config@train")) == 2
    assert asked == [("owner/name", "config", "train")]
    with pytest.raises(InputError, match="cannot be loaded: the hub cannot be reached;"):
        read_dataset("hub:no/such@test")
    with pytest.raises(InputError, match="names no split"):
        read_dataset("hub:owner/name")


# ---- splits ------------------------------------------------------------------------------------------------------------


def test_splits_are_typed_and_held_out_without_overlap(tmp_path):
    made, labels = sentences(300, 0)
    write(tmp_path / "t.csv", list(zip(made, labels, strict=True)))
    write(tmp_path / "o.csv", list(zip(*sentences(40, 1), strict=True)))
    splits = read_splits(DataSettings(train=str(tmp_path / "t.csv"), ood=(str(tmp_path / "o.csv"), str(tmp_path / "o.csv"))))
    assert [(d.name, d.role) for d in splits] == [
        ("train", "train"),
        ("dev", "dev"),
        ("test", "test"),
        ("o", "ood"),
        ("o-2", "ood"),
    ]
    assert abs(len(splits.test) - 60) <= 3
    assert abs(len(splits.dev) - 30) <= 3
    assert {(o.first, o.second) for o in splits.overlaps()} <= {("train", "o"), ("train", "o-2")}


def test_overlap_is_found_by_content(tmp_path):
    rows = [(f"text number {i}", "ab"[i % 2]) for i in range(40)]
    write(tmp_path / "t.csv", rows)
    write(tmp_path / "e.csv", [("TEXT  number 3", "a"), ("new", "b")])
    splits = read_splits(DataSettings(train=str(tmp_path / "t.csv"), test=str(tmp_path / "e.csv")))
    found = {(o.first, o.second): (o.rows, o.share) for o in splits.overlaps()}
    assert found.get(("train", "test"), found.get(("dev", "test"))) == (1, 0.5)


def test_numbers_are_not_taken_for_names(tmp_path):
    write(tmp_path / "t.csv", [(f"t{i}", ["yes", "no", "maybe"][i % 3]) for i in range(60)])
    write(tmp_path / "e.csv", [(f"e{i}", str(i % 3)) for i in range(30)])
    with pytest.raises(InputError, match="labels are numbers .* list the classes in the order"):
        read_splits(DataSettings(train=str(tmp_path / "t.csv"), test=str(tmp_path / "e.csv")))
    said = DataSettings(train=str(tmp_path / "t.csv"), test=str(tmp_path / "e.csv"), classes=("yes", "no", "maybe"))
    assert read_splits(said).test.labels[:3].tolist() == [0, 1, 2]


def test_numbers_of_an_npz_without_classes_are_names(tmp_path):
    """As in a table: 1, 2 and 3 are the classes of train, and 1 in test is the first of them."""
    for name, labels in (("train", [1, 2, 3, 1]), ("test", [1, 2, 2, 1])):
        np.savez(tmp_path / f"{name}.npz", vectors=np.eye(4), labels=np.array(labels))
    train = read_dataset(tmp_path / "train.npz", partly=True)
    assert train.classes == ("1", "2", "3")
    assert read_dataset(tmp_path / "test.npz", classes=train.classes).labels.tolist() == [0, 1, 1, 0]
    with pytest.raises(InputError, match=r"test\.npz: labels are numbers \(1, …\) where the classes are 'cat', 'dog', 'owl'"):
        read_dataset(tmp_path / "test.npz", classes=("cat", "dog", "owl"), by_index=False)
    with pytest.raises(InputError, match=r"row 1 .*label '2' is not a class name"):
        read_dataset(tmp_path / "test.npz", classes=("1", "3"))


@pytest.mark.parametrize("labels", [[0.0, 2.0, np.nan], [0.0, 2.0, -1.0]])
def test_numbers_of_an_npz_may_be_floats_beside_a_missing_one(tmp_path, labels):
    np.savez(tmp_path / "a.npz", vectors=np.eye(3), labels=np.array(labels))
    data = read_dataset(tmp_path / "a.npz", partly=True)
    assert (data.classes, data.labels.tolist()) == (("0", "2"), [0, 1, -1])
    with pytest.raises(InputError, match=r"row 2 .*: this example has no label"):
        read_dataset(tmp_path / "a.npz")


def test_odd_values_are_text_or_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "half \\ud83d pair", "label": "²"}\n{"text": "b", "label": "--1"}\n')
    data = read_dataset(tmp_path / "a.jsonl")
    assert data.classes == ("--1", "²")
    data.inputs.text[0].encode("utf-8")
    np.savez(tmp_path / "k.npz", vectors=np.ones((3, 2)), labels=np.array([[1], [2], [1]]))
    assert read_dataset(tmp_path / "k.npz").classes == ("1", "2")
    np.savez(tmp_path / "s.npz", vectors=np.array([["a"], ["b"]]), labels=np.array([0, 1]))
    with pytest.raises(InputError, match="vectors of type"):
        read_dataset(tmp_path / "s.npz")
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(b"text,label\na,b\n" * 50)[:-20] + b"x" * 12)
    with pytest.raises(InputError, match="damaged"):
        read_dataset(tmp_path / "z.csv.gz")
    with pytest.raises(InputError, match="groups of shape"):
        Dataset(texts(["a", "b"]), [0, 1], ("a", "b"), groups=np.array(["x"]))


def test_unknown_labels_in_test_are_refused(tmp_path):
    write(tmp_path / "t.csv", [(f"t{i}", "ab"[i % 2]) for i in range(40)])
    write(tmp_path / "e.csv", [("x", "a"), ("y", "c")])
    with pytest.raises(InputError, match="e.csv, line 3: label 'c'"):
        read_splits(DataSettings(train=str(tmp_path / "t.csv"), test=str(tmp_path / "e.csv")))


def test_copies_of_one_example_cannot_be_divided():
    with pytest.raises(InputError, match="all 4 examples of 'data' that are left read the same"):
        Dataset(texts(["a film"] * 4), [0, 1] * 2, ("a", "b")).split(0.5, seed=0)
    with pytest.raises(InputError, match="one group"):
        Dataset(texts(["a", "b", "c", "d"]), [0, 1] * 2, ("a", "b"), groups=np.array(["g"] * 4)).split(0.5, seed=0)


# ---- folders of pictures -----------------------------------------------------------------------------------------------


@pytest.fixture
def picture_folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for value, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        image.new("RGB", (4, 4), (value, 0, 0)).save(tmp_path / name / "0.png")
    return tmp_path


def test_hidden_pictures_are_no_examples(picture_folder):
    (picture_folder / "a" / "._0.png").write_bytes(b"made by another system")
    (picture_folder / "a" / ".thumbnails").mkdir()
    (picture_folder / "a" / ".thumbnails" / "0.png").write_bytes((picture_folder / "b" / "0.png").read_bytes())
    assert read_dataset(picture_folder).ids.tolist() == ["a/0.png", "b/0.png"]


def test_a_class_without_pictures_that_can_be_read_is_refused_unless_it_is_named(picture_folder):
    (picture_folder / "c").mkdir()
    (picture_folder / "c" / "0.tiff").write_bytes(b"of a kind that is not read")
    with pytest.raises(InputError, match=r"c: there are no pictures of this class; give \.png"):
        read_dataset(picture_folder)
    with pytest.warns(UserWarning, match=r"not read: 1 \.tiff"):
        assert read_dataset(picture_folder, classes=["a", "b", "c"]).classes == ("a", "b", "c")


def test_files_beside_pictures_that_are_not_read_are_counted(picture_folder, recwarn):
    for name in ("a/1.gif", "a/2.GIF", "b/deep/3.gif", "a/4.tif", "a/notes", "0.png"):
        (picture_folder / name).parent.mkdir(exist_ok=True)
        (picture_folder / name).write_bytes(b"")
    (picture_folder / "a" / "more").symlink_to(picture_folder / "b", target_is_directory=True)
    kinds = "3 .gif, 1 .tif, 1 folder by link, 1 without a suffix"
    assert read_dataset(picture_folder).ids.tolist() == ["a/0.png", "b/0.png"]
    assert len(recwarn) == 1
    message = str(recwarn.pop().message)
    assert message.startswith(f"{picture_folder}: not read: 3 .gif")
    assert sorted(message.partition("; ")[0].partition("read: ")[2].split(", ")) == sorted(
        [*kinds.split(", "), "1 .png outside the folders of classes"]
    )
    (picture_folder / "0.png").unlink()
    assert len(read_unlabelled(picture_folder)) == 2
    assert [str(w.message).partition(": not read: ")[2].partition(";")[0] for w in recwarn] == [kinds]


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "BMP", "WEBP", "JPEG", "MPO"])
def test_a_picture_is_read_whatever_its_suffix_says(picture_folder, kind):
    Image.new("RGB", (4, 4), (9, 9, 9)).save(picture_folder / "a" / "0.png", kind)
    assert read_dataset(picture_folder).inputs.pixels[0, 0, 0].tolist() == pytest.approx([9, 9, 9], abs=1)


def test_no_program_is_run_for_a_picture(picture_folder, monkeypatch):
    """Pillow runs Ghostscript for PostScript, under whatever name."""
    from PIL import EpsImagePlugin

    called = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: called.append(1) or Image.new("RGB", (4, 4)).im)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n"
    (picture_folder / "a" / "0.png").write_bytes(script)
    with pytest.raises(InputError, match="this picture cannot be read"):
        read_dataset(picture_folder)
    assert not called


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L", "I;16"])
def test_transparent_pixels_are_white_whatever_colour_they_hide(picture_folder, mode):
    grey = np.full((4, 4), 40, np.uint8)
    grey[0] = 10  # hidden
    alpha = np.where(grey == 10, 0, 255).astype(np.uint8)
    expected = np.where(grey == 10, 255, 40)
    settings = {}
    if mode in ("RGBA", "LA"):
        alpha[1] = 51  # a fifth of the colour, the rest white
        expected[1] = 212
        picture = Image.merge(mode, [*(Image.fromarray(grey) for _ in mode[1:]), Image.fromarray(alpha)])
    elif mode == "I;16":
        picture, settings = Image.fromarray(grey.astype(np.uint16) * 257), {"transparency": 10 * 257}
    else:
        picture = Image.fromarray(grey).convert(mode)
        settings = {"transparency": picture.getpixel((0, 0))}
    picture.save(picture_folder / "a" / "0.png", **settings)
    read = read_dataset(picture_folder).inputs.pixels[0]
    np.testing.assert_array_equal(read, np.repeat(expected[..., None], 3, axis=2))
    served = decode_images([base64.b64encode((picture_folder / "a" / "0.png").read_bytes()).decode()])[0]
    np.testing.assert_array_equal(served, read)


def test_a_photo_is_read_the_way_up_that_its_camera_noted(picture_folder):
    from PIL import Image

    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[:2] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it right by a quarter
    Image.fromarray(pixels).save(picture_folder / "a" / "0.png", exif=exif)
    np.testing.assert_array_equal(read_dataset(picture_folder).inputs.pixels[0], np.rot90(pixels, -1))


@pytest.mark.parametrize(
    ("pixels", "kind"),
    [
        (np.full((4, 4), 0.5, np.float32), "decimal numbers"),
        (np.full((4, 4), 1 << 20, np.int32), "numbers below 0 or above 65,535"),
        (np.full((4, 4), -5, np.int32), "numbers below 0 or above 65,535"),
    ],
)
def test_pictures_that_would_be_all_black_or_white_are_refused(picture_folder, pixels, kind):
    from PIL import Image

    Image.fromarray(pixels).save(picture_folder / "a" / "0.png", "TIFF")
    with pytest.raises(InputError, match=f"0.png: the pixels of this picture are {kind}; save it with 8 or 16 bits"):
        read_dataset(picture_folder)
