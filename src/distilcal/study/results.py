"""What a study found: tables beside the paper's, claims checked, and all of it as the report reads it. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from distilcal.metrics import definition, holm
from distilcal.metrics.bootstrap import UPPER_LIMIT
from distilcal.metrics.definitions import HIGHER_IS_BETTER, NO_DIRECTION, parameters
from distilcal.study.analysis import LEVEL, Findings, difference, interval
from distilcal.study.figures import drawn
from distilcal.study.schema import (
    ClaimSettings,
    MetricSettings,
    PlaceSettings,
    Study,
    TableSettings,
    claim_pairs,
    claim_places,
    place_of,
)
from distilcal.study.theory import theorem


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _cell(findings: Findings, place: PlaceSettings, paper: Any) -> dict[str, Any]:
    metric = findings.study.metrics[place.metric]
    sample = findings.sample(place)
    failure = findings.failure(place.method, place.task)
    made: dict[str, Any] = {
        "mean": None,
        "std": None,
        "low": None,
        "high": None,
        "seeds": 0,
        "examples": 0,
        "paper": _paper(paper, metric),
        "difference": None,
        "definition": definition(metric.metric, parameters(metric.metric, metric.settings)),
        "metric": place.metric,
        "method": place.method,
        "task": place.task,
        "set": place.set or "test",
        "percent": metric.percent,
        "digits": metric.digits,
        "chosen": findings.chosen(place.method, place.task),
        "failed": failure,
        "missing": "not run" if sample is None and not failure else "",
    }
    if sample is None:
        return made
    mean, low, high = interval(sample, UPPER_LIMIT.get(metric.metric, 1.0))
    spread = float(sample.values.std(ddof=1)) if len(sample.seeds) > 1 else None
    made |= {"mean": _finite(mean), "std": _finite(spread), "low": _finite(low), "high": _finite(high)}
    return {**made, "seeds": len(sample.seeds), "examples": sample.examples}


def _paper(said: Any, metric: MetricSettings) -> dict[str, float | None] | None:
    """The paper's figure in natural units."""
    mean, std = (said[0], said[1]) if isinstance(said, (list, tuple)) else (said, None)
    if mean is None or not math.isfinite(mean):
        return None
    unit = 100 if metric.percent else 1
    return {"mean": mean / unit, "std": None if std is None else std / unit}


def filled_table(findings: Findings, table: TableSettings) -> dict[str, Any]:
    """A table with every cell, and for rows that are compared the difference; Holm's correction covers the table."""
    study = findings.study
    cells: list[list[dict[str, Any]]] = []
    compared: list[tuple[dict[str, Any], float]] = []
    for i, row in enumerate(table.rows):
        cells.append([])
        for j, column in enumerate(table.columns):
            place = place_of(table.common, row, column)
            cell = _cell(findings, place, table.paper[i][j] if table.paper else math.nan)
            cells[-1].append(cell)
            other = place_of(place, PlaceSettings(method=place.against)) if place.against else None
            first, second = findings.sample(place), findings.sample(other) if other is not None else None
            found = difference(first, second) if first is not None and second is not None else None
            if found is not None and all(map(math.isfinite, found)):
                value, low, high, p = found
                cell["difference"] = {"against": place.against, "value": value, "low": low, "high": high, "p": p}
                compared.append((cell, p))
    for (cell, _), p in zip(compared, holm([p for _, p in compared]), strict=True):
        kind = study.metrics[cell["metric"]].metric
        direction = 0 if kind in NO_DIRECTION else 1 if kind in HIGHER_IS_BETTER else -1
        sure = p < 1 - LEVEL
        better = cell["difference"]["value"] * direction > 0 if sure and direction else None
        cell["difference"] |= {"p": p, "significant": sure, "better": better}
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "columns": [_heading(table, column) for column in table.columns],
        "rows": [_heading(table, row) for row in table.rows],
        "here": [_stands_here(study, table, column) for column in table.columns],
        "row_here": [_stands_here(study, table, row) for row in table.rows],
        "cells": cells,
    }


def _heading(table: TableSettings, place: PlaceSettings) -> str:
    return place.name or place.method or place.set or place.task or place.metric


def _stands_here(study: Study, table: TableSettings, place: PlaceSettings) -> str:
    """What stands in for a row's or column's data at this scale."""
    place = place_of(table.common, place)
    if not place.task:
        return ""
    here = study.tasks[place.task].here
    return here.get(place.set or "test", here.get(place.name, ""))


# ---- claims ------------------------------------------------------------------------------------------------------------


def checked_claim(findings: Findings, claim: ClaimSettings) -> dict[str, Any]:
    """A claim with a verdict on each comparison, Holm's correction over all of them, and one on the whole."""
    study = findings.study
    up = claim.direction == "higher" if claim.pairs else bool(claim.higher)
    metric = study.metrics[claim.metric]
    parts: list[dict[str, Any]] = []
    for first, second in claim_pairs(claim):
        for place in claim_places(study, claim):
            a, b = (
                findings.sample(place_of(place, PlaceSettings(method=method, metric=claim.metric)))
                for method in (first, second)
            )
            found = difference(a, b) if a is not None and b is not None else None
            where = place.task if not place.set else f"{place.task}, {place.set}"
            value, low, high, p = found if found is not None else (math.nan, math.nan, math.nan, 1.0)
            parts.append(
                {
                    "what": f"{first} {'above' if up else 'below'} {second}, {where}",
                    "value": _finite(value),
                    "low": _finite(low),
                    "high": _finite(high),
                    "p": p,
                    "percent": metric.percent,
                    "digits": metric.digits,
                }
            )
    for part, p in zip(parts, holm([part["p"] for part in parts]), strict=True):
        agrees = part["value"] is not None and (part["value"] > 0) == up
        part |= {"p": p, "verdict": "undecided" if p >= 1 - LEVEL else "holds" if agrees else "fails"}
    return {"text": claim.text, **verdict([part["verdict"] for part in parts], claim.at_least), "parts": parts}


def verdict(parts: Sequence[str], at_least: int = 0) -> dict[str, str]:
    """Holds if enough of the comparisons hold, fails if so many fail that they cannot, undecided otherwise."""
    need = at_least or len(parts)
    holds, fails = parts.count("holds"), parts.count("fails")
    word = "holds" if holds >= need else "fails" if fails > len(parts) - need else "undecided"
    return {"verdict": word, "need": f"all of {len(parts)}" if need == len(parts) else f"{need} of {len(parts)}"}


# ---- all of it -------------------------------------------------------------------------------------------------------


def results(findings: Findings, **facts: Any) -> dict[str, Any]:
    """All of it, as the report reads it."""
    study, outcome, graph = findings.study, findings.outcome, findings.graph
    labels = {**{i: j.label for i, j in graph.jobs.items()}, **{i: c.label for i, c in graph.choices.items()}}
    return {
        "format": 1,
        "name": study.name,
        "title": study.title,
        "scale": study.scale,
        "note": study.note,
        "seeds": list(study.seeds),
        "level": LEVEL,
        "tables": [filled_table(findings, table) for table in study.tables],
        "claims": [checked_claim(findings, claim) for claim in study.claims],
        "figures": [made for figure in study.figures for made in drawn(findings, figure)],
        "theorems": [theorem(said) for said in study.theorems],
        "failures": [{"what": labels[id_], "error": why} for id_, why in {**outcome.failed, **outcome.unmeasured}.items()],
        "jobs": len(graph.jobs),
        "points": graph.points,
        "trained": outcome.trained,
        **facts,
    }
