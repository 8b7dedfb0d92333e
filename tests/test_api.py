"""The front door: distill from Python is the command's run, from any data and any teacher; results, and what is refused."""

import json
import os

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from shell import command
from tiny import config, save_model, sentences, write_csv

import distilcal as dc
from distilcal.errors import InputError
from distilcal.pipeline import Plan
from distilcal.pipeline.in_memory import model_config

FAST = {"epochs": 1, "lr": 0.005}


def columns(count, seed):
    text, label = sentences(count, seed)
    return {"text": text, "label": label}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    folder = tmp_path_factory.mktemp("api")
    save_model(folder / "encoder", head=False)
    save_model(folder / "trained", labels=("pos", "neg"))
    write_csv(folder / "train.csv", 300, 0)
    write_csv(folder / "other.csv", 80, 1)
    return folder


@pytest.fixture(scope="module")
def result(place):
    pandas = pytest.importorskip("pandas")
    train, other = pandas.DataFrame(columns(300, 0)), pandas.DataFrame(columns(80, 1))
    where = {"out": place / "run", "store": place / "store"}
    return dc.distill(train, place / "encoder", ood={"other": other}, **FAST, **where)


def figures(folder):
    stages = json.loads((folder / "metrics.json").read_text())["stages"]
    return {name: (stage["key"], stage["sets"]) for name, stage in stages.items()}


def distil(place, tmp_path, train=None, teacher=None, student=None, **settings):
    where = {"out": tmp_path / "run", "store": place / "store"}
    train = columns(300, 0) if train is None else train
    return dc.distill(train, teacher or place / "encoder", student, alone=False, **{**FAST, **where, **settings})


def praise(examples):
    positive = np.array([0.1 + 0.8 * (len(text) % 7) / 7 for text in examples])
    return np.column_stack([1 - positive, positive])


def test_the_function_and_the_command_are_one_run(place, result, tmp_path):
    command("distill", "--train", place / "train.csv", "--teacher", place / "encoder", "--ood", place / "other.csv",
            "--epochs", "1", "--lr", "0.005", "--out", tmp_path / "run", "--store", tmp_path / "store")  # fmt: skip
    assert figures(tmp_path / "run") == figures(result.folder)


def test_the_recipe_repeats_the_run(place, result, tmp_path):
    done = command("run", result.folder / "recipe.toml", "--out", tmp_path / "run", "--store", place / "store")
    assert "student: already trained, loaded from the store" in done.stderr
    assert figures(tmp_path / "run") == figures(result.folder)


def test_a_result_prints_the_tables_and_writes_the_page(result, tmp_path):
    assert repr(result) == f"Result({str(result.folder)!r})"
    printed = str(result)
    assert "test (in domain, 60 examples)" in printed
    assert "other (out of domain, 80 examples)" in printed
    assert "student is right on" in printed
    assert "\x1b" not in printed
    page = result.report(tmp_path / "page.html")
    assert page.read_text(encoding="utf-8") == (result.folder / "report.html").read_text(encoding="utf-8")
    assert result.metrics["sizes"] == {"train": 210, "dev": 30, "test": 60, "other": 80}


def test_a_notebook_shows_a_table_and_a_picture(result, place, tmp_path):
    shown = result._repr_html_()
    assert shown.count("<table>") == 2
    assert shown.count("<svg") == 2
    (tmp_path / "a&b").mkdir()
    run = distil(place, tmp_path, ood={"<b>x</b>": columns(80, 1)}, out=tmp_path / "a&b" / "run")
    assert "<b>x" not in run._repr_html_()
    assert "a&amp;b" in run._repr_html_()


def test_predictions_and_student_of_a_result(result):
    predictions = result.predictions(split="other")
    assert len(predictions) == 80
    with pytest.raises(
        InputError, match="no predictions of 'studnet' on 'test'; there are those of alone on dev, alone on other"
    ):
        result.predictions("studnet")
    probs = result.student.predict_proba(["a great film", "dull"])
    assert probs.shape == (2, 2)
    assert result.student is result.student
    assert dc.load(result.folder, "alone").predict(["a great film"])[0] in ("neg", "pos")


