"""Views that change what the student sees: mixup, manifold mixup, CutMix, cutout.

A view is built once for a stage (`build_view`) and called with the network and a batch. It costs at most one forward pass of
the student: the output on the unchanged batch is shared. To add one: a branch in ``Mixing.__call__`` and a kind in
``ViewSettings``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from distilcal.config.schema import ViewSettings
from distilcal.dynamics import Dynamics
from distilcal.errors import InputError
from distilcal.models.network import Mix, Output, Tensors, lerp
from distilcal.views.batch import CROPS, LAMBDA, PAIRS, Batch, RowIndices, View
from distilcal.views.pairs import PairRule, SalientPairs, build_pairs, divide_in_halves

TEACHER_FIELDS = frozenset({"teacher_logits", "teacher_features"})
LENGTH_PARTS = 4  # into which partners of different lengths are sorted
MAX_TOKEN_SHARE = 0.9  # of the padded tokens: if sorting leaves more than that, it does not pay
DEFAULT_ALPHA = {"mixup": 0.4, "manifold": 0.4, "cutmix": 1.0}  # of the papers


class _Pairing(NamedTuple):
    """What is mixed with what in a batch."""

    partners: RowIndices  # (N,) rows of the training set
    has_partner: NDArray[np.bool_]  # (N,)
    share: Tensor  # (N,) λ, the share that an example keeps of itself; 1 without a partner


@dataclass(frozen=True)
class Mixing:
    """A view in which examples are mixed with partners, or lose a part of themselves; `build_view` builds one.

    Attributes
    ----------
    settings : ViewSettings
        What is mixed where, and how much.
    pairs : PairRule
        Which example is mixed with which.
    classes : int
        Number of classes.
    number : int
        Number of the view in its stage: each view draws partners of its own.
    high : array of bool, shape (N,), or None
        The AUM half of each row, for ``variant = "author_code"``.
    """

    settings: ViewSettings
    pairs: PairRule
    classes: int
    number: int = 0
    high: NDArray[np.bool_] | None = None

    @property
    def drops_rows(self) -> bool:
        """Whether rows may have no partner and be left out of the view."""
        settings = self.settings
        if settings.kind == "cutout" or settings.pairs == "random":
            return False
        in_batch = settings.candidates == "batch" or bool(settings.layers)
        return settings.pairs == "regions" or in_batch

    @property
    def needs_map(self) -> bool:
        """Whether partners come from a map, which has labelled examples only."""
        return self.settings.pairs != "random"

    @property
    def needs_live_teacher(self) -> bool:
        """Whether the teacher must be run on what the student sees."""
        return self.settings.teacher == "mixed"

    def describe(self) -> dict[str, Any]:
        """Return everything that decides what the view does, for hashes."""
        rule = {f.name: _hash_arrays(getattr(self.pairs, f.name)) for f in fields(self.pairs)}  # type: ignore[arg-type]
        return {**self.settings.model_dump(), "number": self.number, "pairs_by": type(self.pairs).__name__, **rule}

    def __call__(self, network: Any, batch: Batch) -> View:
        """Return the view of a batch: changed examples, their targets and the teacher's outputs on them."""
        if self.settings.kind == "cutout":
            return self._cut_out(network, batch)
        drawn = self._draw_shares(batch)
        share = torch.from_numpy(drawn[batch.positions]).to(batch.labels.device)
        partners, has_partner = self.pairs(network, batch, self.number)
        if (drawn == 1).all():  # nothing is mixed in this step: the output on the unchanged batch
            pairing = _Pairing(partners, has_partner, share)
            teacher = self._teacher_outputs(batch, batch, share, batch.inputs)
            return self._build_view(batch, batch, pairing, batch.run_plain(network), teacher)
        share = torch.where(torch.from_numpy(has_partner).to(share.device), share, torch.ones_like(share))
        pairing = _Pairing(partners, has_partner, share)
        if self.settings.kind == "manifold":
            layer = self._draw_layer(batch)
            if layer is None:
                return self._mix_features(network, batch, pairing)
            if layer > 0:
                return self._mix_layer(network, batch, pairing, layer)
        return self._mix_inputs(network, batch, pairing)

    # ---- random numbers ------------------------------------------------------------------------------------------------

    def _draw_shares(self, batch: Batch) -> NDArray[np.float32]:
        """λ of each example of the whole step: all views of a step draw the same."""
        settings = self.settings
        rng = batch.step.rng(LAMBDA)
        count = len(batch.step.rows)
        is_mixed = rng.random() < settings.probability
        alpha = DEFAULT_ALPHA[settings.kind] if settings.alpha is None else settings.alpha
        if not is_mixed or alpha == 0:
            return np.ones(count, dtype=np.float32)
        draws = count if settings.shares == "sample" else 1
        return np.broadcast_to(rng.beta(alpha, alpha, size=draws), count).astype(np.float32)

    def shares(self, batch: Batch) -> Tensor:
        """Return λ of each example of the batch (N,), as drawn."""
        return torch.from_numpy(self._draw_shares(batch)[batch.positions])

    def _draw_layer(self, batch: Batch) -> int | None:
        layers = self.settings.layers
        return int(batch.step.rng(PAIRS, self.number, 1).choice(layers)) if layers else None

    def _rng_of_boxes(self, batch: Batch) -> np.random.Generator:
        return batch.step.rng(PAIRS, self.number, 2)

    # ---- where examples are mixed --------------------------------------------------------------------------------------

    def _mix_inputs(self, network: Any, batch: Batch, pairing: _Pairing) -> View:
        other = self._partners(batch, pairing.partners)
        mix: Mix | None = None
        inputs: Tensors
        if self.settings.kind == "cutmix":
            inside, share = self._draw_boxes(batch, pairing.share)
            pairing = pairing._replace(share=share)
            inputs = {"pixels": torch.where(inside, other.inputs["pixels"], batch.inputs["pixels"])}
        elif "input_ids" in batch.inputs:  # token numbers cannot be mixed: the network mixes their embeddings
            inputs, mix = batch.inputs, Mix(pairing.share, other=other.inputs)
        else:
            inputs = {name: lerp(value, other.inputs[name], pairing.share) for name, value in batch.inputs.items()}
        output = network(inputs) if mix is None else network(inputs, mix=mix)
        teacher = self._teacher_outputs(batch, other, pairing.share, inputs, mix)
        return self._build_view(batch, other, pairing, output, teacher)

    def _mix_layer(self, network: Any, batch: Batch, pairing: _Pairing, layer: int) -> View:
        index = _positions_in_batch(batch, pairing.partners)
        assert index is not None  # rules for hidden layers keep to the batch
        other = batch.select(index)
        output = network(batch.inputs, mix=Mix(pairing.share, layer, partner=index))
        return self._build_view(batch, other, pairing, output, self._teacher_outputs(batch, other, pairing.share))

    def _mix_features(self, network: Any, batch: Batch, pairing: _Pairing) -> View:
        """Mix features; the head is linear, so it gives the mixed logits."""
        share = pairing.share
        own = batch.run_plain(network)
        index = self._partner_positions(batch, pairing.partners)
        if index is not None:
            other = batch.select(index)
            partner_output = _select_output(own, index)
        else:
            # Only examples that are mixed need their partner's features. At least one partner goes through the network, so
            # that all processes make the same number of passes.
            mixed = np.flatnonzero(pairing.has_partner)
            if not len(mixed):
                mixed = np.zeros(1, dtype=np.int64)
            loaded = self._load_partners(batch, pairing.partners[mixed])
            # An example without a partner gets any of them: its share is 1.
            nearest = np.searchsorted(mixed, np.arange(len(pairing.partners))).clip(max=len(mixed) - 1)
            index = torch.from_numpy(nearest).to(batch.labels.device)
            other = loaded.select(index)
            partner_output = _select_output(run_by_length(network, loaded.inputs), index)
        logits = lerp(own.logits, partner_output.logits, share)
        features = lerp(own.features, partner_output.features, share)
        return self._build_view(batch, other, pairing, Output(logits, features), self._teacher_outputs(batch, other, share))

    def _cut_out(self, network: Any, batch: Batch) -> View:
        if batch.step.rng(LAMBDA).random() >= self.settings.probability:
            output, teacher = batch.run_plain(network), _own_teacher_outputs(batch)
        else:
            pixels = batch.inputs["pixels"]
            rng = self._rng_of_boxes(batch)
            height, width = pixels.shape[2:]
            inside = torch.zeros(len(pixels), 1, height, width, dtype=torch.bool)
            for _ in range(self.settings.holes):
                centre = rng.integers((height, width), size=(len(batch.step.rows), 2))[batch.positions]
                half = self.settings.length // 2
                inside |= box_mask(centre - half, centre + half, height, width)
            inputs = {"pixels": pixels.masked_fill(inside.to(pixels.device), 0.0)}  # 0 is the mean: images are normalised
            output = network(inputs)
            teacher = self._teacher_outputs(batch, batch, torch.ones(len(pixels)), inputs)
        return View(output.logits, output.features, batch.labels, batch.targets, batch.ids, **teacher)

    # ---- partners ------------------------------------------------------------------------------------------------------

    def _partners(self, batch: Batch, rows: RowIndices) -> Batch:
        index = self._partner_positions(batch, rows)
        return self._load_partners(batch, rows) if index is None else batch.select(index)

    def _partner_positions(self, batch: Batch, rows: RowIndices) -> Tensor | None:
        """The positions of the partners in the batch, or None if they must be loaded.

        A part of a step loads its partners even if it happens to hold them, unless its rule keeps to the part: processes must
        make the same number of forward passes.
        """
        is_whole_step = len(batch.positions) == len(batch.step.rows)
        if is_whole_step or isinstance(self.pairs, SalientPairs):
            return _positions_in_batch(batch, rows)
        return None

    def _load_partners(self, batch: Batch, rows: RowIndices) -> Batch:
        assert batch.load_rows is not None
        seed = int(batch.step.rng(CROPS, self.number).integers(1 << 31))
        return batch.load_rows(rows, seed, bool(batch.required_inputs & TEACHER_FIELDS))

    def _draw_boxes(self, batch: Batch, share: Tensor) -> tuple[Tensor, Tensor]:
        """Where the partner is pasted in (N, 1, H, W), and the share that the example keeps of its own area (N,)."""
        height, width = batch.inputs["pixels"].shape[2:]
        centre = self._rng_of_boxes(batch).integers((height, width), size=(len(batch.step.rows), 2))
        one_per_example = self.settings.shares == "sample"
        centre = centre[batch.positions if one_per_example else np.zeros_like(batch.positions)]
        low, high, area_share = boxes(share.cpu().numpy(), centre, height, width)
        is_mixed = share < 1
        inside = box_mask(low, high, height, width) & is_mixed.cpu().view(-1, 1, 1, 1)
        kept_share = torch.from_numpy(area_share.astype(np.float32)).to(share.device)
        return inside.to(share.device), torch.where(is_mixed, kept_share, share)

    # ---- teacher and targets -------------------------------------------------------------------------------------------

    def _teacher_outputs(
        self, batch: Batch, other: Batch, share: Tensor, inputs: Tensors | None = None, mix: Mix | None = None
    ) -> dict[str, Tensor | None]:
        """The teacher's outputs on what the student sees, or its probabilities on the two clean examples, mixed by λ."""
        if not batch.required_inputs & TEACHER_FIELDS:
            return {}
        if self.settings.teacher == "mixed":
            if batch.run_teacher is None or inputs is None:
                raise InputError(
                    "teacher = 'mixed' needs a live teacher, and examples mixed at the input", remedy="use 'clean'"
                )
            return dict(batch.run_teacher(inputs, mix))
        if other is batch:
            return _own_teacher_outputs(batch)
        mixed: dict[str, Tensor | None] = {}
        if batch.teacher_logits is not None and other.teacher_logits is not None:
            # A mix of probabilities, as logits: log(λ p + (1 − λ) q)
            own_log_probs = log_softmax(batch.teacher_logits.float(), dim=1) + share[:, None].log()
            other_log_probs = log_softmax(other.teacher_logits.float(), dim=1) + (1 - share[:, None]).log()
            mixed["teacher_logits"] = torch.logaddexp(own_log_probs, other_log_probs)
        if batch.teacher_features is not None and other.teacher_features is not None:
            mixed["teacher_features"] = lerp(batch.teacher_features, other.teacher_features, share)
        return mixed

    def _build_view(
        self, batch: Batch, other: Batch, pairing: _Pairing, output: Output, teacher: dict[str, Tensor | None]
    ) -> View:
        own_targets = _as_distributions(batch.targets, self.classes)
        other_targets = _as_distributions(other.targets, self.classes)
        if self.settings.variant == "author_code" and self.high is not None:
            other_targets = self._overwrite_targets(batch, other_targets, self.high)
        labels = torch.where(pairing.share >= 0.5, batch.labels, other.labels)
        labels = torch.where((batch.labels < 0) | (other.labels < 0), -1, labels)
        keep = torch.from_numpy(pairing.has_partner).to(labels.device) if self.drops_rows else None
        return View(
            logits=output.logits,
            features=output.features,
            labels=labels,
            targets=lerp(own_targets, other_targets, pairing.share),
            ids=batch.ids,
            **teacher,
            keep=keep,
        )

    def _overwrite_targets(self, batch: Batch, other_targets: Tensor, high: NDArray[np.bool_]) -> Tensor:
        """Park & Caragea's code gives a whole side the last partner's label: high AUM when similar, low when dissimilar."""
        is_high = high[batch.rows]
        side = np.flatnonzero(is_high if self.settings.pairs == "similar" else ~is_high)
        if not len(side):
            return other_targets
        source = np.arange(len(is_high))
        source[side] = side[-1]
        return other_targets[torch.from_numpy(source).to(other_targets.device)]


