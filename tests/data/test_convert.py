"""Data from Python: every kind of object becomes the same Dataset, faults name the argument and the row, files read back."""

import enum
from collections import namedtuple

import numpy as np
import pytest

from distilcal.data import Choices, Columns, Dataset, Images, Texts, Vectors, choices, read_dataset, texts
from distilcal.data.convert import label_text, names_classes, split_data, to_dataset
from distilcal.data.writing import file_columns, file_suffix, write_dataset
from distilcal.errors import InputError

TEXT = ["a fine film", "dull", "so so", "fair"]
LABEL = ["pos", "neg", "neg", "pos"]
COLUMNS = {"text": TEXT, "label": LABEL}
EXPECTED = Dataset(texts(TEXT), LABEL, ("neg", "pos"))


def pandas_frame():
    return pytest.importorskip("pandas").DataFrame(COLUMNS)


def polars_frame():
    return pytest.importorskip("polars").DataFrame(COLUMNS)


def arrow_table():
    return pytest.importorskip("pyarrow").table(COLUMNS)


def hub_dataset(labels=LABEL, features=None):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"text": TEXT, "label": labels}, features=features)


def class_labels(names):
    datasets = pytest.importorskip("datasets")
    return datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})


FORMS = {
    "pandas": pandas_frame,
    "pandas strings": lambda: pandas_frame().astype("string"),
    "polars": polars_frame,
    "arrow": arrow_table,
    "datasets": hub_dataset,
    "columns": lambda: COLUMNS,
    "arrays": lambda: {name: np.array(values) for name, values in COLUMNS.items()},
    "pairs": lambda: list(zip(TEXT, LABEL, strict=True)),
    "lists of two": lambda: [list(row) for row in zip(TEXT, LABEL, strict=True)],
    "dicts": lambda: [{"text": text, "label": label} for text, label in zip(TEXT, LABEL, strict=True)],
    "two lists": lambda: (TEXT, LABEL),
    "texts and an array": lambda: (np.array(TEXT), np.array(LABEL)),
    "Dataset": lambda: EXPECTED,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_data(form):
    data = to_dataset(FORMS[form](), argument="train")
    assert data.fingerprint == EXPECTED.fingerprint
    assert data.name == "train"


@pytest.mark.parametrize("form", ["pandas", "polars", "arrow", "datasets", "columns", "dicts", "Dataset"])
def test_labels_of_unlabelled_data_are_not_read(form):
    data = to_dataset(FORMS[form](), labelled=False)
    assert data.labels is None
    assert data.ids.tolist() == EXPECTED.ids.tolist()


def test_texts_pairs_and_arrays_need_no_labels():
    assert to_dataset(TEXT, labelled=False).ids.tolist() == EXPECTED.ids.tolist()
    assert to_dataset(pandas_frame()["text"], labelled=False).ids.tolist() == EXPECTED.ids.tolist()
    assert to_dataset([("a", "b")], labelled=False).inputs.pair.tolist() == ["b"]
    assert isinstance(to_dataset(np.ones((2, 3)), labelled=False).inputs, Vectors)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([0, 1, 1, 0], ("0", "1")),
        ([True, False, False, True], ("False", "True")),
        (np.array([3, 10, 10, 3]), ("3", "10")),
        (np.array([1.0, 2.0, 2.0, 1.0], dtype=np.float32), ("1", "2")),
        (["b", "a", "a", "b"], ("a", "b")),
    ],
)
def test_labels_of_any_type(labels, classes):
    for data in ({"text": TEXT, "label": labels}, (TEXT, labels), list(zip(TEXT, labels, strict=True))):
        assert to_dataset(data).classes == classes


def test_names_of_classes_come_with_the_data():
    hub = hub_dataset([1, 0, 0, 1], class_labels(["bad", "good", "unused"]))
    assert to_dataset(hub).classes == ("bad", "good", "unused")
    assert to_dataset(hub).labels.tolist() == [1, 0, 0, 1]
    assert to_dataset(hub.with_format("numpy")).labels.tolist() == [1, 0, 0, 1]
    assert to_dataset(hub, classes=["unused", "good", "bad"]).labels.tolist() == [1, 2, 2, 1]
    frame = pandas_frame()
    frame["label"] = frame["label"].astype(pytest.importorskip("pandas").CategoricalDtype(["pos", "neg"]))
    assert to_dataset(frame).classes == ("pos", "neg")
    polars = pytest.importorskip("polars")
    enum = polars_frame().with_columns(polars.col("label").cast(polars.Enum(["pos", "neg"])))
    assert to_dataset(enum).classes == ("pos", "neg")
    categorical = polars_frame().with_columns(polars.col("label").cast(polars.Categorical))
    assert to_dataset(categorical).classes == ("neg", "pos")


