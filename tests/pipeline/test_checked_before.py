"""What can be known before training is checked before training, in a dry run too, and leaves nothing behind."""

import json
import os

import numpy as np
import pytest
from run_cases import recipe_file
from shell import command
from tiny import save_model, sentences, write_csv

pytest.importorskip("torch")
pytest.importorskip("transformers")

import distilcal as dc
from distilcal.config.loading import parse_recipe
from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, Vectors
from distilcal.errors import InputError
from distilcal.pipeline import plan, sizes
from distilcal.pipeline.preflight import check_folders, check_split_name
from distilcal.pipeline.sizes import count_parameters, memory_bytes

VECTORS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
LABELS = np.where(VECTORS[:, 0] > 0, "yes", "no")
IDS = dc.load_dataset((VECTORS, LABELS)).ids


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_csv(folder / "train.csv", 300, 0, ids=True)
    save_model(folder / "encoder", head=False)
    save_model(folder / "other", labels=("sad", "happy"))
    save_model(folder / "unnamed")
    return folder


def steep(rows):
    positive = 1 / (1 + np.exp(-4 * rows[:, 0]))
    return np.column_stack([1 - positive, positive])


def distil(tmp_path, teacher=steep, **settings):
    settings = {"out": tmp_path / "run", "store": tmp_path / "store", "epochs": 1, "progress": False, **settings}
    return dc.distill((VECTORS, LABELS), teacher, settings.pop("student", "linear"), **settings)


def refused(tmp_path, words, **settings):
    """The call is refused in the same way with and without a dry run, and leaves nothing behind."""
    before = sorted(path.name for path in tmp_path.iterdir())
    for dry_run in (True, False):
        with pytest.raises(InputError) as error:
            distil(tmp_path, dry_run=dry_run, **settings)
        assert words in str(error.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == before


# ---- teachers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "ids", "words"),
    [
        (["up", "down"], IDS, "has classes 'up', 'down', not 'no', 'yes'"),
        (["no", "yes", "maybe"], IDS, "has classes 'no', 'yes', 'maybe', not 'no', 'yes'"),
        (["no", "yes"], None, "have no ids"),
        (["no", "yes"], np.array([f"x{i}" for i in range(200)]), "the predictions of 'teacher'"),
    ],
)
def test_predictions_that_do_not_fit(tmp_path, classes, ids, words):
    probs = np.full((200, len(classes)), 1 / len(classes))
    refused(tmp_path, words, teacher=dc.Predictions.from_probs(probs, ids=ids, classes=classes))


def test_predictions_with_other_classes_and_ids_in_a_file(tmp_path):
    np.savez(tmp_path / "train.npz", vectors=VECTORS, labels=(LABELS == "yes").astype(int))
    probs = np.full((200, 2), 0.5)
    dc.Predictions.from_probs(probs, ids=[f"x{i}" for i in range(200)], classes=["up", "down"]).save(tmp_path / "t.npz")
    arguments = [
        "--train",
        tmp_path / "train.npz",
        "--teacher",
        tmp_path / "t.npz",
        "--student",
        "linear",
        "--out",
        tmp_path / "r",
    ]
    for more in (["--dry-run"], []):
        done = command("distill", *arguments, "--store", tmp_path / "store", *more, code=2)
        assert "has classes 'up', 'down'" in done.stderr
    assert not (tmp_path / "r").exists()


class Estimator:
    classes_ = ("cold", "warm")

    def predict_proba(self, rows):
        raise AssertionError("it must not be asked")


def test_classes_of_an_estimator(tmp_path):
    refused(tmp_path, "knows the classes 'cold', 'warm', the data have 'no', 'yes'", teacher=Estimator())


