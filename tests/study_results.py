"""Results of a study for tests of its report: every kind of cell, claim and chart, and harmful text."""

import math
from copy import deepcopy

from distilcal.report.studies.cells import SIGNS

HARMFUL = "<script>alert(1)</script> & a_b 50% x|y $z$ {q} \\n #1 ~ ^ *s* `c` [l](http://x)"


def cell(mean=0.1123456789012345, **changed):
    made = {
        "mean": mean, "std": 0.0123, "low": 0.09, "high": 0.13, "seeds": 3, "examples": 1725, "percent": True, "digits": 2,
        "paper": {"mean": 0.1, "std": None}, "difference": None, "definition": "expected calibration error, 15 bins",
        "metric": "ece", "method": "ERM", "task": "MRPC", "set": "test", "chosen": "lr 0.001, epochs 4", "failed": "",
        "missing": "",
    }  # fmt: skip
    return {**made, **changed}


def difference(value, better, significant=True):
    return {"against": "ERM", "value": value, "low": value - 0.01, "high": value + 0.01, "p": 0.0001, "better": better,
            "significant": significant}  # fmt: skip


GONE = {"std": None, "low": None, "high": None}
CELLS = {
    "plain": cell(),
    "better": cell(0.08, difference=difference(-0.03, True)),
    "worse": cell(0.15, difference=difference(0.04, False), paper={"mean": 0.2, "std": 0.01}),
    "no side": cell(0.69, difference=difference(0.5, None), percent=False, digits=4, metric="entropy", paper=None),
    "chance": cell(0.11, difference=difference(-0.001, None, significant=False), std=None, seeds=1),
    "failed": cell(None, **GONE, failed="RuntimeError: not finite", paper=None),
    "some failed": cell(0.12, failed="seed 2: not finite"),
    "missing": cell(None, **GONE, missing="not run"),
    "undefined": cell(math.nan, std=math.nan, low=math.nan, high=math.nan, paper={"mean": math.nan, "std": None}),
    "infinite": cell(math.inf, std=None, percent=False),
    "harmful": cell(0.01, method=HARMFUL, task=HARMFUL, definition=HARMFUL, chosen=HARMFUL, set=HARMFUL, metric=HARMFUL),
}


def table(cells, name="table2", **changed):
    """A table of one row for each cell beside an empty one."""
    made = {
        "name": name, "title": "Calibration (%)", "note": "", "columns": ["MRPC", "gap"], "here": ["", "pairs stand here"],
        "row_here": [""] * len(cells), "rows": list(cells), "cells": [[c, None] for c in cells.values()],
    }  # fmt: skip
    return {**made, **changed}


def figure(kind, points, **changed):
    series = [{"name": name, "points": points} for name in ("ERM", HARMFUL)]
    return {"name": kind, "title": f"A {kind}", "note": "", "kind": kind, "x": "epoch", "y": "ECE", "series": series,
            "diagonal": kind == "scatter", **changed}  # fmt: skip


POINTS = {
    "line": [[1, 0.2, 0.1, 0.3], [2, None, None, None], [3, 0.15, 0.1, 0.2], [4, 0.1]],
    "bars": [[0, 0.2, 0.1, 0.3], [1, None], [2, 0.1]],
    "scatter": [[0.8, 0.2], [0.9, 0.1, 0.05, 0.2], [0.7, 0.3, 0.2, 0.4, 0.6, 0.8]],
    "reliability": [[0.55, 0.5, 0.4, 0.6, 20], [0.95, 0.9, 0.85, 0.95, 400]],
    "projection": [[-1.5, 2.0], [3.0, 0.25]],
    "map": [[0.1, 0.9, 1.0], [0.4, 0.5, 0.6], [0.2, 0.1, 0.0]],
}


def part(verdict, value=0.0123):
    return {"what": f"LS higher than ERM, {verdict}", "value": value, "low": -0.01, "high": 0.03, "p": 0.2, "verdict": verdict,
            "percent": False, "digits": 4, "control": verdict == "fails",
            "unmet": [f"not so that {HARMFUL}"] if verdict == "premise not met" else []}  # fmt: skip


def claim(text, verdict, parts, need=""):
    return {"text": text, "verdict": verdict, "need": need, "metric": "ece", "delta": 0.01, "percent": True, "digits": 2,
            "controls": ["KD", HARMFUL], "premises": ["ERM is overconfident"], "counts": {verdict: len(parts)}, "equal": 1,
            "parts": parts}  # fmt: skip


def example_results():
    """Results with every kind of cell, claim and chart, and with text that must be escaped."""
    figures = [figure(kind, points) for kind, points in POINTS.items()]
    figures[1]["series"][0]["labels"] = ["MRPC", HARMFUL, "QNLI"]
    second = table({HARMFUL: cell()}, HARMFUL, title=HARMFUL, note=HARMFUL, here=["", HARMFUL])
    claims = [claim(f"Claim {v}", v, [part(v), part("holds", None)], "all of 2") for v in SIGNS]
    theorem = {"name": "theorem1", "title": "Theorem 1, τ²", "columns": ["α", "gap"], "text": "What it shows."}
    return deepcopy({
        "format": 2, "name": "informed-mixup", "title": "Does it hold?", "scale": "small", "note": "tiny models",
        "seeds": [0, 1, 2],
        "level": 0.95,
        "tables": [table(CELLS), second],
        "claims": [*claims, claim(HARMFUL, "holds", [])],
        "figures": [*figures, figure("line", [], name="../../empty"), figure("line", POINTS["line"], name="LINE")],
        "failures": [{"what": "MRPC · small-ls", "error": f"{HARMFUL}\nsecond line\x1b[31m"}],
        "theorems": [{**theorem, "rows": [[0.5, 1.5e-7], [1, HARMFUL]]}],
        "environment": {"python": "3.11", "packages": {"numpy": "2.0", HARMFUL: "1"}},
        "command": "distilcal study informed-mixup --scale small", "seconds": 1234.5,
        "trained": 1068, "jobs": 1424, "points": 14560,
    })  # fmt: skip
