"""Writing the results of a run: for each stage its predictions, calibrator and model; for the run its metrics and diagrams.

``distilcal.evaluation`` computes all numbers; ``distilcal.runs.read_run`` reads the folder.

====================================  ==================================================================================
``STAGE/predictions/SPLIT.npz``       predictions on each split
``STAGE/calibrator.json`` or ``.npz``  what was fitted on dev
``STAGE/model/``, ``STAGE/history.json``  the trained model; losses and dev metrics after every epoch
``STAGE/stage.json``                  the part of ``metrics.json`` about this stage
``evaluation.json``                   reliability diagrams, and the main model compared with the others, as trained on test and
                                      calibrated on every split; its cascade with the teacher
``metrics.json``                      metrics of every stage on every split; it comes last, so its presence means finished
====================================  ==================================================================================

All of it is written to ``.new`` in the folder of the run and moved to its place when it is complete (`new_results`), so that
the results of an earlier run stay until then.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distilcal.calibrate import Calibrator
from distilcal.config.schema import Recipe
from distilcal.data import Dataset
from distilcal.data.splits import NearOverlap, Overlap, Splits
from distilcal.errors import InputError
from distilcal.evaluation import (
    ScoreEvaluation,
    SplitEvaluation,
    SplitsEvaluation,
    calibrate_splits,
    class_scores,
    compare_models,
    evaluate_splits,
    macro_f1,
)
from distilcal.io.atomic import read_json, write_json
from distilcal.io.folders import MANIFEST, link_folder, write_manifest
from distilcal.metrics import Comparison, MetricValue, Reliability
from distilcal.pipeline.baseline import METHOD, Baseline
from distilcal.pipeline.checks import check_calibration, check_data, check_model
from distilcal.pipeline.endpoints import endpoints_to_json, evaluate_endpoints
from distilcal.pipeline.stage import MAP, Stage
from distilcal.pipeline.timing import Timing, time_in_turns
from distilcal.predictions import Predictions
from distilcal.runs import FORMAT, evaluation_to_json, main_stage
from distilcal.selective import CascadeEvaluation, Threshold, evaluate_cascade
from distilcal.training import compute_outputs

logger = logging.getLogger(__name__)
METRICS = "metrics.json"  # absent until a run is finished
NEW = ".new"  # folder of results that are not complete yet, in the folder of the run
SEARCH = ".budget.json"  # state of a search that is under way
RESULT_FILES = (MANIFEST, "evaluation.json", "report.html", "budget.json", "frontier.html", "frontier.svg", SEARCH)
MODEL_FILES = ("predictions", "calibrator.json", "calibrator.npz", "model", MAP, "history.json", "stage.json")
TIMED_BATCH = 32


@dataclass(frozen=True)
class EvaluatedModel:
    """A model of a run with all that is written about it: a stage, or the baseline.

    Attributes
    ----------
    name : str
        Name of the stage.
    about : mapping
        Key, teacher, terms, epochs, seconds and parameters, as in ``metrics.json``.
    history : sequence of mapping
        Losses and dev metrics of every epoch.
    predictions : mapping of str to Predictions
        Its predictions by the name of the split.
    evaluation : SplitsEvaluation
        What was measured on them.
    run : callable or None
        Runs the model on examples; None where only its predictions are known.
    """

    name: str
    about: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    predictions: Mapping[str, Predictions]
    evaluation: SplitsEvaluation
    run: Callable[[Dataset], object] | None


def write_results(
    recipe: Recipe,
    splits: Splits,
    overlaps: Sequence[Overlap],
    stages: Sequence[Stage],
    folder: Path,
    *,
    near_overlaps: Sequence[NearOverlap] = (),
    baseline: tuple[str, Baseline] | None = None,
) -> None:
    """Evaluate every trained stage on every split and write the results of the run.

    Parameters
    ----------
    recipe : Recipe
        The recipe that was run.
    splits : Splits
        Its data.
    overlaps : sequence of Overlap
        Examples that several splits share.
    stages : sequence of Stage
        Its stages, all trained, in order.
    folder : Path
        Where to write them, as `new_results` yields it.
    near_overlaps : sequence of NearOverlap
        Examples that nearly repeat one of another split.
    baseline : tuple of str and Baseline, optional
        The baseline and its name in the results.
    """
    models = [_evaluate_stage(stage, recipe, splits) for stage in stages]
    if baseline is not None:
        models.append(_evaluate_baseline(*baseline, recipe, splits))
    timings = time_in_turns({model.name: model.run for model in models if model.run is not None}, splits.test)
    calibrated = {model.name: _calibrate_all(model) for model in models}
    facts: dict[str, dict[str, Any]] = {}
    warnings = check_data(splits)
    for model in models:
        of_model = _check_model(model, calibrated, None if baseline is None else baseline[0])
        facts[model.name] = {**_model_facts(model, timings.get(model.name)), "warnings": of_model}
        warnings += of_model
        _write_model(model, facts[model.name], folder / model.name)
    for stage in stages:
        _link_model(stage, folder / stage.name)
    diagrams = {model.name: {split: _diagrams(found) for split, found in model.evaluation.splits.items()} for model in models}
    main = main_stage(facts)
    comparisons = _compare_with_main(main, "test", {model.name: model.predictions for model in models})
    calibrated_comparisons = {data.name: _compare_with_main(main, data.name, calibrated) for data in (splits.test, *splits.ood)}
    evaluations = {model.name: model.evaluation for model in models}
    cascade = _evaluate_cascade(facts, evaluations, splits, recipe.accuracy, folder)
    write_json(folder / "evaluation.json", evaluation_to_json(diagrams, comparisons, calibrated_comparisons, cascade))
    metrics: dict[str, Any] = {
        "format": FORMAT,
        "name": recipe.name,
        "classes": list(splits.train.classes),
        "sizes": {data.name: len(data) for data in splits},
        "ood": [data.name for data in splits.ood],
        "overlaps": [asdict(overlap) for overlap in overlaps],
        "near_overlaps": [asdict(overlap) for overlap in near_overlaps],
        "warnings": warnings,
        "baseline": None if baseline is None else baseline[0],
        "stages": facts,
    }
    if recipe.endpoints is not None:
        measured = ["test", *(data.name for data in splits.ood)]
        endpoints = evaluate_endpoints([folder], main, measured, recipe.endpoints)
        metrics["endpoints"] = endpoints_to_json(recipe.endpoints, measured, endpoints)
    write_json(folder / METRICS, metrics)


@contextmanager
def new_results(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for new results, which replace those of an earlier run when the block ends without an error.

    Parameters
    ----------
    folder : Path
        The folder of the run.

    Yields
    ------
    Path
        A folder in it; it is removed if the block fails.
    """
    new = folder / NEW
    shutil.rmtree(new, ignore_errors=True)  # of a call that was killed
    new.mkdir()
    try:
        yield new
        write_manifest(new, _result_files(new))
        _replace_results(folder, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _result_files(new: Path) -> Iterator[Path]:
    """The files whose checksums a run keeps: of models their manifests; ``distilcal report`` may write pages again."""
    for path in new.rglob("*"):
        of_model = path.relative_to(new).parts[1:2]
        if (of_model not in (("model",), (MAP,)) or path.name == MANIFEST) and path.suffix != ".html":
            yield path


def _replace_results(folder: Path, new: Path) -> None:
    """Move new results to their place and remove those of an earlier run, also the stages that only it had.

    ``metrics.json`` goes first and comes last: a run that is killed in between counts as not finished.
    """
    earlier, stages = _stage_names(folder), _stage_names(new)
    for name in stages:
        (folder / name).mkdir(exist_ok=True)  # first: a file of the user may be in the way
    (folder / METRICS).unlink(missing_ok=True)
    for name in stages:
        _replace_entries(new / name, folder / name, MODEL_FILES)
    for name in earlier:
        if name not in stages:
            _replace_entries(new / name, folder / name, MODEL_FILES)
            with suppress(OSError):  # the user has put something there
                (folder / name).rmdir()
    of_run = {*RESULT_FILES, *(path.name for path in new.iterdir() if path.is_file())} - {METRICS}
    _replace_entries(new, folder, of_run)
    os.replace(new / METRICS, folder / METRICS)


def _stage_names(folder: Path) -> list[str]:
    """The stages of the results in a folder; none if there are no results, or they are damaged."""
    try:
        names = list(read_json(folder / METRICS)["stages"])
    except (InputError, LookupError, TypeError):
        return []
    # A name such as ../other, which somebody wrote there, is a folder that is none of this run.
    here = {path.name for path in folder.iterdir() if path.is_dir()}
    return [name for name in names if name in here]


def _replace_entries(source: Path, target: Path, names: Iterable[str]) -> None:
    """Move files and folders of these names from one folder to another; those that the first lacks are removed there."""
    for name in names:
        if (target / name).is_dir() and not (target / name).is_symlink():
            shutil.rmtree(target / name)
        else:
            (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            os.replace(source / name, target / name)


# ---- one stage ---------------------------------------------------------------------------------------------------------


def _evaluate_stage(stage: Stage, recipe: Recipe, splits: Splits) -> EvaluatedModel:
    """Evaluate a stage on every split that it has predictions for."""
    # A teacher that is a predictions file may hold rows of the training data only.
    predictions = {data.name: stage.predictions(data) for data in _evaluated_data(recipe, splits) if stage.knows(data).all()}
    history, has_model = stage.history(), not stage.settings.predictions
    about = {
        "key": stage.key,
        "teacher": stage.settings.teacher,
        "terms": [str(term) for term in stage.settings.terms],
        "epochs": len(history),
        "seconds": sum(epoch["seconds"] for epoch in history),
        "parameters": stage.classifier.parameters if has_model else None,
    }

    def run(data: Dataset) -> object:
        return compute_outputs(stage.classifier, data, batch=TIMED_BATCH)

    method = None if stage.settings.calibrate == "none" else stage.settings.calibrate
    evaluation = evaluate_splits(predictions, method=method, accuracy=recipe.accuracy)
    return EvaluatedModel(stage.name, about, history, predictions, evaluation, run if has_model else None)


def _evaluate_baseline(name: str, baseline: Baseline, recipe: Recipe, splits: Splits) -> EvaluatedModel:
    predictions = {data.name: baseline.predictions(data) for data in _evaluated_data(recipe, splits)}
    about = {
        "key": "",
        "teacher": "",
        "terms": [METHOD],
        "epochs": 0,
        "seconds": baseline.seconds,
        "parameters": baseline.parameters,
        "is_baseline": True,
    }
    evaluation = evaluate_splits(predictions, method="temperature", accuracy=recipe.accuracy)
    return EvaluatedModel(name, about, [], predictions, evaluation, baseline.logits)


def _evaluated_data(recipe: Recipe, splits: Splits) -> list[Dataset]:
    train = [splits.labelled] if recipe.train_predictions else []
    return [*train, splits.dev, splits.test, *splits.ood]


def _check_model(model: EvaluatedModel, calibrated: Mapping[str, Mapping[str, Predictions]], baseline: str | None) -> list[str]:
    """What is wrong with a model as it is used: on test, or on dev if it has no predictions of test.

    The baseline is not checked.
    """
    if model.name == baseline:
        return []
    warnings = []
    split = next((split for split in ("test", "dev") if split in model.predictions), None)
    if split is not None:
        of_baseline = None if baseline is None else calibrated[baseline][split]
        warnings += check_model(model.name, calibrated[model.name][split], of_baseline)
    if model.evaluation.calibrator is not None:
        warnings += check_calibration(model.name, model.predictions["dev"], model.evaluation.calibrator)
    for sentence in warnings:
        logger.warning(sentence)
    return warnings


def _model_facts(model: EvaluatedModel, timing: Timing | None) -> dict[str, Any]:
    """The part of ``metrics.json`` about a model, without warnings."""
    evaluation = model.evaluation
    return {
        **model.about,
        "ms_per_example": None if timing is None else timing.median,
        "ms_spread": None if timing is None else [timing.low, timing.high],
        "calibrator": None if evaluation.calibrator is None else evaluation.calibrator.kind,
        "threshold": None if evaluation.threshold is None else _threshold_facts(evaluation.threshold),
        "sets": {split: _split_facts(evaluated) for split, evaluated in evaluation.splits.items()},
        **_class_facts(model.predictions.get("test")),
    }


def _class_facts(test: Predictions | None) -> dict[str, Any]:
    """Precision, recall and F1 of every class on test, as trained."""
    if test is None:
        return {"classes": [], "macro_f1": None}
    scores = class_scores(test)
    finite = [{name: _finite(value) for name, value in asdict(of_class).items()} for of_class in scores]
    return {"classes": finite, "macro_f1": macro_f1(scores)}


def _write_model(model: EvaluatedModel, facts: Mapping[str, Any], folder: Path) -> None:
    """Write predictions, calibrator, history and metrics of a model."""
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    for split, predictions in model.predictions.items():
        predictions.save(folder / "predictions" / f"{split}.npz")
    _save_calibrator(model.evaluation.calibrator, folder)
    write_json(folder / "history.json", model.history)
    write_json(folder / "stage.json", facts)


def _link_model(stage: Stage, folder: Path) -> None:
    """Put the model of a stage and what it recorded into its folder."""
    if stage.settings.predictions:
        return
    for name in ("model", MAP):
        if (stage.folder / name).exists():
            link_folder(stage.folder / name, folder / name)


def _save_calibrator(calibrator: Calibrator | None, folder: Path) -> None:
    if calibrator is not None:
        calibrator.save(folder / ("calibrator.json" if calibrator.kind == "temperature" else "calibrator.npz"))


# ---- numbers as JSON ---------------------------------------------------------------------------------------------------


def _split_facts(split: SplitEvaluation) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "given": _score_facts(split.given),
        "calibrated": None if split.calibrated is None else _score_facts(split.calibrated),
    }
    if split.check is not None:
        facts["accepted"] = {"coverage": split.check.coverage, "accuracy": _finite(split.check.accuracy)}
    return facts


def _score_facts(scores: ScoreEvaluation) -> dict[str, Any]:
    facts = {name: _metric_facts(value) for name, value in scores.evaluation.metrics.items()}
    return {**facts, "aurc": {"value": _finite(scores.aurc)}}


def _metric_facts(metric: MetricValue) -> dict[str, Any]:
    return {
        "value": _finite(metric.value),
        "low": _finite(metric.low),
        "high": _finite(metric.high),
        "null": _finite(metric.null),
        "beyond_chance": metric.beyond_chance,
        "definition": metric.definition,
    }


def _threshold_facts(threshold: Threshold) -> dict[str, Any]:
    return {name: _finite(value) for name, value in threshold.to_dict().items()}


def _finite(value: Any) -> Any:
    """Return None for what JSON cannot hold, such as an infinite NLL; anything else as it is."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _diagrams(split: SplitEvaluation) -> dict[str, Reliability]:
    diagrams = {"given": split.given.reliability}
    if split.calibrated is not None:
        diagrams["calibrated"] = split.calibrated.reliability
    return diagrams


def _calibrate_all(model: EvaluatedModel) -> dict[str, Predictions]:
    """The predictions as they are used: calibrated, or as they are where nothing was calibrated."""
    calibrator = model.evaluation.calibrator
    if calibrator is None:
        return dict(model.predictions)
    return {split: calibrator(predictions) for split, predictions in model.predictions.items()}


def _compare_with_main(main: str, split: str, predictions: Mapping[str, Mapping[str, Predictions]]) -> list[Comparison]:
    """Compare the main model with every other one on a split."""
    of_split = {name: of_model[split].rename(name) for name, of_model in predictions.items() if split in of_model}
    if main not in of_split:
        return []
    return compare_models(of_split[main], [others for name, others in of_split.items() if name != main])


def _evaluate_cascade(
    facts: Mapping[str, Mapping[str, Any]],
    evaluations: Mapping[str, SplitsEvaluation],
    splits: Splits,
    accuracy: float,
    folder: Path,
) -> CascadeEvaluation | None:
    """Evaluate the main model with its teacher, both calibrated; None if it has none, or the teacher has no rows of dev."""
    student = main_stage(facts)
    teacher = facts[student]["teacher"]
    if not teacher or "dev" not in evaluations[teacher].splits:
        return None

    def calibrated(stage: str) -> dict[str, Predictions]:
        names = [data.name for data in (splits.dev, splits.test, *splits.ood) if data.name in evaluations[stage].splits]
        predictions = {name: Predictions.load(folder / stage / "predictions" / f"{name}.npz") for name in names}
        return calibrate_splits(predictions, evaluations[stage].calibrator)

    alone = "alone" if "alone" in facts and student != "alone" else None
    milliseconds = (facts[student]["ms_per_example"], facts[teacher]["ms_per_example"])
    return evaluate_cascade(
        calibrated(student),
        calibrated(teacher),
        None if alone is None else calibrated(alone),
        names=(student, teacher, alone),
        accuracy=accuracy,
        costs=milliseconds if all(milliseconds) else None,
        unit="ms",
    )
