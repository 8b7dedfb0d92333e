"""What all calibrators share: the report of a fit, calling by class name, saving, and what may be fitted on."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from distilcal.errors import InputError
from distilcal.predictions import FloatArray, IntArray, Predictions

Fitted = TypeVar("Fitted", bound="Calibrator")


@dataclass(frozen=True)
class FitReport:
    """How a fit went: on what, from which NLL to which, and whether to believe it."""

    rows: int
    nll_before: float
    nll_after: float
    converged: bool
    steps: int = 0
    gradient: float = 0.0  # largest partial derivative of the mean objective where it was last computed
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Calibrator:
    """What all calibrators share: class names, the report of the fit, calling, saving."""

    kind: ClassVar[str] = ""
    classes: tuple[str, ...]
    fit: FitReport

    def __call__(self, predictions: Predictions) -> Predictions:
        """The same rows with calibrated scores; classes are matched by name."""
        if predictions.confidence_only:
            raise InputError(f"{predictions.name!r} holds confidences only", remedy="calibration needs every class's score")
        return self._calibrated(predictions.reorder_classes(self.classes)).reorder_classes(predictions.classes)

    def _calibrated(self, predictions: Predictions) -> Predictions:
        raise AssertionError("each calibrator defines its own map")

    def save(self, path: str | Path) -> None:
        """Write as .json or .npz, aside first and then renamed."""
        from distilcal.io.atomic import atomic_write

        path = Path(path)
        fields = {k: v for k, v in vars(self).items() if k not in ("classes", "fit")}
        report = {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(self.fit).items()}
        head = {"format": "distilcal.calibrator/1", "kind": self.kind, "classes": list(self.classes), "fit": report}
        if path.suffix == ".json":
            body = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}
            with atomic_write(path) as file:
                file.write(json.dumps({**head, **body}, indent=2).encode())
        elif path.suffix == ".npz":
            arrays = {k: np.asarray(v) for k, v in fields.items()}
            with atomic_write(path) as file:
                np.savez(file, head=np.asarray(json.dumps(head)), **cast(Any, arrays))
        else:
            raise InputError(f"{path.name!r} is neither .json nor .npz", remedy="give a name that ends in one of them")


NO_FIT = FitReport(rows=0, nll_before=np.nan, nll_after=np.nan, converged=False)


def check_fit(predictions: Predictions) -> None:
    if "test" in re.split(r"[^a-z]+", predictions.name.lower()):
        raise InputError(
            f"{predictions.name!r} is named a test split: what is fitted on it cannot be tested on it",
            remedy="fit on a development split, or rename these predictions if they are one",
        )
    if predictions.confidence_only:
        raise InputError(f"{predictions.name!r} holds confidences only", remedy="calibration needs every class's score")


def log_softmax(z: FloatArray) -> FloatArray:
    z = z - z.max(axis=1, keepdims=True)
    log_probs: FloatArray = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    return log_probs


def mean_nll(predictions: Predictions) -> float:
    return float(predictions.row_nll.mean())


def with_report(draft: Fitted, predictions: Predictions) -> Fitted:
    after = mean_nll(draft(predictions))
    message = "" if np.isfinite(after) else "some labels have probability 0 after calibration: their NLL is infinite"
    report = FitReport(len(predictions), mean_nll(predictions), after, converged=True, message=message)
    return replace(draft, fit=report)


def folds_of(predictions: Predictions, folds: int, seed: int) -> IntArray:
    """A fold for every row, stratified by label and by how hard the row is, whatever the order of the rows."""
    n = len(predictions)
    if n < 2 or folds < 2:
        raise InputError(f"too few to cross-validate: rows {n}, folds {folds}", remedy="give at least two of both")
    folds = min(folds, n)
    order = np.lexsort((predictions.row_nll, predictions.labels))
    # Every run of neighbours in that order goes to different folds, which one to which is drawn.
    drawn = np.random.default_rng(seed).random((-(-n // folds), folds)).argsort(axis=1)
    fold = np.empty(n, np.int64)
    fold[order] = drawn.ravel()[:n]
    return fold
