"""Networks that can be entered in three places, ``embed`` → ``encode`` → ``head``: what losses on features and mixing need.

To let the training loop train a new kind of network, wrap it in a subclass of `Network`. ``inputs`` are the tensors, by name,
that the classifier's inputs (`distilcal.models.inputs`) prepare from examples.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distilcal.models.image.layers import ConvNet

Tensors = Mapping[str, Tensor]


class Output(NamedTuple):
    """The outputs of a network for a batch: logits, and the features that its head read."""

    logits: Tensor  # (N, K)
    features: Tensor  # (N, …)


class Mix(NamedTuple):
    """How rows are mixed on their way through a network: ``weight · own + (1 − weight) · other``."""

    weight: Tensor  # (N,)
    layer: int = 0  # 0: the first representation, n: the output of the nth layer
    other: Tensors | None = None  # layer 0: the inputs of the partners
    partner: Tensor | None = None  # later layers: (N,) positions of the partners in this batch


class Network(nn.Module, ABC):
    """A classifier in three steps: ``head(encode(embed(inputs), inputs))``.

    Subclasses define the steps `embed` and `encode`, and name their last linear layer (`output`) and the layers after which
    examples can be mixed (`layers`).

    Examples
    --------
    >>> network = VectorNetwork(width=4, classes=2, hidden=(3,))
    >>> logits, features = network({"vectors": torch.zeros(5, 4)})
    >>> logits.shape, features.shape
    (torch.Size([5, 2]), torch.Size([5, 3]))
    """

    @abstractmethod
    def embed(self, inputs: Tensors) -> Tensor:
        """Return the first representation in which two examples can be mixed."""

    @abstractmethod
    def encode(self, embedded: Tensor, inputs: Tensors) -> Tensor:
        """Return the features (N, …) that the head reads."""

    def head(self, features: Tensor) -> Tensor:
        """Return logits (N, K)."""
        logits: Tensor = self.output(features)
        return logits

    @property
    @abstractmethod
    def output(self) -> nn.Linear:
        """The last linear layer, into which a temperature can be folded."""

    @property
    @abstractmethod
    def layers(self) -> Sequence[nn.Module]:
        """The layers after which examples can be mixed."""

    def embed_mixed(self, inputs: Tensors, mix: Mix) -> tuple[Tensor, Tensors]:
        """Return the first representation of mixed examples, and the inputs that belong to it."""
        assert mix.other is not None
        return lerp(self.embed(inputs), self.embed(mix.other), mix.weight), inputs

    def forward(self, inputs: Tensors, mix: Mix | None = None) -> Output:
        """Return logits and features of a batch; with ``mix``, those of the mixed examples."""
        if mix is None:
            features = self.encode(self.embed(inputs), inputs)
        elif mix.layer == 0:
            embedded, inputs = self.embed_mixed(inputs, mix)
            features = self.encode(embedded, inputs)
        else:
            embedded = self.embed(inputs)
            with mix_after_layer(self.layers, mix):
                features = self.encode(embedded, inputs)
        return Output(self.head(features), features)


def lerp(own: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """Return ``weight · own + (1 − weight) · other`` with a weight per row.

    Parameters
    ----------
    own, other : Tensor, shape (N, ...)
        The values to mix.
    weight : Tensor, shape (N,)
        The share of ``own`` in each row, in [0, 1].

    Returns
    -------
    Tensor, shape (N, ...)
        The mixed values.

    Examples
    --------
    >>> lerp(torch.ones(2, 2), torch.zeros(2, 2), torch.tensor([1.0, 0.25])).tolist()
    [[1.0, 1.0], [0.25, 0.25]]
    """
    weight = weight.to(own.dtype).view(-1, *[1] * (own.dim() - 1))
    return weight * own + (1 - weight) * other


@contextmanager
def mix_after_layer(layers: Sequence[nn.Module], mix: Mix, attention_mask: Tensor | None = None) -> Iterator[None]:
    """Mix the output of layer ``mix.layer`` while the context lasts.

    Later layers attend to the positions of the example with more weight.

    Parameters
    ----------
    layers : sequence of Module
        The layers of the network, in order.
    mix : Mix
        Weights, layer and partners in the batch.
    attention_mask : Tensor, shape (N, L), optional
        0 where a text has no token: padding adds nothing to a mix.
    """
    assert mix.partner is not None
    partner = mix.partner

    def mix_output(module: nn.Module, args: Any, output: Any) -> Any:
        states = output if isinstance(output, Tensor) else output[0]
        if attention_mask is not None:
            # After the last layer there may be the first token only.
            states = states * attention_mask[:, : states.shape[1], None].to(states.dtype)
        mixed = lerp(states, states.index_select(0, partner), mix.weight)
        return mixed if isinstance(output, Tensor) else (mixed, *output[1:])

    def select_mask(value: Any) -> Any:
        """The attention mask (N, …) of the heavier example of each pair; other arguments as they are."""
        is_mask = isinstance(value, Tensor) and value.dim() == 4 and len(value) == len(partner)
        if not is_mask:
            return value
        return torch.where((mix.weight >= 0.5).view(-1, 1, 1, 1), value, value.index_select(0, partner))

    def select_masks(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (*args[:1], *map(select_mask, args[1:])), {name: select_mask(value) for name, value in kwargs.items()}

    handles = [layers[mix.layer - 1].register_forward_hook(mix_output)]
    for layer in layers[mix.layer :]:
        handles.append(layer.register_forward_pre_hook(select_masks, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class ImageNetwork(Network):
    """A network for images, ``inputs["pixels"]`` (N, 3, H, W).

    Parameters
    ----------
    body : ConvNet
        One of ``NETWORKS``.
    """

    def __init__(self, body: ConvNet):
        super().__init__()
        self.body = body

    def embed(self, inputs: Tensors) -> Tensor:
        """Return the pixels: images are mixed as they are."""
        return inputs["pixels"]

    def encode(self, embedded: Tensor, inputs: Tensors) -> Tensor:
        """Return the pooled features (N, width)."""
        return self.body.features(embedded)

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The stages of the network."""
        return list(self.body.stages)

    @property
    def output(self) -> nn.Linear:
        """The linear head."""
        return self.body.head


