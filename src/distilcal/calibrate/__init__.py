"""Post-hoc calibration: fit a small map on held-out predictions, apply it to others.

``fit_x(predictions)`` returns a frozen calibrator that is called on Predictions, carries a report of its fit and is saved
with ``save`` and read with ``load_calibrator``. To add one: a dataclass with ``kind``, its numbers and ``_log_probs``, a
``fit_x``, and an entry in ``FITS`` and ``CALIBRATORS``. Fitting on a split that is named test raises: what is fitted is
chosen on dev.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.calibrate.affine import Dirichlet, Matrix, Vector, fit_dirichlet, fit_matrix, fit_vector, odir_objective
from distilcal.calibrate.base import Calibrator, FitReport, folds_of
from distilcal.calibrate.binned import Histogram, Isotonic, fit_histogram, fit_isotonic
from distilcal.calibrate.temperature import Temperature, fit_temperature
from distilcal.errors import InputError
from distilcal.predictions import Predictions

__all__ = [
    "CALIBRATORS",
    "FITS",
    "Calibrator",
    "Dirichlet",
    "FitReport",
    "Histogram",
    "Isotonic",
    "Matrix",
    "Temperature",
    "Vector",
    "cross_fitted",
    "fit_dirichlet",
    "fit_histogram",
    "fit_isotonic",
    "fit_matrix",
    "fit_temperature",
    "fit_vector",
    "load_calibrator",
    "odir_objective",
]

FITS: dict[str, Callable[..., Calibrator]] = {
    "temperature": fit_temperature,
    "vector": fit_vector,
    "matrix": fit_matrix,
    "dirichlet": fit_dirichlet,
    "isotonic": fit_isotonic,
    "histogram": fit_histogram,
}
CALIBRATORS: dict[str, type[Calibrator]] = {c.kind: c for c in (Temperature, Vector, Matrix, Dirichlet, Isotonic, Histogram)}


def cross_fitted(
    predictions: Predictions, fit: Callable[[Predictions], Calibrator] = fit_temperature, *, folds: int = 5, seed: int = 0
) -> Predictions:
    """The rows as calibrated by a fit on the other folds, so that none is judged by a map that has seen its label."""
    fold = folds_of(predictions, folds, seed)
    probs = np.empty((len(predictions), len(predictions.classes)))
    for held in np.unique(fold):
        probs[fold == held] = fit(predictions.select(fold != held))(predictions.select(fold == held)).probs
    return predictions.with_probs(probs)


def load_calibrator(path: str | Path) -> Calibrator:
    """Read what ``Calibrator.save`` wrote; no pickle is ever loaded."""
    from distilcal.io.atomic import open_npz

    path = Path(path)
    try:
        if path.suffix == ".npz":
            with open_npz(path) as arrays:
                head = json.loads(str(arrays["head"]))
                body: dict[str, Any] = {name: arrays[name] for name in arrays if name != "head"}
        elif path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            head = {name: content.pop(name) for name in ("format", "kind", "classes", "fit")}
            body = content
        else:
            raise InputError("is neither .json nor .npz", source=str(path), remedy="give what Calibrator.save wrote")
        if head["format"] != "distilcal.calibrator/1":
            raise KeyError("format")
        values = {k: _number_or_array(v) for k, v in body.items()}
        made = CALIBRATORS[head["kind"]](classes=tuple(head["classes"]), fit=_fit(head["fit"]), **values)
    except FileNotFoundError:
        raise InputError("there is no such file", source=str(path)) from None
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError):  # ValueError: not JSON, not UTF-8, not a number
        raise InputError("this is not a saved calibrator", source=str(path), remedy="give what Calibrator.save wrote") from None
    if isinstance(made, Temperature) and not made.value > 0:
        raise InputError(f"temperature {made.value} is not positive", source=str(path), remedy="fit it again")
    return made


def _fit(report: dict[str, Any]) -> FitReport:
    """A saved report; JSON has no infinity, and the only numbers that can be infinite are NLLs."""
    values: dict[str, Any] = {key: np.inf if value is None else value for key, value in report.items()}
    return FitReport(**values)


def _number_or_array(value: Any) -> Any:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array