def test_a_dry_run_writes_nothing(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned = distil(place, tmp_path, teacher=praise, student=place / "encoder", dry_run=True)
    assert isinstance(planned, Plan)
    assert "would train 1 epochs" in str(planned)
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_in_memory_is_a_teacher_and_a_student(place, tmp_path):
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline

    trained = AutoModelForSequenceClassification.from_pretrained(place / "trained")
    from_object = distil(place, tmp_path, teacher=trained)
    from_folder = distil(place, tmp_path, teacher=place / "trained", out=tmp_path / "folder")
    assert figures(from_object.folder)["student"][1] == figures(from_folder.folder)["student"][1]
    tokenizer = AutoTokenizer.from_pretrained(place / "trained")
    wrapped = pipeline("text-classification", model=trained, tokenizer=tokenizer)
    small = AutoModel.from_pretrained(place / "encoder", num_hidden_layers=1)
    taught = distil(place, tmp_path, teacher=wrapped, student=small, out=tmp_path / "small")
    assert taught.metrics["stages"]["student"]["parameters"] < from_object.metrics["stages"]["student"]["parameters"]
    bart = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    headed = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bart", vocab_size=31, num_labels=2, **bart))
    assert hasattr(headed, "model")  # its encoder, which has no head
    assert model_config(headed)["architectures"] == ["BartForSequenceClassification"]
    nameless = AutoModel.from_config(config("bert"))
    with pytest.raises(InputError, match="student: the BertModel has no tokenizer; set student.tokenizer"):
        distil(place, tmp_path, student=nameless, out=tmp_path / "none")
    nameless.tokenizer = tokenizer
    assert "would train" in str(distil(place, tmp_path, student=nameless, dry_run=True))


def test_a_classifier_of_scikit_learn_teaches(place, tmp_path):
    pytest.importorskip("sklearn")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    teacher = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(*sentences(300, 5))
    taught = distil(place, tmp_path, teacher=teacher, student=place / "encoder", unlabelled=sentences(50, 6)[0])
    assert taught.metrics["sizes"]["train"] == 260
    told = taught.predictions("teacher")
    assert np.allclose(told.probs, teacher.predict_proba(texts_of(tmp_path / "run", told.ids)))
    lines = (tmp_path / "run" / "data" / "unlabelled.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(lines[0])) == ["id", "text"]


def test_predictions_and_students_teach(place, result, tmp_path):
    train = dc.load_dataset(columns(300, 0))
    predictions = dc.Predictions.from_probs(praise(train.inputs.text), ids=train.ids, classes=["neg", "pos"])
    by_rows = distil(place, tmp_path, train=train, teacher=predictions, student=place / "encoder")
    by_call = distil(place, tmp_path, train=train, teacher=praise, student=place / "encoder", out=tmp_path / "call")
    assert np.allclose(by_rows.predictions().logits, by_call.predictions().logits)
    assert not (tmp_path / "call" / "data" / "answers").exists()
    by_student = distil(place, tmp_path, teacher=result.student, student=place / "encoder", out=tmp_path / "student")
    taught = by_student.predictions("teacher")
    assert np.allclose(taught.probs, result.student.predict_proba(texts_of(tmp_path / "student", taught.ids)), atol=1e-6)


def texts_of(folder, ids):
    rows = map(json.loads, (folder / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines())
    texts = {row["id"]: row["text"] for row in rows}
    return [texts[i] for i in ids]


def test_splits_columns_and_domains(place, tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"review": datasets.Value("string"), "stars": datasets.ClassLabel(names=["pos", "neg"])})

    def part(count, seed):
        text, label = sentences(count, seed)
        return datasets.Dataset.from_dict({"review": text, "stars": label}, features=features)

    splits = datasets.DatasetDict(train=part(120, 0), validation=part(40, 1), test=part(50, 2))
    mapping = {"review": "text", "stars": "label"}
    other = datasets.Dataset.from_dict(dict(zip(("review", "stars"), sentences(30, 3), strict=True)))
    run = distil(place, tmp_path, train=splits, column_mapping=mapping, ood=[other, part(20, 4)])
    assert run.metrics["sizes"] == {"train": 120, "dev": 40, "test": 50, "ood-1": 30, "ood-2": 20}
    assert run.metrics["classes"] == ["pos", "neg"]
    more = place / "more.csv"
    more.write_text((place / "other.csv").read_text().replace("text,label", "review,stars"))
    named = distil(place, tmp_path, train=splits, column_mapping=mapping, test=more, ood={"shop": more, "more": more})
    assert named.metrics["sizes"] == {"train": 120, "dev": 40, "test": 80, "shop": 80, "more": 80}


def test_files_and_memory_together(place, tmp_path):
    single = {"text": ["a great film", "a superb plot"], "label": ["pos", "pos"]}
    run = distil(place, tmp_path, train=place / "train.csv", ood={"one-class": single}, test=columns(60, 4),
                 unlabelled=[place / "other.csv"])  # fmt: skip
    assert run.metrics["sizes"] == {"train": 350, "dev": 30, "test": 60, "one-class": 2}
    lists = distil(place, tmp_path, train=place / "train.csv", unlabelled=[str(place / "other.csv")], ood=columns(80, 1))
    assert lists.metrics["sizes"] == {"train": 290, "dev": 30, "test": 60, "ood": 80}


def test_images_and_networks_by_name(place, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 120)
    pixels = (rng.integers(0, 90, (120, 32, 32, 3)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    with pytest.raises(InputError, match="resnet8 has no layers to leave out; name a student"):
        distil(place, tmp_path, train=(pixels, labels), teacher="resnet8", dev=(pixels, labels), test=(pixels, labels))
    dev = (pixels[:40], labels[:40])
    planned = distil(place, tmp_path, train=(pixels, labels), teacher="resnet14", student="resnet8", dev=dev, dry_run=True)
    assert "teacher: would train 1 epochs in batches of 16: 1·cross_entropy, 1·mdca" in str(planned)


def test_vectors_and_pairs(place, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    teacher = lambda rows: np.column_stack([1 / (1 + np.exp(rows[:, 0])), 1 / (1 + np.exp(-rows[:, 0]))])  # noqa: E731
    run = distil(place, tmp_path, train=(x, x[:, 0] > 0), teacher=teacher, student="mlp", unlabelled=rng.normal(size=(20, 3)),
                 changes=["stages.student.model.hidden=[4]"], lr=0.05)  # fmt: skip
    assert run.metrics["classes"] == ["False", "True"]
    assert run.metrics["sizes"]["train"] == 160
    assert (tmp_path / "run" / "data" / "train.npz").exists()
    text, label = sentences(200, 0)
    pairs = [((a, b), c) for a, b, c in zip(text, reversed(text), label, strict=True)]
    data = dc.load_dataset(pairs)
    paired = distil(place, tmp_path, train=data, text="premise", out=tmp_path / "pairs")
    assert {"premise", "text_pair"} < set(json.loads((tmp_path / "pairs" / "data" / "train.jsonl").read_text().splitlines()[0]))
    assert paired.metrics["sizes"]["train"] == 140


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"train": {"text": [], "label": []}}, "train: there are no rows"),
        ({"train": ""}, "there are no training data"),
        ({"train": {"txt": ["a"], "label": ["b"]}}, "train: there is no column 'text'; it has txt, label; did you mean 'txt'?"),
        ({"dev": {"text": ["a", "b"], "label": ["pos", "meh"]}}, "dev, row 1"),
        ({"teacher": lambda x: [[0.5, 0.5]] * 3}, "expected probabilities of shape (210, 2), got (3, 2)"),
        ({"teacher": lambda x: praise(x) * np.nan}, "is no distribution"),
        ({"teacher": 3}, "teacher: a int cannot teach"),
        (
            {"teacher": praise, "student": None},
            "a teacher known by its predictions has no layers for a student; name a student",
        ),
        ({"teacher": dc.Predictions([[1.0, 0.0]], ids=["a"], classes=["up", "down"])}, "'up', 'down'"),
        ({"student": 3}, "student: a int cannot be a model"),
        ({"student": "./nowhere"}, "there is no such folder"),
        ({"column_mapping": {"review": "body"}}, "column_mapping has 'body' for 'review'; map columns to 'text', 'pair'"),
        ({"column_mapping": {"a": "text"}, "text": "b"}, "column_mapping and another argument both name the column of text"),
        ({"unlabelled": ["fine", 3]}, "unlabelled, row 1 (counting from 0): expected a text, got 3"),
        ({"unlabelled": ["more.csv"]}, "more.csv: there is no such file"),
        ({"ood": {"far": columns(5, 1) | {"label": ["up"] * 5}}}, "ood far, row 0"),
        ({"epochs": 0}, "epochs = 0, expected at least 1"),
        ({"changes": ["stages.student.trian.lr=1"]}, "unknown key stages.student.trian"),
    ],
)
def test_mistakes_are_one_error_and_leave_nothing(place, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    settings = {"student": place / "encoder", "out": None, "name": "new", "store": tmp_path / "store", **arguments}
    with pytest.raises(InputError) as caught:
        distil(place, tmp_path, **settings)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays(place, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="is no distribution"):
        distil(place, tmp_path, teacher=lambda x: praise(x) * 2, student=place / "encoder")
    assert (tmp_path / "run").is_dir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not that of a run: it holds 'notes.txt'"):
        distil(place, tmp_path, student=place / "encoder")
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_refused_call_keeps_the_run_that_was_there(place, tmp_path):
    distil(place, tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="dev has 3 examples"):
        distil(place, tmp_path, train=columns(30, 1))
    assert {path: path.read_bytes() for path in before} == before


def test_the_command_takes_unlabelled_data_and_classes(place, tmp_path):
    command("distill", "--train", place / "train.csv", "--teacher", place / "trained", "--unlabelled", place / "other.csv",
            "--labelled-share", "0.5", "--classes", "pos,neg", "--epochs", "1", "--no-alone", "--out", tmp_path / "run",
            "--store", place / "store")  # fmt: skip
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["sizes"]["train"], metrics["classes"]) == (290, ["pos", "neg"])
    assert "labelled_share = 0.5" in (tmp_path / "run" / "recipe.toml").read_text()
    missing = command("distill", "--train", place / "train.csv", "--teacher", place / "trained", "--unlabelled", "nowhere",
                      "--out", tmp_path / "none", code=2)  # fmt: skip
    assert "nowhere: there is no such file or folder" in missing.stderr
    assert not (tmp_path / "none").exists()


asked = []


def moody(examples):
    asked.append(len(examples))
    if len(asked) == 2:
        raise ConnectionError("try later")
    return praise(examples)


def test_a_teacher_that_breaks_is_not_asked_again_for_what_it_answered(place, tmp_path):
    arguments = {"teacher": moody, "student": place / "encoder"}
    with pytest.raises(ConnectionError):
        distil(place, tmp_path, **arguments)
    distil(place, tmp_path, **arguments)
    assert asked == [210, 30, 30, 60]


def test_progress_is_shown_or_not(place, tmp_path, capsys):
    steps = []
    distil(place, tmp_path, progress=lambda stage, step: steps.append(stage), seed=3, store=tmp_path / "store")
    assert set(steps) == {"teacher", "student"}
    distil(place, tmp_path, progress=False, seed=4, store=tmp_path / "store")
    assert capsys.readouterr() == ("", "")


def test_data_of_any_form_are_loaded(place):
    assert repr(dc.load_dataset(place / "train.csv")) == "Dataset('train', 300 texts, 2 classes)"
    assert dc.load_dataset([{"a": "x", "b": 1}, {"a": "y", "b": 0}], text="a", label="b").classes == ("0", "1")
    assert dc.load_dataset(["x"], labelled=False).labels is None


def test_lists_may_be_arrays(place, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = [("x", "pos"), ("y", "neg")]
    for names in (np.array(["pos", "neg"]), pandas.Index(["pos", "neg"]), pandas.Series(["pos", "neg"])):
        assert dc.load_dataset(rows, classes=names).classes == ("pos", "neg")
    settings = {"student": place / "encoder", "store": tmp_path / "store", "dry_run": True}
    assert distil(place, tmp_path, teacher=praise, teacher_labels=np.array(["pos", "neg"]), **settings)
    with pytest.raises(InputError, match="knows the classes 'up', 'down'"):
        distil(place, tmp_path, teacher=praise, teacher_labels=np.array(["up", "down"]), **settings)


def test_modules_are_attributes():
    assert dc.integrations.transformers.__name__ == "distilcal.integrations.transformers"
    assert dc.calibrate.fit_temperature
    with pytest.raises(AttributeError):
        _ = dc.integrations.nothing


def test_benchmarks_are_data_too(tmp_path, monkeypatch):
    monkeypatch.delenv("DISTILCAL_DATA", raising=False)
    with pytest.raises(InputError, match="set DISTILCAL_DATA to the folder that holds vader/"):
        dc.load_dataset("benchmark:vader_movie")