@pytest.mark.parametrize("names", [["1", "2"], ["1", "0"], ["-1", "1"]])
def test_numbers_of_a_hub_data_set_are_indices_though_classes_are_called_by_numbers(names, tmp_path):
    hub = hub_dataset([1, 0, -1, 1], class_labels(names))
    hub.save_to_disk(tmp_path / "saved")
    for data in (hub, tmp_path / "saved"):
        read = to_dataset(data, partly=True)
        assert read.classes == tuple(names)
        assert read.labels.tolist() == [1, 0, -1, 1]


@pytest.mark.parametrize("missing", [None, float("nan"), "", np.float32("nan")])
def test_train_may_lack_labels(missing):
    labels = ["pos", missing, "neg", "pos"]
    for data in ({"text": TEXT, "label": labels}, (TEXT, labels), list(zip(TEXT, labels, strict=True))):
        assert to_dataset(data, partly=True).labels.tolist() == [1, -1, 0, 1]
        with pytest.raises(InputError, match="dev, row 1.*: this example has no label"):
            to_dataset(data, argument="dev")


def test_without_any_label_the_classes_are_named():
    for data in ({"text": TEXT, "label": [None] * 4}, (np.eye(4), [None] * 4)):
        assert to_dataset(data, partly=True, classes=["no", "yes"]).labels.tolist() == [-1] * 4
        with pytest.raises(InputError, match="train: no (row|example) has a label; label some"):
            to_dataset(data, partly=True, argument="train")


def test_pandas_missing_values_and_hub_minus_one_are_no_labels():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXT, "label": pandas.Series([1, None, 0, 1], dtype="Int64")})
    assert to_dataset(frame, partly=True).labels.tolist() == [1, -1, 0, 1]
    frame["label"] = frame["label"].astype("float64")
    assert to_dataset(frame, partly=True).classes == ("0", "1")
    hub = hub_dataset([1, -1, 0, 1], class_labels(["bad", "good"]))
    assert to_dataset(hub, partly=True).labels.tolist() == [1, -1, 0, 1]
    assert label_text(pandas.NaT) is None


def test_arrays_and_labels():
    rng = np.random.default_rng(0)
    vectors = to_dataset((rng.normal(size=(4, 3)), ["a", None, "b", "a"]), partly=True)
    assert vectors.labels.tolist() == [0, -1, 1, 0]
    images = to_dataset((rng.integers(0, 255, (4, 8, 8, 3)).astype(np.uint8), [1, 0, 0, 1]))
    assert isinstance(images.inputs, Images)
    assert to_dataset((images.inputs.pixels, [1, 0, 0, 1]), classes=["no", "yes"]).labels.tolist() == [1, 0, 0, 1]


def test_images_of_a_hub_data_set():
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    pictures = [image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)) for value in (0, 200)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["dark", "bright"])})
    hub = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1]}, features=features)
    data = to_dataset(hub)
    assert (data.inputs.pixels.shape, data.classes) == ((2, 4, 4, 3), ("dark", "bright"))
    assert to_dataset(hub, labelled=False).labels is None


def test_labels_are_one_class_each():
    for labels in ([["a"], ["a", "b"]], [("a",), ("b",)], [{"a": 1}, {"b": 1}], [np.array([0]), np.array([1])]):
        with pytest.raises(InputError, match=r"^data, row 0 .*is not one class; give each example a text or a number"):
            to_dataset([("fine", labels[0]), ("dull", labels[1])])
    assert to_dataset([("fine", b"pos"), ("dull", b"neg")]).classes == ("neg", "pos")
    for labels in ([b"\xe9", b"\xe8", b"x"], np.array([b"\xe9", b"\xe8", b"x"])):  # both would be �
        with pytest.raises(InputError, match=r"^data: label b'\\xe9' is not UTF-8; decode the labels"):
            to_dataset((["fine", "dull", "fair"], labels))
    with pytest.raises(InputError, match="label '²' is not among 'no', 'yes'"):
        to_dataset(pd_categories(["yes", "²"], ["no", "yes"]))


def pd_categories(labels, categories):
    """A table whose labels are texts, and whose column still names the classes."""

    class Labels(list):
        dtype = type("Categories", (), {"categories": categories})

    return {"text": [f"text {i}" for i in range(len(labels))], "label": Labels(labels)}


