"""Feeds: what turns a Dataset into batches of tensors for a network.

A feed reads a whole data set once (``feed.read``) and gives something with ``lengths`` and ``batch(rows, generator)``. Batches
are put together by indexing, never example by example. To add a kind of input, write a feed and enter it in ``classifier``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distilcal.data import Choices, Dataset, Images, Texts, Vectors, texts
from distilcal.errors import InputError
from distilcal.io.folders import digest, is_intact, sealed_folder
from distilcal.io.row_cache import RowCache
from distilcal.models.base import Output, weights_digest

Rows = NDArray[np.int64]
Progress = Callable[[int, int], None]  # examples done, examples in all


class Batches(Protocol):
    """A data set ready for a network."""

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Tokens of each example (N,); None where all are of one size."""

    def __len__(self) -> int: ...

    def batch(self, rows: Rows, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """The tensors of the given examples; with a generator as they are augmented for training."""


class Feed(Protocol):
    """Knows how a network wants its examples."""

    def read(self, data: Dataset, store: Path | None = None) -> Batches: ...

    def describe(self) -> dict[str, Any]:
        """Everything that decides what the network sees, for hashes and for saving."""


# ---- text --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tokens:
    """Token numbers of all examples one after the other, memory-mapped when they come from a store."""

    ids: NDArray[np.int32]  # (T,)
    kinds: NDArray[np.uint8] | None  # (T,) first or second text, where the model asks for it
    starts: NDArray[np.int64]  # (N·C + 1,)
    endings: int  # C: 0 for texts, the number of choices for multiple choice
    pad: int
    cut: int = 0  # texts that were longer than the limit

    @property
    def lengths(self) -> NDArray[np.int64]:
        rows = np.diff(self.starts)
        return rows.reshape(-1, self.endings).max(axis=1) if self.endings else rows

    def __len__(self) -> int:
        return (len(self.starts) - 1) // max(self.endings, 1)

    def batch(self, rows: Rows, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        shape: tuple[int, ...] = (len(rows), -1)
        if self.endings:
            shape = (len(rows), self.endings, -1)
            rows = (rows[:, None] * self.endings + np.arange(self.endings)).ravel()
        start, length = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        column = np.arange(int(length.max()))
        inside = column < length[:, None]  # (N, longest in this batch)
        place = np.where(inside, start[:, None] + column, 0)
        ids = np.where(inside, self.ids[place], self.pad)
        made = {
            "input_ids": torch.from_numpy(ids.astype(np.int64)),
            "attention_mask": torch.from_numpy(inside.astype(np.int64)),
        }
        if self.kinds is not None:
            made["token_type_ids"] = torch.from_numpy(np.where(inside, self.kinds[place], 0).astype(np.int64))
        return {name: value.view(shape) for name, value in made.items()}


@dataclass(frozen=True)
class TextFeed:
    """Tokenises each text once; a batch is padded to its own longest text."""

    tokenizer: Any
    max_length: int

    def read(self, data: Dataset, store: Path | None = None) -> Tokens:
        inputs = data.inputs
        if not isinstance(inputs, (Texts, Choices)):
            raise InputError(f"{data.name!r} holds no text", remedy="give text to a text model, images to an image model")
        if store is None:
            return self._tokens(self._arrays(inputs), inputs)
        folder = store / "tokens" / digest([data.content_keys.tolist(), self.describe()])
        names = ["ids", "starts", "cut"] + (["kinds"] if self._has_kinds else [])
        if not is_intact(folder):
            with sealed_folder(folder) as aside:
                for name, array in self._arrays(inputs).items():
                    np.save(aside / f"{name}.npy", array)
        return self._tokens({n: np.load(folder / f"{n}.npy", mmap_mode="r") for n in names}, inputs)

    def describe(self) -> dict[str, Any]:
        return {"tokenizer": self._tokenizer_digest, "max_length": self.max_length}

    @cached_property
    def _tokenizer_digest(self) -> str:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            rules: Any = [sorted(self.tokenizer.get_vocab().items()), type(self.tokenizer).__name__, self.tokenizer.init_kwargs]
        else:
            rules = json.loads(backend.to_str())
            rules = {key: value for key, value in rules.items() if key not in ("truncation", "padding")}  # set by its last call
        return digest([rules, self._has_kinds, self.tokenizer.truncation_side])

    @property
    def _has_kinds(self) -> bool:
        return "token_type_ids" in self.tokenizer.model_input_names

    def _tokens(self, arrays: dict[str, NDArray[Any]], inputs: Texts | Choices) -> Tokens:
        endings = inputs.endings.shape[1] if isinstance(inputs, Choices) else 0
        pad = self.tokenizer.pad_token_id or 0
        return Tokens(arrays["ids"], arrays.get("kinds"), np.asarray(arrays["starts"]), endings, pad, int(arrays["cut"]))

    def _arrays(self, inputs: Texts | Choices) -> dict[str, NDArray[Any]]:
        first: list[str]
        second: list[str] | None
        if isinstance(inputs, Choices):
            first = np.repeat(inputs.prompt, inputs.endings.shape[1]).tolist()
            second = inputs.endings.ravel().tolist()
        else:
            first, second = inputs.text.tolist(), None if inputs.pair is None else inputs.pair.tolist()
        ids: list[NDArray[Any]] = []
        kinds: list[NDArray[Any]] = []
        lengths: list[NDArray[Any]] = []
        for i in range(0, len(first), 4096):  # in parts: Python's lists of numbers take ten times the room
            given = [first[i : i + 4096]] + ([second[i : i + 4096]] if second is not None else [])
            made = self.tokenizer(*given, truncation=True, max_length=self.max_length, return_attention_mask=False)
            lengths.append(np.fromiter(map(len, made["input_ids"]), dtype=np.int64))
            ids.append(np.fromiter(chain.from_iterable(made["input_ids"]), dtype=np.int32))
            if self._has_kinds:
                kinds.append(np.fromiter(chain.from_iterable(made["token_type_ids"]), dtype=np.uint8))
        length = np.concatenate(lengths)
        arrays = {
            "ids": np.concatenate(ids),
            "starts": np.r_[0, np.cumsum(length)],
            "cut": np.array((length >= self.max_length).sum()),
        }
        return {**arrays, "kinds": np.concatenate(kinds)} if kinds else arrays


def usable_length(model: Any, tokenizer: Any, wanted: int) -> int:
    """The number of tokens a model can take, at most ``wanted``."""
    limit = min(wanted, int(tokenizer.model_max_length))
    positions = getattr(model.config, "max_position_embeddings", None)
    table = next(
        (m for n, m in model.named_modules() if n.endswith("position_embeddings") and isinstance(m, nn.Embedding)), None
    )
    if positions and positions > 0:
        taken = 0 if table is None or table.padding_idx is None else table.padding_idx + 1  # RoBERTa counts from there
        limit = min(limit, int(positions) - taken)
    return limit


# ---- images and vectors ------------------------------------------------------------------------------------------------

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class Pixels:
    """Images that are normalised, and cropped and flipped for training, as they are drawn."""

    pixels: NDArray[np.uint8]  # (N, H, W, 3)
    mean: Tensor
    std: Tensor
    augment: bool
    lengths: None = None

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, rows: Rows, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        images = torch.from_numpy(self.pixels[rows]).permute(0, 3, 1, 2).float().div_(255)
        images = images.sub_(self.mean).div_(self.std)
        if self.augment and generator is not None:
            images = cropped_and_flipped(images, generator)
        return {"pixels": images.contiguous()}


@dataclass(frozen=True)
class ImageFeed:
    """Images to tensors: mean and standard deviation of each channel, and whether training crops and flips them."""

    mean: tuple[float, ...] = CIFAR_MEAN
    std: tuple[float, ...] = CIFAR_STD
    augment: bool = True

    def read(self, data: Dataset, store: Path | None = None) -> Pixels:
        if not isinstance(data.inputs, Images):
            raise InputError(f"{data.name!r} holds no images", remedy="give images to an image model, text to a text model")
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (self.mean, self.std))
        return Pixels(data.inputs.pixels, mean, std, self.augment)

    def describe(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "std": list(self.std), "augment": self.augment}


def cropped_and_flipped(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Each image (N, C, H, W) shifted by up to ``pad`` pixels, black coming in, and mirrored with probability 1/2."""
    n, channels, height, width = images.shape
    padded = nn.functional.pad(images, (pad, pad, pad, pad))
    top, left = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator)
    column = torch.arange(width).expand(n, width)
    column = torch.where(torch.rand(n, 1, generator=generator) < 0.5, column.flip(1), column)
    across = padded.gather(3, (left + column)[:, None, None].expand(n, channels, padded.shape[2], width))
    return across.gather(2, (top + torch.arange(height))[:, None, :, None].expand(n, channels, height, width))


@dataclass(frozen=True)
class Numbers:
    """Vectors as they are."""

    values: Tensor  # (N, D)
    lengths: None = None

    def __len__(self) -> int:
        return len(self.values)

    def batch(self, rows: Rows, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        return {"vectors": self.values.index_select(0, torch.from_numpy(rows))}


@dataclass(frozen=True)
class VectorFeed:
    """Vectors to tensors."""

    width: int

    def read(self, data: Dataset, store: Path | None = None) -> Numbers:
        if not isinstance(data.inputs, Vectors):
            raise InputError(f"{data.name!r} holds no vectors", remedy="give vectors to this model")
        if data.inputs.values.shape[1] != self.width:
            raise InputError(
                f"{data.name!r} has {data.inputs.values.shape[1]} numbers per example, the model reads {self.width}"
            )
        return Numbers(torch.from_numpy(np.ascontiguousarray(data.inputs.values, dtype=np.float32)))

    def describe(self) -> dict[str, Any]:
        return {"width": self.width}


@dataclass(frozen=True)
class FrozenFeed:
    """Features of an encoder that is not trained, computed once per example and kept in the store.

    Two texts are read together, or with ``apart`` each alone: the features are then (u, v, |u - v|, u·v) of their two vectors.
    """

    encoder: nn.Module
    feed: Feed
    progress: Progress | None = None
    apart: bool = False

    def read(self, data: Dataset, store: Path | None = None) -> Numbers:
        sides = _sides(data.inputs) if self.apart else None
        if sides is None:
            return Numbers(torch.from_numpy(self._features(data, store)))
        first, second = (self._features(Dataset(texts(side), name=data.name), store) for side in sides)
        if isinstance(data.inputs, Choices):  # each ending beside its prompt
            second = second.reshape(*data.inputs.endings.shape, -1)
            first = np.broadcast_to(first[:, None], second.shape)
        both = np.concatenate([first, second, np.abs(first - second), first * second], axis=-1)
        return Numbers(torch.from_numpy(both))

    def _features(self, data: Dataset, store: Path | None) -> NDArray[np.float32]:
        def make(rows: Rows) -> dict[str, NDArray[Any]]:
            part = data if len(rows) == len(data) and (np.diff(rows) == 1).all() else data.select(rows)
            device = next(self.encoder.parameters()).device
            return dict(
                outputs(self.encoder, self.feed.read(part, store), ("features",), device=device, progress=self.progress)
            )

        if store is None:
            return make(np.arange(len(data)))["features"]
        cache = RowCache(store / "features", digest({"encoder": self._encoder_digest, **self.feed.describe()}))
        return cache.fetch(data.content_keys, ("features",), make)["features"]

    def describe(self) -> dict[str, Any]:
        return {"encoder": self._encoder_digest, **self.feed.describe(), **({"pairs": "apart"} if self.apart else {})}

    @cached_property
    def _encoder_digest(self) -> str:
        from distilcal.models.text import TextEncoder, architecture

        kind = [architecture(self.encoder.model), self.encoder.pooling] if isinstance(self.encoder, TextEncoder) else []
        return digest([weights_digest(self.encoder), kind])  # once: it is not trained


def _sides(inputs: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """The two texts of each example, or the prompts and all endings; None where there is one text only."""
    if isinstance(inputs, Choices):
        return inputs.prompt, inputs.endings.ravel()
    return (inputs.text, inputs.pair) if isinstance(inputs, Texts) and inputs.pair is not None else None


# ---- the one pass without gradient -------------------------------------------------------------------------------------


@torch.no_grad()
def outputs(
    network: nn.Module,
    batches: Batches,
    names: tuple[str, ...] = ("logits",),
    *,
    rows: Rows | None = None,
    batch_size: int = 64,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Logits and features of the given rows (all by default), in evaluation mode; texts of like length go together."""
    rows = np.arange(len(batches)) if rows is None else rows
    lengths = batches.lengths
    order = np.arange(len(rows)) if lengths is None else np.argsort(-np.asarray(lengths)[rows], kind="stable")
    training = network.training
    network.eval()
    found: dict[str, NDArray[np.float32]] = {}
    try:
        for i in range(0, len(rows), batch_size):
            place = order[i : i + batch_size]
            inputs = batches.batch(rows[place])
            if device is not None:
                inputs = {name: value.to(device) for name, value in inputs.items()}
            made: Output = network(inputs)
            for name in names:
                value = getattr(made, name).float().cpu().numpy()
                if name not in found:
                    found[name] = np.empty((len(rows), *value.shape[1:]), dtype=np.float32)
                found[name][place] = value
            if progress is not None:
                progress(min(i + batch_size, len(rows)), len(rows))
    finally:
        network.train(training)
    return found
