"""Views that change what the student sees: mixup, manifold mixup, CutMix, cutout.

A view is made once for a stage (``build_view``) and called with the network and a batch. It costs one forward pass of the
student at most: what the plain pass said is shared. To add one: a branch in ``Mixing.__call__`` and a kind in ``ViewSettings``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from distilcal.config.schema import ViewSettings
from distilcal.dynamics import Dynamics, aum_halves
from distilcal.errors import InputError
from distilcal.models.network import Mix, Output, Tensors, lerp
from distilcal.views.batch import CROPS, LAMBDA, PAIRS, Batch, RowIndices, View
from distilcal.views.pairs import PairRule, SalientPairs, build_pairs

TEACHERS = frozenset({"teacher_logits", "teacher_features"})
PARTS = 4  # into which partners of different lengths are sorted
WORTHWHILE = 0.9  # of the padded tokens left, at most, for it to pay
USUAL_ALPHA = {"mixup": 0.4, "manifold": 0.4, "cutmix": 1.0}  # of P000 to P002


@dataclass(frozen=True)
class Mixing:
    """A view in which examples are mixed with partners, or lose a part of themselves."""

    settings: ViewSettings
    pairs: PairRule
    classes: int
    number: int = 0  # among the views of its stage: each draws partners of its own
    high: Any = None  # (N,) AUM half of each row, for variant = "author_code"

    @property
    def drops_rows(self) -> bool:
        """Whether rows may stay without a partner and out of the view."""
        s = self.settings
        in_batch = s.candidates == "batch" or bool(s.layers)
        return s.kind != "cutout" and (s.pairs == "regions" or (s.pairs != "random" and in_batch))

    def describe(self) -> dict[str, Any]:
        """What decides what it does, for hashes."""
        rule = {f.name: _hashed(getattr(self.pairs, f.name)) for f in fields(self.pairs)}  # type: ignore[arg-type]
        return {**self.settings.model_dump(), "number": self.number, "pairs_by": type(self.pairs).__name__, **rule}

    @property
    def needs_live_teacher(self) -> bool:
        """Whether its teacher must be run on what the student sees."""
        return self.settings.teacher == "mixed"

    def __call__(self, network: Any, batch: Batch) -> View:
        s = self.settings
        if s.kind == "cutout":
            return self._cut_out(network, batch)
        drawn = self._drawn(batch)
        share = torch.from_numpy(drawn[batch.positions]).to(batch.labels.device)
        rows, keep = self.pairs(network, batch, self.number)
        if (drawn == 1).all():  # nobody in this step is mixed: what the plain pass said
            taught = self._taught(batch, batch, share, batch.inputs, None)
            return self._view(batch, batch, share, batch.run_plain(network), keep, taught)
        share = torch.where(torch.from_numpy(keep).to(share.device), share, torch.ones_like(share))
        if s.kind == "manifold":
            layer = self._layer(batch)
            if layer is None:
                return self._at_features(network, batch, rows, keep, share)
            if layer > 0:
                return self._at_layer(network, batch, rows, keep, share, layer)
        return self._at_input(network, batch, rows, keep, share)

    # ---- draws ---------------------------------------------------------------------------------------------------------

    def _drawn(self, batch: Batch) -> NDArray[np.float32]:
        """The share of each example of the whole step in its mix: views of a step draw it alike."""
        s = self.settings
        rng = batch.step.rng(LAMBDA)
        changed = rng.random() < s.probability
        count = len(batch.step.rows)
        alpha = s.alpha if s.alpha is not None else USUAL_ALPHA[s.kind]
        if not changed or alpha == 0:
            drawn = np.ones(count)
        else:
            drawn = np.broadcast_to(rng.beta(alpha, alpha, size=count if s.shares == "sample" else 1), count)
        return drawn.astype(np.float32)

    def _shares(self, batch: Batch) -> Tensor:
        """The share of each example of the batch (N,)."""
        return torch.from_numpy(self._drawn(batch)[batch.positions])

    def _layer(self, batch: Batch) -> int | None:
        layers = self.settings.layers
        return int(batch.step.rng(PAIRS, self.number, 1).choice(layers)) if layers else None

    # ---- places --------------------------------------------------------------------------------------------------------

    def _at_input(self, network: Any, batch: Batch, rows: RowIndices, keep: Any, share: Tensor) -> View:
        other = self._partners(batch, rows)
        mix: Mix | None = None
        inputs: Tensors
        if self.settings.kind == "cutmix":
            inside, share = self._boxes(batch, share)
            inputs = {"pixels": torch.where(inside, other.inputs["pixels"], batch.inputs["pixels"])}
        elif "input_ids" in batch.inputs:
            inputs, mix = batch.inputs, Mix(share, other=other.inputs)
        else:
            inputs = {name: lerp(value, other.inputs[name], share) for name, value in batch.inputs.items()}
        said = network(inputs) if mix is None else network(inputs, mix=mix)
        return self._view(batch, other, share, said, keep, self._taught(batch, other, share, inputs, mix))

    def _at_layer(self, network: Any, batch: Batch, rows: RowIndices, keep: Any, share: Tensor, layer: int) -> View:
        index = _positions(batch, rows)
        assert index is not None  # rules for hidden layers keep to the batch
        other = batch.select(index)
        said = network(batch.inputs, mix=Mix(share, layer, partner=index))
        return self._view(batch, other, share, said, keep, self._taught(batch, other, share, None, None))

    def _at_features(self, network: Any, batch: Batch, rows: RowIndices, keep: Any, share: Tensor) -> View:
        """Mixed features; the head is linear, so the mixed logits are its answer to them."""
        own = batch.run_plain(network)
        index = self._places(batch, rows)
        if index is not None:
            other = batch.select(index)
            theirs = Output(own.logits.index_select(0, index), own.features.index_select(0, index))
        else:
            # Only those who have a partner need one to go through the network; at least one, which keeps processes in step.
            asking = np.flatnonzero(keep) if keep.any() else np.zeros(1, dtype=np.int64)
            fetched = self._load_partners(batch, rows[asking])
            places = torch.from_numpy(np.searchsorted(asking, np.arange(len(rows))).clip(max=len(asking) - 1))
            places = places.to(batch.labels.device)  # of those without a partner any: their share is 1
            answer = _by_length(network, fetched.inputs)
            theirs = Output(answer.logits.index_select(0, places), answer.features.index_select(0, places))
            other = fetched.select(places)
        said = Output(lerp(own.logits, theirs.logits, share), lerp(own.features, theirs.features, share))
        return self._view(batch, other, share, said, keep, self._taught(batch, other, share, None, None))

    def _cut_out(self, network: Any, batch: Batch) -> View:
        if batch.step.rng(LAMBDA).random() >= self.settings.probability:
            said, taught = batch.run_plain(network), _teacher_of(batch)
        else:
            pixels = batch.inputs["pixels"]
            rng = self._rng(batch)
            height, width = pixels.shape[2:]
            inside = torch.zeros(len(pixels), 1, height, width, dtype=torch.bool)
            for _ in range(self.settings.holes):
                centre = rng.integers((height, width), size=(len(batch.step.rows), 2))[batch.positions]
                half = self.settings.length // 2
                inside |= box_mask(centre - half, centre + half, height, width)
            inputs = {"pixels": pixels.masked_fill(inside.to(pixels.device), 0.0)}  # 0 is the mean: images are normalised
            said = network(inputs)
            taught = self._taught(batch, batch, torch.ones(len(pixels)), inputs, None)
        return View(said.logits, said.features, batch.labels, batch.targets, batch.ids, **taught)

    # ---- parts ---------------------------------------------------------------------------------------------------------

    def _rng(self, batch: Batch) -> np.random.Generator:
        return batch.step.rng(PAIRS, self.number, 2)

    def _boxes(self, batch: Batch, share: Tensor) -> tuple[Tensor, Tensor]:
        """Where the partner is pasted in (N, 1, H, W), and the share that the example keeps of its own area."""
        height, width = batch.inputs["pixels"].shape[2:]
        centre = self._rng(batch).integers((height, width), size=(len(batch.step.rows), 2))
        centre = centre[batch.positions if self.settings.shares == "sample" else np.zeros_like(batch.positions)]
        low, high, left = boxes(share.cpu().numpy(), centre, height, width)
        inside = box_mask(low, high, height, width) & (share < 1).cpu().view(-1, 1, 1, 1)
        left_share = torch.from_numpy(left.astype(np.float32)).to(share.device)
        return inside.to(share.device), torch.where(share < 1, left_share, share)

    def _partners(self, batch: Batch, rows: RowIndices) -> Batch:
        index = self._places(batch, rows)
        return batch.select(index) if index is not None else self._load_partners(batch, rows)

    def _places(self, batch: Batch, rows: RowIndices) -> Tensor | None:
        """Where the partners stand in the batch, if it holds them all.

        Of a part of a step only if its rule keeps to the part: processes must make as many passes as each other.
        """
        whole = len(batch.positions) == len(batch.step.rows)
        return _positions(batch, rows) if whole or isinstance(self.pairs, SalientPairs) else None

    def _load_partners(self, batch: Batch, rows: RowIndices) -> Batch:
        assert batch.load_rows is not None
        seed = int(batch.step.rng(CROPS, self.number).integers(1 << 31))
        return batch.load_rows(rows, seed, bool(batch.required_inputs & TEACHERS))

    def _taught(
        self, batch: Batch, other: Batch, share: Tensor, inputs: Tensors | None, mix: Mix | None
    ) -> dict[str, Tensor | None]:
        """The teacher's word: on what the student sees, or its probabilities for the two clean examples, mixed as they are."""
        if not batch.required_inputs & TEACHERS:
            return {}
        if self.settings.teacher == "mixed":
            if batch.run_teacher is None or inputs is None:
                raise InputError(
                    "teacher = 'mixed' needs a live teacher, and examples mixed at the input", remedy="use 'clean'"
                )
            return dict(batch.run_teacher(inputs, mix))
        if other is batch:
            return _teacher_of(batch)
        said: dict[str, Tensor | None] = {}
        if batch.teacher_logits is not None and other.teacher_logits is not None:
            # A mix of probabilities, as logits: log(λ p + (1 − λ) q)
            own = log_softmax(batch.teacher_logits.float(), dim=1) + share[:, None].log()
            theirs = log_softmax(other.teacher_logits.float(), dim=1) + (1 - share[:, None]).log()
            said["teacher_logits"] = torch.logaddexp(own, theirs)
        if batch.teacher_features is not None and other.teacher_features is not None:
            said["teacher_features"] = lerp(batch.teacher_features, other.teacher_features, share)
        return said

    def _view(
        self, batch: Batch, other: Batch, share: Tensor, said: Output, keep: Any, taught: dict[str, Tensor | None]
    ) -> View:
        own, theirs = (_distributions(b.targets, self.classes) for b in (batch, other))
        if self.settings.variant == "author_code" and self.high is not None:
            theirs = self._overwritten(batch, theirs)
        targets = lerp(own, theirs, share)
        labels = torch.where(share >= 0.5, batch.labels, other.labels)
        counted = torch.from_numpy(keep).to(labels.device) if self.drops_rows else None
        return View(said.logits, said.features, labels, targets, batch.ids, **taught, keep=counted)

    def _overwritten(self, batch: Batch, theirs: Tensor) -> Tensor:
        """P001's released code gives a whole side the last partner's label: high AUM when similar, low when dissimilar."""
        high = self.high[batch.rows]
        side = np.flatnonzero(high if self.settings.pairs == "similar" else ~high)
        if not len(side):
            return theirs
        source = np.arange(len(high))
        source[side] = side[-1]
        return theirs[torch.from_numpy(source).to(theirs.device)]


