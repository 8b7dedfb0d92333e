"""Softmax of logits and what follows from it, in float64 and a block of rows at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BLOCK_ENTRIES = 1 << 16  # blocks of rows that stay in the processor's cache
FEW_CLASSES = 64  # up to here, work goes class by class: sums over a short last axis are slow


class Softmax(NamedTuple):
    """What one pass over logits gives, all in float64 and read-only.

    Attributes
    ----------
    probs : ndarray, shape (N, K)
        Probabilities.
    nll : ndarray, shape (N,)
        Negative log-likelihood of the labels.
    entropy : ndarray, shape (N,)
        Entropy in nats.
    predicted : ndarray of int, shape (N,)
        Index of the first largest logit. A softmax that rounds to a tie could not tell it any more.
    confidence : ndarray, shape (N,)
        Largest probability.
    """

    probs: FloatArray
    nll: FloatArray
    entropy: FloatArray
    predicted: IntArray
    confidence: FloatArray


def softmax_rows(logits: NDArray[Any], labels: IntArray) -> Softmax:
    """Return the softmax of logits, and each row's loss, entropy, prediction and confidence.

    Parameters
    ----------
    logits : ndarray, shape (N, K)
        Finite scores.
    labels : ndarray of int, shape (N,)
        Class indices.

    Returns
    -------
    Softmax
        The results for all rows.

    Examples
    --------
    >>> result = softmax_rows(np.array([[0.0, 0.0], [1.0, 3.0]]), np.array([0, 1]))
    >>> result.predicted.tolist(), result.nll.round(3).tolist()
    ([0, 1], [0.693, 0.127])
    """
    n, k = logits.shape
    by_class = k <= FEW_CLASSES
    class_axis = 0 if by_class else 1
    probs = np.empty((k, n)).T if by_class else np.empty((n, k))
    nll, entropy, confidence = np.empty(n), np.empty(n), np.empty(n)
    predicted = np.zeros(n, np.int64)
    step = max(1, BLOCK_ENTRIES // k)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        block = logits[rows]
        z = np.array(block.T if by_class else block, dtype=np.float64, order="C")
        z -= z.max(axis=class_axis, keepdims=True)
        if by_class:
            for c in range(k - 1, -1, -1):  # the first of equal classes is written last
                predicted[rows][z[c] == 0] = c
        else:
            predicted[rows] = z.argmax(axis=1)
        p = np.exp(z)
        total = p.sum(axis=class_axis, keepdims=True)
        p /= total
        confidence[rows] = 1.0 / total.ravel()  # the largest shifted logit is 0, its exponential 1
        log_total = np.log(total).ravel()
        if by_class:
            z, p = z.T, p.T
        probs[rows] = p
        nll[rows] = log_total - z[np.arange(len(z)), labels[rows]]
        entropy[rows] = log_total - np.einsum("nk,nk->n", p, z)  # both parts are ≥ 0, so nothing cancels
    result = Softmax(probs, nll, entropy, predicted, confidence)
    for array in result:
        array.flags.writeable = False
    return result
