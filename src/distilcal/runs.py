"""Finished runs: reading their folders, and the models of one or several runs side by side.

``read_run`` reads what ``distilcal.pipeline.results`` wrote; ``summarise_runs`` gathers the models of several runs and compares
the main one with the others. ``distilcal.report.runs`` shows the summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.errors import InputError
from distilcal.evaluation import compare_models
from distilcal.io.atomic import expected_shape, read_json, read_object
from distilcal.io.folders import MANIFEST, verify_folder
from distilcal.metrics import Comparison, Difference, Reliability
from distilcal.predictions import Predictions
from distilcal.selective import CascadeEvaluation

FORMAT = 1  # of metrics.json and evaluation.json
CHANGED_REMEDY = "run its recipe again; remove its manifest.json if you changed it yourself"
REMEDY = "repeat the command that made it; trained stages are read from the store"
Diagrams = Mapping[str, Mapping[str, Mapping[str, Reliability]]]  # stage → split → "given" or "calibrated"


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    folder : Path
        The folder of the run.
    facts : mapping
        The content of its ``metrics.json``.
    diagrams : mapping
        Reliability diagrams by stage, split and state (``"given"`` or ``"calibrated"``).
    comparisons : tuple of Comparison
        The main model against each of the others on test, as trained; named after the stages.
    calibrated_comparisons : mapping of str to tuple of Comparison
        The same on every split, with calibrated predictions where a model was calibrated; empty for runs of earlier versions.
    cascade : CascadeEvaluation or None
        The main model with its teacher; None if it has none, or in runs of earlier versions.
    """

    folder: Path
    facts: Mapping[str, Any]
    diagrams: Diagrams
    comparisons: tuple[Comparison, ...]
    calibrated_comparisons: Mapping[str, tuple[Comparison, ...]] = field(default_factory=dict)
    cascade: CascadeEvaluation | None = None

    @property
    def main(self) -> str:
        """The name of the stage that the run is about."""
        return main_stage(self.facts["stages"])

    def predictions(self, stage: str, split: str) -> Predictions | None:
        """Load the predictions of a stage on a split; None if there are none."""
        path = self.folder / stage / "predictions" / f"{split}.npz"
        return Predictions.load(path) if path.exists() else None

    def history(self, stage: str) -> list[dict[str, Any]]:
        """Load the losses and dev metrics of a stage after every epoch."""
        path = self.folder / stage / "history.json"
        history: list[dict[str, Any]] = read_json(path)
        with expected_shape(path, REMEDY):
            for number, epoch in enumerate(history):
                _check_kinds(epoch, {"losses": dict, "dev": dict}, f"epoch {number}")
        return history


@dataclass(frozen=True)
class RunModel:
    """One model of one run: a row of the tables and a number in the charts.

    Attributes
    ----------
    number : int
        Counts the models from 1.
    title : str
        The stage, with the name of the run where several are shown.
    run : Run
        The run.
    stage : str
        The name of the stage.
    facts : mapping
        The part of ``metrics.json`` about this stage.
    """

    number: int
    title: str
    run: Run
    stage: str
    facts: Mapping[str, Any]

    def metric(self, split: str, name: str, state: str = "given") -> Mapping[str, Any] | None:
        """Return a metric with its interval, or None if the model was not evaluated there."""
        evaluated = self.facts["sets"].get(split)
        if evaluated is None or evaluated[state] is None:
            return None
        value: Mapping[str, Any] = evaluated[state][name]
        return value

    @property
    def role(self) -> str:
        """Whose student and whose teacher the model is, in words."""
        if self.facts.get("is_baseline"):
            return ", ".join(self.facts["terms"])
        students = [name for name, stage in self.run.facts["stages"].items() if stage["teacher"] == self.stage]
        parts = []
        if self.facts["teacher"]:
            parts.append(f"taught by {self.facts['teacher']}")
        if students:
            parts.append(f"teaches {', '.join(students)}")
        return "; ".join(parts) or "no teacher"


@dataclass(frozen=True)
class RunSummary:
    """The models of one or several runs.

    Attributes
    ----------
    runs : tuple of Run
        The runs, in the order they were given.
    models : tuple of RunModel
        Every model of every run.
    main : RunModel
        The main model of the first run.
    sets : tuple of str
        The names of the splits that are shown, test first.
    comparisons : tuple of Comparison
        The main model (``b``) against the others (``a``) on test, as trained; named after the models' titles.
    calibrated_comparisons : mapping of str to tuple of Comparison
        The main model against the others of its run on every split, calibrated; empty for runs of earlier versions.
    """

    runs: tuple[Run, ...]
    models: tuple[RunModel, ...]
    main: RunModel
    sets: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    calibrated_comparisons: Mapping[str, tuple[Comparison, ...]] = field(default_factory=dict)