def hub_pictures(pictures, labels, label="label"):
    datasets = pytest.importorskip("datasets")
    features = {"image": datasets.Image(), label: datasets.Value("string" if isinstance(labels[0], str) else "int64")}
    return datasets.Dataset.from_dict({"image": pictures, label: labels}, features=datasets.Features(features))


def test_images_of_a_hub_data_set_without_names_of_classes():
    image = pytest.importorskip("PIL.Image")
    pictures = [image.new("RGB", (4, 3), value) for value in (0, 50, 99)]
    data = to_dataset(hub_pictures(pictures, ["dog", "cat", "dog"]))
    assert (data.classes, data.labels.tolist()) == (("cat", "dog"), [1, 0, 1])
    data = to_dataset(hub_pictures(pictures, [7, 3, None]), partly=True)
    assert (data.classes, data.labels.tolist()) == (("3", "7"), [1, 0, -1])


def test_images_of_a_hub_data_set_that_cannot_be_used_are_named():
    image = pytest.importorskip("PIL.Image")
    fine, wide, damaged = image.new("RGB", (4, 3)), image.new("RGB", (5, 3)), {"bytes": b"no picture", "path": None}
    for pictures, said in (
        ([fine, wide], r"row 1 .*this picture has 5 × 3 pixels, the first 4 × 3; scale them"),
        ([fine, None], r"row 1 .*column 'image' has no picture"),
        ([fine, damaged], r"row 1 .*this picture cannot be read"),
    ):
        with pytest.raises(InputError, match=f"^data, {said}"):
            to_dataset(hub_pictures(pictures, [0, 1]))
    with pytest.raises(InputError, match="^data: there is no column 'label'; it has image, kind"):
        to_dataset(hub_pictures([fine, fine], [0, 1], label="kind"))


def test_pairs_choices_ids_groups_and_votes():
    pair = to_dataset([(("It rains.", "It is wet."), "yes"), (("It rains.", "It is dry."), "no")])
    assert pair.inputs.pair.tolist() == ["It is wet.", "It is dry."]
    chosen = to_dataset([(("The cat", ["sleeps.", "divides."]), 0), (("Two", ["barks.", "is even."]), 1)])
    assert isinstance(chosen.inputs, Choices)
    assert chosen.labels.tolist() == [0, 1]
    columns = Columns(text="q", choices=("a", "b"), label="gold", id="key", group="who")
    table = {
        "q": ["x", "y"],
        "a": ["1", "2"],
        "b": ["3", "4"],
        "gold": [1, 0],
        "key": [7, 8],
        "who": ["ann", "bob"],
        "rest": [0, 0],
    }
    data = to_dataset(table, columns=columns)
    assert (data.ids.tolist(), data.groups.tolist(), data.inputs.endings.tolist()) == (
        ["7", "8"],
        ["ann", "bob"],
        [["1", "3"], ["2", "4"]],
    )
    lists = {"text": ["x", "y"], "ends": [["1", "3"], ["2", "4"]], "label": [1, 0]}
    assert to_dataset(lists, columns=Columns(choices=("ends",))).inputs.endings.tolist() == data.inputs.endings.tolist()
    votes = to_dataset({"text": ["x", "y"], "label_prob_a": [0.5, 1.0], "label_prob_b": [0.5, 0.0]})
    assert votes.label_probs.tolist() == [[0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"text": [], "label": []}, "train: there are no rows; give at least one example"),
        ([], "train: there are no examples"),
        ({"txt": TEXT, "label": LABEL}, "train: there is no column 'text'; it has txt, label; did you mean 'txt'?"),
        ({"text": TEXT, "stars": LABEL}, "there is no column 'label'; it has text, stars; name it, as label='NAME'"),
        ({"text": TEXT, "label": LABEL[:3]}, "train: column 'text' has 4 rows, 'label' 3; give columns of one length"),
        ((TEXT, LABEL[:3]), "train: 4 examples and 3 labels"),
        ({"text": ["a", 5], "label": ["x", "y"]}, "train, row 1 (counting from 0): column 'text' holds 5, not a text"),
        ({"text": ["a", None], "label": ["x", "y"]}, "row 1 (counting from 0): column 'text' holds None, not a text"),
        ({"text": ["a", "  "], "label": ["x", "y"]}, "row 1 (counting from 0): column 'text' has no value"),
        ({"text": "abc", "label": LABEL}, "train: expected a column, got 'abc'"),
        ([("a", "x"), ("b", "y", "z")], "train, row 1 (counting from 0): expected a pair (text, label), got ('b', 'y', 'z')"),
        ([("a", "x"), (3, "y")], "train, row 1 (counting from 0): expected a text, got 3"),
        ([{"text": "a", "label": "x"}, ("b", "y")], "row 1 (counting from 0): expected a dict, got ('b', 'y')"),
        ((("a", "x"), ("b", "y")), "train: cannot read a tuple; give a path, a DataFrame"),
        (3, "train: cannot read a int"),
        (TEXT, "row 0 (counting from 0): expected a pair (text, label), got 'a fine film'"),
        (Dataset(texts(TEXT)), "train: it has no labels"),
        ({"text": TEXT, "label": ["pos"] * 4}, "'train' has 1 class"),
    ],
)  # fmt: skip
def test_faults_name_the_argument_and_the_row(data, words):
    with pytest.raises(InputError) as caught:
        to_dataset(data, argument="train")
    assert words in str(caught.value)


