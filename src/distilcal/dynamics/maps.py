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
    """Rows of the easy (highest confidence), ambiguous (highest variability) and hard (lowest confidence) examples.

    Each holds ``floor(fraction · N)`` rows, first the most typical; equal ones stand in the order of their ids, so that the
    order of the data does not matter. They may overlap; ``disjoint`` takes the ambiguous first and the others from the rest.
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
    """True for the half with the high AUM: those at the median and above (P001)."""
    high: NDArray[np.bool_] = dynamics.aum >= np.median(dynamics.aum)
    return high


def likely_mislabelled(dynamics: Dynamics, most: int | None = None) -> Rows:
    """Rows whose label lost to another class on average (AUM below 0), the most doubtful first; Pleiss et al. 2020.

    They are candidates to read, not errors: hard examples stand there too.
    """
    order = np.lexsort((dynamics.ids, dynamics.aum))
    below = order[dynamics.aum[order] < 0]
    return below if most is None else below[:most]


def saliency(logits: NDArray[Any], labels: Rows) -> NDArray[Any]:
    """``|softmax(z) − y|`` (N, K): the size of the gradient of cross-entropy at the logits.

    The label's entry is the sum of the others, which is exact where 1 − p would be rounded away.
    """
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: NDArray[Any] = shifted / shifted.sum(axis=1, keepdims=True)
    every = np.arange(len(labels))
    found[every, labels] = 0.0
    found[every, labels] = found.sum(axis=1)
    return found
