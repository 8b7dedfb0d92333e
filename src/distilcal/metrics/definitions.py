"""All metrics by name, what is known about each, and their definitions in words.

To add a metric, write a function of ``Rows`` under ``@metric`` in the module of its kind and enter it in ``METRICS`` (and in
``CALIBRATION_ERRORS`` if a perfectly calibrated model scores 0 on it in the limit). Written on the sums that Rows offers, it
has bootstrap intervals and a null value without further work, and the property tests cover it. A plain function of arrays
works too, more slowly.

Top-label errors (`ece`, `mce`, `oe`, `rmsce`, `ada_ece`, `ks`, `smooth_ece`, `debiased_ece`) look at the confidence of the
predicted class. Class-wise errors (`sce`, `ace`, `tace`) look at the probability of every class and average over classes.
All errors are fractions, lower is better.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from distilcal.arguments import check_argument, checked, resolved_annotations
from distilcal.errors import InputError
from distilcal.metrics.class_wise import ace, sce, tace
from distilcal.metrics.decorator import Metric
from distilcal.metrics.human import human_cross_entropy, human_ece, human_tv
from distilcal.metrics.ranking import aurc
from distilcal.metrics.scores import accuracy, brier, confidence, entropy, nll
from distilcal.metrics.top_label import ada_ece, debiased_ece, ece, ks, mce, oe, rmsce, smooth_ece

METRICS: dict[str, Metric[...]] = {
    "accuracy": accuracy,
    "confidence": confidence,
    "nll": nll,
    "brier": brier,
    "entropy": entropy,
    "ece": ece,
    "mce": mce,
    "oe": oe,
    "rmsce": rmsce,
    "ada_ece": ada_ece,
    "sce": sce,
    "ace": ace,
    "tace": tace,
    "ks": ks,
    "smooth_ece": smooth_ece,
    "debiased_ece": debiased_ece,
}

# Only for Predictions with label_probs.
HUMAN_METRICS: dict[str, Metric[...]] = {
    "human_tv": human_tv,
    "human_cross_entropy": human_cross_entropy,
    "human_ece": human_ece,
}

# Known by name, but not among those that are computed where none is named.
RANKING_METRICS: dict[str, Metric[...]] = {"aurc": aurc}

ALL_METRICS: dict[str, Metric[...]] = {**METRICS, **HUMAN_METRICS, **RANKING_METRICS}

CALIBRATION_ERRORS = ("ece", "mce", "oe", "rmsce", "ada_ece", "sce", "ace", "tace", "ks", "smooth_ece", "debiased_ece")
CLASS_WISE = ("sce", "ace", "tace")
EQUAL_MASS = ("rmsce", "ada_ece", "ace", "tace")
TOP_LABEL = ("accuracy", "confidence", "ece", "mce", "oe", "rmsce", "ada_ece", "ks", "smooth_ece", "debiased_ece", "aurc")
HIGHER_IS_BETTER = ("accuracy",)
NO_DIRECTION = ("confidence", "entropy")
UPPER_LIMIT = {"nll": np.inf, "entropy": np.inf, "human_cross_entropy": np.inf, "brier": 2.0}  # 1 for all others
FIXED_DEFINITIONS = {
    "accuracy": "share right",
    "confidence": "mean top probability",
    "nll": "nats",
    "brier": "sum over classes",
    "entropy": "nats",
    "aurc": "area under risk and coverage",
    "ks": "no bins",
    "smooth_ece": "reflected Gaussian kernel, σ = smECE",
    "human_tv": "½ Σ|p - votes|",
    "human_cross_entropy": "nats",
    "human_ece": "confidence against share of votes",
}


@checked
def parameters(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all parameters of a metric, defaults included.

    Parameters
    ----------
    name : str
        A name in ``ALL_METRICS``.
    params : mapping
        The parameters that differ from their defaults.

    Returns
    -------
    dict

    Raises
    ------
    InputError
        If there is no such metric, it has no such parameter, or a value is of a wrong type.

    Examples
    --------
    >>> parameters("mce", {"bins": 10})
    {'bins': 10, 'closed': 'right'}
    """
    if name not in ALL_METRICS:
        near = get_close_matches(name, ALL_METRICS, n=3)
        raise InputError(f"there is no metric {name!r}", remedy="did you mean " + ", ".join(near or ALL_METRICS) + "?")
    function = ALL_METRICS[name]
    signature = inspect.signature(function).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in signature if parameter.kind is parameter.KEYWORD_ONLY}
    unknown = sorted(set(params) - set(defaults))
    if unknown:
        raise InputError(f"{name} has no parameter {unknown[0]!r}", remedy="it has " + (", ".join(defaults) or "none"))
    annotations = resolved_annotations(function.on_rows)
    given = {key: check_argument(key, value, annotations[key], name) for key, value in params.items()}
    return {**defaults, **given}


@checked
def definition(name: str, params: Mapping[str, Any]) -> str:
    """Describe in words what a metric is computed over; the text goes with the value into tables and reports.

    Parameters
    ----------
    name : str
        A name in ``ALL_METRICS``.
    params : mapping
        The parameters that differ from their defaults.

    Returns
    -------
    str

    Examples
    --------
    >>> definition("ece", {"bins": 10})
    'top-label, 10 equal-width bins, (lo, hi], L1 norm'
    """
    values = parameters(name, params)
    variant = values.get("variant", "sound")
    parts: list[str] = []
    if name in CALIBRATION_ERRORS:
        parts.append("class-wise" if name in CLASS_WISE else "top-label")
    if "bins" in values:
        parts.append(f"{values['bins']} equal-{'mass' if name in EQUAL_MASS else 'width'} bins")
    if "closed" in values and variant == "sound":
        parts.append("(lo, hi]" if values["closed"] == "right" else "[lo, hi)")
    if name in CALIBRATION_ERRORS and "bins" in values:
        parts.append(_norm(name, values))
    if "threshold" in values:
        parts.append(f"p ≥ {values['threshold']:g}")
    if variant not in ("sound", "nixon"):
        parts.append(f"as released code “{variant}”")
    if name in FIXED_DEFINITIONS:
        parts.append(FIXED_DEFINITIONS[name])
    return ", ".join(parts)


def _norm(name: str, values: Mapping[str, Any]) -> str:
    if name == "mce":
        return "largest |gap|"
    if name == "rmsce" or values.get("norm") == 2:
        return "L2 norm"
    return "L1 norm"
