"""Accuracy, proper scores, and what describes the predictions themselves."""

from __future__ import annotations

import numpy as np

from distilcal.metrics.decorator import metric
from distilcal.metrics.rows import Rows
from distilcal.predictions import FloatArray


@metric
def accuracy(rows: Rows) -> FloatArray:
    """Accuracy: the share of rows whose most probable class is the label.

    Range [0, 1], higher is better. The first class wins a tie.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.

    Returns
    -------
    float

    Examples
    --------
    >>> accuracy([[0.7, 0.3], [0.6, 0.4]], [0, 1])
    0.5
    """
    return rows.mean(rows.correct.astype(np.float64))


@metric
def confidence(rows: Rows) -> FloatArray:
    """Mean confidence: the mean probability of the predicted class.

    Range [1/K, 1], no direction: a model is calibrated on the whole if it equals the accuracy.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices; not used.

    Returns
    -------
    float

    Examples
    --------
    >>> round(confidence([[0.7, 0.3], [0.6, 0.4]], [0, 1]), 3)
    0.65
    """
    return rows.mean(rows.confidence)


@metric
def nll(rows: Rows) -> FloatArray:
    """Negative log-likelihood: the mean of ``-log p_y`` in nats, p_y the probability of the label.

    Range [0, ∞], lower is better; infinite if some p_y is exactly 0. It is a proper score: only the true probabilities
    minimise its expectation. Called on Predictions it is computed from the logits, without underflow.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.

    Returns
    -------
    float

    Examples
    --------
    >>> round(nll([[0.7, 0.3], [0.6, 0.4]], [0, 1]), 4)
    0.6365
    """
    return rows.mean(rows.nll)


@metric
def brier(rows: Rows) -> FloatArray:
    """Brier score: the mean over rows of ``Σ_k (p_k - 1[y = k])²``, summed over classes.

    Range [0, 2], lower is better. It is a proper score that stays finite. Some libraries divide by K or score one class of
    two; this is the original definition.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices.

    Returns
    -------
    float

    References
    ----------
    Brier 1950, "Verification of forecasts expressed in terms of probability".

    Examples
    --------
    >>> round(brier([[0.7, 0.3], [0.6, 0.4]], [0, 1]), 4)
    0.45
    """
    # Σ_k (p_k - 1[y=k])² = Σ p² - 2 p_y + 1
    squares = np.einsum("nk,nk->n", rows.probs, rows.probs)
    return np.maximum(rows.mean(squares - 2 * rows.label_scores() + 1), 0.0)


@metric
def entropy(rows: Rows) -> FloatArray:
    """Mean entropy ``-Σ_k p_k log p_k`` of the predicted distributions, in nats.

    Range [0, log K], no direction. Sultan follows it while a student trains.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    labels : array-like (N,)
        Class indices; not used.

    Returns
    -------
    float

    Examples
    --------
    >>> round(entropy([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 4)
    0.3466
    """
    return rows.mean(rows.entropy)
