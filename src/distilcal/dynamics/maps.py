"""Statistics of training dynamics: regions of the data map, halves by AUM, doubtful labels, saliency."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.dynamics.table import Dynamics
from distilcal.errors import InputError

REGIONS = ("easy", "ambiguous", "hard")
RowIndices = NDArray[np.int64]


def regions(dynamics: Dynamics, fraction: float = 0.33, *, disjoint: bool = False) -> dict[str, RowIndices]:
    """Return the rows of the easy, ambiguous and hard examples of a data map.

    Easy are those of highest confidence, ambiguous of highest variability, hard of lowest confidence; Swayamdipta et al. 2020.
    Ties are broken by id, so that the order of the data does not matter.

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
        The rows of ``easy``, ``ambiguous`` and ``hard``.

    Raises
    ------
    InputError
        If the fraction is not in (0, 1].

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

    def lowest(values: NDArray[Any], candidates: RowIndices) -> RowIndices:
        return candidates[np.argsort(values[candidates], kind="stable")][:count]

    candidates = by_id
    ambiguous = lowest(-dynamics.variability, candidates)
    if disjoint:
        candidates = candidates[~np.isin(candidates, ambiguous)]
    easy = lowest(-dynamics.confidence, candidates)
    if disjoint:
        candidates = candidates[~np.isin(candidates, easy)]
    hard = lowest(dynamics.confidence, candidates)
    return {"easy": easy, "ambiguous": ambiguous, "hard": hard}


def aum_halves(dynamics: Dynamics) -> NDArray[np.bool_]:
    """Return True for the examples in the half of high AUM: those at the median and above (Park & Caragea).

    Parameters
    ----------
    dynamics : Dynamics
        The recorded table.

    Returns
    -------
    array of bool, shape (N,)

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


def random_halves(dynamics: Dynamics, seed: int = 0) -> NDArray[np.bool_]:
    """Return True for a random half of the examples, whatever their AUM: the control for halves by AUM.

    Parameters
    ----------
    dynamics : Dynamics
        The recorded table.
    seed : int, default 0
        Decides the division, together with the ids; the order of the rows does not matter.

    Returns
    -------
    array of bool, shape (N,)
        Of an odd number of examples, one more is True.

    Examples
    --------
    >>> from distilcal.dynamics import Recorder
    >>> recorder = Recorder(["a", "b"], [0, 1], ["no", "yes"])
    >>> recorder.record([0, 1], np.array([[2.0, 0.0], [1.0, 0.0]]))
    >>> recorder.end_epoch()
    >>> int(random_halves(recorder.dynamics()).sum())
    1
    """
    by_id = np.argsort(dynamics.ids, kind="stable")
    shuffled = np.random.default_rng([seed, len(by_id)]).permutation(by_id)
    high = np.zeros(len(by_id), dtype=bool)
    high[shuffled[: (len(by_id) + 1) // 2]] = True
    return high


def likely_mislabelled(dynamics: Dynamics, most: int | None = None) -> RowIndices:
    """Return the rows whose label lost to another class on average (AUM below 0), the most doubtful first.

    They are candidates for review, not certain errors: hard examples are among them. Pleiss et al. 2020.

    Parameters
    ----------
    dynamics : Dynamics
        The recorded table.
    most : int, optional
        The largest number of rows to return; by default all of them.

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


def saliency(logits: NDArray[Any], labels: RowIndices) -> NDArray[Any]:
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
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    gradient: NDArray[Any] = exponentials / exponentials.sum(axis=1, keepdims=True)
    every_row = np.arange(len(labels))
    gradient[every_row, labels] = 0.0
    gradient[every_row, labels] = gradient.sum(axis=1)
    return gradient
