"""Checks of a whole study: every name in it refers to something, and every recipe that it expands to is valid.

Rules about one part of a study are on its model in `distilcal.study.schema`. These need the study with its variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distilcal.errors import InputError
from distilcal.study.claim_settings import ClaimSettings, PremiseSettings, claim_pairs
from distilcal.study.places import PlaceSettings, merge_places
from distilcal.study.schema import (
    FigureSettings,
    Study,
    TableSettings,
    changed_stage,
    claim_places,
    premise_place,
    task_recipe,
)
from distilcal.study.templates import check_known


def checked_study(study: Study) -> Study:
    """Return the study if every name in it refers to something and every task is a valid recipe.

    Parameters
    ----------
    study : Study
        The study, with its variants written out.

    Returns
    -------
    Study
        The same study.

    Raises
    ------
    InputError
        With the unknown name and those like it, or with the setting that is invalid.
    """
    _check_grids(study)
    _check_chosen(study)
    for table in study.tables:
        _check_table(study, table)
    for points in study.points:
        for method in points.methods:
            check_known(method, study.methods, f"points {points.name}: there is no method")
    for claim in study.claims:
        _check_claim(study, claim)
    for figure in study.figures:
        _check_figure(study, figure)
    for task in study.tasks:
        task_recipe(study, task)
    return study


def _check_grids(study: Study) -> None:
    recipe = task_recipe(study, next(iter(study.tasks)))
    for name, grid in study.grids.items():
        for stage in grid.stages:
            for point in _points_along_each_axis(grid.axes):
                try:
                    changed_stage(recipe.stages[stage], point)
                except InputError as error:
                    error.problem = f"grids.{name}: {error.problem}"
                    raise


def _check_chosen(study: Study) -> None:
    for task, points in study.chosen.items():
        check_known(task, study.tasks, f"chosen.{task}: there is no task")
        recipe = task_recipe(study, task)
        for stage, point in points.items():
            check_known(stage, study.stages, f"chosen.{task}: there is no stage")
            try:
                changed_stage(recipe.stages[stage], point.items())
            except InputError as error:
                error.problem = f"chosen.{task}.{stage}: {error.problem}"
                raise


def _points_along_each_axis(axes: Sequence[Mapping[str, Sequence[Any]]]) -> Iterator[list[tuple[str, Any]]]:
    """Yield points of a grid in which every value occurs: one axis varies, the others stay at their first value."""
    for varied in axes:
        length = len(next(iter(varied.values())))
        for index in range(length):
            yield [(path, values[index if axis is varied else 0]) for axis in axes for path, values in axis.items()]


def _check_table(study: Study, table: TableSettings) -> None:
    where = f"table {table.name}"
    for row in table.rows:
        for column in table.columns:
            place = merge_places(table.common, row, column)
            check_known(place.method, study.methods, f"{where}: there is no method")
            check_known(place.metric, study.metrics, f"{where}: there is no metric")
            if place.against:
                check_known(place.against, study.methods, f"{where}: there is no method")
            _check_set(study, place, where)


def _check_claim(study: Study, claim: ClaimSettings) -> None:
    where = f"claim {claim.text!r}"
    for pair in claim_pairs(claim):
        for method in (pair.first, *pair.others):
            check_known(method, study.methods, f"{where}: there is no method")
    check_known(claim.metric, study.metrics, f"{where}: there is no metric")
    for place in claim.places:
        _check_set(study, place, where)
    for premise in claim.premises:
        _check_premise(study, claim, premise)
    comparisons = len(claim_pairs(claim)) * len(claim_places(study, claim))
    if claim.at_least > comparisons:
        raise InputError(f"{where}: at_least = {claim.at_least} of {comparisons} comparisons", remedy="lower it")


def _check_premise(study: Study, claim: ClaimSettings, premise: PremiseSettings) -> None:
    where = f"claim {claim.text!r}: premise {premise.text!r}"
    for method in premise.methods:
        check_known(method, study.methods, f"{where}: there is no method")
    if premise.metric:
        check_known(premise.metric, study.metrics, f"{where}: there is no metric")
    firsts = [pair.first for pair in claim_pairs(claim)]
    if premise.of:
        check_known(premise.of, firsts, f"{where}: no comparison begins with")
    for place in claim_places(study, claim):
        _check_set(study, premise_place(premise, place), where)


def _check_figure(study: Study, figure: FigureSettings) -> None:
    where = f"figure {figure.name}"
    for method in figure.methods:
        check_known(method, study.methods, f"{where}: there is no method")
    for place in figure.places:
        _check_set(study, place, where)
    metrics = {"scatter": (figure.x, figure.y), "line": (figure.y,)}.get(figure.kind, ())
    for metric in metrics:
        check_known(metric, study.metrics, f"{where}: there is no metric")


def _check_set(study: Study, place: PlaceSettings, where: str) -> None:
    check_known(place.task, study.tasks, f"{where}: there is no task")
    task = study.tasks[place.task]
    if place.set and place.set not in task.sets and place.set != "test":
        sets = ", ".join(("test", *task.sets))
        raise InputError(f"{where}: task {place.task!r} has no set {place.set!r}", remedy=f"its sets are {sets}")
