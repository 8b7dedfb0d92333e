"""Which example is mixed with which: a rule gives each example of a batch a partner, by row of the training set.

A rule is called with the network, the batch and the number of the view, and returns `Partners`: the row of each example's
partner, and whether it has one. Partners are drawn for the whole step, so that dividing it into parts or between processes
changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from distilcal.config.schema import ViewSettings
from distilcal.dynamics import Dynamics, aum_halves, random_halves, regions, saliency
from distilcal.errors import InputError
from distilcal.models.network import Output
from distilcal.views.batch import PAIRS, Batch, RowIndices

Partners = tuple[RowIndices, NDArray[np.bool_]]
PairRule = Callable[[Any, Batch, int], Partners]  # network, batch, number of the view
BLOCK = 1 << 20  # cosines at a time: 4 MB


@dataclass(frozen=True)
class RandomPairs:
    """Pairs the examples of a step by a random permutation; labelled and unlabelled ones each among themselves.

    Attributes
    ----------
    only_own : bool
        Whether partners must be in the same part of the step: mixing at hidden layers cannot load others.
    """

    only_own: bool = False

    def __call__(self, network: Any, batch: Batch, number: int) -> Partners:
        rng = batch.step.rng(PAIRS, number)
        has_partner = np.ones(len(batch.positions), dtype=bool)
        is_labelled = batch.step.is_labelled
        if self.only_own:
            is_labelled = None if is_labelled is None else is_labelled[batch.positions]
            return batch.rows[_permute(len(batch.rows), is_labelled, rng)], has_partner
        rows = batch.step.rows
        return rows[_permute(len(rows), is_labelled, rng)[batch.positions]], has_partner


def _permute(count: int, is_labelled: NDArray[np.bool_] | None, rng: np.random.Generator) -> RowIndices:
    """A random permutation, in which labelled positions stay among themselves: a mix of two kinds would have no label."""
    order = rng.permutation(count)
    if is_labelled is None:
        return order
    within = np.empty_like(order)
    for kind in (is_labelled, ~is_labelled):
        within[kind] = order[kind[order]]
    return within


@dataclass(frozen=True)
class GroupPairs:
    """Pairs each example of one group with a random one of the other; the rest of the batch has no partner.

    Attributes
    ----------
    group : array of int, shape (N,)
        0 or 1 for the examples of the two groups, -1 for those that are not mixed.
    members : tuple of two arrays of int
        The rows of each group that may be partners.
    in_batch : bool
        Whether partners must be in the same step.
    only_own : bool
        Whether partners must be in the same part of the step.
    """

    group: NDArray[np.int8]
    members: tuple[RowIndices, RowIndices]
    in_batch: bool = False
    only_own: bool = False

    def __call__(self, network: Any, batch: Batch, number: int) -> Partners:
        rows = batch.rows if self.only_own else batch.step.rows
        draw = batch.step.rng(PAIRS, number).random(len(rows))
        partner, has_partner = rows.copy(), np.zeros(len(rows), dtype=bool)
        for group in (0, 1):
            candidates = self.members[1 - group]
            if self.in_batch:
                candidates = rows[np.isin(rows, candidates)]
            members = np.flatnonzero(self.group[rows] == group)
            if not len(candidates) or not len(members):
                continue
            index = (draw[members] * len(candidates)).astype(np.int64)
            chosen = candidates[index]
            itself = chosen == rows[members]  # an example of both groups: the next candidate instead
            chosen[itself] = candidates[(index[itself] + 1) % len(candidates)]
            partner[members], has_partner[members] = chosen, chosen != rows[members]
        if not self.only_own:
            partner, has_partner = partner[batch.positions], has_partner[batch.positions]
        return partner, has_partner


@dataclass(frozen=True)
class FixedPairs:
    """Pairs every row with a partner that is known before training.

    Attributes
    ----------
    partner : array of int, shape (N,)
        The row of each example's partner.
    """

    partner: RowIndices

    def __call__(self, network: Any, batch: Batch, number: int) -> Partners:
        rows = batch.rows
        return self.partner[rows], np.ones(len(rows), dtype=bool)


@dataclass(frozen=True)
class SalientPairs:
    """Pairs each example with the most (dis)similar one of the batch in the other AUM half, by the cosine of saliencies.

    An example's own saliency is the recorded one, that of the candidates is the current one, as in Park & Caragea's code.

    Attributes
    ----------
    recorded : array of float, shape (N, K) or (N, D)
        Saliencies of the training examples from the map.
    high : array of bool, shape (N,), or None
        Whether an example is in the half of high AUM; None: partners may be in any half.
    which : {"similar", "dissimilar"}
        Whether the cosine is to be largest or smallest.
    level : {"logits", "features"}
        What the saliency is of.
    """

    recorded: NDArray[np.float32]
    high: NDArray[np.bool_] | None
    which: Literal["similar", "dissimilar"]
    level: Literal["logits", "features"]

    def __call__(self, network: Any, batch: Batch, number: int) -> Partners:
        rows = batch.rows
        device = batch.labels.device
        recorded = torch.from_numpy(self.recorded[rows]).to(device)
        current = current_saliency(network, batch.run_plain(network), batch.labels, self.level)
        cosine = unit_rows(recorded) @ unit_rows(current.to(recorded.dtype)).T
        sides = rows if self.high is None else self.high[rows]
        is_candidate = torch.from_numpy(sides[:, None] != sides[None]).to(device)
        if self.which == "similar":
            position = torch.where(is_candidate, cosine, -torch.inf).argmax(dim=1)
        else:
            position = torch.where(is_candidate, cosine, torch.inf).argmin(dim=1)
        has_partner = is_candidate.any(dim=1).cpu().numpy()
        return np.where(has_partner, rows[position.cpu().numpy()], rows), has_partner


@torch.no_grad()
def current_saliency(network: Any, output: Output, labels: Tensor, level: Literal["logits", "features"]) -> Tensor:
    """Return the current saliency of each example: what a dynamics table has for the last epoch.

    ``|softmax(z) − y|`` at the logits, or |feature · gradient of the cross-entropy at it| at the features. The gradient alone
    would not do there: with two classes it has the same direction for all examples.

    Parameters
    ----------
    network : nn.Module
        The student; its last linear layer is read.
    output : Output
        Its logits and features of a batch.
    labels : Tensor of int, shape (N,)
        Class indices.
    level : {"logits", "features"}
        What the saliency is of.

    Returns
    -------
    Tensor, shape (N, K) or (N, D)
    """
    probs = torch.softmax(output.logits.detach().float(), dim=1)
    label = labels[:, None]
    probs = probs.scatter(1, label, 0.0)
    wrong = probs.sum(dim=1, keepdim=True)  # 1 − p of the label, exact where it is tiny
    if level == "logits":
        return probs.scatter(1, label, wrong)
    gradient = probs.scatter(1, label, -wrong)  # (N, K)
    features = output.features.detach().float()
    weight = getattr(network, "module", network).output.weight.detach().float()
    if features.dim() == 3:  # multiple choice: one score per ending
        weighted: Tensor = features * gradient[..., None] * weight[0]
    else:
        weighted = features * (gradient @ weight)
    return weighted.abs().flatten(1)


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows of length 1; each is first divided by its largest entry, so that tiny ones keep their direction.

    Parameters
    ----------
    rows : Tensor, shape (N, D)
        Rows without negative entries.

    Returns
    -------
    Tensor, shape (N, D)
        Rows of Euclidean length 1; rows of zeros stay zero.

    Examples
    --------
    >>> unit_rows(torch.tensor([[3e-30, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return normalize(rows / rows.amax(dim=1, keepdim=True).clamp(min=1e-38), dim=1)


@torch.no_grad()
def extreme_partners(
    saliencies: NDArray[Any], high: NDArray[np.bool_] | None, which: Literal["similar", "dissimilar"], *, block: int = BLOCK
) -> RowIndices:
    """Return for every row the row of the other half with the largest (smallest) cosine, of equal ones the first.

    Exact to single precision, in blocks of matrix products: O(N²·K) time, O(N·K + block) memory, never N × N. The most
    dissimilar one is the same few examples for very many rows: those with the most extreme saliency.

    Parameters
    ----------
    saliencies : array of float, shape (N, K)
        One row an example.
    high : array of bool, shape (N,), or None
        The AUM half of each row; None: any other row may be the partner.
    which : {"similar", "dissimilar"}
        Whether the cosine is to be largest or smallest.
    block : int
        Number of cosines in memory at a time.

    Returns
    -------
    array of int, shape (N,)

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> extreme_partners(rows, None, "similar").tolist()
    [1, 0, 1]
    """
    rows = unit_rows(torch.from_numpy(np.ascontiguousarray(saliencies, dtype=np.float32)))
    partner = np.empty(len(rows), dtype=np.int64)
    sign = 1.0 if which == "similar" else -1.0
    everyone = np.arange(len(rows))
    sides = [(everyone, everyone)]
    if high is not None:
        sides = [(everyone[high], everyone[~high]), (everyone[~high], everyone[high])]
    for queries, candidates in sides:
        if not len(candidates) or not len(queries):
            raise InputError("all examples are in one AUM half", remedy="record more epochs: every AUM is the same")
        columns = (sign * rows[candidates]).T.contiguous()
        width = min(len(candidates), max(1, int(block**0.5)))
        height = max(1, block // width)
        for start in range(0, len(queries), height):
            some = queries[start : start + height]
            query = rows[some]
            best = torch.full((len(query),), -torch.inf)
            position = torch.zeros(len(query), dtype=torch.int64)
            for left in range(0, len(candidates), width):
                cosine = query @ columns[:, left : left + width]
                if high is None:  # no example is its own partner
                    cosine[torch.from_numpy(some[:, None] == candidates[left : left + width])] = -torch.inf
                value, column = cosine.max(dim=1)
                better = value > best
                best = torch.where(better, value, best)
                position = torch.where(better, column + left, position)
            partner[some] = candidates[position.numpy()]
    return partner


def build_pairs(
    settings: ViewSettings, dynamics: Dynamics | None, path: str = "", *, only_own: bool = False, seed: int = 0
) -> PairRule:
    """Build the rule that a view's settings name.

    Parameters
    ----------
    settings : ViewSettings
        The settings of the view.
    dynamics : Dynamics or None
        The map, its rows in the order of the training set; only random pairs need none.
    path : str, optional
        Where the view stands in a recipe, for error messages.
    only_own : bool, default False
        Whether partners must be in the same part of a batch (mixing at hidden layers).
    seed : int, default 0
        Decides the division into random halves.

    Returns
    -------
    PairRule

    Raises
    ------
    InputError
        If the rule needs a map that is missing or does not have what it needs.

    Examples
    --------
    >>> build_pairs(ViewSettings(), None)
    RandomPairs(only_own=False)
    """
    where = f"{path}: " if path else ""
    if settings.pairs == "random":
        return RandomPairs(only_own)
    if dynamics is None:
        raise InputError(f"{where}pairs = {settings.pairs!r} needs a map", remedy="record one first")
    if settings.pairs == "regions":
        return _pairs_of_regions(settings, dynamics, where, only_own)
    return _pairs_of_halves(settings, dynamics, where, only_own, seed)


def divide_in_halves(settings: ViewSettings, dynamics: Dynamics, seed: int = 0) -> NDArray[np.bool_]:
    """Return True for the examples of the first half that a view's pairs are made across: high AUM, or a random half.

    Parameters
    ----------
    settings : ViewSettings
        The settings of the view; ``halves`` decides.
    dynamics : Dynamics
        The map.
    seed : int, default 0
        Decides the division at random.

    Returns
    -------
    array of bool, shape (N,)
    """
    return random_halves(dynamics, seed) if settings.halves == "random" else aum_halves(dynamics)


def _pairs_of_regions(settings: ViewSettings, dynamics: Dynamics, where: str, only_own: bool) -> PairRule:
    """Each example of one region of the map with one of the other (Hosseini & Caragea)."""
    rows = regions(dynamics, settings.fraction, disjoint=settings.disjoint)
    for name in settings.regions:
        if len(rows[name]) < 2:
            raise InputError(
                f"{where}the region {name!r} has {len(rows[name])} of {len(dynamics)} examples, too few to pair",
                remedy="raise fraction, or train on more examples",
            )
    first, second = (rows[name] for name in settings.regions)
    group = np.full(len(dynamics), -1, dtype=np.int8)
    group[second] = 1
    group[first] = 0
    return GroupPairs(group, (first, second), in_batch=settings.candidates == "batch" or only_own, only_own=only_own)


def _pairs_of_halves(settings: ViewSettings, dynamics: Dynamics, where: str, only_own: bool, seed: int) -> PairRule:
    """Each example with one of the other half, at random or by saliency (Park & Caragea)."""
    high = divide_in_halves(settings, dynamics, seed)
    if high.all() and not settings.any_half:
        raise InputError(f"{where}all examples have the same AUM, there are no two halves", remedy="record more epochs")
    in_batch = settings.candidates == "batch" or only_own
    members = np.flatnonzero(high), np.flatnonzero(~high)
    if settings.any_half:
        members = np.arange(len(high)), np.arange(len(high))
    at_random = GroupPairs((~high).astype(np.int8), members, in_batch=in_batch, only_own=only_own)
    if settings.pairs == "halves":
        return at_random
    assert settings.pairs in ("similar", "dissimilar")
    if settings.saliency == "logits" and len(dynamics.classes) == 2:
        warnings.warn(
            "with two classes all saliencies have one direction, so partners are drawn at random; "
            "saliency = 'features' tells them apart",
            stacklevel=3,
        )
        return at_random
    recorded = _recorded_saliency(settings, dynamics, where)
    halves = None if settings.any_half else high
    which: Literal["similar", "dissimilar"] = "similar" if settings.pairs == "similar" else "dissimilar"
    if in_batch:
        return SalientPairs(recorded.astype(np.float32), halves, which, settings.saliency)
    return FixedPairs(extreme_partners(recorded, halves, which))


def _recorded_saliency(settings: ViewSettings, dynamics: Dynamics, where: str) -> NDArray[Any]:
    if settings.saliency == "logits":
        return saliency(np.asarray(dynamics.logits), dynamics.labels)
    if dynamics.feature_saliency is None:
        raise InputError(f"{where}the map holds no saliency of features", remedy="add record_features = true to its stage")
    return np.asarray(dynamics.feature_saliency)
