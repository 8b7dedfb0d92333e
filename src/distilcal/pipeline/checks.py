"""What a run warns of: models that predict one class, data that are too few to choose or calibrate on, doubtful fits.

Each check is a function of data or predictions that returns a sentence, or None if all is well. The sentence names the model,
the numbers and a remedy. To add a check, write the function and enter it in the table of its kind: ``DATA_CHECKS`` are made
before anything is trained, ``MODEL_CHECKS`` and ``CALIBRATION_CHECKS`` as soon as a model is trained and again at the end.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable

import numpy as np
from scipy.optimize import linear_sum_assignment

from distilcal.calibrate import Calibrator
from distilcal.data.splits import Splits
from distilcal.errors import list_names
from distilcal.evaluation import RUN_RESAMPLES
from distilcal.metrics import compare
from distilcal.predictions import FloatArray, IntArray, Predictions
from distilcal.selective import counted

MIN_DEV = 100  # rows below which the choice of an epoch and a temperature are mostly chance
MIN_ROWS_OF_CLASS = 10  # of dev
MIN_MISTAKES = 10  # on dev: a temperature is fitted to the confidence of mistakes
NEARLY_ALL = 0.95  # share of the predictions that are one class
COMMON_CLASS = 0.01  # share of the rows from which a class should be predicted at least once
MIN_ROWS_OF_MISSING = 5  # rows of a class that is never predicted; fewer may be missed by chance
SHOWN_CLASSES = 3
NORMAL_95 = 1.96
MOST_CLASSES = 1_000  # among which another order is looked for: the time grows with their third power
TIE = 0.5  # rows that a class counts more under its own name, which it keeps if another fits no better


# ---- data, before training ---------------------------------------------------------------------------------------------


def small_dev(splits: Splits) -> str | None:
    """Warn of a dev set that is too small to choose an epoch or fit a calibrator on."""
    rows = len(splits.dev)
    if rows >= MIN_DEV:
        return None
    return (
        f"dev has {counted(rows)}, too few to choose an epoch or fit a temperature on: what is chosen there is mostly chance; "
        f"give at least {MIN_DEV}, better 500, as dev, or hold out more with data.dev_fraction"
    )


def rare_classes_on_dev(splits: Splits) -> str | None:
    """Warn of classes of which a dev set of sufficient size has few rows or none."""
    dev = splits.dev
    assert dev.labels is not None
    if len(dev) < MIN_DEV:
        return None  # said by small_dev
    counts = np.bincount(dev.labels, minlength=len(dev.classes))
    rare = [f"{name} ({count})" for name, count in zip(dev.classes, counts, strict=True) if count < MIN_ROWS_OF_CLASS]
    if not rare:
        return None
    return (
        f"dev has fewer than {MIN_ROWS_OF_CLASS} rows of {_first_names(rare)}: how well the confidence in them is calibrated "
        "cannot be seen there; add labelled rows of these classes to dev"
    )


def classes_that_read_alike(splits: Splits) -> str | None:
    """Warn of classes whose names differ only in case, spaces, or how Unicode writes a letter: they are seldom meant apart."""
    by_look: dict[str, list[str]] = {}
    for name in splits.train.classes:
        by_look.setdefault(_look(name), []).append(name)
    alike = [names for names in by_look.values() if len(names) > 1]
    if not alike:
        return None
    return (
        f"the classes {list_names(alike[0])} read alike and are trained as different ones: they differ only in case, spaces or "
        "hidden characters; write one name in the data if they are one class"
    )


def _look(name: str) -> str:
    """A name as it looks: in one case, with single spaces, composed letters and no characters of zero width."""
    letters = unicodedata.normalize("NFC", name.casefold())
    return " ".join("".join(c for c in letters if unicodedata.category(c) != "Cf").split())


# ---- predictions of a model --------------------------------------------------------------------------------------------


def one_class(model: str, predictions: Predictions) -> str | None:
    """Warn of a model that predicts one class for nearly all rows, although more rows have other labels."""
    predicted, labelled = _counts(predictions)
    top, rows = int(predicted.argmax()), len(predictions)
    other_predictions, other_labels = rows - predicted[top], rows - labelled[top]
    if predicted[top] < NEARLY_ALL * rows or 2 * other_predictions >= other_labels:
        return None
    all_rows = "all" if not other_predictions else f"{predicted[top] / rows:.1%} of the"
    return (
        f"{model} predicts {predictions.classes[top]!r} for {all_rows} {counted(rows)} of {predictions.name}, which is the "
        f"label of {labelled[top] / rows:.1%}: it has learnt little; train it for more steps, try another learning rate, and "
        "check the labels"
    )


def other_order(model: str, predictions: Predictions) -> str | None:
    """Warn of a model that would be right more often with its classes in another order, as if its columns were mixed up.

    The order is found on every second row and tried on the others, since some order always fits the rows it is found on.
    """
    if len(predictions.classes) > MOST_CLASSES:
        return None
    confusion = np.zeros((len(predictions.classes),) * 2)
    np.add.at(confusion, (predictions.predicted[::2], predictions.labels[::2]), 1)
    np.fill_diagonal(confusion, confusion.diagonal() + TIE)
    _, order = linear_sum_assignment(confusion, maximize=True)  # the class that each predicted one stands for
    labels, predicted = predictions.labels[1::2], predictions.predicted[1::2]
    reordered = order[predicted] == labels
    difference = reordered.astype(float) - (predicted == labels)
    majority = np.bincount(labels).max(initial=0) / max(len(labels), 1)
    if difference.sum() < MIN_MISTAKES or paired_difference(difference)[0] <= 0 or reordered.mean() <= majority:
        return None
    moved = [
        f"{predictions.classes[k]!r} as {predictions.classes[order[k]]!r}"
        for k in np.flatnonzero(order != np.arange(len(order)))
    ]
    return (
        f"{model} is right on {predictions.correct.mean():.1%} of {predictions.name}, but on "
        f"{(order[predictions.predicted] == predictions.labels).mean():.1%} if one reads {_first_names(moved)}: the classes of "
        "its teacher's outputs, or its own, seem to be in another order than those of the data; name them in the order of the "
        "outputs (teacher_labels, or classes of predictions)"
    )


def below_majority(model: str, predictions: Predictions) -> str | None:
    """Warn of a model that is less accurate than the most frequent class for all rows, beyond chance."""
    if other_order(model, predictions) is not None:
        return None  # said there, with the cause
    _, labelled = _counts(predictions)
    top = int(labelled.argmax())
    difference = predictions.correct.astype(float) - (predictions.labels == top)
    low, high = paired_difference(difference)
    if high >= 0:
        return None
    return (
        f"{model} is right on {predictions.correct.mean():.1%} of {predictions.name}, less than the "
        f"{labelled[top] / len(predictions):.1%} of always predicting {predictions.classes[top]!r} (difference "
        f"{difference.mean():+.3f} [{low:+.3f}, {high:+.3f}]): check that labels and classes belong together, and train it "
        "longer"
    )


def missing_classes(model: str, predictions: Predictions) -> str | None:
    """Warn of classes that the model never predicts, although they make up a part of the rows."""
    predicted, labelled = _counts(predictions)
    if (predicted > 0).sum() < 2:
        return None  # said by one_class
    enough = max(MIN_ROWS_OF_MISSING, COMMON_CLASS * len(predictions))
    missing = np.flatnonzero((predicted == 0) & (labelled >= enough))
    if not len(missing):
        return None
    names = [f"{predictions.classes[k]} ({labelled[k] / len(predictions):.1%} of the rows)" for k in missing]
    return f"{model} never predicts {_first_names(names)} on {predictions.name}: label more examples of what it leaves out"


def not_better_than_baseline(model: str, predictions: Predictions, baseline: Predictions) -> str | None:
    """Warn of a model that is better than the baseline neither in accuracy nor in NLL, beyond chance."""
    comparison = compare(baseline, predictions, ["accuracy", "nll"], intervals=RUN_RESAMPLES)
    accuracy, nll = comparison["accuracy"], comparison["nll"]
    if "b" in (accuracy.better, nll.better):
        return None
    verdict = "is not better than" if accuracy.difference <= 0 and nll.difference >= 0 else "may be no better than"
    differences = [
        f"{name} {found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
        for name, found in (("accuracy", accuracy), ("NLL", nll))
        if math.isfinite(found.difference)
    ]
    return (
        f"{model} {verdict} TF-IDF with logistic regression on {predictions.name} ({', '.join(differences)}): train it on more "
        "examples or for more steps, or use the cheaper model"
    )


# ---- calibration -------------------------------------------------------------------------------------------------------


def few_mistakes(model: str, dev: Predictions, calibrator: Calibrator) -> str | None:
    """Warn of a model that makes so few mistakes on dev that its calibrator and threshold rest on hardly anything."""
    mistakes = int((~dev.correct).sum())
    if mistakes >= MIN_MISTAKES or len(dev) < MIN_DEV:
        return None
    return (
        f"{model} makes {counted(mistakes, 'mistake')} on the {counted(len(dev))} of dev, too few to fit its calibration "
        f"({calibrator.kind}) on: add rows to dev until there are {MIN_MISTAKES}"
    )


def doubtful_fit(model: str, dev: Predictions, calibrator: Calibrator) -> str | None:
    """Warn of a calibrator whose fit did not converge."""
    if calibrator.fit is None or calibrator.fit.converged:
        return None
    return (
        f"{model}: its calibration ({calibrator.kind}) on the {counted(len(dev))} of dev is doubtful: {calibrator.fit.message}"
    )


# ---- tables ------------------------------------------------------------------------------------------------------------

DATA_CHECKS: tuple[Callable[[Splits], str | None], ...] = (small_dev, rare_classes_on_dev, classes_that_read_alike)
MODEL_CHECKS: tuple[Callable[[str, Predictions], str | None], ...] = (one_class, other_order, below_majority, missing_classes)
CALIBRATION_CHECKS: tuple[Callable[[str, Predictions, Calibrator], str | None], ...] = (few_mistakes, doubtful_fit)


def check_data(splits: Splits) -> list[str]:
    """Return what is wrong with the data of a run, known before anything is trained.

    Parameters
    ----------
    splits : Splits
        The data.

    Returns
    -------
    list of str
        One sentence per warning, in the order of ``DATA_CHECKS``.
    """
    sentences = [check(splits) for check in DATA_CHECKS]
    return [sentence for sentence in sentences if sentence is not None]


def check_model(model: str, predictions: Predictions, baseline: Predictions | None = None) -> list[str]:
    """Return what is wrong with the predictions of a model on labelled rows.

    Parameters
    ----------
    model : str
        Name of the model.
    predictions : Predictions
        Its predictions on dev or test.
    baseline : Predictions, optional
        Those of the baseline on the same rows.

    Returns
    -------
    list of str
        One sentence per warning, in the order of ``MODEL_CHECKS``, and one if it is not better than the baseline.

    Examples
    --------
    >>> always_no = Predictions.from_logits(np.tile([1.0, 0.0], (40, 1)), [0, 1] * 20, classes=("no", "yes"), name="test")
    >>> [sentence] = check_model("student", always_no)
    >>> sentence.split(":")[0]
    "student predicts 'no' for all 40 rows of test, which is the label of 50.0%"
    """
    sentences = [check(model, predictions) for check in MODEL_CHECKS]
    if baseline is not None:
        sentences.append(not_better_than_baseline(model, predictions, baseline))
    return [sentence for sentence in sentences if sentence is not None]


def check_calibration(model: str, dev: Predictions, calibrator: Calibrator) -> list[str]:
    """Return what is doubtful about the calibration of a model.

    Parameters
    ----------
    model : str
        Name of the model.
    dev : Predictions
        Its predictions on dev, before calibration.
    calibrator : Calibrator
        What was fitted on them.

    Returns
    -------
    list of str
        One sentence per warning, in the order of ``CALIBRATION_CHECKS``.
    """
    sentences = [check(model, dev, calibrator) for check in CALIBRATION_CHECKS]
    return [sentence for sentence in sentences if sentence is not None]


def paired_difference(differences: FloatArray) -> tuple[float, float]:
    """Compute the 95 % interval of the mean of differences, one per row, by its standard error.

    Parameters
    ----------
    differences : array, shape (N,)
        For example whether one model is right minus whether another one is.

    Returns
    -------
    tuple of float
        Its ends.

    Examples
    --------
    >>> low, high = paired_difference(np.array([1.0, 0.0, 0.0, -1.0]))
    >>> low == -high
    True
    """
    mean = float(differences.mean())
    margin = NORMAL_95 * float(differences.std()) / math.sqrt(len(differences))
    return mean - margin, mean + margin


def _counts(predictions: Predictions) -> tuple[IntArray, IntArray]:
    """How often each class is predicted, and how often it is the label (K,)."""
    classes = len(predictions.classes)
    return np.bincount(predictions.predicted, minlength=classes), np.bincount(predictions.labels, minlength=classes)


def _first_names(names: list[str]) -> str:
    hidden = len(names) - SHOWN_CLASSES
    return ", ".join(names[:SHOWN_CLASSES]) + (f" and {hidden} more classes" if hidden > 0 else "")
