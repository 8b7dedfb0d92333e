"""A ModelEvaluation as JSON values; docs/reference/eval-json.md describes the keys, which are stable within ``SCHEMA``."""

from __future__ import annotations

import math
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from distilcal.calibrate import Temperature
from distilcal.evaluation import ModelEvaluation, SetEvaluation
from distilcal.metrics import CALIBRATION_ERRORS, Comparison
from distilcal.report.evaluations.sentences import next_steps, reading

SCHEMA = "distilcal.eval/1"


def to_json(evaluation: ModelEvaluation) -> dict[str, Any]:
    """Return an evaluation as plain values for ``json.dumps``.

    Parameters
    ----------
    evaluation : ModelEvaluation
        The evaluation.

    Returns
    -------
    dict
        Keys as documented for ``SCHEMA``; non-finite numbers are None, arrays are lists.
    """
    a = evaluation
    content = {
        "schema": SCHEMA,
        "test": _set_json(a.test),
        "calibration": None
        if a.calibrator is None or a.calibrated is None
        else {
            "method": a.calibrator.kind,
            "temperature": a.calibrator.value if isinstance(a.calibrator, Temperature) else None,
            "on": a.calibrated_on,
            "overlap": 0.0 if a.overlap is None else a.overlap.share,
            "overlap_by_chance": 0.0 if a.overlap is None else a.overlap.by_chance / a.overlap.total,
            "fit": a.calibrator.fit,
            "test": _set_json(a.calibrated),
        },
        "threshold": {**a.threshold.to_dict(), "chosen_on": a.threshold_on, "checks": a.checks},
        "ood": [{"before": _set_json(x), "after": None if y is None else _set_json(y)} for x, y in a.ood],
        "comparison": None if a.comparison is None else _comparison_json(a.comparison),
        "resamples": a.resamples,
        "reading": list(reading(a)),
        "next": list(next_steps(a)),
    }
    plain: dict[str, Any] = _plain(content)
    return plain


def _set_json(report: SetEvaluation) -> dict[str, Any]:
    e = report.evaluation
    return {
        "name": report.name,
        "rows": e.rows,
        "classes": e.classes,
        "level": e.level,
        "metrics": {
            name: {
                "value": f.value,
                "low": f.low,
                "high": f.high,
                "null": f.null,
                "null_high": f.null_high,
                "beyond_chance": f.beyond_chance if name in CALIBRATION_ERRORS else None,
                "definition": f.definition,
                "params": dict(f.params),
            }
            for name, f in e.metrics.items()
        },
        "aurc": report.aurc,
        "excess_aurc": report.excess_aurc,
        "reliability": report.reliability,
        "histogram": {"right": report.reliability.correct, "wrong": report.reliability.wrong},
        "per_class": report.classes,
    }


def _comparison_json(c: Comparison) -> dict[str, Any]:
    return {"a": c.a, "b": c.b, "rows": c.rows, "level": c.level, "differences": dict(c.differences)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(item) for key, item in vars(value).items()}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
