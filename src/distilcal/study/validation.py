"""What can be known of a study before anything runs is refused before anything runs."""

from __future__ import annotations

from typing import Any

from distilcal.errors import InputError
from distilcal.metrics import HUMAN_METRICS, METRICS, definition
from distilcal.study.schema import (
    ClaimSettings,
    FigureSettings,
    PlaceSettings,
    Study,
    TableSettings,
    changed_stage,
    check_axes,
    check_known,
    claim_pairs,
    claim_places,
    place_of,
    points,
    task_recipe,
)

FOLLOWED = ("accuracy", "nll", "ece", "brier", "entropy")  # what training writes down of dev after every epoch


def checked_study(study: Study) -> Study:
    """The study, if every name in it stands for something and every part of it can be made."""
    for kind in ("tasks", "methods", "metrics", "stages"):
        if not getattr(study, kind):
            raise InputError(f"there are no {kind}", remedy=f"add [{kind}.NAME]")
    if not study.seeds or len(set(study.seeds)) < len(study.seeds) or min(study.seeds) < 0:
        raise InputError(f"seeds = {list(study.seeds)}", remedy="give different numbers from 0 on, at least one")
    for name, metric in study.metrics.items():
        check_known(metric.metric, {**METRICS, **HUMAN_METRICS}, f"metrics.{name}: there is no metric")
        definition(metric.metric, metric.settings)
        if not 0 <= metric.digits <= 10:
            raise InputError(f"metrics.{name}.digits = {metric.digits} is not between 0 and 10")
    for name, said in study.methods.items():
        check_known(said.stage, study.stages, f"methods.{name!r}: there is no stage")
    _check_grids(study)
    for table in study.tables:
        _check_table(study, table)
    for claim in study.claims:
        _check_claim(study, claim)
    for figure in study.figures:
        _check_figure(study, figure)
    for theorem in study.theorems:
        if theorem.rows < 10 or theorem.columns < 2 or not all(0 <= a <= 1 for a in theorem.alphas) or not theorem.alphas:
            raise InputError(f"{theorem.name}: rows from 10, columns from 2 and alphas in [0, 1] are wanted")
        if not theorem.temperatures or min(theorem.temperatures) <= 0:
            raise InputError(f"{theorem.name}: temperatures above 0 are wanted")
    for task in study.tasks:
        task_recipe(study, task)
    return study


def _check_grids(study: Study) -> None:
    first = task_recipe(study, next(iter(study.tasks)))
    for name, grid in study.grids.items():
        if not grid.stages or not grid.axes:
            raise InputError(f"grids.{name} has no {'stages' if not grid.stages else 'axes'}")
        if grid.sample < 0:
            raise InputError(f"grids.{name}.sample = {grid.sample} is negative")
        check_axes(grid.axes, f"grids.{name}")
        for stage in grid.stages:
            check_known(stage, study.stages, f"grids.{name}: there is no stage")
            for axis in grid.axes:
                for point in points([axis]):
                    changed_stage(first.stages[stage], point)
    twice = [s for s in study.stages if sum(s in g.stages for g in study.grids.values()) > 1]
    if twice:
        raise InputError(f"stage {twice[0]!r} stands in two grids", remedy="make a second stage with like")


def _check_table(study: Study, table: TableSettings) -> None:
    where = f"table {table.name}"
    if table.paper:
        rows = [row if isinstance(row, (list, tuple)) else [] for row in table.paper]
        if len(rows) != len(table.rows) or any(len(row) != len(table.columns) for row in rows):
            raise InputError(f"{where}: the paper's figures do not fit rows and columns", remedy="use nan for gaps")
        for said in (said for row in rows for said in row):
            if not _is_number(said) and not (isinstance(said, (list, tuple)) and len(said) == 2 and all(map(_is_number, said))):
                raise InputError(f"{where}: the paper's figure {said!r} is no number", remedy="a number, [mean, std] or nan")
    for row in table.rows:
        for column in table.columns:
            place = place_of(table.common, row, column)
            check_known(place.method, study.methods, f"{where}: there is no method")
            check_known(place.metric, study.metrics, f"{where}: there is no metric")
            if place.against:
                check_known(place.against, study.methods, f"{where}: there is no method")
            _check_set(study, place, where)


def _check_claim(study: Study, claim: ClaimSettings) -> None:
    where = f"claim {claim.text!r}"
    if claim.pairs and (claim.lower or claim.higher or claim.than):
        raise InputError(f"{where} has pairs and one of lower, higher, than", remedy="give one way")
    if not claim.pairs and (bool(claim.lower) == bool(claim.higher) or not claim.than):
        raise InputError(f"{where} needs lower or higher, and than")
    if any(len(pair) != 2 for pair in claim.pairs):
        raise InputError(f"{where}: a pair is two methods")
    for first, second in claim_pairs(claim):
        for method in (first, second):
            check_known(method, study.methods, f"{where}: there is no method")
        if first == second:
            raise InputError(f"{where} compares {first!r} with itself")
    check_known(claim.metric, study.metrics, f"{where}: there is no metric")
    for place in claim.places:
        _check_set(study, place, where)
    comparisons = len(claim_pairs(claim)) * len(claim_places(study, claim))
    if not 0 <= claim.at_least <= comparisons:
        raise InputError(f"{where}: at_least = {claim.at_least} of {comparisons} comparisons")


def _check_figure(study: Study, figure: FigureSettings) -> None:
    where = f"figure {figure.name}"
    if not figure.methods or not figure.places:
        raise InputError(f"{where} needs methods and places")
    for method in figure.methods:
        check_known(method, study.methods, f"{where}: there is no method")
    for place in figure.places:
        _check_set(study, place, where)
    axes = {"scatter": (figure.x, figure.y), "line": (figure.y,)}.get(figure.kind, ())
    for metric in axes:
        check_known(metric, study.metrics, f"{where}: there is no metric")
    if figure.kind == "training":
        check_known(figure.y, FOLLOWED, f"{where}: training does not follow")
    if figure.kind == "line" and len(figure.values) != len(figure.methods):
        raise InputError(f"{where}: a value for each method is wanted")
    if figure.kind == "projection" and len(set(figure.classes)) != 3:
        raise InputError(f"{where}: three classes are wanted, they span a plane")


def _check_set(study: Study, place: PlaceSettings, where: str) -> None:
    check_known(place.task, study.tasks, f"{where}: there is no task")
    task = study.tasks[place.task]
    if place.set and place.set not in task.sets and place.set != "test":
        sets = ", ".join(("test", *task.sets))
        raise InputError(f"{where}: task {place.task!r} has no set {place.set!r}", remedy=f"its sets are {sets}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
