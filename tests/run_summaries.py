"""Summaries of runs without any training: figures by hand, predictions where a test needs them."""

from pathlib import Path

from distilcal.metrics import Comparison, Difference
from distilcal.runs import Run, summarise_runs

HIGHER = ("accuracy",)


def metric(value, half=0.02, *, beyond=None, null=None):
    return {
        "value": value,
        "low": max(value - half, 0.0),
        "high": value + half,
        "null": null,
        "beyond_chance": beyond,
        "definition": "as defined",
    }


def scores(accuracy=0.83, confidence=None, *, ece=0.03, beyond=False, nll=0.4, half=0.02):
    """The metrics of one model on one split in one state."""
    return {
        "accuracy": metric(accuracy, half),
        "confidence": metric(accuracy if confidence is None else confidence, 0.005),
        "nll": metric(nll),
        "brier": metric(0.25),
        "ece": metric(ece, 0.01, beyond=beyond, null=0.02),
        "entropy": metric(0.5),
        "aurc": {"value": 0.05},
    }


def split_facts(given, calibrated=None):
    return {"given": given, "calibrated": calibrated, "accepted": {"coverage": 0.6, "accuracy": 0.95}}


def stage(sets, *, teacher="", parameters=1_000_000, ms=1.0, spread=None, **more):
    facts = {
        "teacher": teacher,
        "terms": ["1 · cross_entropy"],
        "epochs": 2,
        "parameters": parameters,
        "ms_per_example": ms,
        "threshold": None,
        "calibrator": "temperature",
        "sets": sets,
    }
    if spread is not None:
        facts["ms_spread"] = list(spread)
    return {**facts, **more}


def difference(name, value, low, high, p=None):
    """A difference of the main model to another; significant if its interval excludes 0, unless p tells otherwise."""
    if p is None:
        p = 0.001 if low > 0 or high < 0 else 0.5
    better = None
    if p < 0.05 and (low > 0 or high < 0):
        better = "b" if (value > 0) == (name in HIGHER) else "a"
    return Difference(name, 0.8, 0.8 + value, value, low, high, p, p, better)


def comparison(a, b="student", *, accuracy=(0.0, -0.01, 0.01), nll=(0.0, -0.01, 0.01), ece=(0.0, -0.01, 0.01)):
    given = {"accuracy": accuracy, "nll": nll, "brier": (0.0, -0.01, 0.01), "ece": ece}
    return Comparison(a, b, 1000, {name: difference(name, *values) for name, values in given.items()}, 1000)


def facts(stages, *, ood=(), **more):
    return {
        "format": 1,
        "name": "reviews",
        "classes": ["neg", "pos"],
        "sizes": {"train": 1200, "dev": 300, "test": 1500, **dict.fromkeys(ood, 1000)},
        "ood": list(ood),
        "overlaps": [],
        "stages": stages,
        **more,
    }


def summary(stages, comparisons=(), *, ood=(), folder="run", **more):
    run_fields = {key: more.pop(key) for key in ("calibrated_comparisons", "cascade") if key in more}
    run = Run(Path(folder), facts(stages, ood=ood, **more), {}, tuple(comparisons), **run_fields)
    return summarise_runs([run])