def main_stage(stages: Mapping[str, Any]) -> str:
    """Return the name of the stage that a run is about.

    That is ``student`` or else the last stage with a teacher from which no other stage learns; without any, the last stage
    from which no other learns. It is never the baseline.

    Parameters
    ----------
    stages : mapping of str to mapping
        The stages in order, each with its ``"teacher"`` (a name or None).

    Returns
    -------
    str

    Examples
    --------
    >>> main_stage({"teacher": {"teacher": None}, "small": {"teacher": "teacher"}, "alone": {"teacher": None}})
    'small'
    """
    teachers = {facts["teacher"] for facts in stages.values()}
    last = [name for name, facts in stages.items() if name not in teachers and not facts.get("is_baseline")]
    distilled = [name for name in last if stages[name]["teacher"]]
    candidates = distilled or last or list(stages)
    return "student" if "student" in candidates else candidates[-1]


def read_run(folder: Path, *, verify: bool = True) -> Run:
    """Read the folder of a finished run.

    Parameters
    ----------
    folder : Path
        What ``distilcal run`` or ``distilcal distill`` wrote.
    verify : bool
        Compare what is read with its checksums; runs of earlier versions have none.

    Returns
    -------
    Run

    Raises
    ------
    InputError
        If the folder holds no finished run, or its files are damaged or of a newer version.
    """
    if not (folder / "metrics.json").exists():
        raise InputError(
            "this is not the folder of a finished run",
            source=str(folder),
            remedy="give one made by distilcal run or distill, or run it to its end",
        )
    if not (folder / "evaluation.json").exists():
        raise InputError(
            "this run was written by an earlier version: its evaluation.json is missing",
            source=str(folder),
            remedy=REMEDY,
        )
    facts = read_object(folder / "metrics.json", newest=FORMAT)
    with expected_shape(folder / "metrics.json", REMEDY):
        _check_facts(facts)
    path = folder / "evaluation.json"
    stored = read_object(path, newest=FORMAT)
    with expected_shape(path, REMEDY):
        diagrams = {
            stage: {
                split: {state: _reliability_from_json(diagram) for state, diagram in states.items()}
                for split, states in splits.items()
            }
            for stage, splits in stored["reliability"].items()
        }
        comparisons = _comparisons_from_json(stored["comparisons"])
        by_split = stored.get("calibrated_comparisons", {})
        calibrated = {split: _comparisons_from_json(of_split) for split, of_split in by_split.items()}
        for comparison in chain(comparisons, *calibrated.values()):
            facts["stages"][comparison.a]  # raises a KeyError for the evaluation of another run
        pair = stored.get("cascade")
        cascade = None if pair is None else CascadeEvaluation.from_dict(pair)
    if verify and (folder / MANIFEST).exists():
        verify_folder(folder, CHANGED_REMEDY, ("metrics.json", "evaluation.json"))
    return Run(folder, facts, diagrams, comparisons, calibrated, cascade)


def _check_facts(facts: dict[str, Any]) -> None:
    """Raise a KeyError or a TypeError if ``metrics.json`` has not the shape that reports rely on."""
    kinds: dict[str, Any] = {"name": str, "classes": list, "sizes": dict, "ood": list, "overlaps": list, "stages": dict}
    _check_kinds(facts, kinds, "metrics")
    if not facts["stages"]:
        raise KeyError("a stage")
    number = (int, float, type(None))
    kinds = {"terms": list, "epochs": int, "parameters": number, "ms_per_example": number, "sets": dict}
    kinds |= {"teacher": (str, type(None)), "calibrator": (str, type(None)), "threshold": (dict, type(None))}
    for name, stage in facts["stages"].items():
        _check_kinds(stage, kinds, f"stages.{name}")
        for split, states in stage["sets"].items():
            place = f"stages.{name}.sets.{split}"
            _check_kinds(states, {"given": dict, "calibrated": (dict, type(None))}, place)
            for state in ("given", "calibrated"):
                for metric, values in (states[state] or {}).items():
                    _check_kinds(values, {"value": number}, f"{place}.{state}.{metric}")