def test_an_estimator_that_is_not_fitted(tmp_path):
    linear_model = pytest.importorskip("sklearn.linear_model")
    from sklearn.pipeline import make_pipeline

    unfitted = make_pipeline(linear_model.LogisticRegression())
    refused(tmp_path, "teacher: the Pipeline is not fitted; call its fit first", teacher=unfitted)
    fitted = linear_model.LogisticRegression().fit(VECTORS, LABELS)
    assert "known by its predictions" in str(distil(tmp_path, fitted, dry_run=True))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other", "the model knows the classes 'sad', 'happy', the data 'neg', 'pos'"),
        ("unnamed", "the model calls its classes 'LABEL_0', 'LABEL_1'"),
    ],
)
def test_classes_of_a_model(texts, tmp_path, name, words):
    arguments = ["distill", "--train", texts / "train.csv", "--teacher", texts / name, "--student", texts / "encoder"]
    for more in (["--dry-run"], []):
        done = command(*arguments, "--out", tmp_path / "run", "--store", tmp_path / "store", *more, code=2)
        assert words in done.stderr
        assert "teacher_labels=[...]" in done.stderr
    assert list(tmp_path.iterdir()) == []
    named = [*arguments, "--teacher-labels", "pos,neg", "--out", tmp_path / "run", "--store", tmp_path / "store"]
    assert "used as it stands" in command(*named, "--dry-run").stdout


def test_a_model_without_a_head_cannot_stay_as_it_is(texts, tmp_path):
    path = recipe_file(texts, tmp_path / "r.toml")
    before, _, after = path.read_text().partition('head = "new" }')
    path.write_text(f"{before}head = 'keep' }}\n[stages.student]{after.partition('[stages.student]')[2]}")
    done = command("run", path, "--dry-run", "--store", tmp_path / "store", "--out", tmp_path / "run", code=2)
    assert "has no trained head" in done.stderr


@pytest.mark.parametrize(
    "change",
    ["stages.student.terms=[{loss='kdd'}]", "stages.student.terms=[{loss='kd', temperature=-1.0}]", "data.limit_test=5",
     "stages.student.model.name=mpl"],
)  # fmt: skip
def test_a_function_is_not_asked_before_the_recipe_is_checked(tmp_path, change):
    def never(rows):
        raise AssertionError("it must not be asked")

    with pytest.raises(InputError):
        distil(tmp_path, never, changes=[change])
    assert list(tmp_path.iterdir()) == []


# ---- folders -----------------------------------------------------------------------------------------------------------


