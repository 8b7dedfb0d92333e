"""Networks that can be entered in three places, ``embed`` → ``encode`` → ``head``: what losses on features and mixing need.

``inputs`` is what a feed makes of examples: tensors by name. To let the loop train a new kind of network, wrap it so.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from distilcal.models.layers import Network

Tensors = Mapping[str, Tensor]


class Output(NamedTuple):
    """What a network says about a batch, and what its head saw."""

    logits: Tensor  # (N, K)
    features: Tensor  # (N, …)


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

    def forward(self, inputs: Tensors) -> Output:
        features = self.encode(self.embed(inputs), inputs)
        return Output(self.head(features), features)


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
    def output(self) -> nn.Linear:
        return self.body.head


class VectorNetwork(Stepwise):
    """A linear layer on vectors (``inputs["vectors"]``), or a perceptron where ``hidden`` names widths."""

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
