"""What a run stores about its evaluation is read back unchanged, and models of several runs are compared."""

import dataclasses

import numpy as np
import pytest
from run_summaries import facts, stage
from samples import make

from distilcal import InputError
from distilcal.evaluation import compare_models, evaluate_splits
from distilcal.io.atomic import read_json, write_json
from distilcal.io.folders import write_manifest
from distilcal.metrics import reliability
from distilcal.predictions import Predictions
from distilcal.runs import evaluation_to_json, main_stage, read_run, summarise_runs


def write_run(folder, name, *, seed, rows=60):
    """The folder of a run with a teacher and a student, without anything that a comparison does not read."""
    ids = [f"row {i}" for i in range(rows)]
    labels = np.random.default_rng(0).integers(0, 3, rows)
    predictions = {}
    for i, model in enumerate(("teacher", "student")):
        logits = np.random.default_rng([seed, i]).normal(size=(rows, 3))
        predictions[model] = Predictions.from_logits(logits, labels, ids=ids, name=model)
        (folder / model / "predictions").mkdir(parents=True)
        predictions[model].save(folder / model / "predictions" / "test.npz")
    diagrams = {model: {"test": {"given": reliability(p)}} for model, p in predictions.items()}
    comparisons = compare_models(predictions["student"], [predictions["teacher"]], resamples=50)
    stages = {"teacher": stage({}, teacher=None), "student": stage({}, teacher="teacher")}
    write_json(folder / "evaluation.json", evaluation_to_json(diagrams, comparisons, {"test": comparisons, "away": []}))
    write_json(folder / "metrics.json", {**facts(stages, ood=["away"]), "name": name})
    return diagrams, comparisons


def test_the_evaluation_of_another_run_is_refused(tmp_path):
    write_run(tmp_path, "first", seed=1)
    stored = read_json(tmp_path / "metrics.json")
    stored["stages"]["master"] = stored["stages"].pop("teacher")
    write_json(tmp_path / "metrics.json", stored)
    with pytest.raises(InputError, match="evaluation.json: this is not what distilcal writes: 'teacher' is missing"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["metrics.json", "evaluation.json"])
def test_results_that_do_not_match_their_checksums_are_refused(name, tmp_path):
    write_run(tmp_path, "first", seed=1)
    write_manifest(tmp_path)
    stored = read_json(tmp_path / name)
    write_json(tmp_path / name, {**stored, "note": "changed"})
    with pytest.raises(InputError, match=f"'{name}' missing or damaged.*remove its manifest.json if you changed it"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").unlink()
    read_run(tmp_path)


def test_stored_evaluation_is_read_back_unchanged(tmp_path):
    diagrams, comparisons = write_run(tmp_path, "first", seed=1)
    run = read_run(tmp_path)
    assert list(run.comparisons) == comparisons
    assert run.calibrated_comparisons == {"test": tuple(comparisons), "away": ()}
    stored, expected = run.diagrams["student"]["test"]["given"], diagrams["student"]["test"]["given"]
    for field in dataclasses.fields(expected):
        np.testing.assert_array_equal(getattr(stored, field.name), getattr(expected, field.name))
    assert stored.count.dtype == expected.count.dtype


def test_infinite_and_undefined_numbers_are_read_back(tmp_path):
    _, [comparison] = write_run(tmp_path, "first", seed=1)
    infinite = dataclasses.replace(comparison["nll"], a=np.inf, difference=np.nan, low=-np.inf, high=np.inf)
    comparison = dataclasses.replace(comparison, differences={"nll": infinite})
    write_json(tmp_path / "evaluation.json", evaluation_to_json({}, [comparison], {}))
    read = read_run(tmp_path).comparisons[0]["nll"]
    assert (read.a, read.low, read.high) == (np.inf, -np.inf, np.inf)
    assert np.isnan(read.difference)


def test_main_model_is_compared_within_and_across_runs(tmp_path):
    write_run(tmp_path / "a", "first", seed=1)
    write_run(tmp_path / "b", "second", seed=2)
    alone = summarise_runs([read_run(tmp_path / "a")])
    assert [(c.a, c.b) for c in alone.comparisons] == [("teacher", "student")]
    assert alone.sets == ("test", "away")
    assert alone.calibrated_comparisons == {"test": alone.comparisons, "away": ()}
    both = summarise_runs([read_run(tmp_path / "a"), read_run(tmp_path / "b")])
    assert [c.a for c in both.comparisons] == ["first: teacher", "second: teacher", "second: student"]
    assert {c.b for c in both.comparisons} == {"first: student"}
    assert both.comparisons[0].differences == alone.comparisons[0].differences
    assert [model.number for model in both.models] == [1, 2, 3, 4]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    write_run(tmp_path / "a", "same", seed=1)
    write_run(tmp_path / "b", "same", seed=2)
    titles = [model.title for model in summarise_runs([read_run(tmp_path / "a"), read_run(tmp_path / "b")]).models]
    assert titles[0] == f"{tmp_path / 'a'}: teacher"


def test_runs_without_calibrated_comparisons_are_read(tmp_path):
    write_run(tmp_path, "first", seed=1)
    stored = read_json(tmp_path / "evaluation.json")
    del stored["calibrated_comparisons"]
    write_json(tmp_path / "evaluation.json", stored)
    assert summarise_runs([read_run(tmp_path)]).calibrated_comparisons == {}


def test_unfinished_and_older_runs_are_refused(tmp_path):
    with pytest.raises(InputError, match="not the folder of a finished run"):
        read_run(tmp_path)
    write_json(tmp_path / "metrics.json", {})
    with pytest.raises(InputError, match=r"evaluation\.json is missing"):
        read_run(tmp_path)


def test_main_stage_is_the_last_student():
    assert main_stage({"a": {"teacher": None}, "b": {"teacher": "a"}, "c": {"teacher": "b"}}) == "c"
    assert main_stage({"a": {"teacher": None}, "b": {"teacher": None}}) == "b"


def test_splits_without_dev_have_no_threshold():
    result = evaluate_splits({"test": make(50, 3)}, method="temperature", accuracy=0.9, resamples=10)
    assert result.calibrator is None
    assert result.threshold is None
    assert result.splits["test"].calibrated is None
    assert result.splits["test"].check is None
