"""Who is mixed with whom: a rule gives each example of a batch a partner, by row of the training set.

A rule is called with the batch and gives ``(partners, keep)``: the row of each example's partner, and whether it has one.
Partners are drawn for the whole step, so that cutting it into parts or between processes changes nothing.
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
from distilcal.dynamics import Dynamics, aum_halves, regions, saliency
from distilcal.errors import InputError
from distilcal.models.network import Output
from distilcal.views.batch import PAIRS, Batch, RowIndices

Partners = tuple[RowIndices, NDArray[np.bool_]]
PairRule = Callable[[Any, Batch, int], Partners]  # network, batch, number of the view
BLOCK = 1 << 20  # cosines at a time: 4 MB


@dataclass(frozen=True)
class RandomPairs:
    """A random permutation of the batch; ``inside`` keeps to the own part of it."""

    inside: bool = False

    def __call__(self, network: Any, batch: Batch, number: int) -> Partners:
        rng = batch.step.rng(PAIRS, number)
        if self.inside:
            own = batch.rows
            return own[rng.permutation(len(own))], np.ones(len(own), dtype=bool)
        rows = batch.step.rows
        return rows[rng.permutation(len(rows))[batch.positions]], np.ones(len(batch.positions), dtype=bool)


@dataclass(frozen=True)
class GroupPairs:
    """Each example of one group with a random one of the other; the rest of the batch has no partner.

    ``group`` (N,) is 0 or 1 where an example of that group asks for a partner, -1 elsewhere; ``members`` are those who may be
    asked.
    """

    group: NDArray[np.int8]
    members: tuple[RowIndices, RowIndices]
    inside: bool = False  # only partners of the same batch
    only_own: bool = False  # of the same part of it

    def __call__(self, network: Any, batch: Batch, number: int) -> Partners:
        rows = batch.rows if self.only_own else batch.step.rows
        rng = batch.step.rng(PAIRS, number)
        draw = rng.random(len(rows))
        partner, keep = rows.copy(), np.zeros(len(rows), dtype=bool)
        for group in (0, 1):
            asked = self.members[1 - group]
            if self.inside:
                asked = rows[np.isin(rows, asked)]
            asking = np.flatnonzero(self.group[rows] == group)
            if not len(asked) or not len(asking):
                continue
            place = (draw[asking] * len(asked)).astype(np.int64)
            chosen = asked[place]
            itself = chosen == rows[asking]  # in both groups: the next one instead
            chosen[itself] = asked[(place[itself] + 1) % len(asked)]
            partner[asking], keep[asking] = chosen, chosen != rows[asking]
        if not self.only_own:
            partner, keep = partner[batch.positions], keep[batch.positions]
        return partner, keep


@dataclass(frozen=True)
class GivenPairs:
    """A partner for every row, known before training."""

    partner: RowIndices  # (N,)

    def __call__(self, network: Any, batch: Batch, number: int) -> Partners:
        own = batch.rows
        return self.partner[own], np.ones(len(own), dtype=bool)


@dataclass(frozen=True)
class SalientPairs:
    """The most (dis)similar example of the batch in the other AUM half, by the cosine of saliencies.

    The saliency of the asking example is the recorded one, that of the candidates is of this moment, as in P001's code.
    """

    stored: NDArray[np.float32]  # (N, K) or (N, D)
    high: NDArray[np.bool_] | None  # (N,); None: in any half
    which: Literal["similar", "dissimilar"]
    level: Literal["logits", "features"]

    def __call__(self, network: Any, batch: Batch, number: int) -> Partners:
        own = batch.rows
        device = batch.labels.device
        query = torch.from_numpy(self.stored[own]).to(device)
        now = current_saliency(network, batch.run_plain(network), batch.labels, self.level)
        cosine = unit(query) @ unit(now.to(query.dtype)).T
        sides = own if self.high is None else self.high[own]
        apart = torch.from_numpy(sides[:, None] != sides[None]).to(device)
        worst = -torch.inf if self.which == "similar" else torch.inf
        cosine = torch.where(apart, cosine, worst)
        place = cosine.argmax(dim=1) if self.which == "similar" else cosine.argmin(dim=1)
        keep = apart.any(dim=1).cpu().numpy()
        return np.where(keep, own[place.cpu().numpy()], own), keep


@torch.no_grad()
def current_saliency(network: Any, said: Output, labels: Tensor, level: Literal["logits", "features"]) -> Tensor:
    """What a dynamics table has for the last epoch, of this moment: ``|softmax(z) − y|``, or |feature · gradient at it|.

    The plain gradient at the features would not do: with two classes it is the same direction for all.
    """
    p = torch.softmax(said.logits.detach().float(), dim=1)
    label = labels[:, None]
    p = p.scatter(1, label, 0.0)
    wrong = p.sum(dim=1, keepdim=True)  # 1 − p of the label, exact where it is tiny
    if level == "logits":
        return p.scatter(1, label, wrong)
    gradient = p.scatter(1, label, -wrong)  # (N, K)
    features = said.features.detach().float()
    weight = getattr(network, "module", network).output.weight.detach().float()
    if features.dim() == 3:  # multiple choice: one score per ending
        weighted: Tensor = features * gradient[..., None] * weight[0]
    else:
        weighted = features * (gradient @ weight)
    return weighted.abs().flatten(1)


def unit(rows: Tensor) -> Tensor:
    """RowIndices of length 1. Each is first divided by its largest entry, so that tiny ones keep their direction."""
    return normalize(rows / rows.amax(dim=1, keepdim=True).clamp(min=1e-38), dim=1)


@torch.no_grad()
def extreme_partners(
    saliencies: NDArray[Any], high: NDArray[np.bool_] | None, which: Literal["similar", "dissimilar"], *, block: int = BLOCK
) -> RowIndices:
    """For every row the row of the other half (without halves: any other) of largest (smallest) cosine, of equals the first.

    Over all of them, to single precision, in blocks of matrix products: O(N²·K) time, O(N·K + block) memory, never N × N.
    The most dissimilar is the same few examples for very many: those with the most extreme saliency.
    """
    rows = unit(torch.from_numpy(np.ascontiguousarray(saliencies, dtype=np.float32)))
    partner = np.empty(len(rows), dtype=np.int64)
    sign = 1.0 if which == "similar" else -1.0
    everyone = np.arange(len(rows))
    sides = [(everyone, everyone)]
    if high is not None:
        sides = [(everyone[high], everyone[~high]), (everyone[~high], everyone[high])]
    for asking, asked in sides:
        if not len(asked) or not len(asking):
            raise InputError("all examples are in one AUM half", remedy="record more epochs: every AUM is the same")
        candidates = (sign * rows[asked]).T.contiguous()
        width = min(len(asked), max(1, int(block**0.5)))
        height = max(1, block // width)
        for i in range(0, len(asking), height):
            query = rows[asking[i : i + height]]
            best = torch.full((len(query),), -torch.inf)
            place = torch.zeros(len(query), dtype=torch.int64)
            for j in range(0, len(asked), width):
                cosine = query @ candidates[:, j : j + width]
                if high is None:  # nobody is his own partner
                    cosine[torch.from_numpy(asking[i : i + height, None] == asked[j : j + width])] = -torch.inf
                value, where = cosine.max(dim=1)
                better = value > best
                best = torch.where(better, value, best)
                place = torch.where(better, where + j, place)
            partner[asking[i : i + height]] = asked[place.numpy()]
    return partner


def build_pairs(settings: ViewSettings, dynamics: Dynamics | None, path: str = "", *, inside: bool = False) -> PairRule:
    """The rule that a view's settings name; ``inside`` keeps partners to the own part of a batch (mixing at hidden layers)."""
    where = f"{path}: " if path else ""
    in_batch = settings.candidates == "batch"
    if settings.pairs == "random":
        return RandomPairs(inside)
    if dynamics is None:
        raise InputError(f"{where}pairs = {settings.pairs!r} needs a map", remedy="record one first")
    if settings.pairs == "regions":
        found = regions(dynamics, settings.fraction, disjoint=settings.disjoint)
        first, second = (found[name] for name in settings.regions)
        for name, members in zip(settings.regions, (first, second), strict=True):
            if len(members) < 2:
                raise InputError(
                    f"{where}the region {name!r} has {len(members)} of {len(dynamics)} examples, too few to pair",
                    remedy="raise fraction, or train on more examples",
                )
        group = np.full(len(dynamics), -1, dtype=np.int8)
        group[second] = 1
        group[first] = 0
        return GroupPairs(group, (first, second), in_batch or inside, inside)
    high = aum_halves(dynamics)
    if high.all() and not settings.any_half:
        raise InputError(f"{where}all examples have the same AUM, there are no two halves", remedy="record more epochs")
    sides = np.flatnonzero(high), np.flatnonzero(~high)
    if settings.any_half:
        sides = np.arange(len(high)), np.arange(len(high))
    in_other_half = GroupPairs((~high).astype(np.int8), sides, in_batch or inside, inside)
    if settings.pairs == "halves":
        return in_other_half
    if settings.saliency == "logits" and len(dynamics.classes) == 2:
        warnings.warn(
            "with two classes all saliencies have one direction, so partners are drawn at random; "
            "saliency = 'features' tells them apart",
            stacklevel=2,
        )
        return in_other_half
    stored = np.asarray(dynamics.feature_saliency) if settings.saliency == "features" else None
    if settings.saliency == "features" and dynamics.feature_saliency is None:
        raise InputError(f"{where}the map holds no saliency of features", remedy="add record_features = true to its stage")
    if stored is None:
        stored = saliency(np.asarray(dynamics.logits), dynamics.labels)
    halves = None if settings.any_half else high
    if in_batch or inside:
        return SalientPairs(stored.astype(np.float32), halves, settings.pairs, settings.saliency)
    return GivenPairs(extreme_partners(stored, halves, settings.pairs))
