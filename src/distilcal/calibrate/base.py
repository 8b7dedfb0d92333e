"""What all calibrators share: the report of a fit, calling by class name, saving, and what may be fitted on."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from distilcal.errors import InputError
from distilcal.predictions import FloatArray, IntArray, Predictions

FORMAT = "distilcal.calibrator/1"
CalibratorType = TypeVar("CalibratorType", bound="Calibrator")


@dataclass(frozen=True)
class FitReport:
    """How a fit went, and whether to trust it.

    Attributes
    ----------
    rows : int
        Number of rows of the fit.
    nll_before, nll_after : float
        Mean negative log-likelihood of those rows before and after calibration.
    converged : bool
        Whether the optimum was reached.
    steps : int
        Number of optimisation steps, or of passes over the data.
    gradient : float
        Largest partial derivative of the mean objective at the result: the certificate of the optimum.
    message : str
        What the user should know; empty if there is nothing to say.
    """

    rows: int
    nll_before: float
    nll_after: float
    converged: bool
    steps: int = 0
    gradient: float = 0.0
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Calibrator:
    """The base of all calibrators: called on Predictions, it returns calibrated Predictions.

    A kind of calibrator adds its numbers as fields and its map as ``_calibrated``.

    Attributes
    ----------
    kind : str
        Name of the method, a key of ``FITS``.
    classes : tuple of str
        Class names in the order of the calibrator's numbers.
    fit : FitReport
        How the fit went.
    """

    kind: ClassVar[str] = ""
    classes: tuple[str, ...]
    fit: FitReport

    def __call__(self, predictions: Predictions) -> Predictions:
        """Return the same rows with calibrated scores; classes are matched by name.

        Parameters
        ----------
        predictions : Predictions
            Predictions with the classes of the calibrator, in any order.

        Returns
        -------
        Predictions
            With the classes in the order of ``predictions``.

        Raises
        ------
        InputError
            If the predictions hold confidences only, or have other classes.
        """
        _need_class_scores(predictions)
        return self._calibrated(predictions.reorder_classes(self.classes)).reorder_classes(predictions.classes)

    def _calibrated(self, predictions: Predictions) -> Predictions:
        raise AssertionError("each calibrator defines its own map")

    def save(self, path: str | Path) -> None:
        """Save to a file that ``load_calibrator`` reads.

        Parameters
        ----------
        path : str or Path
            A name that ends in ``.json`` or ``.npz``. The file is replaced as a whole.
        """
        from distilcal.io.atomic import atomic_write

        path = Path(path)
        if path.suffix == ".json":
            content = self.to_json()
            with atomic_write(path) as file:
                file.write(json.dumps({**content, "digest": content_digest(content)}, indent=2).encode())
        elif path.suffix == ".npz":
            arrays = {name: np.asarray(value) for name, value in self._numbers().items()}
            with atomic_write(path) as file:
                np.savez(file, head=np.asarray(json.dumps(self._head())), **cast(Any, arrays))
        else:
            raise InputError(f"{path.name!r} is neither .json nor .npz", remedy="give a name that ends in one of them")

    def to_json(self) -> dict[str, Any]:
        """Return its kind, classes, report and numbers as JSON has them; ``calibrator_from_json`` reads them."""
        numbers = self._numbers()
        return {
            **self._head(),
            **{name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in numbers.items()},
        }

    def _head(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": self.kind, "classes": list(self.classes), "fit": _report_to_json(self.fit)}

    def _numbers(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("classes", "fit")}


def content_digest(content: dict[str, Any]) -> str:
    """Return a hash of what ``Calibrator.to_json`` returned, which a .json holds beside it; an .npz has checksums of its own.

    Parameters
    ----------
    content : dict
        The calibrator.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


NO_FIT = FitReport(rows=0, nll_before=np.nan, nll_after=np.nan, converged=False)  # until `with_report` replaces it


def check_fit(predictions: Predictions) -> None:
    """Raise an InputError unless a calibrator may be fitted on these predictions.

    Parameters
    ----------
    predictions : Predictions
        Predictions with class scores and labels, not named after a test split.
    """
    if "test" in re.split(r"[^a-z]+", predictions.name.lower()):
        raise InputError(
            f"{predictions.name!r} is named a test split: what is fitted on it cannot be tested on it",
            remedy="fit on a development split, or rename these predictions if they are one",
        )
    _need_class_scores(predictions)
    predictions.require_labels()


def log_softmax(logits: FloatArray) -> FloatArray:
    """Compute the logarithm of the softmax of each row.

    Parameters
    ----------
    logits : array (N, K)
        Logits.

    Returns
    -------
    array (N, K)
        Log-probabilities.
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probs


def mean_nll(predictions: Predictions) -> float:
    """Return the mean negative log-likelihood of the labels.

    Parameters
    ----------
    predictions : Predictions
        Predictions with labels.

    Returns
    -------
    float
        The mean in nats, not negative.
    """
    return float(predictions.row_nll.mean())


def with_report(calibrator: CalibratorType, predictions: Predictions) -> CalibratorType:
    """Return a calibrator with the report of its fit, for methods that need no optimiser.

    Parameters
    ----------
    calibrator : Calibrator
        The calibrator, with ``NO_FIT`` as its report.
    predictions : Predictions
        What it was fitted on.

    Returns
    -------
    Calibrator
    """
    nll_after = mean_nll(calibrator(predictions))
    message = "" if np.isfinite(nll_after) else "some labels have probability 0 after calibration: their NLL is infinite"
    report = FitReport(len(predictions), mean_nll(predictions), nll_after, converged=True, message=message)
    return replace(calibrator, fit=report)


def assign_folds(predictions: Predictions, folds: int, seed: int) -> IntArray:
    """Assign each row to a fold of cross-validation, stratified by label and by how hard the row is.

    Parameters
    ----------
    predictions : Predictions
        At least two rows.
    folds : int
        Number of folds, at least two; at most one a row is used.
    seed : int
        Seed of the assignment.

    Returns
    -------
    array (N,)
        The fold of each row; rows keep theirs if they are given in another order.

    Raises
    ------
    InputError
        If there are fewer than two rows or folds.
    """
    n = len(predictions)
    if n < 2 or folds < 2:
        raise InputError(f"too few to cross-validate: rows {n}, folds {folds}", remedy="give at least two of both")
    folds = min(folds, n)
    order = np.lexsort((predictions.row_nll, predictions.labels))
    # Neighbours in that order go to different folds, in a random order for each group of as many rows as folds.
    permutations = np.random.default_rng(seed).random((-(-n // folds), folds)).argsort(axis=1)
    fold = np.empty(n, np.int64)
    fold[order] = permutations.ravel()[:n]
    return fold


def _need_class_scores(predictions: Predictions) -> None:
    if predictions.confidence_only:
        raise InputError(f"{predictions.name!r} holds confidences only", remedy="calibration needs every class's score")


def _report_to_json(report: FitReport) -> dict[str, Any]:
    """Convert a report for JSON, which has no infinity: an infinite NLL is null."""
    values = asdict(report)
    for name, value in values.items():
        if isinstance(value, float) and not np.isfinite(value):
            values[name] = None
    return values