def boxes(share: Any, centre: Any, height: int, width: int) -> tuple[Any, Any, Any]:
    """CutMix's boxes ``[low, high)`` (N, 2), clipped to the image, and the share of the area outside of each (N,)."""
    side = np.sqrt(1.0 - np.asarray(share, dtype=np.float64))[:, None]
    size = np.array([height, width])
    half = (size * side).astype(np.int64) // 2
    low, high = (centre - half).clip(0, size), (centre + half).clip(0, size)
    area = (high - low).prod(axis=1)
    return low, high, 1.0 - area / (height * width)


def box_mask(low: Any, high: Any, height: int, width: int) -> Tensor:
    """True inside the boxes ``[low, high)`` (N, 2): (N, 1, H, W)."""
    (top, left), (bottom, right) = np.asarray(low).T, np.asarray(high).T
    row, column = np.arange(height), np.arange(width)
    down = (row >= top[:, None]) & (row < bottom[:, None])
    across = (column >= left[:, None]) & (column < right[:, None])
    return torch.from_numpy((down[:, :, None] & across[:, None, :])[:, None])


def _positions(batch: Batch, rows: RowIndices) -> Tensor | None:
    """Where these rows stand in the batch; None if one of them does not."""
    own = batch.rows
    order = np.argsort(own, kind="stable")
    place = order[np.searchsorted(own, rows, sorter=order).clip(max=len(own) - 1)]
    return torch.from_numpy(place).to(batch.labels.device) if (own[place] == rows).all() else None


