"""From a Dataset to batches of tensors: how each kind of network gets its examples.

``classifier.inputs.prepare(data, store)`` reads a whole data set once and returns `Batches`, from which batches are assembled
by indexing, never example by example. To add a kind of input, write a class with the methods of `ModelInputs` and use it in
`distilcal.models.classifier`.
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
from distilcal.models.network import Output, weights_digest
from distilcal.models.text import TextEncoder, architecture

RowIndices = NDArray[np.int64]
OnProgress = Callable[[int, int], None]  # examples done, examples in all
TOKENIZED_AT_ONCE = 4096  # texts; Python's lists of numbers take ten times the room of arrays


class Batches(Protocol):
    """A data set ready for a network."""

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Tokens of each example (N,); None where all have one size."""

    def __len__(self) -> int: ...

    def batch(self, rows: RowIndices, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return the tensors of the given examples; with a generator, augmented for training."""


class ModelInputs(Protocol):
    """Knows how a network takes its examples."""

    def prepare(self, data: Dataset, store: Path | None = None) -> Batches:
        """Return a data set as batches; what is costly to prepare is cached in the store."""

    def describe(self) -> dict[str, Any]:
        """Return everything that decides what the network sees, for hashes and for saving."""


# ---- text --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenBatches:
    """Tokens of all examples one after the other, memory-mapped when they come from a store."""

    ids: NDArray[np.int32]  # (T,)
    token_types: NDArray[np.uint8] | None  # (T,) first or second text, for models that use it
    starts: NDArray[np.int64]  # (N·C + 1,)
    choices: int  # C: 0 for texts, the number of choices for multiple choice
    pad_id: int
    truncated: int = 0  # texts that were longer than the limit

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example (N,); of its longest choice for multiple choice."""
        lengths = np.diff(self.starts)
        return lengths.reshape(-1, self.choices).max(axis=1) if self.choices else lengths

    def __len__(self) -> int:
        return (len(self.starts) - 1) // max(self.choices, 1)

    def batch(self, rows: RowIndices, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return token ids and masks (N, L), padded to the longest text of the batch; (N, C, L) for multiple choice."""
        shape: tuple[int, ...] = (len(rows), -1)
        if self.choices:
            shape = (len(rows), self.choices, -1)
            rows = (rows[:, None] * self.choices + np.arange(self.choices)).ravel()
        start, length = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        column = np.arange(int(length.max()))
        inside = column < length[:, None]  # (N, longest in this batch)
        place = np.where(inside, start[:, None] + column, 0)
        ids = np.where(inside, self.ids[place], self.pad_id)
        tensors = {
            "input_ids": torch.from_numpy(ids.astype(np.int64)),
            "attention_mask": torch.from_numpy(inside.astype(np.int64)),
        }
        if self.token_types is not None:
            token_types = np.where(inside, self.token_types[place], 0)
            tensors["token_type_ids"] = torch.from_numpy(token_types.astype(np.int64))
        return {name: value.view(shape) for name, value in tensors.items()}


@dataclass(frozen=True)
class TokenInputs:
    """Texts as tokens: each text is tokenised once, a batch is padded to its own longest text.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizer
        The tokenizer of the model.
    max_length : int
        Tokens after which a text is cut.
    """

    tokenizer: Any
    max_length: int

    def prepare(self, data: Dataset, store: Path | None = None) -> TokenBatches:
        """Tokenise texts, text pairs or choices, or load their tokens from the store."""
        inputs = data.inputs
        if not isinstance(inputs, (Texts, Choices)):
            raise InputError(f"{data.name!r} holds no text", remedy="give text to a text model, images to an image model")
        if store is None:
            return self._token_batches(self._tokenize(inputs), inputs)
        folder = store / "tokens" / digest([data.content_keys.tolist(), self.describe()])
        if not is_intact(folder):
            with sealed_folder(folder) as new_folder:
                for name, array in self._tokenize(inputs).items():
                    np.save(new_folder / f"{name}.npy", array)
        names = ["ids", "starts", "cut"]
        if self._has_token_types:
            names.append("kinds")
        return self._token_batches({name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}, inputs)

    def describe(self) -> dict[str, Any]:
        """Return a hash of the tokenizer, and the length."""
        return {"tokenizer": self._tokenizer_digest, "max_length": self.max_length}

    @cached_property
    def _tokenizer_digest(self) -> str:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            rules: Any = [sorted(self.tokenizer.get_vocab().items()), type(self.tokenizer).__name__, self.tokenizer.init_kwargs]
        else:
            rules = json.loads(backend.to_str())
            rules = {key: value for key, value in rules.items() if key not in ("truncation", "padding")}  # set by its last call
        return digest([rules, self._has_token_types, self.tokenizer.truncation_side])

    @property
    def _has_token_types(self) -> bool:
        return "token_type_ids" in self.tokenizer.model_input_names

    def _token_batches(self, arrays: dict[str, NDArray[Any]], inputs: Texts | Choices) -> TokenBatches:
        return TokenBatches(
            ids=arrays["ids"],
            token_types=arrays.get("kinds"),
            starts=np.asarray(arrays["starts"]),
            choices=inputs.endings.shape[1] if isinstance(inputs, Choices) else 0,
            pad_id=self.tokenizer.pad_token_id or 0,
            truncated=int(arrays["cut"]),
        )

    def _tokenize(self, inputs: Texts | Choices) -> dict[str, NDArray[Any]]:
        """Tokens under the names of their files in the store: ids, starts, cut and, where the model uses them, kinds."""
        first, second = _text_columns(inputs)
        ids: list[NDArray[Any]] = []
        token_types: list[NDArray[Any]] = []
        lengths: list[NDArray[Any]] = []
        for start in range(0, len(first), TOKENIZED_AT_ONCE):
            part = slice(start, start + TOKENIZED_AT_ONCE)
            columns = [first[part]] if second is None else [first[part], second[part]]
            tokens = self.tokenizer(*columns, truncation=True, max_length=self.max_length, return_attention_mask=False)
            lengths.append(np.fromiter(map(len, tokens["input_ids"]), dtype=np.int64))
            ids.append(np.fromiter(chain.from_iterable(tokens["input_ids"]), dtype=np.int32))
            if self._has_token_types:
                token_types.append(np.fromiter(chain.from_iterable(tokens["token_type_ids"]), dtype=np.uint8))
        length = np.concatenate(lengths)
        arrays = {
            "ids": np.concatenate(ids),
            "starts": np.r_[0, np.cumsum(length)],
            "cut": np.array((length >= self.max_length).sum()),
        }
        if token_types:
            arrays["kinds"] = np.concatenate(token_types)
        return arrays


def _text_columns(inputs: Texts | Choices) -> tuple[list[str], list[str] | None]:
    """The first and second texts that the tokenizer gets; each choice stands beside its prompt."""
    if isinstance(inputs, Choices):
        return np.repeat(inputs.prompt, inputs.endings.shape[1]).tolist(), inputs.endings.ravel().tolist()
    return inputs.text.tolist(), None if inputs.pair is None else inputs.pair.tolist()


def usable_length(model: Any, tokenizer: Any, max_length: int) -> int:
    """Return the number of tokens that a model can take, at most ``max_length``.

    Parameters
    ----------
    model : PreTrainedModel
        The model, whose configuration may limit its positions.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer, which has a limit of its own.
    max_length : int
        The largest number of tokens to return.

    Returns
    -------
    int
        The smallest of these limits, in tokens.

    Raises
    ------
    InputError
        If the limit of the tokenizer is no positive number.
    """
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, int | float) or not longest >= 1:
        raise InputError(
            f"model_max_length of its tokenizer is {longest!r:.40}",
            source=str(getattr(tokenizer, "name_or_path", "")),
            remedy="give a number of tokens in tokenizer_config.json",
        )
    limit = int(min(max_length, longest))
    positions = getattr(model.config, "max_position_embeddings", None)
    if not positions or positions <= 0:
        return limit
    return min(limit, int(positions) - _reserved_positions(model))


def _reserved_positions(model: Any) -> int:
    """Positions before that of the first token: RoBERTa counts from the one after its padding."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


# ---- images ------------------------------------------------------------------------------------------------------------

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class ImageBatches:
    """Images that are normalised, and cropped and flipped for training, as they are drawn."""

    pixels: NDArray[np.uint8]  # (N, H, W, 3)
    mean: Tensor
    std: Tensor
    augment: bool
    lengths: None = None

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, rows: RowIndices, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return normalised pixels (N, 3, H, W)."""
        images = torch.from_numpy(self.pixels[rows]).permute(0, 3, 1, 2).float().div_(255)
        images = images.sub_(self.mean).div_(self.std)
        if self.augment and generator is not None:
            images = crop_and_flip(images, generator)
        return {"pixels": images.contiguous()}


@dataclass(frozen=True)
class ImageInputs:
    """Images as normalised pixels.

    Parameters
    ----------
    mean, std : tuple of float
        Mean and standard deviation of each channel, of pixels in [0, 1].
    augment : bool, default True
        Whether training crops and flips the images.
    """

    mean: tuple[float, ...] = CIFAR_MEAN
    std: tuple[float, ...] = CIFAR_STD
    augment: bool = True

    def prepare(self, data: Dataset, store: Path | None = None) -> ImageBatches:
        """Return images as batches; nothing is cached."""
        if not isinstance(data.inputs, Images):
            raise InputError(f"{data.name!r} holds no images", remedy="give images to an image model, text to a text model")
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (self.mean, self.std))
        return ImageBatches(data.inputs.pixels, mean, std, self.augment)

    def describe(self) -> dict[str, Any]:
        """Return mean, standard deviation and augmentation."""
        return {"mean": list(self.mean), "std": list(self.std), "augment": self.augment}


def crop_and_flip(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Shift each image by up to ``pad`` pixels, zeros coming in, and mirror it with probability 1/2.

    Parameters
    ----------
    images : Tensor, shape (N, C, H, W)
        The images.
    generator : torch.Generator
        Source of the draws.
    pad : int, default 4
        Largest shift in each direction.

    Examples
    --------
    >>> images = torch.ones(2, 3, 8, 8)
    >>> crop_and_flip(images, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    n, channels, height, width = images.shape
    padded = nn.functional.pad(images, (pad, pad, pad, pad))
    top, left = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator)
    column = torch.arange(width).expand(n, width)
    column = torch.where(torch.rand(n, 1, generator=generator) < 0.5, column.flip(1), column)
    shifted = padded.gather(3, (left + column)[:, None, None].expand(n, channels, padded.shape[2], width))
    return shifted.gather(2, (top + torch.arange(height))[:, None, :, None].expand(n, channels, height, width))


# ---- vectors and frozen features ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VectorBatches:
    """Vectors as they are."""

    values: Tensor  # (N, D), or (N, choices, D)
    lengths: None = None

    def __len__(self) -> int:
        return len(self.values)

    def batch(self, rows: RowIndices, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return the vectors of the rows."""
        return {"vectors": self.values.index_select(0, torch.from_numpy(rows))}


@dataclass(frozen=True)
class VectorInputs:
    """Vectors of numbers.

    Parameters
    ----------
    width : int
        Numbers per example.
    """

    width: int

    def prepare(self, data: Dataset, store: Path | None = None) -> VectorBatches:
        """Return vectors as float32 batches; nothing is cached."""
        if not isinstance(data.inputs, Vectors):
            raise InputError(f"{data.name!r} holds no vectors", remedy="give vectors to this model")
        width = data.inputs.values.shape[1]
        if width != self.width:
            raise InputError(f"{data.name!r} has {width} numbers per example, the model reads {self.width}")
        return VectorBatches(torch.from_numpy(np.ascontiguousarray(data.inputs.values, dtype=np.float32)))

    def describe(self) -> dict[str, Any]:
        """Return the width."""
        return {"width": self.width}


@dataclass(frozen=True)
class FrozenInputs:
    """Texts as features of an encoder that is not trained, computed once per example and cached in the store.

    Parameters
    ----------
    encoder : TextEncoder
        The frozen encoder.
    token_inputs : TokenInputs
        How texts become its tokens.
    on_progress : callable, optional
        Called with the number of examples done and of all.
    apart : bool, default False
        Encode the two texts of a pair each alone: the features are then (u, v, |u − v|, u·v) of their two vectors.
        Otherwise both are encoded together.
    """

    encoder: TextEncoder
    token_inputs: TokenInputs
    on_progress: OnProgress | None = None
    apart: bool = False

    def prepare(self, data: Dataset, store: Path | None = None) -> VectorBatches:
        """Compute the features of the data, or load them from the store."""
        sides = _text_sides(data.inputs) if self.apart else None
        if sides is None:
            return VectorBatches(torch.from_numpy(self._features(data, store)))
        first, second = (self._features(Dataset(texts(side), name=data.name), store) for side in sides)
        if isinstance(data.inputs, Choices):  # each choice beside its prompt
            second = second.reshape(*data.inputs.endings.shape, -1)
            first = np.broadcast_to(first[:, None], second.shape)
        combined = np.concatenate([first, second, np.abs(first - second), first * second], axis=-1)
        return VectorBatches(torch.from_numpy(combined))

    def _features(self, data: Dataset, store: Path | None) -> NDArray[np.float32]:
        def compute(rows: RowIndices) -> dict[str, NDArray[Any]]:
            all_in_order = len(rows) == len(data) and bool((np.diff(rows) == 1).all())
            part = data if all_in_order else data.select(rows)
            batches = self.token_inputs.prepare(part, store)
            device = next(self.encoder.parameters()).device
            return dict(run_network(self.encoder, batches, ("features",), device=device, on_progress=self.on_progress))

        if store is None:
            return compute(np.arange(len(data)))["features"]
        cache = RowCache(store / "features", digest({"encoder": self._encoder_digest, **self.token_inputs.describe()}))
        return cache.fetch(data.content_keys, ("features",), compute)["features"]

    def describe(self) -> dict[str, Any]:
        """Return hashes of the encoder and of the tokenizer, and how pairs are encoded."""
        description = {"encoder": self._encoder_digest, **self.token_inputs.describe()}
        if self.apart:
            description["pairs"] = "apart"
        return description

    @cached_property
    def _encoder_digest(self) -> str:
        kind = [architecture(self.encoder.model), self.encoder.pooling]
        return digest([weights_digest(self.encoder), kind])  # once: it is not trained


def _text_sides(inputs: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """The two texts of each example, or the prompts and all choices; None where there is one text only."""
    if isinstance(inputs, Choices):
        return inputs.prompt, inputs.endings.ravel()
    if isinstance(inputs, Texts) and inputs.pair is not None:
        return inputs.text, inputs.pair
    return None


# ---- the one pass without gradient -------------------------------------------------------------------------------------


@torch.no_grad()
def run_network(
    network: nn.Module,
    batches: Batches,
    names: tuple[str, ...] = ("logits",),
    *,
    rows: RowIndices | None = None,
    batch_size: int = 64,
    device: torch.device | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Run a network in evaluation mode, without gradient; texts of similar length go together.

    Parameters
    ----------
    network : Module
        A network that returns an `Output`.
    batches : Batches
        The examples, as ``classifier.inputs.prepare`` returns them.
    names : tuple of str, default ("logits",)
        Which outputs to return: "logits", "features" or both.
    rows : array of int, optional
        Which examples; all by default.
    batch_size : int, default 64
        Examples per forward pass.
    device : torch.device, optional
        Where the inputs are moved to.
    on_progress : callable, optional
        Called with the number of examples done and of all.

    Returns
    -------
    dict of str to array
        float32 arrays, in the order of ``rows``.

    Examples
    --------
    >>> from distilcal.models.network import VectorNetwork
    >>> batches = VectorBatches(torch.zeros(5, 4))
    >>> run_network(VectorNetwork(width=4, classes=2), batches)["logits"].shape
    (5, 2)
    """
    if rows is None:
        rows = np.arange(len(batches))
    order = np.arange(len(rows))
    if batches.lengths is not None:
        order = np.argsort(-np.asarray(batches.lengths)[rows], kind="stable")
    was_training = network.training
    network.eval()
    arrays: dict[str, NDArray[np.float32]] = {}
    try:
        for start in range(0, len(rows), batch_size):
            place = order[start : start + batch_size]
            inputs = batches.batch(rows[place])
            if device is not None:
                inputs = {name: value.to(device) for name, value in inputs.items()}
            output: Output = network(inputs)
            for name in names:
                values = getattr(output, name).float().cpu().numpy()
                if name not in arrays:
                    arrays[name] = np.empty((len(rows), *values.shape[1:]), dtype=np.float32)
                arrays[name][place] = values
            if on_progress is not None:
                on_progress(min(start + batch_size, len(rows)), len(rows))
    finally:
        network.train(was_training)
    return arrays