def test_a_folder_with_other_things_is_no_place_for_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    refused(tmp_path, "this folder is not empty and not that of a run: it holds 'thesis.tex'; give a new folder")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_an_empty_folder_stays_empty_after_a_refusal(tmp_path):
    (tmp_path / "run").mkdir()
    refused(tmp_path, "no loss 'kdd'", changes=["stages.student.terms=[{loss='kdd'}]"])
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"out": ""}, "out: the path is empty"),
        ({"out": 3}, "out: expected a path, got 3"),
        ({"store": 3}, "store: expected a path, got 3"),
        ({"out": "{tmp}/file"}, "this is a file"),
        ({"out": "{tmp}/file/run"}, "file' is a file"),
        ({"store": "{tmp}/file"}, "this is a file; give the folder of the store"),
        ({"out": "{tmp}/" + "é" * 200}, "of 400 bytes cannot be the name of a folder"),
        ({"out": "{tmp}/a\0b"}, "cannot be the name of a folder"),
        ({"store": "{tmp}/a\udcff"}, r"'a\udcff' is not UTF-8; give the folder of the store"),
        ({"out": "{tmp}/run", "store": "{tmp}/run"}, "the run and the store are one folder"),
        ({"track": "foo"}, "there is no tracker 'foo'"),
        ({"track": 3}, "track: expected text, got 3"),
        ({"name": 3, "out": None}, "name: expected text, got 3"),
        ({"name": "a b", "out": None}, "name = 'a b', expected letters"),
        ({"column_mapping": "text"}, "column_mapping: expected a dict, got 'text'"),
        ({"changes": "stages.student.train.epochs=5"}, "changes: expected a list of texts"),
        ({"changes": [3]}, "changes: expected a list of texts"),
        ({"progress": "yes"}, "progress: expected true, false or a callable"),
        ({"text": 3}, "text: expected the name of a column, got 3"),
        ({"accuracy": "0.9"}, "accuracy = '0.9', expected a number"),
        ({"accuracy": 1.5}, "accuracy = 1.5, expected at most 1"),
        ({"accuracy": float("nan")}, "accuracy = nan, expected a finite number"),
        ({"lr": float("inf")}, "lr = inf, expected a finite number"),
        ({"lr": "fast"}, "lr = 'fast', expected a number"),
        ({"epochs": 1.5}, "epochs = 1.5, expected an integer"),
        ({"epochs": 10**9}, "epochs = 1000000000, expected at most 100,000"),
        ({"batch": 10**9}, "expected at most 1,000,000"),
        ({"max_length": 10**9}, "expected at most 1,000,000"),
        ({"seed": -1}, "seed = -1, expected at least 0"),
        ({"layers": "0,x"}, "'0,x' is not a list of numbers"),
        ({"classes": 5}, "classes = 5, expected a list"),
        ({"budget": -1}, "budget"),
        ({"teacher": 5}, "teacher: a int cannot teach"),
        ({"teacher": None}, "teacher: a NoneType cannot teach"),
        ({"student": 5}, "student: a int cannot be a model"),
        ({"dev": 5}, "dev"),
        ({"ood": 5}, "ood"),
        ({"unlabelled": 5}, "unlabelled"),
        ({"student": "resnet21"}, "unknown network 'resnet21'; did you mean"),
        ({"student": "mlp", "changes": ["stages.student.model.hidden=[1000000, 1000000]"]}, "parameters"),
    ],
)  # fmt: skip
def test_bad_arguments_name_the_argument(tmp_path, monkeypatch, settings, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    filled = {k: v.format(tmp=tmp_path) if isinstance(v, str) and "{tmp}" in v else v for k, v in settings.items()}
    refused(tmp_path, words, **filled)


def test_a_lazy_frame_is_refused_by_name(tmp_path):
    polars = pytest.importorskip("polars")
    made, labels = sentences(30, 0)
    frame = polars.DataFrame({"text": made, "label": labels}).lazy()
    with pytest.raises(InputError, match="train: .*LazyFrame.*collect"):
        dc.distill(frame, "encoder", out=tmp_path / "run", store=tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_spaces_newlines_and_accents_is_fine(tmp_path):
    out = tmp_path / "my run\nnö. 1"
    result = distil(tmp_path, out=out, alone=False)
    assert result.metrics["name"] == "my-run-n-.-1"
    assert out.is_dir()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="is not writable"):
        check_folders(tmp_path / "run", tmp_path / "store")


def test_folders_of_runs_and_sweeps_may_be_used_again(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "points.csv").write_text("")
    check_folders(folder, folder / "store")
    (folder / ".lock").write_text("")
    (folder / "other.txt").write_text("")
    check_folders(folder, folder / "store")


def test_the_folder_of_another_run_is_no_store(tmp_path):
    (tmp_path / "other").mkdir()
    check_folders(tmp_path / "run", tmp_path / "other")
    (tmp_path / "other" / "metrics.json").write_text("{}")
    with pytest.raises(InputError, match="other: this is the folder of a run, not a store; give another --store"):
        check_folders(tmp_path / "run", tmp_path / "other")


def test_links_that_lead_nowhere_or_in_a_circle(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("circle", "gone"):
        with pytest.raises(InputError, match="this is a link that leads nowhere"):
            check_folders(tmp_path / name, tmp_path / "store")
    (tmp_path / ".lock").write_text("")
    check_folders(tmp_path, tmp_path / "store")  # with links in it


@pytest.mark.parametrize("name", ["a\nb", "a/b", "a\\b", "x" * 250, "é" * 125])
def test_splits_are_named_like_files(name):
    with pytest.raises(InputError, match="name"):
        check_split_name(name)


def test_a_long_name_of_another_domain_is_refused_before_training(tmp_path):
    refused(tmp_path, "is too long for files of results", ood={"x" * 240: (VECTORS, LABELS)})


@pytest.mark.parametrize("names", [("News", "news"), ("é", "É"), ("Test", "other")])
def test_names_of_data_that_differ_in_case_only_are_refused_before_training(tmp_path, names):
    refused(tmp_path, "differ in case only, and so would their files; rename", ood=dict.fromkeys(names, (VECTORS, LABELS)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((VECTORS, np.where(VECTORS[:, 0] > 0, "y\ud800", "no")), "give every class a name in readable text"),
        (
            {"id": [f"{i}\ud800" for i in range(200)], "text": [f"text {i}" for i in range(200)], "label": LABELS},
            "is not readable text; rename it",
        ),
    ],
)
def test_names_that_no_file_can_hold(tmp_path, data, words):
    for dry_run in (True, False):
        with pytest.raises(InputError, match=words):
            dc.distill(data, steep, "linear", dry_run=dry_run, out=tmp_path / "run", store=tmp_path / "store", progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "arguments", "words"),
    [
        ("", {}, "the path of the data is empty"),
        ("x" * 5000 + ".csv", {}, "there is no such file"),
        ("a\0b.csv", {}, "there is no such file"),
        (None, {}, "cannot read a NoneType"),
        ({"a": ["x"], "b": ["p"]}, {"column_mapping": "text"}, "column_mapping: expected a dict"),
        ({"a": ["x"], "b": ["p"]}, {"column_mapping": {3: "text"}}, "column_mapping: the column 3 is not text"),
        ({"a": ["x"], "b": ["p"]}, {"column_mapping": {"a": ["text"]}}, "column_mapping has"),
        ({"a": ["x"], "b": ["p"]}, {"classes": 5}, "classes: expected a list of texts, got 5"),
        ({"a": ["x"], "b": ["p"]}, {"classes": "ab"}, "classes: expected a list of texts, got 'ab'"),
        ({"a": ["x"], "b": ["p"]}, {"choices": [3]}, "choices: expected a list of texts"),
        ({"a": ["x"], "b": ["p"]}, {"label": ["b"]}, "label: expected the name of a column"),
    ],
)  # fmt: skip
def test_arguments_of_load_dataset(data, arguments, words):
    with pytest.raises(InputError) as error:
        dc.load_dataset(data, **arguments)
    assert words in str(error.value)


# ---- sizes -------------------------------------------------------------------------------------------------------------

DATA = Dataset(Vectors(VECTORS), LABELS, ("no", "yes"))


def test_parameters_are_estimated(texts):
    from distilcal.models import build_classifier

    for model in (ModelSettings(name="linear"), ModelSettings(name="mlp", hidden=(8, 5))):
        assert count_parameters(model, DATA, None) == build_classifier(model, DATA).parameters
    config = json.loads((texts / "encoder" / "config.json").read_text())
    words = dc.load_dataset(texts / "train.csv")
    model = ModelSettings(name=str(texts / "encoder"), head="new")
    assert count_parameters(model, words, config) == pytest.approx(build_classifier(model, words).parameters, rel=0.1)
    assert count_parameters(model, words, {"hidden_size": "x", "vocab_size": -5}) == 0
    assert count_parameters(model, words, None) == 0


def test_a_config_that_is_absurd_is_refused_before_it_is_loaded(texts, tmp_path):
    save_model(tmp_path / "huge", head=False)
    config = json.loads((tmp_path / "huge" / "config.json").read_text())
    (tmp_path / "huge" / "config.json").write_text(json.dumps({**config, "hidden_size": 10**7}))
    arguments = ["--train", texts / "train.csv", "--teacher", tmp_path / "huge", "--student", texts / "encoder"]
    done = command("distill", *arguments, "--dry-run", "--out", tmp_path / "run", code=2)
    assert "expected at most 100,000,000,000" in done.stderr


@pytest.mark.parametrize(("optimizer", "fits"), [("adamw", False), ("sgd", True)])
def test_a_network_that_the_memory_cannot_hold(monkeypatch, tmp_path, optimizer, fits):
    assert memory_bytes() > 10**8
    np.savez(tmp_path / "t.npz", vectors=VECTORS, labels=(LABELS == "yes").astype(int))
    train = {"optimizer": optimizer}
    stage = {"model": {"name": "mlp", "hidden": [100]}, "terms": [{"loss": "cross_entropy"}], "train": train}
    recipe = parse_recipe({"data": {"train": str(tmp_path / "t.npz")}, "stages": {"s": stage}})
    monkeypatch.setattr(sizes, "memory_bytes", lambda: 602 * 4 * 3)
    monkeypatch.setattr(sizes.torch.cuda, "is_available", lambda: False)
    if fits:
        assert plan(recipe, tmp_path / "store").stages
    else:
        with pytest.raises(InputError, match="this machine has"):
            plan(recipe, tmp_path / "store")


def test_a_machine_that_does_not_tell_its_memory(monkeypatch):
    monkeypatch.setattr(sizes.os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert memory_bytes() == 0


def test_resamples_are_bounded():
    predictions = dc.Predictions.from_probs(steep(VECTORS), (LABELS == "yes").astype(int))
    with pytest.raises(InputError, match="1,000,000,000 bootstrap resamples, expected at most 100,000"):
        dc.evaluate(predictions, intervals=10**9)