def test_faults_of_frames_and_of_classes():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="train: there are no rows"):
        to_dataset(pandas.DataFrame({"text": [], "label": []}), argument="train")
    twice = pandas.DataFrame([["a", "b", "x"]], columns=["text", "text", "label"])
    with pytest.raises(InputError, match="duplicate column 'text'"):
        to_dataset(twice)
    with pytest.raises(InputError, match="row 0 .*'maybe'.*is not among 'neg', 'pos'|row 0.*maybe"):
        to_dataset({"text": TEXT, "label": ["maybe", *LABEL[1:]]}, classes=["neg", "pos"], argument="dev")
    with pytest.raises(InputError, match="label '7' is not among 'bad', 'good'"):
        broken = pandas.DataFrame({"text": TEXT, "label": pandas.Categorical(["bad", "good", "bad", "good"])})
        to_dataset(_Relabelled(broken))
    with pytest.raises(InputError, match="there is no column 'reviw'; it has review, label; did you mean 'review'"):
        to_dataset({"review": TEXT, "label": LABEL}, columns=Columns(text="reviw"))


class _Relabelled:
    """A frame whose categories do not hold for its values."""

    def __init__(self, frame):
        self.frame, self.columns = frame, frame.columns

    def __getitem__(self, name):
        column = self.frame[name]
        if name != "label":
            return column

        class Column(list):
            dtype = column.dtype

        return Column([0, 1, 7, 0])


def test_splits_of_a_dict_of_tables():
    hub = pytest.importorskip("datasets").DatasetDict(train=hub_dataset(), validation=hub_dataset())
    assert list(split_data(hub)) == ["train", "dev"]
    assert list(split_data({"train": pandas_frame(), "test": pandas_frame()})) == ["train", "test"]
    assert split_data(COLUMNS) is None
    assert split_data(pandas_frame()) is None
    with pytest.raises(InputError, match="no use for a split 'holdout'; name splits train, validation and test"):
        split_data({"train": pandas_frame(), "holdout": pandas_frame()})
    with pytest.raises(InputError, match="several of 'train', 'validation', 'dev' are the split dev; leave out all but one"):
        split_data({"train": pandas_frame(), "validation": pandas_frame(), "dev": pandas_frame()})


FILES = {
    "texts": EXPECTED,
    "unlabelled": Dataset(texts(TEXT)),
    "partly": Dataset(texts(TEXT), [1, -1, 0, 1], ("neg", "pos")),
    "pairs": Dataset(texts(TEXT, TEXT[::-1]), LABEL, ("neg", "pos"), groups=np.array(["a", "a", "b", "b"])),
    "choices": Dataset(choices(["x", "y"], [["1", "3"], ["2", "4\n5\u2028\"6"]]), [1, 0], ("0", "1")),
    "votes": Dataset(texts(TEXT), None, ("neg", "pos"), label_probs=np.array([[0.25, 0.75], [1, 0], [0.5, 0.5], [0, 1]])),
    "vectors": Dataset(Vectors(np.eye(4, dtype=np.float32)), [1, -1, 0, 1], ("no", "yes"), groups=np.array(list("aabb"))),
    "numerals": Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 0, -1], ("1", "0")),
    "partly voted": Dataset(texts(TEXT), [1, 0, -1, 1], ("neg", "pos"),
                            label_probs=np.array([[0.25, 0.75], [1, 0], [0, 0], [0, 1]])),
    "images": Dataset(Images(np.arange(4 * 48, dtype=np.uint8).reshape(4, 4, 4, 3)), [1, 0, 0, 1], ("no", "yes")),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_files_read_back_as_the_same_data(kind, tmp_path):
    data = FILES[kind]
    path = tmp_path / f"data{file_suffix(data)}"
    write_dataset(data, path)
    columns = file_columns(data, Columns())
    read = read_dataset(path, columns=columns, classes=data.classes or None, labelled=kind != "unlabelled", partly=True)
    assert read.fingerprint == data.fingerprint
    assert (read.groups is None) == (data.groups is None)
    assert data.groups is None or read.groups.tolist() == data.groups.tolist()