def boxes(share: Any, centre: Any, height: int, width: int) -> tuple[Any, Any, Any]:
    """Return CutMix's boxes, clipped to the image.

    Parameters
    ----------
    share : array of float, shape (N,)
        λ: an unclipped box covers 1 − λ of the image.
    centre : array of int, shape (N, 2)
        Row and column of each box's centre.
    height, width : int
        Size of the images in pixels.

    Returns
    -------
    low, high : array of int, shape (N, 2)
        The boxes ``[low, high)``.
    outside : array of float, shape (N,)
        The share of the area outside of each box: λ after clipping.

    Examples
    --------
    >>> low, high, outside = boxes([0.75], np.array([[0, 4]]), 8, 8)
    >>> low.tolist(), high.tolist(), outside.tolist()
    ([[0, 2]], [[2, 6]], [0.875])
    """
    side = np.sqrt(1.0 - np.asarray(share, dtype=np.float64))[:, None]
    size = np.array([height, width])
    half = (size * side).astype(np.int64) // 2
    low, high = (centre - half).clip(0, size), (centre + half).clip(0, size)
    area = (high - low).prod(axis=1)
    return low, high, 1.0 - area / (height * width)


def box_mask(low: Any, high: Any, height: int, width: int) -> Tensor:
    """Return a mask that is True inside boxes, one per image.

    Parameters
    ----------
    low, high : array-like of int, shape (N, 2)
        Row and column, in pixels, of the first corner, and of the opposite one, which is outside the box.
    height, width : int
        Size of the images in pixels.

    Returns
    -------
    Tensor of bool, shape (N, 1, H, W)
        The mask.

    Examples
    --------
    >>> int(box_mask([[0, 2]], [[2, 6]], 8, 8).sum())
    8
    """
    (top, left), (bottom, right) = np.asarray(low).T, np.asarray(high).T
    row, column = np.arange(height), np.arange(width)
    in_rows = (row >= top[:, None]) & (row < bottom[:, None])
    in_columns = (column >= left[:, None]) & (column < right[:, None])
    return torch.from_numpy((in_rows[:, :, None] & in_columns[:, None, :])[:, None])