def _by_length(network: Any, inputs: Tensors) -> Output:
    """What the network says, texts of like length together: partners are of all lengths, and padding costs as much as words."""
    mask = inputs.get("attention_mask")
    whole: Output
    if mask is None or len(mask) < 2 * PARTS or hasattr(network, "module"):  # of several processes each must make one pass
        whole = network(inputs)
        return whole
    lengths = mask.sum(dim=-1).view(len(mask), -1).amax(dim=1)
    order = lengths.argsort()
    parts = [(rows, int(lengths[rows[-1]])) for rows in order.tensor_split(PARTS)]
    if sum(len(rows) * longest for rows, longest in parts) > WORTHWHILE * mask.shape[-1] * len(mask):
        whole = network(inputs)
        return whole
    said = [network({name: value[rows][..., :longest] for name, value in inputs.items()}) for rows, longest in parts]
    back = order.argsort()
    return Output(*(torch.cat(values)[back] for values in zip(*said, strict=True)))


def _distributions(targets: Tensor, classes: int) -> Tensor:
    return one_hot(targets, classes).float() if targets.dim() == 1 else targets


def _teacher_of(batch: Batch) -> dict[str, Tensor | None]:
    return {"teacher_logits": batch.teacher_logits, "teacher_features": batch.teacher_features}


def build_view(
    settings: ViewSettings, classes: int, dynamics: Dynamics | None = None, *, number: int = 0, path: str = ""
) -> Mixing:
    """The view that settings describe; ``dynamics`` (rows in the order of the training set) where its pairs need a map."""
    hidden = any(layer > 0 for layer in settings.layers)
    rule = build_pairs(settings, dynamics, path, inside=hidden)
    high = aum_halves(dynamics) if settings.variant == "author_code" and dynamics is not None else None
    return Mixing(settings, rule, classes, number, high)


def _hashed(value: Any) -> Any:
    """What tells one rule from another: arrays by their bytes."""
    if isinstance(value, tuple):
        return [_hashed(part) for part in value]
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest() if isinstance(value, np.ndarray) else value
