"""Batches of an epoch, the learning rate and the optimiser.

Batches and rates follow from seed, epoch and step alone, so a resumed run continues exactly as one that was not interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from distilcal.config.schema import TrainSettings

POOL = 50  # batches whose examples are sorted by length together, fewer in small sets: little padding, still random
SMALL_POOL = 4  # batches: sorting fewer saves little padding
FEW_ROWS, SMALL_BATCH, USUAL_BATCH = 2000, 16, 32  # what a batch of 0 stands for
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


def mixed_epoch_batches(
    is_labelled: NDArray[np.bool_],
    lengths: NDArray[np.int64] | None,
    batch: int,
    *,
    share: float | None = None,
    seed: int,
    epoch: int,
) -> list[NDArray[np.int64]]:
    """Return the rows of each batch of an epoch of labelled and unlabelled examples.

    Every batch has the same share of labelled rows, to within one row. An epoch sees every row at least once. Where the share
    is not that of the data, the rows of one kind are repeated: all of them equally often, to within once.

    Parameters
    ----------
    is_labelled : array of bool, shape (N,)
        Which rows are labelled; there are some of both kinds.
    lengths : array of int, shape (N,), or None
        Tokens of each example: examples of like length share a batch, which saves padding. None: all are of one size.
    batch : int
        Examples per batch; the last one may be smaller.
    share : float, optional
        Share of labelled rows in a batch, between 0 and 1. By default their share in the data: every row comes once.
    seed, epoch : int
        Decide the order.

    Returns
    -------
    list of arrays of int

    Examples
    --------
    >>> is_labelled = np.array([True, True, False, False, False, False])
    >>> batches = mixed_epoch_batches(is_labelled, None, 4, share=0.5, seed=0, epoch=0)
    >>> [is_labelled[rows].sum().item() for rows in batches]
    [2, 2]
    """
    rng = np.random.default_rng(epoch_seed(seed, epoch, 0))
    kinds = [np.flatnonzero(is_labelled), np.flatnonzero(~is_labelled)]
    totals = _rows_of_epoch(len(kinds[0]), len(kinds[1]), share)
    count = sum(totals)
    ends = np.append(np.arange(batch, count, batch), count)
    # How many labelled rows the batches up to each one hold: their share of all rows so far, rounded.
    labelled_ends = (ends * totals[0] + rng.integers(count)) // count
    ends_of_kinds = (labelled_ends, ends - labelled_ends)
    sizes_of_kinds = [np.diff(kind_ends, prepend=0) for kind_ends in ends_of_kinds]
    pools = _batches_per_pool(kinds, sizes_of_kinds, min(POOL, max(8, count // (4 * batch))))
    columns = []
    for rows, kind_ends, sizes, batches_per_pool in zip(kinds, ends_of_kinds, sizes_of_kinds, pools, strict=True):
        # A random order that starts again at its end: no row is twice among any len(rows) that follow each other.
        drawn = rng.permutation(rows)[np.arange(kind_ends[-1]) % len(rows)]
        if lengths is not None:
            pool = np.repeat(np.arange(len(sizes)) // batches_per_pool, sizes)
            jittered = np.asarray(lengths)[drawn] * (1 + JITTER * rng.random(len(drawn)))
            drawn = drawn[np.lexsort((jittered, pool))]
        number = np.repeat(np.arange(len(ends)), sizes)
        progress = (np.arange(len(drawn)) - np.repeat(kind_ends - sizes, sizes) + 0.5) / sizes[number]
        columns.append((drawn, number, progress))
    drawn, number, progress = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = drawn[np.lexsort((progress, number))]  # both kinds spread evenly in a batch: its parts have the share too
    batches = np.split(order, ends[:-1])
    return batches if lengths is None else [batches[i] for i in rng.permutation(len(batches))]


def _rows_of_epoch(labelled: int, unlabelled: int, share: float | None) -> tuple[int, int]:
    """How many labelled and unlabelled rows an epoch has: those of one kind once, of the other as the share demands."""
    if share is None:
        return labelled, unlabelled
    needed = round(unlabelled * share / (1 - share))
    if needed >= labelled:
        return needed, unlabelled
    return labelled, max(unlabelled, round(labelled * (1 - share) / share))


def _batches_per_pool(kinds: Sequence[NDArray[np.int64]], sizes_of_kinds: Sequence[NDArray[np.int64]], most: int) -> list[int]:
    """For each kind of rows, how many batches share a pool in which rows are sorted by length.

    A pool never holds a row twice, as far as there are enough rows: equal ones would come to be in one batch. Both kinds have
    the same pools, so that a batch holds like lengths of both, unless one is too few; that one is hardly sorted then.
    """
    without_repeats = []
    for rows, sizes in zip(kinds, sizes_of_kinds, strict=True):
        without_repeats.append(min(most, max(1, len(rows) // max(1, int(sizes.max())))))
    smallest = min(without_repeats)
    return [smallest] * len(kinds) if smallest >= SMALL_POOL else without_repeats


def _progress_in_group(pool: NDArray[np.int64], group: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return the share of a row's group and pool that comes before it: sorted by it, groups alternate evenly."""
    cell = np.unique(np.stack([pool, group]), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(cell, kind="stable")
    sizes = np.bincount(cell)
    earlier = np.empty(len(cell))
    earlier[order] = np.arange(len(cell)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 0.5
    return earlier / sizes[cell]


def resolve_settings(settings: TrainSettings, rows: int) -> TrainSettings:
    """Return settings with the batch size and the number of epochs that they mean for so many training examples.

    Parameters
    ----------
    settings : TrainSettings
        Whose ``batch`` may be 0, and who may have ``min_steps``.
    rows : int
        Number of training examples, labelled or not.

    Returns
    -------
    TrainSettings
        With a batch size, with enough epochs, and without ``min_steps``.

    Examples
    --------
    >>> settings = resolve_settings(TrainSettings(batch=0, epochs=3, min_steps=300), rows=400)
    >>> settings.batch, settings.epochs
    (16, 12)
    """
    batch, epochs = settings.batch, settings.epochs
    if batch == 0:
        batch = SMALL_BATCH if rows < FEW_ROWS else USUAL_BATCH
    if settings.min_steps is not None:
        epochs = max(epochs, math.ceil(settings.min_steps / math.ceil(rows / batch)))
    return settings.replace(batch=batch, epochs=epochs, min_steps=None)


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
