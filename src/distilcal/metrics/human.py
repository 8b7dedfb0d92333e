"""Metrics against human label distributions: ``f(probs, label_probs, **params)``, label_probs (N, K) the shares of votes."""

from __future__ import annotations

import numpy as np

from distilcal.errors import InputError
from distilcal.metrics.decorator import human_metric
from distilcal.metrics.rows import Closed, Rows
from distilcal.predictions import FloatArray


@human_metric
def human_tv(rows: Rows) -> FloatArray:
    """Mean total variation distance ``½ Σ_k |p_k - v_k|`` between probabilities p and human votes v.

    Range [0, 1], lower is better.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    label_probs : array-like (N, K)
        Share of the human votes for each class.

    Returns
    -------
    float

    References
    ----------
    Baan et al. 2022, "Stop measuring calibration when humans disagree", who call it DistCE.

    Examples
    --------
    >>> round(human_tv([[0.9, 0.1]], [[0.6, 0.4]]), 3)
    0.3
    """
    if rows.votes is None:
        raise InputError("there are no human label distributions", remedy="give label_probs")
    return rows.mean(0.5 * np.abs(rows.probs - rows.votes).sum(axis=1))


@human_metric
def human_cross_entropy(rows: Rows) -> FloatArray:
    """Mean cross-entropy ``-Σ_k v_k log p_k`` of the human votes v, in nats.

    Range [0, ∞], lower is better; least for p = v, where it is the entropy of the votes.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    label_probs : array-like (N, K)
        Share of the human votes for each class.

    Returns
    -------
    float

    Examples
    --------
    >>> round(human_cross_entropy([[0.5, 0.5]], [[0.6, 0.4]]), 4)
    0.6931
    """
    return rows.mean(rows.vote_nll)


@human_metric
def human_ece(rows: Rows, *, bins: int = 15, closed: Closed = "right") -> FloatArray:
    """ECE against human votes: the gap between confidence and the share of votes for the predicted class.

    ``Σ_b n_b/N · |votes_b - confidence_b|`` over equal-width bins. Range [0, 1], lower is better. With one vote a row it is
    `ece`. Where people disagree, a model that is sure of the majority label is overconfident.

    Parameters
    ----------
    probs : array-like (N, K)
        Predicted probabilities.
    label_probs : array-like (N, K)
        Share of the human votes for each class.
    bins : int
        Number of bins.
    closed : {"right", "left"}
        Whether bins are (lo, hi] or [lo, hi).

    Returns
    -------
    float

    Examples
    --------
    >>> round(human_ece([[0.9, 0.1]], [[0.6, 0.4]]), 3)
    0.3
    """
    cells = rows.top_votes.width_bins(bins, closed)
    return np.asarray((cells.share * np.abs(cells.gap)).sum(axis=-1))
