"""Post-hoc calibration: fit a small map on held-out predictions, apply it to others.

``fit_x(predictions)`` returns a frozen calibrator that is called on Predictions, has a report of its fit (``.fit``) and is
saved with ``save`` and read with ``load_calibrator``. To add a method: a dataclass with ``kind``, its numbers and
``_calibrated``, a function ``fit_x``, and an entry in ``FITS`` and ``CALIBRATORS``. Fitting on a split that is named test
raises an error: what is fitted is chosen on dev.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distilcal.arguments import checked
from distilcal.calibrate.affine import Dirichlet, Matrix, Vector, fit_dirichlet, fit_matrix, fit_vector, odir_objective
from distilcal.calibrate.base import FORMAT, Calibrator, FitReport, assign_folds, content_digest
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
    "calibrator_from_json",
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


@checked
def cross_fitted(
    predictions: Predictions, fit: Callable[[Predictions], Calibrator] = fit_temperature, *, folds: int = 5, seed: int = 0
) -> Predictions:
    """Calibrate each fold of the rows with a fit on the other folds, so that no row is calibrated by a fit to its label.

    Parameters
    ----------
    predictions : Predictions
        The rows to calibrate.
    fit : callable
        A function of Predictions that returns a calibrator, such as the values of ``FITS``.
    folds : int
        Number of folds.
    seed : int
        Seed of the assignment of rows to folds.

    Returns
    -------
    Predictions
        The same rows in the same order.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(300, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> dev = Predictions.from_logits(5 * logits, labels, name="dev")
    >>> calibrated = cross_fitted(dev)
    >>> bool(calibrated.row_nll.mean() < dev.row_nll.mean())
    True
    """
    fold = assign_folds(predictions, folds, seed)
    probs = np.empty((len(predictions), len(predictions.classes)))
    for held_out in np.unique(fold):
        calibrator = fit(predictions.select(fold != held_out))
        probs[fold == held_out] = calibrator(predictions.select(fold == held_out)).probs
    return predictions.with_probs(probs)


@checked
def load_calibrator(path: str | Path) -> Calibrator:
    """Load what ``Calibrator.save`` wrote; nothing is unpickled.

    Parameters
    ----------
    path : str or Path
        A ``.json`` or ``.npz`` file.

    Returns
    -------
    Calibrator

    Raises
    ------
    InputError
        If there is no such file or it holds no calibrator.

    Examples
    --------
    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> dev = Predictions.from_logits(rng.normal(size=(50, 3)), rng.integers(0, 3, 50), name="dev")
    >>> calibrator = fit_temperature(dev)
    >>> path = Path(tempfile.mkdtemp()) / "temperature.json"
    >>> calibrator.save(path)
    >>> load_calibrator(path) == calibrator
    True
    """
    path = Path(path)
    if path.suffix not in (".json", ".npz"):
        raise InputError("is neither .json nor .npz", source=str(path), remedy="give what Calibrator.save wrote")
    try:
        head, numbers = _read_npz(path) if path.suffix == ".npz" else _split_json(_read_json(path))
        if head["format"] != FORMAT and str(head["format"]).startswith(FORMAT.rpartition("/")[0]):
            raise InputError(
                f"it is of format {head['format']!r:.60}, this version of distilcal reads {FORMAT!r}",
                source=str(path),
                remedy="install a newer distilcal, or fit it again",
            )
        calibrator = _build_calibrator(head, numbers)
    except FileNotFoundError:
        raise InputError("there is no such file", source=str(path)) from None
    except InputError as error:
        error.source = error.source or str(path)
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):  # ValueError: not JSON, not UTF-8, no number
        raise InputError("this is not a saved calibrator", source=str(path), remedy="give what Calibrator.save wrote") from None
    if not _fits_its_classes(calibrator):
        raise InputError("its numbers are not finite, or not those of its classes", source=str(path), remedy="fit it again")
    return calibrator


def calibrator_from_json(content: dict[str, Any]) -> Calibrator:
    """Return the calibrator whose ``to_json`` is given.

    Parameters
    ----------
    content : dict
        What ``Calibrator.to_json`` returned.

    Returns
    -------
    Calibrator

    Raises
    ------
    InputError
        If it is something else.

    Examples
    --------
    >>> report = FitReport(rows=50, nll_before=0.9, nll_after=0.8, converged=True)
    >>> calibrator = Temperature(classes=("no", "yes"), fit=report, value=1.5)
    >>> calibrator_from_json(calibrator.to_json()) == calibrator
    True
    """
    try:
        calibrator = _build_calibrator(*_split_json(content))
    except InputError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        raise InputError("this is not a calibrator", remedy="give what Calibrator.to_json returned") from None
    if not _fits_its_classes(calibrator):
        raise InputError(
            "its numbers are not finite, or not those of its classes", remedy="give what Calibrator.to_json returned"
        )
    return calibrator


def _fits_its_classes(calibrator: Calibrator) -> bool:
    """Whether a calibrator gives probabilities: a file that was written by hand may hold too few numbers, or a NaN."""
    row = np.zeros((1, len(calibrator.classes)))
    try:
        with np.errstate(all="ignore"):
            probs = calibrator(Predictions.from_logits(row, classes=calibrator.classes)).probs
    except (AttributeError, IndexError, TypeError, ValueError):
        return False
    return bool(np.isfinite(probs).all())


def _build_calibrator(head: dict[str, Any], numbers: dict[str, Any]) -> Calibrator:
    if head["format"] != FORMAT:
        raise KeyError("format")
    if not isinstance(head["classes"], list) or not all(isinstance(name, str) for name in head["classes"]):
        raise KeyError("classes")
    values = {name: _number_or_array(value) for name, value in numbers.items()}
    report = _report_from_json(head["fit"])
    return CALIBRATORS[head["kind"]](classes=tuple(head["classes"]), fit=report, **values)


def _read_npz(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from distilcal.io.atomic import open_npz, parse_json

    with open_npz(path) as arrays:
        head = parse_json(str(arrays["head"]), source=str(path))
        return head, {name: arrays[name] for name in arrays if name != "head"}


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a file; one that was written by hand has no digest."""
    from distilcal.io.atomic import check_input, parse_json

    check_input(path, "give what Calibrator.save wrote")
    content: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"), source=str(path))
    expected = content.pop("digest", None)
    if expected is not None and expected != content_digest(content):
        raise InputError(
            "the file is damaged: it is not as it was saved",
            source=str(path),
            remedy="fit it again, or remove its digest if you changed it",
        )
    return content


def _split_json(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = ("format", "kind", "classes", "fit")
    return {name: content[name] for name in names}, {name: value for name, value in content.items() if name not in names}


def _report_from_json(report: dict[str, Any]) -> FitReport:
    """Read a report; JSON has no infinity, and only NLLs can be infinite."""
    values: dict[str, Any] = {name: np.inf if value is None else value for name, value in report.items()}
    return FitReport(**values)


def _number_or_array(value: Any) -> Any:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array
