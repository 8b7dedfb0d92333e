"""Batches of an epoch, the learning rate and the optimiser.

Batches and rates follow from seed, epoch and step alone, so a resumed run continues exactly as one that was not interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from distilcal.config.schema import TrainSettings

POOL = 50  # batches whose examples are sorted by length together, fewer in small sets: little padding, still random
JITTER = 0.1  # random increase of lengths (up to 10 %), so that equal ones do not share a batch in every epoch


def epoch_seed(seed: int, epoch: int, use: int) -> int:
    """Return a seed for one use of random numbers (order, augmentation, dropout) in one epoch.

    Parameters
    ----------
    seed : int
        The seed of the training, not negative.
    epoch : int
        The epoch, from 0.
    use : int
        Number of the use.

    Returns
    -------
    int
        A seed below 2³².

    Examples
    --------
    >>> epoch_seed(0, 1, 0) == epoch_seed(0, 1, 0) != epoch_seed(0, 2, 0)
    True
    """
    return int(np.random.SeedSequence([seed, epoch, use]).generate_state(1)[0])


def epoch_batches(
    count: int,
    lengths: NDArray[np.int64] | None,
    batch: int,
    *,
    seed: int,
    epoch: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> list[NDArray[np.int64]]:
    """Return the rows of each batch of an epoch: every row once.

    Parameters
    ----------
    count : int
        Number of training examples.
    lengths : array of int, shape (N,), or None
        Tokens of each example: examples of like length share a batch, which saves padding. None: all are of one size.
    batch : int
        Examples per batch; the last one may be smaller.
    seed, epoch : int
        Decide the order.
    groups : array of int, shape (N,), optional
        Every batch holds each group in its share.

    Returns
    -------
    list of arrays of int

    Examples
    --------
    >>> [len(rows) for rows in epoch_batches(10, None, 4, seed=0, epoch=0)]
    [4, 4, 2]
    """
    rng = np.random.default_rng(epoch_seed(seed, epoch, 0))
    order = rng.permutation(count)
    pool = np.zeros(count, dtype=np.int64)
    if lengths is not None:
        batches_per_pool = min(POOL, max(8, count // (4 * batch)))
        pool = np.arange(count) // (batch * batches_per_pool)
        jittered = np.asarray(lengths)[order] * (1 + JITTER * rng.random(count))
        order = order[np.lexsort((jittered, pool))]
    if groups is not None:
        progress = _progress_in_group(pool, np.asarray(groups)[order])
        order = order[np.lexsort((progress, pool))]
    batches = [order[i : i + batch] for i in range(0, count, batch)]
    if lengths is None:
        return batches
    return [batches[i] for i in rng.permutation(len(batches))]


def _progress_in_group(pool: NDArray[np.int64], group: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return the share of a row's group and pool that comes before it: sorted by it, groups alternate evenly."""
    cell = np.unique(np.stack([pool, group]), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(cell, kind="stable")
    sizes = np.bincount(cell)
    earlier = np.empty(len(cell))
    earlier[order] = np.arange(len(cell)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 0.5
    return earlier / sizes[cell]


def rate_factor(settings: TrainSettings, step: int, steps: int, per_epoch: int) -> float:
    """Return the factor of the learning rate in a step: warm-up, then the schedule.

    Parameters
    ----------
    settings : TrainSettings
        ``warmup`` (fraction of all steps), ``schedule``, and for steps ``milestones`` (epochs) and ``gamma``.
    step : int
        The step, from 0.
    steps : int
        Steps of the whole training.
    per_epoch : int
        Steps of an epoch.

    Returns
    -------
    float

    Examples
    --------
    >>> rate_factor(TrainSettings(schedule="linear"), 5, 10, 5)
    0.5
    """
    warm = round(settings.warmup * steps)
    if step < warm:
        return (step + 1) / warm
    if settings.schedule == "steps":
        return float(settings.gamma ** sum(step >= m * per_epoch for m in settings.milestones))
    if settings.schedule == "none":
        return 1.0
    done = (step - warm) / max(steps - warm, 1)
    if settings.schedule == "linear":
        return 1 - done
    return 0.5 * (1 + math.cos(math.pi * done))


def build_optimizer(network: nn.Module, others: Iterable[nn.Parameter], settings: TrainSettings) -> torch.optim.Optimizer:
    """Build the optimiser: AdamW, whose weight decay spares biases and norms, or SGD.

    Parameters
    ----------
    network : nn.Module
        The network to train.
    others : iterable of nn.Parameter
        Parameters of losses.
    settings : TrainSettings
        ``optimizer``, ``lr``, ``weight_decay``, ``momentum``, ``nesterov``.

    Returns
    -------
    torch.optim.Optimizer
    """
    trainable = [p for p in (*network.parameters(), *others) if p.requires_grad]
    if settings.optimizer == "sgd":
        nesterov = settings.nesterov and settings.momentum > 0
        return torch.optim.SGD(
            trainable,
            settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=nesterov,
            fused=True,
        )
    groups = [
        {"params": [p for p in trainable if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], settings.lr, fused=True)