def run_by_length(network: Any, inputs: Tensors) -> Output:
    """Run the network on texts of like length together, where that saves enough padding.

    Partners are of all lengths, and padding costs as much as words.

    Parameters
    ----------
    network : callable
        The network, from inputs to an `Output`.
    inputs : mapping of str to Tensor, shape (N, ..., L)
        Tokens with their ``attention_mask``; without a mask the network is run once on all rows.

    Returns
    -------
    Output
        Logits and features of the N rows, in their order.
    """
    mask = inputs.get("attention_mask")
    # Under several processes (a wrapped network) each must make exactly one pass.
    if mask is None or len(mask) < 2 * LENGTH_PARTS or hasattr(network, "module"):
        return Output(*network(inputs))
    lengths = mask.sum(dim=-1).view(len(mask), -1).amax(dim=1)
    order = lengths.argsort()
    parts = [(rows, int(lengths[rows[-1]])) for rows in order.tensor_split(LENGTH_PARTS)]
    tokens = sum(len(rows) * longest for rows, longest in parts)
    if tokens > MAX_TOKEN_SHARE * mask.shape[-1] * len(mask):
        return Output(*network(inputs))
    outputs = [network({name: value[rows][..., :longest] for name, value in inputs.items()}) for rows, longest in parts]
    inverse = order.argsort()
    return _select_output(Output(*(torch.cat(values) for values in zip(*outputs, strict=True))), inverse)