def _check_kinds(value: Any, kinds: Mapping[str, Any], place: str) -> None:
    if not isinstance(value, dict):
        raise TypeError(f"{place} is not an object")
    for key, kind in kinds.items():
        if not isinstance(value[key], kind):
            raise TypeError(f"{place}.{key} is {value[key]!r:.40}")


def summarise_runs(runs: Sequence[Run]) -> RunSummary:
    """Gather the models of all runs, with the main model of the first run compared with each of the others.

    Comparisons within the first run are those that it stored; those with models of other runs are computed.

    Parameters
    ----------
    runs : sequence of Run
        At least one.

    Returns
    -------
    RunSummary
    """
    models: list[RunModel] = []
    for run, name in zip(runs, _run_titles(runs), strict=True):
        for stage, facts in run.facts["stages"].items():
            title = stage if len(runs) == 1 else f"{name}: {stage}"
            models.append(RunModel(len(models) + 1, title, run, stage, facts))
    first = runs[0]
    own = {model.stage: model for model in models if model.run is first}
    main = own[first.main]
    shifted = [name for run in runs for name in run.facts["ood"]]

    def titled(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
        return tuple(replace(c, a=own[c.a].title, b=main.title) for c in comparisons)

    return RunSummary(
        runs=tuple(runs),
        models=tuple(models),
        main=main,
        sets=tuple(dict.fromkeys(["test", *shifted])),
        comparisons=titled(first.comparisons) + tuple(_compare_with_other_runs(main, models)),
        calibrated_comparisons={split: titled(of_split) for split, of_split in first.calibrated_comparisons.items()},
    )


def evaluation_to_json(
    diagrams: Diagrams,
    comparisons: Sequence[Comparison],
    calibrated_comparisons: Mapping[str, Sequence[Comparison]],
    cascade: CascadeEvaluation | None = None,
) -> dict[str, Any]:
    """Convert diagrams, comparisons and the cascade to the content of ``evaluation.json``, which ``read_run`` reads.

    JSON has no infinity and no NaN: they are stored as the strings ``"inf"``, ``"-inf"`` and ``"nan"``.

    Parameters
    ----------
    diagrams : mapping
        Reliability diagrams by stage, split and state.
    comparisons : sequence of Comparison
        The main model against the others on test, as trained.
    calibrated_comparisons : mapping of str to sequence of Comparison
        The same on every split, calibrated.
    cascade : CascadeEvaluation, optional
        The main model with its teacher.

    Returns
    -------
    dict
    """
    content = {
        "format": FORMAT,
        "reliability": diagrams,
        "comparisons": list(comparisons),
        "calibrated_comparisons": calibrated_comparisons,
    }
    stored: dict[str, Any] = _to_json(content)
    stored["cascade"] = None if cascade is None else cascade.to_dict()
    return stored


def _run_titles(runs: Sequence[Run]) -> list[str]:
    names = [str(run.facts["name"]) for run in runs]
    if len(set(names)) < len(names):
        return [str(run.folder) for run in runs]
    return names


def _compare_with_other_runs(main: RunModel, models: Sequence[RunModel]) -> list[Comparison]:
    main_predictions = main.run.predictions(main.stage, "test")
    if main_predictions is None:
        return []
    others = []
    for model in models:
        predictions = None if model.run is main.run else model.run.predictions(model.stage, "test")
        if predictions is not None:
            others.append(predictions.rename(model.title))
    return compare_models(main_predictions.rename(main.title), others)


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    if isinstance(value, np.ndarray):
        return _to_json(value.tolist())
    if isinstance(value, (Reliability, Comparison, Difference)):
        return {field.name: _to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def _reliability_from_json(stored: Mapping[str, Any]) -> Reliability:
    arrays = {name: np.array(stored[name], dtype=float) for name in ("lower", "upper", "confidence", "accuracy", "low", "high")}
    count = np.array(stored["count"], dtype=np.int64)
    return Reliability(**arrays, count=count, closed=stored["closed"], level=stored["level"])


def _comparisons_from_json(stored: Sequence[Mapping[str, Any]]) -> tuple[Comparison, ...]:
    return tuple(_comparison_from_json(comparison) for comparison in stored)


def _comparison_from_json(stored: Mapping[str, Any]) -> Comparison:
    differences = {}
    for name, difference in stored["differences"].items():
        numbers = {key: float(difference[key]) for key in ("a", "b", "difference", "low", "high", "p_value", "p_holm")}
        differences[name] = Difference(**{**difference, **numbers})
    return Comparison(**{**stored, "differences": differences})
