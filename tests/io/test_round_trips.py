"""What we write, we read: hostile ids, class names and texts through every pair of writer and reader."""

import csv
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distilcal import InputError, Predictions
from distilcal.data import Columns, Dataset, choices, read_dataset, read_table, texts
from distilcal.data.writing import write_dataset
from distilcal.io.tables import write_csv

FORMATS = (".npz", ".csv", ".tsv", ".jsonl", ".parquet")
ODD = (
    "a\rb", "a\nb", "a\r\nb", '"', '""', "a\tb", " a", "a ", "\ufeffa", "a\x1b[31m", "\x01", "a\x1c", "a\u2028b", "a\x85b",
    "01", "1e3", "-1", "-5", "nan", "None", "True", "null", "NaN", "inf", "=1+1", "+1-2", "-x", "@user", "\tx", "\rx", "\nx",
    "'=x", "''=x", "'", "'a", "\uff1d1", "label", "id", "prob_", "prob_a", "logit_a", "label_prob_a", "a,b", "a;b", "é", "😀",
    "0", "1", "x" * 5000, "distilcal_escaped", "#", "\\", "\\n", "{}", "[]", "a\x00b",
)  # fmt: skip
TEXT = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
FORMULA_STARTS = tuple("=+-@\t\r\n")


def valid(make):
    """What a function returns; None if it refuses its arguments in one line."""
    try:
        return make()
    except InputError:
        return None


def same(a, b):
    assert a.classes == b.classes
    assert np.array_equal(a.labels, b.labels)
    assert (a.ids is None) == (b.ids is None)
    assert a.ids is None or a.ids.tolist() == b.ids.tolist()
    assert np.array_equal(a.probs, b.probs)
    assert (a.label_probs is None) == (b.label_probs is None)
    assert a.label_probs is None or np.array_equal(a.label_probs, b.label_probs)


@SETTINGS
@given(
    ids=st.lists(TEXT | st.just(""), min_size=3, max_size=3, unique=True) | st.none(),
    classes=st.lists(TEXT, min_size=2, max_size=3, unique=True),
    form=st.sampled_from(["logits", "probs", "votes", "unlabelled", "partly"]),
    escape=st.booleans(),
    seed=st.integers(0, 9),
)
def test_predictions(tmp_path, ids, classes, form, escape, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(classes), 3)
    if form == "partly":
        labels[0] = -1
    scores = rng.normal(size=(3, len(classes)))
    named = {"ids": ids, "classes": classes}
    if form == "votes":
        named["label_probs"] = rng.dirichlet(np.ones(len(classes)), 3)
    if form == "probs":
        made = valid(lambda: Predictions.from_probs(rng.dirichlet(np.ones(len(classes)), 3), labels, **named))
    else:
        made = valid(lambda: Predictions.from_logits(scores, None if form == "unlabelled" else labels, **named))
    if made is None:
        assert any("\0" in name or not name.strip() for name in (*classes, *(ids or ["\0"])))
        return
    for suffix in FORMATS:
        path = tmp_path / f"p{suffix}"
        made.save(path, escape_formulas=escape)
        same(made, Predictions.load(path))


@SETTINGS
@given(ids=st.lists(TEXT, min_size=2, max_size=4, unique=True), correct=st.booleans())
def test_confidences(tmp_path, ids, correct):
    confidence = np.linspace(0.3, 1, len(ids))
    made = valid(lambda: Predictions.from_confidences(confidence, [correct] * len(ids), ids=ids))
    for suffix in FORMATS if made is not None else ():
        made.save(tmp_path / f"c{suffix}")
        read = Predictions.load(tmp_path / f"c{suffix}")
        assert read.ids.tolist() == ids
        assert np.array_equal(read.confidence, made.confidence)
        assert np.array_equal(read.correct, made.correct)


@SETTINGS
@given(
    text=st.lists(TEXT, min_size=3, max_size=3),
    pair=st.lists(TEXT, min_size=3, max_size=3) | st.none(),
    ids=st.lists(TEXT, min_size=3, max_size=3, unique=True),
    groups=st.lists(TEXT, min_size=3, max_size=3) | st.none(),
    classes=st.lists(TEXT, min_size=2, max_size=3, unique=True),
    labels=st.lists(st.integers(-1, 1), min_size=3, max_size=3),
)
def test_datasets(tmp_path, text, pair, ids, groups, classes, labels):
    made = valid(lambda: Dataset(texts(text, pair), np.array(labels), tuple(classes), ids, groups=groups))
    path = tmp_path / "d.jsonl"
    if made is None or valid(lambda: write_dataset(made, path) or True) is None:
        assert any("\0" in name or not name.strip() for name in (*classes, *ids, *(groups or ()), *text, *(pair or ())))
        return
    columns = Columns(group="group") if groups else None
    read = read_dataset(path, classes=classes, partly=True, columns=columns)
    assert read.inputs.text.tolist() == made.inputs.text.tolist()
    assert pair is None or read.inputs.pair.tolist() == made.inputs.pair.tolist()
    assert read.ids.tolist() == ids
    assert read.labels.tolist() == labels
    assert groups is None or read.groups.tolist() == groups
    assert read.fingerprint == made.fingerprint


