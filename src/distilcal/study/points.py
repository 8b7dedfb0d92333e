"""Tables of the points that were chosen in the grids of a study, beside those that the paper chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distilcal.config.loading import as_table
from distilcal.study.analysis import StudyResults
from distilcal.study.schema import PointTableSettings

EPOCHS = "train.epochs"  # one run covers several numbers of epochs, so the chosen one is in its result


def point_table(results: StudyResults, settings: PointTableSettings) -> dict[str, Any]:
    """Build a table of chosen points: a row for each task and method, for each parameter our value and the paper's.

    Parameters
    ----------
    results : StudyResults
        The study that was run.
    settings : PointTableSettings
        Methods, and the parameters that are shown.

    Returns
    -------
    dict
        The table as ``results.json`` holds it: ``name``, ``title``, ``text``, ``columns`` and ``rows``. Where the seeds chose
        different values, all are given in the order of the seeds.
    """
    study = results.study
    columns = ["task", "method"]
    for name in settings.parameters:
        columns += [name, f"{name}, paper"]
    rows: list[list[Any]] = []
    for task in study.tasks:
        for method in settings.methods:
            if method not in study.methods:
                continue  # only some of the study was run
            stage = study.methods[method].stage
            chosen = [_chosen_point(results, method, task, seed) for seed in study.seeds]
            paper = study.chosen.get(task, {}).get(stage, {})
            row: list[Any] = [task, method]
            for paths in settings.parameters.values():
                row += [_of_all_seeds(chosen, paths), _first_value(paper, paths)]
            rows.append(row)
    return {"name": settings.name, "title": settings.title, "text": settings.note, "columns": columns, "rows": rows}


def _chosen_point(results: StudyResults, method: str, task: str, seed: int) -> dict[str, Any]:
    """The settings of the model that stands for a method, by their paths; empty if it was not trained."""
    job = results.job(method, task, seed)
    id_ = results.graph.cells.get((method, task, seed))
    if job is None or id_ is None:
        return {}
    stage = results.graph.jobs[results.outcome.job_of(id_)].stage
    return {**_by_path(as_table(stage)), EPOCHS: job["best"] + 1}


def _by_path(value: Any, path: str = "") -> dict[str, Any]:
    """The values of nested tables and lists by their paths, as in the axes of a grid."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for key, part in items:
        found |= _by_path(part, f"{path}.{key}".lstrip("."))
    return found


def _first_value(point: Mapping[str, Any], paths: Sequence[str]) -> Any:
    return next((point[path] for path in paths if path in point), None)


def _of_all_seeds(points: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> Any:
    """The value that all seeds chose, or all values as text; None if there is none."""
    values = [value for value in (_first_value(point, paths) for point in points) if value is not None]
    if len(set(values)) <= 1:
        return values[0] if values else None
    return " / ".join(f"{value:g}" for value in values)