def build_view(
    settings: ViewSettings,
    classes: int,
    dynamics: Dynamics | None = None,
    *,
    number: int = 0,
    path: str = "",
    seed: int = 0,
) -> Mixing:
    """Build the view that settings describe.

    Parameters
    ----------
    settings : ViewSettings
        What is mixed where, and how much.
    classes : int
        Number of classes.
    dynamics : Dynamics, optional
        The map that its pairs come from, its rows in the order of the training set; random pairs need none.
    number : int, default 0
        Number of the view in its stage: each view draws partners of its own.
    path : str, optional
        Where the view stands in a recipe, for error messages.
    seed : int, default 0
        Decides the division into random halves.

    Returns
    -------
    Mixing

    Raises
    ------
    InputError
        If the pairs need a map that is missing.

    Examples
    --------
    >>> view = build_view(ViewSettings(kind="mixup"), classes=2)
    >>> labels = torch.tensor([0, 1])
    >>> batch = Batch({"vectors": torch.eye(2)}, labels, labels, ids=torch.arange(2))
    >>> network = lambda inputs: Output(inputs["vectors"], inputs["vectors"])
    >>> bool(torch.equal(view(network, batch).logits, view(network, batch).targets))
    True
    """
    hidden = any(layer > 0 for layer in settings.layers)
    pairs = build_pairs(settings, dynamics, path, only_own=hidden, seed=seed)
    high = None
    if settings.variant == "author_code" and dynamics is not None:
        high = divide_in_halves(settings, dynamics, seed)
    return Mixing(settings, pairs, classes, number, high)


def _positions_in_batch(batch: Batch, rows: RowIndices) -> Tensor | None:
    """The positions of these rows in the batch; None if one of them is not in it."""
    own = batch.rows
    order = np.argsort(own, kind="stable")
    position = order[np.searchsorted(own, rows, sorter=order).clip(max=len(own) - 1)]
    if not (own[position] == rows).all():
        return None
    return torch.from_numpy(position).to(batch.labels.device)


def _select_output(output: Output, index: Tensor) -> Output:
    return Output(output.logits.index_select(0, index), output.features.index_select(0, index))


def _as_distributions(targets: Tensor, classes: int) -> Tensor:
    # The targets of unlabelled examples are seen by no loss.
    return one_hot(targets.clamp(min=0), classes).float() if targets.dim() == 1 else targets


def _own_teacher_outputs(batch: Batch) -> dict[str, Tensor | None]:
    return {"teacher_logits": batch.teacher_logits, "teacher_features": batch.teacher_features}


def _hash_arrays(value: Any) -> Any:
    """What tells one rule from another: arrays by their bytes."""
    if isinstance(value, tuple):
        return [_hash_arrays(part) for part in value]
    if isinstance(value, np.ndarray):
        return hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest()
    return value
