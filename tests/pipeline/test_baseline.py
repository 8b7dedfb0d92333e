"""TF-IDF with logistic regression: what it learns, where a run has it, and how the readers of runs cope with it."""

import json

import numpy as np
import pytest
from run_cases import recipe_file
from shell import command

import distilcal
from distilcal import InputError, Predictions
from distilcal.config.loading import load_recipe
from distilcal.data import Dataset, Vectors, texts
from distilcal.data.splits import Splits
from distilcal.errors import MissingDependencyError
from distilcal.pipeline import baseline as module
from distilcal.pipeline import run_recipe
from distilcal.pipeline.baseline import baseline_name, fit_baseline
from distilcal.pipeline.checks import check_model
from distilcal.runs import main_stage, read_run, summarise_runs

pytest.importorskip("sklearn")
COLOURS, THINGS = ("red", "green", "blue"), ("car", "house", "tree", "boat")


def coloured(count, seed, classes=COLOURS):
    """Texts about things of one of three colours, which are the classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    words = [f"a {COLOURS[k]} {rng.choice(THINGS)} and a {rng.choice(THINGS)} {i}" for i, k in enumerate(labels)]
    return Dataset(texts(words), labels, classes, name="dev")


def paired(count, seed):
    """Pairs of things; the class says whether both are the same."""
    rng = np.random.default_rng(seed)
    first, second = rng.choice(THINGS, count), rng.choice(THINGS, count)
    words = [f"the {thing}" for thing in first], [f"one {thing}" for thing in second]
    return Dataset(texts(*words), (first == second).astype(int), ("other", "same"), name="dev")


def test_it_learns_words_and_is_the_same_every_time():
    train, dev = coloured(90, 0), coloured(60, 1)
    first, second = fit_baseline(train, dev), fit_baseline(train, dev)
    predictions = first.predictions(dev)
    assert predictions.correct.all()
    np.testing.assert_array_equal(predictions.logits, second.predictions(dev).logits)
    assert (predictions.ids == dev.ids).all()
    assert first.parameters == first.weights.size + 3
    assert first.rows == 90


def test_of_pairs_it_sees_what_both_texts_have():
    train, dev = paired(400, 0), paired(200, 1)
    assert fit_baseline(train, dev).predictions(dev).correct.mean() > 0.95


def test_a_class_that_train_does_not_have_is_improbable_and_finite():
    train, dev = coloured(90, 0), coloured(60, 1)
    train = train.select(train.labels != 1)
    probs = fit_baseline(train, dev).predictions(dev).probs
    assert np.isfinite(np.log(probs)).all()
    assert (probs[:, 1] < probs[:, [0, 2]].min(axis=1)).all()


def test_large_data_are_sampled(monkeypatch):
    train, dev = coloured(200, 0), coloured(60, 1)
    monkeypatch.setattr(module, "MAX_CHARACTERS", 1500)
    assert 20 < fit_baseline(train, dev).rows < 100
    monkeypatch.undo()
    monkeypatch.setattr(module, "MAX_WORK", 3000)
    smaller = fit_baseline(train, dev)
    assert 20 < smaller.rows < 150
    assert smaller.predictions(dev).correct.mean() > 0.9


def test_texts_without_words_are_refused():
    data = Dataset(texts(["?", "!!", "…"]), [0, 1, 0], ("a", "b"), name="train")
    with pytest.raises(InputError, match="train: there are no words in the texts"):
        fit_baseline(data, data)


@pytest.mark.parametrize(
    ("data", "asked", "name"),
    [
        (coloured(9, 0), None, "baseline"),
        (coloured(9, 0), False, None),
        (Dataset(Vectors(np.eye(3, dtype=np.float32)), [0, 1, 1], ("a", "b")), None, None),
        (Dataset(texts(["a", "b"]), None, ("a", "b")), None, None),
        (Dataset(texts(["a", "b"]), [1, 1], ("a", "b")), None, None),
    ],
)
def test_where_a_run_has_a_baseline(data, asked, name, place, tmp_path):
    recipe = load_recipe(recipe_file(place, tmp_path / "r.toml")).replace(baseline=asked)
    assert baseline_name(recipe, Splits(data, data, data)) == name
    if asked is None and name is None:
        with pytest.raises(InputError, match="baseline = true needs texts of at least two classes, got "):
            baseline_name(recipe.replace(baseline=True), Splits(data, data, data))


def test_a_stage_may_be_called_baseline(place, tmp_path):
    recipe = load_recipe(recipe_file(place, tmp_path / "r.toml"))
    recipe = recipe.replace(stages={**recipe.stages, "baseline": recipe.stages["teacher"]})
    assert baseline_name(recipe, Splits(coloured(9, 0), coloured(9, 1), coloured(9, 2))) == "tfidf"


def test_without_scikit_learn_there_is_none_unless_it_is_asked_for(place, tmp_path, monkeypatch):
    recipe = load_recipe(recipe_file(place, tmp_path / "r.toml"))
    splits = Splits(coloured(9, 0), coloured(9, 1), coloured(9, 2))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert baseline_name(recipe, splits) is None
    with pytest.raises(MissingDependencyError, match=r"pip install 'distilcal\[train\]'"):
        baseline_name(recipe.replace(baseline=True), splits)


def test_who_cannot_beat_the_baseline_is_told():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)

    def right_on(share):
        hits = np.arange(400) < share * 400
        return Predictions.from_logits(3 * np.eye(2)[np.where(hits, labels, 1 - labels)], labels, name="test")

    baseline = right_on(0.8)
    assert check_model("student", right_on(0.9), baseline) == []
    [sentence] = check_model("student", right_on(0.75), baseline)
    assert sentence.startswith("student is not better than TF-IDF with logistic regression on test (accuracy -0.050 [-0.07")
    assert ", NLL +0.150 [+0.0" in sentence
    [sentence] = check_model("student", right_on(0.8025), baseline)
    assert sentence.startswith("student may be no better than TF-IDF")


def test_a_better_nll_beats_the_baseline_too():
    labels = np.arange(400) % 2
    predicted = np.where(np.arange(400) < 320, labels, 1 - labels)
    sure, fair = (Predictions.from_logits(scale * np.eye(2)[predicted], labels, name="test") for scale in (6.0, np.log(4)))
    assert check_model("student", fair, sure) == []
    [sentence] = check_model("student", sure, fair)
    assert sentence.startswith("student is not better than TF-IDF with logistic regression on test (accuracy +0.000")


def test_an_infinite_nll_is_left_out():
    labels = np.arange(400) % 2
    certain = Predictions.from_probs(np.eye(2)[np.where(np.arange(400) < 320, labels, 1 - labels)], labels, name="test")
    [sentence] = check_model("student", certain, certain)
    assert "on test (accuracy +0.000 [+0.000, +0.000]): train it" in sentence


# ---- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("baseline")
    recipe = load_recipe(recipe_file(place, folder / "r.toml", data=f"ood = [{str(place / 'other.csv')!r}]"))
    return run_recipe(recipe, folder / "run", folder / "store")


def test_the_baseline_is_a_row_of_the_results(run):
    facts = json.loads((run / "metrics.json").read_text())
    assert facts["baseline"] == "baseline"
    assert list(facts["stages"]) == ["teacher", "student", "baseline"]
    entry = facts["stages"]["baseline"]
    assert entry["terms"] == ["TF-IDF + logistic regression"]
    assert (entry["teacher"], entry["calibrator"], entry["epochs"], entry["warnings"]) == ("", "temperature", 0, [])
    assert entry["parameters"] > 0
    assert entry["ms_spread"][0] <= entry["ms_per_example"] <= entry["ms_spread"][1]
    assert list(entry["sets"]) == ["dev", "test", "other"]
    files = {path.relative_to(run / "baseline").as_posix() for path in (run / "baseline").rglob("*") if path.is_file()}
    predictions = {f"predictions/{split}.npz" for split in ("dev", "test", "other")}
    assert files == {"calibrator.json", "history.json", "stage.json", *predictions}
    saved = Predictions.load(run / "baseline" / "predictions" / "test.npz")
    assert entry["sets"]["test"]["given"]["accuracy"]["value"] == pytest.approx(saved.correct.mean())
    assert {len(entry["classes"]), len(facts["classes"])} == {2}


def test_the_readers_of_runs_know_it(run):
    summary = summarise_runs([read_run(run)])
    assert summary.main.stage == "student"
    assert summary.models[-1].role == "TF-IDF + logistic regression"
    assert [comparison.a for comparison in summary.comparisons] == ["teacher", "baseline"]
    assert main_stage({"model": {"teacher": ""}, "baseline": {"teacher": "", "is_baseline": True}}) == "model"
    for name in ("evaluation.json", "report.html"):
        assert "baseline" in (run / name).read_text(encoding="utf-8")


def test_the_baseline_cannot_be_loaded_exported_or_predicted_with(run, place, tmp_path):
    message = r"'baseline' \(TF-IDF \+ logistic regression\) is fitted for comparison only and not saved; name another stage: "
    with pytest.raises(InputError, match=message + "teacher, student"):
        distilcal.load(run, stage="baseline")
    with pytest.raises(InputError, match=message):
        distilcal.load(run / "baseline")
    for arguments in (("predict", run, place / "other.csv", "-o", tmp_path / "o.csv"), ("export", run, tmp_path / "model")):
        done = command(*arguments, "--stage", "baseline", code=2)
        assert "is fitted for comparison only" in done.stderr


def test_a_run_can_do_without(place, tmp_path):
    path = recipe_file(place, tmp_path / "r.toml")
    command("run", path, "--out", tmp_path / "run", "--store", tmp_path / "store", "--set", "baseline=false")
    facts = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert facts["baseline"] is None
    assert list(facts["stages"]) == ["teacher", "student"]