def test_files_have_the_columns_that_were_named(tmp_path):
    columns = Columns(text="q", choices=("a", "b"), label="gold", id="key", group="who")
    write_dataset(FILES["choices"], tmp_path / "c.jsonl", columns)
    read = read_dataset(tmp_path / "c.jsonl", columns=columns)
    assert isinstance(read.inputs, Choices)
    assert read.groups.tolist() == read.ids.tolist()
    write_dataset(EXPECTED, tmp_path / "t.jsonl", Columns(text="review", label="stars"))
    assert isinstance(read_dataset(tmp_path / "t.jsonl", columns=Columns(text="review", label="stars")).inputs, Texts)


def test_paths_are_read(tmp_path):
    (tmp_path / "r.csv").write_text("text,label\ngood,pos\nbad,neg\nfair,\n")
    assert to_dataset(tmp_path / "r.csv", partly=True).labels.tolist() == [1, 0, -1]
    assert to_dataset(str(tmp_path / "r.csv"), labelled=False).labels is None


# ---- what has no order, no name or no value ----------------------------------------------------------------------------


class Mood(str, enum.Enum):  # noqa: UP042  # its str() is the name of the member, not the text
    BAD = "neg"
    GOOD = "pos"


def test_a_label_is_its_value_in_whatever_holds_it():
    zero_dimensional = [np.array(1), np.array(0)]
    assert to_dataset((TEXT[:2], zero_dimensional)).classes == ("0", "1")
    assert to_dataset((TEXT[:2], [Mood.GOOD, Mood.BAD])).classes == ("neg", "pos")
    torch = pytest.importorskip("torch")
    data = to_dataset([(text, torch.tensor(label)) for text, label in zip(TEXT, (1, 0, 1, 0), strict=True)])
    assert (data.classes, data.labels.tolist()) == (("0", "1"), [1, 0, 1, 0])


def test_fields_of_named_tuples_are_matched_by_name():
    row = namedtuple("row", ["label", "text"])
    rows = [row(label, text) for text, label in zip(TEXT, LABEL, strict=True)]
    assert to_dataset(rows).inputs.text.tolist() == TEXT
    assert to_dataset(rows).classes == ("neg", "pos")
    unlabelled = to_dataset(rows, labelled=False)  # not pairs of texts
    assert unlabelled.inputs.text.tolist() == TEXT
    assert unlabelled.inputs.pair is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((TEXT, set("abcd")), "a set has no order"),
        ((frozenset(TEXT), LABEL), "a set has no order"),
        ({"text": TEXT, "label": set("abcd")}, "a set has no order"),
        (set(zip(TEXT, LABEL, strict=True)), "a set has no order"),
        ((TEXT, [frozenset("a"), "b", "a", "b"]), "row 0 (counting from 0): label frozenset({'a'}) is not one class"),
        ((np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 0], [0, 1]]), ["a", "b"]), "row 1 (counting from 0): some values"),
        ((np.ma.array(np.zeros((2, 2, 2, 3), np.uint8), mask=True), ["a", "b"]), "row 0 (counting from 0): some pixels"),
    ],
)
def test_what_has_no_order_or_no_value_is_refused(data, words):
    with pytest.raises(InputError) as caught:
        to_dataset(data)
    assert words in str(caught.value)


def test_a_column_is_not_read_and_predicted_too():
    with pytest.raises(InputError, match="column 'text' is both the label and what is to be read"):
        to_dataset({"text": TEXT, "label": LABEL}, columns=Columns(label="text"))
    with pytest.raises(InputError, match="column 'label' is both"):
        to_dataset({"text": TEXT, "label": LABEL}, columns=Columns(text="text", pair="label"))
    assert to_dataset({"label": TEXT}, columns=Columns(text="label"), labelled=False).inputs.text.tolist() == TEXT


def test_a_stream_that_does_not_know_its_columns_is_read():
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"text": TEXT, "label": LABEL}).to_iterable_dataset().map(lambda row: row)
    data = to_dataset(stream)
    assert data.inputs.text.tolist() == TEXT
    assert data.classes == ("neg", "pos")
    assert not names_classes(stream, "label")