@SETTINGS
@given(
    columns=st.dictionaries(
        TEXT.filter(lambda name: name == name.strip() != ""), st.lists(TEXT | st.just(""), min_size=2, max_size=2), min_size=1
    ),
    escape=st.booleans(),
    suffix=st.sampled_from([".csv", ".tsv"]),
)
def test_tables_of_text(tmp_path, columns, escape, suffix):
    file = io.BytesIO()
    if (
        valid(lambda: write_csv(file, columns, delimiter="\t" if suffix == ".tsv" else ",", escape_formulas=escape) or True)
        is None
    ):
        assert "distilcal_escaped" in columns
        return
    path = tmp_path / f"t{suffix}"
    path.write_bytes(file.getvalue())
    if next(iter(columns)).startswith("\ufeff"):
        return  # a byte order mark at the beginning of a file is no part of it
    assert {name: list(values) for name, values in read_table(path).columns.items()} == columns


def test_choices(tmp_path):
    made = Dataset(choices(["=a", "b\r"], [["\rw", " x"], ["'=y", '"z']]), [0, 1], ("0", "1"), ["-", "@"])
    write_dataset(made, tmp_path / "c.jsonl")
    read = read_dataset(tmp_path / "c.jsonl", columns=Columns(text="text", choices=("choices",)))
    assert read.fingerprint == made.fingerprint
    write_dataset(made, tmp_path / "c.jsonl", Columns(choices=("one", "=two ")))
    read = read_dataset(tmp_path / "c.jsonl", columns=Columns(text="text", choices=("one", "=two ")))
    assert read.fingerprint == made.fingerprint


@SETTINGS
@given(cells=st.lists(TEXT, min_size=2, max_size=2, unique=True))
def test_no_cell_of_text_starts_a_formula(cells):
    file = io.BytesIO()
    write_csv(file, {"id": cells, "=x": ["1", "2"], "number": [-1.5, 2]})
    header, *rows = list(csv.reader(io.StringIO(file.getvalue().decode(), newline="")))
    assert header == ["id", "'=x", "number", "distilcal_escaped"]
    assert [row[2] for row in rows] == ["-1.5", "2"]
    for row in rows:
        assert not row[0].startswith(FORMULA_STARTS) or float(row[0]) < 0 or row[0].startswith("+")


def test_a_file_without_formulas_has_no_further_column(tmp_path):
    predictions = Predictions.from_logits([[1.0, -2.0], [0.0, 1.0]], [0, 1], ids=["-5", "a"], classes=["x", "-y"])
    predictions.select([1]).save(tmp_path / "a.csv")
    assert "distilcal_escaped" in (tmp_path / "a.csv").read_text().splitlines()[0]  # the label -y
    predictions.save(tmp_path / "b.csv", escape_formulas=False)
    assert (tmp_path / "b.csv").read_text() == "id,label,logit_x,logit_-y\n-5,x,1.0,-2.0\na,-y,0.0,1.0\n"
    predictions.select([0]).save(tmp_path / "c.csv")
    assert (tmp_path / "c.csv").read_text() == "id,label,logit_x,logit_-y\n-5,x,1.0,-2.0\n"


def test_apostrophes_of_others_are_left_alone(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\n'@user' is a name,a\n'=x,b\n")
    assert read_table(tmp_path / "t.csv").columns["text"] == ["'@user' is a name", "'=x"]
    (tmp_path / "t.csv").write_text("text,distilcal_escaped\n'=x,1\n'=x,0\n")
    assert read_table(tmp_path / "t.csv").columns["text"] == ["=x", "'=x"]
    (tmp_path / "t.csv").write_text("text,distilcal_escaped\n'=x,yes\n")
    with pytest.raises(InputError, match="line 2: 'yes' in column 'distilcal_escaped' is neither 0 nor 1"):
        read_table(tmp_path / "t.csv")


def test_spaces_after_the_names_of_columns_belong_to_a_class_only_if_labels_have_them(tmp_path):
    (tmp_path / "p.csv").write_text("label , prob_a , prob_b \na,0.5,0.5\nb,0.2,0.8\n")
    assert Predictions.load(tmp_path / "p.csv").classes == ("a", "b")
    (tmp_path / "p.csv").write_text("label,prob_a ,prob_b\na ,0.5,0.5\nb,0.2,0.8\n")
    assert Predictions.load(tmp_path / "p.csv").classes == ("a ", "b")


@pytest.mark.parametrize("bad", ["a\0", "\ud800", "x" * 20_000])
def test_what_no_file_can_hold_is_refused_in_one_line(tmp_path, bad):
    logits = [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(InputError, match="row 1 .*: id "):
        Predictions.from_logits(logits, [0, 1], ids=["a", bad])
    with pytest.raises(InputError, match="invalid class name"):
        Predictions.from_logits(logits, [0, 1], classes=["a", bad])
    with pytest.raises(InputError, match="d, row 1 .*: id "):
        Dataset(texts(["a", "b"]), [0, 1], ("x", "y"), ["a", bad], name="d")
    with pytest.raises(InputError, match="invalid class name"):
        Dataset(texts(["a", "b"]), [0, 1], ("x", bad))
    if bad != "\ud800":
        (tmp_path / "p.csv").write_text(f'id,label,prob_a,prob_b\n1,a,0.5,0.5\n"{bad}",b,0.5,0.5\n')
        with pytest.raises(InputError, match=r"p\.csv, line 3: id "):
            Predictions.load(tmp_path / "p.csv")


@pytest.mark.parametrize("blank", ["", " ", "\x1c"])
def test_blank_ids_of_examples_are_refused(blank):
    with pytest.raises(InputError, match=r"d, row 0 .* is blank"):
        Dataset(texts(["a", "b"]), [0, 1], ("x", "y"), [blank, "b"], name="d")
