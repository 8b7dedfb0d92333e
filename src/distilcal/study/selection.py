"""A part of a study: some of its methods on some of its tasks, with the tables, claims and figures that are about these."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from distilcal.study.claim_settings import ClaimSettings, claim_pairs
from distilcal.study.places import PlaceSettings, merge_places
from distilcal.study.schema import FigureSettings, Study, TableSettings, claim_places, pair_premises
from distilcal.study.templates import check_known

Chosen = Callable[[str], bool]  # whether a method is in the selection


def select(study: Study, *, methods: Collection[str] = (), tasks: Collection[str] = ()) -> Study:
    """Return the part of a study that is about some of its methods and tasks.

    Parameters
    ----------
    study : Study
        The study at one scale.
    methods, tasks : collections of str
        What is kept; empty: all.

    Returns
    -------
    Study
        Tables keep the rows and columns that hold a selected cell, claims the comparisons between selected methods on selected
        tasks, figures what is selected; those that have nothing left are gone, and so are theorems, which have no methods.

    Raises
    ------
    InputError
        If a method or task is not in the study.

    Examples
    --------
    >>> from distilcal.study.loading import load_study
    >>> part = select(load_study("kd-or-smoothing"), methods=["BERT ERM"], tasks=["MRPC"])
    >>> [(len(table.rows), len(table.columns)) for table in part.tables][0], list(part.tasks)
    ((1, 1), ['MRPC'])
    """
    for method in methods:
        check_known(method, study.methods, f"{study.name} has no method")
    for task in tasks:
        check_known(task, study.tasks, f"{study.name} has no task")
    if not methods and not tasks:
        return study
    kept = set(methods or study.methods)
    return _selected(study, kept.__contains__, set(tasks or study.tasks)).replace(theorems=())


def without_methods(study: Study, patterns: Iterable[str]) -> Study:
    """Return the study without the methods that match a pattern, in which ``*`` stands for any text.

    Parameters
    ----------
    study : Study
        The study at one scale.
    patterns : iterable of str
        What is left out.

    Returns
    -------
    Study

    Raises
    ------
    InputError
        If a pattern matches no method.
    """
    left_out: set[str] = set()
    for pattern in patterns:
        regex = re.compile(re.escape(pattern).replace(r"\*", ".*"))
        matches = {method for method in study.methods if regex.fullmatch(method)}
        if not matches:
            check_known(pattern, study.methods, "leave_out: there is no method")
        left_out |= matches
    if not left_out:
        return study
    return _selected(study, lambda method: method not in left_out, set(study.tasks))


def _selected(study: Study, is_chosen: Chosen, tasks: set[str]) -> Study:
    tables = [_select_cells(table, is_chosen, tasks) for table in study.tables]
    claims = [_select_comparisons(study, claim, is_chosen, tasks) for claim in study.claims]
    figures = [_select_series(figure, is_chosen, tasks) for figure in study.figures]
    return study.replace(
        tasks={name: task for name, task in study.tasks.items() if name in tasks},
        methods={name: method for name, method in study.methods.items() if is_chosen(name)},
        tables=tuple(table for table in tables if table.rows),
        claims=tuple(claim for claim in claims if claim is not None),
        figures=tuple(figure for figure in figures if figure.methods and figure.places),
    )


def _select_cells(table: TableSettings, is_chosen: Chosen, tasks: set[str]) -> TableSettings:
    """The table with the rows and columns that hold at least one selected cell."""
    rows: set[int] = set()
    columns: set[int] = set()
    for i, row in enumerate(table.rows):
        for j, column in enumerate(table.columns):
            place = merge_places(table.common, row, column)
            if is_chosen(place.method) and place.task in tasks:
                rows.add(i)
                columns.add(j)
    kept_rows, kept_columns = sorted(rows), sorted(columns)
    return table.replace(
        rows=tuple(_without_unknown(table.rows[i], is_chosen) for i in kept_rows),
        columns=tuple(_without_unknown(table.columns[j], is_chosen) for j in kept_columns),
        common=_without_unknown(table.common, is_chosen),
        paper=tuple([table.paper[i][j] for j in kept_columns] for i in kept_rows) if table.paper else (),
    )


def _without_unknown(place: PlaceSettings, is_chosen: Chosen) -> PlaceSettings:
    """A place that is compared with a selected method only."""
    return place.replace(against="") if place.against and not is_chosen(place.against) else place


def _select_comparisons(study: Study, claim: ClaimSettings, is_chosen: Chosen, tasks: set[str]) -> ClaimSettings | None:
    """The claim about selected methods on selected tasks; None if there is nothing of it left.

    A comparison whose control or premise is not selected is left out: without these it would say something else.
    """
    kept = []
    for pair in claim_pairs(claim):
        of_premises = [method for premise in pair_premises(claim, pair) for method in premise.methods]
        if all(map(is_chosen, (pair.first, *pair.others, *of_premises))):
            kept.append(pair)
    places = [place for place in claim_places(study, claim) if place.task in tasks]
    if not kept or not places:
        return None
    firsts = ("", *(pair.first for pair in kept))
    changed = claim.replace(
        places=tuple(places),
        at_least=min(claim.at_least, len(kept) * len(places)),
        premises=tuple(premise for premise in claim.premises if premise.of in firsts),
    )
    if not claim.pairs:
        return changed
    return changed.replace(pairs=tuple((pair.first, *pair.others) for pair in kept), control=())


def _select_series(figure: FigureSettings, is_chosen: Chosen, tasks: set[str]) -> FigureSettings:
    """The figure of selected methods on selected tasks."""
    kept = [i for i, method in enumerate(figure.methods) if is_chosen(method)]
    return figure.model_copy(
        update={
            "methods": tuple(figure.methods[i] for i in kept),
            "values": tuple(figure.values[i] for i in kept) if figure.values else (),
            "points": tuple(point for point in figure.points if is_chosen(point.method)),
            "places": tuple(place for place in figure.places if place.task in tasks),
        }
    )
