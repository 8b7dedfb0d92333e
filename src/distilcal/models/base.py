"""Networks that can be entered in three places, ``embed`` → ``encode`` → ``head``: what losses on features and mixing need.

``inputs`` is what a feed makes of examples: tensors by name. To let the loop train a new kind of network, wrap it so.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distilcal.models.layers import Network

Tensors = Mapping[str, Tensor]


class Output(NamedTuple):
    """What a network says about a batch, and what its head saw."""

    logits: Tensor  # (N, K)
    features: Tensor  # (N, …)


class Mix(NamedTuple):
    """How rows are mixed on their way through a network: ``weight · own + (1 − weight) · other``."""

    weight: Tensor  # (N,)
    layer: int = 0  # 0: the first representation, n: what comes out of the nth layer
    other: Tensors | None = None  # layer 0: the inputs of the partners
    partner: Tensor | None = None  # later layers: (N,) where in this batch the partners stand


class Stepwise(nn.Module, ABC):
    """The whole is ``head(encode(embed(inputs), inputs))``."""

    @abstractmethod
    def embed(self, inputs: Tensors) -> Tensor:
        """The first representation in which two examples can be mixed."""

    @abstractmethod
    def encode(self, embedded: Tensor, inputs: Tensors) -> Tensor:
        """The features that the head reads (N, …)."""

    def head(self, features: Tensor) -> Tensor:
        """Logits (N, K)."""
        logits: Tensor = self.output(features)
        return logits

    @property
    @abstractmethod
    def output(self) -> nn.Linear:
        """The last linear layer: what tells classes apart, and where a temperature can be folded in."""

    @property
    @abstractmethod
    def layers(self) -> Sequence[nn.Module]:
        """The layers after which examples can be mixed."""

    def blended(self, inputs: Tensors, mix: Mix) -> tuple[Tensor, Tensors]:
        """The first representation of mixed examples, and the inputs that go with it."""
        assert mix.other is not None
        return lerp(self.embed(inputs), self.embed(mix.other), mix.weight), inputs

    def forward(self, inputs: Tensors, mix: Mix | None = None) -> Output:
        if mix is not None and mix.layer == 0:
            embedded, inputs = self.blended(inputs, mix)
        else:
            embedded = self.embed(inputs)
        if mix is None or mix.layer == 0:
            features = self.encode(embedded, inputs)
        else:
            with mixed_after(self.layers, mix):
                features = self.encode(embedded, inputs)
        return Output(self.head(features), features)


def lerp(own: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """``weight · own + (1 − weight) · other`` with a weight (N,) per row."""
    weight = weight.to(own.dtype).view(-1, *[1] * (own.dim() - 1))
    return weight * own + (1 - weight) * other


@contextmanager
def mixed_after(layers: Sequence[nn.Module], mix: Mix, tokens: Tensor | None = None) -> Iterator[None]:
    """While it lasts, what comes out of a layer is mixed, and later layers attend to what the heavier of the two attends to.

    ``tokens`` (N, L) is 0 where a text has none: there it adds nothing.
    """
    assert mix.partner is not None
    partner, count = mix.partner, len(mix.partner)

    def mixed(module: nn.Module, args: Any, output: Any) -> Any:
        states = output if isinstance(output, Tensor) else output[0]
        states = states if tokens is None else states * tokens[..., None].to(states.dtype)
        made = lerp(states, states.index_select(0, partner), mix.weight)
        return made if isinstance(output, Tensor) else (made, *output[1:])

    def of_heavier(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() != 4 or len(value) != count:
            return value
        return torch.where((mix.weight >= 0.5).view(-1, 1, 1, 1), value, value.index_select(0, partner))

    def masks(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (*args[:1], *map(of_heavier, args[1:])), {name: of_heavier(value) for name, value in kwargs.items()}

    handles = [layers[mix.layer - 1].register_forward_hook(mixed)]
    handles += [layer.register_forward_pre_hook(masks, with_kwargs=True) for layer in layers[mix.layer :]]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class PictureNetwork(Stepwise):
    """A network for images (``inputs["pixels"]``)."""

    def __init__(self, body: Network):
        super().__init__()
        self.body = body

    def embed(self, inputs: Tensors) -> Tensor:
        return inputs["pixels"]

    def encode(self, embedded: Tensor, inputs: Tensors) -> Tensor:
        return self.body.features(embedded)

    @property
    def layers(self) -> Sequence[nn.Module]:
        return list(self.body.stages)

    @property
    def output(self) -> nn.Linear:
        return self.body.head


class VectorNetwork(Stepwise):
    """A linear layer on vectors (``inputs["vectors"]``), or a perceptron where ``hidden`` names widths.

    With one class and several vectors an example (N, choices, D), each choice gets a logit of its own: multiple choice.
    """

    def __init__(self, width: int, classes: int, *, hidden: tuple[int, ...] = (), dropout: float = 0.0):
        super().__init__()
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
            width = size
        self.body = nn.Sequential(*layers)
        self.last = nn.Linear(width, classes)

    def embed(self, inputs: Tensors) -> Tensor:
        return inputs["vectors"]

    def encode(self, embedded: Tensor, inputs: Tensors) -> Tensor:
        features: Tensor = self.body(embedded)
        return features

    def head(self, features: Tensor) -> Tensor:
        logits = super().head(features)
        return logits.squeeze(-1) if features.dim() == 3 else logits

    @property
    def layers(self) -> Sequence[nn.Module]:
        return [module for module in self.body if isinstance(module, nn.ReLU)]

    @property
    def output(self) -> nn.Linear:
        return self.last


def weights_digest(network: nn.Module) -> str:
    """A hash of everything a network has learned, by name."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in sorted(network.state_dict().items()):
        if isinstance(value, Tensor):
            found.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@torch.no_grad()
def fold_temperature(network: Stepwise, temperature: float) -> None:
    """Divide the last layer by a temperature: the plain softmax of the network is then the calibrated one."""
    network.output.weight.div_(temperature)
    if network.output.bias is not None:
        network.output.bias.div_(temperature)


@torch.no_grad()
def permute_classes(network: Stepwise, columns: list[int]) -> None:
    """Reorder the outputs: column i of the new network is column ``columns[i]`` of the old."""
    network.output.weight.copy_(network.output.weight[columns].clone())
    if network.output.bias is not None:
        network.output.bias.copy_(network.output.bias[columns].clone())
