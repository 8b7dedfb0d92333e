"""What can be read from training dynamics: regions of the data map, halves by AUM, doubtful labels, saliency."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.dynamics.table import Dynamics
from distilcal.errors import InputError

REGIONS = ("easy", "ambiguous", "hard")
Rows = NDArray[np.int64]


def regions(dynamics: Dynamics, fraction: float = 0.33, *, disjoint: bool = False) -> dict[str, Rows]:
    """Return the rows of the easy, ambiguous and hard examples of a data map.

    Easy are those of highest confidence, ambiguous of highest variability, hard of lowest confidence; Swayamdipta et al. 2020.
    Equal ones stand in the order of their ids, so that the order of the data does not matter.

    Parameters
    ----------
    dynamics : Dynamics
        The recorded table.
    fraction : float, default 0.33
        Each region holds ``floor(fraction · N)`` rows, the most typical first.
    disjoint : bool, default False
        Whether the ambiguous ones are chosen first and the others from the rest; otherwise regions may overlap.

    Returns
    -------
    dict of str to array of int

    Examples
    --------
    >>> from distilcal.dynamics import Recorder
    >>> recorder = Recorder(["a", "b"], [0, 1], ["no", "yes"])
    >>> recorder.record([0, 1], np.array([[2.0, 0.0], [1.0, 0.0]]))
    >>> recorder.end_epoch()
    >>> dynamics = recorder.dynamics()
    >>> regions(dynamics, 0.5)["hard"].tolist()
    [1]
    """
    if not 0 < fraction <= 1:
        raise InputError(f"fraction {fraction} is not in (0, 1]")
    count = int(fraction * len(dynamics) + 1e-9)
    by_id = np.argsort(dynamics.ids, kind="stable")

    def first(values: NDArray[Any], among: Rows) -> Rows:
        return among[np.argsort(values[among], kind="stable")][:count]

    ambiguous = first(-dynamics.variability, by_id)
    rest = by_id[~np.isin(by_id, ambiguous)] if disjoint else by_id
    easy = first(-dynamics.confidence, rest)
    rest = rest[~np.isin(rest, easy)] if disjoint else rest
    return {"easy": easy, "ambiguous": ambiguous, "hard": first(dynamics.confidence, rest)}


def aum_halves(dynamics: Dynamics) -> NDArray[np.bool_]:
    """Return True for the examples in the half of high AUM: those at the median and above (P001).

    Examples
    --------
    >>> from distilcal.dynamics import Recorder
    >>> recorder = Recorder(["a", "b"], [0, 1], ["no", "yes"])
    >>> recorder.record([0, 1], np.array([[2.0, 0.0], [1.0, 0.0]]))
    >>> recorder.end_epoch()
    >>> dynamics = recorder.dynamics()
    >>> aum_halves(dynamics).tolist()
    [True, False]
    """
    high: NDArray[np.bool_] = dynamics.aum >= np.median(dynamics.aum)
    return high


def likely_mislabelled(dynamics: Dynamics, most: int | None = None) -> Rows:
    """Return the rows whose label lost to another class on average (AUM below 0), the most doubtful first.

    They are candidates to read, not errors: hard examples stand there too. Pleiss et al. 2020.

    Parameters
    ----------
    dynamics : Dynamics
        The recorded table.
    most : int, optional
        At most so many rows.

    Returns
    -------
    array of int

    Examples
    --------
    >>> from distilcal.dynamics import Recorder
    >>> recorder = Recorder(["a", "b"], [0, 1], ["no", "yes"])
    >>> recorder.record([0, 1], np.array([[2.0, 0.0], [1.0, 0.0]]))
    >>> recorder.end_epoch()
    >>> dynamics = recorder.dynamics()
    >>> likely_mislabelled(dynamics).tolist()
    [1]
    """
    order = np.lexsort((dynamics.ids, dynamics.aum))
    below = order[dynamics.aum[order] < 0]
    return below if most is None else below[:most]


def saliency(logits: NDArray[Any], labels: Rows) -> NDArray[Any]:
    """Return ``|softmax(z) − y|`` (N, K): the size of the gradient of cross-entropy at the logits.

    The label's entry is the sum of the others, which is exact where 1 − p would be rounded away.

    Parameters
    ----------
    logits : array of float, shape (N, K)
        Scores before the softmax.
    labels : array of int, shape (N,)
        Class indices.

    Returns
    -------
    array of float, shape (N, K)

    Examples
    --------
    >>> saliency(np.array([[0.0, 0.0]]), np.array([1])).tolist()
    [[0.5, 0.5]]
    """
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: NDArray[Any] = shifted / shifted.sum(axis=1, keepdims=True)
    every = np.arange(len(labels))
    found[every, labels] = 0.0
    found[every, labels] = found.sum(axis=1)
    return found