class VectorNetwork(Network):
    """A linear layer on vectors, ``inputs["vectors"]`` (N, D), or a perceptron where ``hidden`` gives widths.

    With one class and several vectors an example (N, choices, D), each choice gets a logit of its own: multiple choice.

    Parameters
    ----------
    width : int
        Numbers of a vector.
    classes : int
        Number of outputs; 1 for multiple choice.
    hidden : tuple of int, default ()
        Widths of the hidden layers.
    dropout : float, default 0
        Dropout after each hidden layer.
    """

    def __init__(self, width: int, classes: int, *, hidden: tuple[int, ...] = (), dropout: float = 0.0):
        super().__init__()
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = size
        self.body = nn.Sequential(*layers)
        self.last = nn.Linear(width, classes)

    def embed(self, inputs: Tensors) -> Tensor:
        """Return the vectors."""
        return inputs["vectors"]

    def encode(self, embedded: Tensor, inputs: Tensors) -> Tensor:
        """Return the output of the last hidden layer, or the vectors where there is none."""
        features: Tensor = self.body(embedded)
        return features

    def head(self, features: Tensor) -> Tensor:
        """Return logits (N, K); for multiple choice one logit per choice."""
        logits = super().head(features)
        return logits.squeeze(-1) if features.dim() == 3 else logits

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The activations of the hidden layers."""
        return [module for module in self.body if isinstance(module, nn.ReLU)]

    @property
    def output(self) -> nn.Linear:
        """The last linear layer."""
        return self.last


def weights_digest(network: nn.Module) -> str:
    """Return a hash of everything a network has learned, by name.

    Parameters
    ----------
    network : Module
        The network.

    Returns
    -------
    str
        A hash of the names, shapes, types and values of its parameters and buffers: 32 hexadecimal digits.

    Examples
    --------
    >>> layer = nn.Linear(2, 3)
    >>> weights_digest(layer) == weights_digest(layer) != weights_digest(nn.Linear(2, 4))
    True
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(network.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)  # no copy
    return digest.hexdigest()


@torch.no_grad()
def fold_temperature(network: Network, temperature: float) -> None:
    """Divide the last layer by a temperature, in place: the plain softmax of the network is then the calibrated one.

    Parameters
    ----------
    network : Network
        The network to change.
    temperature : float
        What its logits are divided by, as `distilcal.calibrate.fit_temperature` finds it.

    Examples
    --------
    >>> network = VectorNetwork(width=2, classes=2)
    >>> inputs = {"vectors": torch.ones(1, 2)}
    >>> before = network(inputs).logits
    >>> fold_temperature(network, 2.0)
    >>> torch.allclose(network(inputs).logits, before / 2)
    True
    """
    network.output.weight.div_(temperature)
    if network.output.bias is not None:
        network.output.bias.div_(temperature)


@torch.no_grad()
def permute_classes(network: Network, columns: list[int]) -> None:
    """Reorder the outputs in place: output i becomes what output ``columns[i]`` was.

    Parameters
    ----------
    network : Network
        The network, whose output layer is changed.
    columns : list of int
        The old position of each class, a permutation of 0 to K − 1.
    """
    network.output.weight.copy_(network.output.weight[columns].clone())
    if network.output.bias is not None:
        network.output.bias.copy_(network.output.bias[columns].clone())
