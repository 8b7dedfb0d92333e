"""Networks for text around Hugging Face models: a classifier in three steps, and an encoder without head.

The split ``embed`` / ``encode`` / ``head`` works for every architecture alike: a model is entered by its input embeddings, and
its features are what its last linear layer reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from distilcal.models.network import Mix, Network, Output, Tensors, lerp, mix_after_layer

Pooling = Literal["mean", "first"]

# Where a layer goes on token by token, once its tokens have attended to each other, by type of model. The heads of these models
# read the first token alone, so that the others need not go on in the last layer.
AFTER_ATTENTION = {
    "bert": "attention.output",
    "camembert": "attention.output",
    "distilbert": "sa_layer_norm",
    "electra": "attention.output",
    "mpnet": "attention.LayerNorm",
    "roberta": "attention.output",
    "xlm-roberta": "attention.output",
}


class TextNetwork(Network):
    """A Hugging Face classifier in three steps; features are the input of its last linear layer.

    Parameters
    ----------
    model : PreTrainedModel
        A model for sequence classification, or for multiple choice (inputs of shape (N, choices, L)).
    """

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self._features: Tensor | None = None  # of the last forward pass
        # In a tuple, lest torch registers the layer a second time, under another name.
        self._named_output = last_linear(model)
        self.output.register_forward_pre_hook(self._keep_features)

    def _keep_features(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._features = args[0]

    def embed(self, inputs: Tensors) -> Tensor:
        """Return the input embeddings of the tokens (N, L, D)."""
        embedded: Tensor = self.word_embeddings(inputs["input_ids"])
        return embedded

    def encode(self, embedded: Tensor, inputs: Tensors) -> Tensor:
        """Return what the last linear layer reads (N, D); for multiple choice (N, choices, D)."""
        return self._run_embedded(embedded, inputs).features

    def head(self, features: Tensor) -> Tensor:
        """Return logits (N, K); for multiple choice one logit per choice."""
        logits: Tensor = self.output(features)
        return logits.squeeze(-1) if features.dim() == 3 else logits

    @property
    def word_embeddings(self) -> nn.Module:
        """The table of the input embeddings."""
        table: nn.Module = self.model.get_input_embeddings()
        return table

    @property
    def output(self) -> nn.Linear:
        """The last linear layer."""
        return self._named_output[1]

    @property
    def output_name(self) -> str:
        """The name of the last linear layer in the model."""
        return self._named_output[0]

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The layers of the encoder."""
        return list(encoder_layers(self.model) or ())

    def replace_output(self, layer: nn.Linear) -> None:
        """Put another linear layer in the place of the last one."""
        name = self.output_name
        parent, _, leaf = name.rpartition(".")
        setattr(self.model.get_submodule(parent), leaf, layer)
        self._named_output = (name, layer)
        layer.register_forward_pre_hook(self._keep_features)
        self.model.num_labels = layer.out_features  # the loss of the model's own code, and save_pretrained, read it

    def embed_mixed(self, inputs: Tensors, mix: Mix) -> tuple[Tensor, Tensors]:
        """Return the input embeddings of mixed texts. Padding adds nothing; a mix is as long as the text with more weight.

        So a text that keeps all of itself is itself. Attending to the tokens of both texts would not do: beyond the end of a
        short text there is little to read, but it would be read with full attention.
        """
        assert mix.other is not None
        own, other = pad_to_same_length(inputs, mix.other)
        own_mask, other_mask = own["attention_mask"], other["attention_mask"]
        embedded = lerp(self.embed(own) * own_mask[..., None], self.embed(other) * other_mask[..., None], mix.weight)
        own_is_heavier = (mix.weight >= 0.5).view(-1, *[1] * (own_mask.dim() - 1))
        return embedded, {name: torch.where(own_is_heavier, own[name], other[name]) for name in own}

    def forward(self, inputs: Tensors, mix: Mix | None = None) -> Output:
        """Return logits and features of a batch; with ``mix``, those of the mixed texts."""
        if mix is None:
            return self._run(inputs)
        if mix.layer == 0:
            embedded, inputs = self.embed_mixed(inputs, mix)
            return self._run_embedded(embedded, inputs)
        choices = inputs["input_ids"].shape[1] if inputs["input_ids"].dim() == 3 else 1
        if choices > 1:
            mix = _mix_of_choices(mix, choices)
        with mix_after_layer(self.layers, mix, inputs["attention_mask"].flatten(0, -2)):
            return self._run(inputs)

    def _run_embedded(self, embedded: Tensor, inputs: Tensors) -> Output:
        other_inputs = {name: value for name, value in inputs.items() if name != "input_ids"}
        return self._run({**other_inputs, "inputs_embeds": embedded})

    def _run(self, inputs: Tensors) -> Output:
        with first_token_only(self.model):
            logits: Tensor = self.model(**inputs).logits
        features, self._features = self._features, None
        assert features is not None
        if inputs["attention_mask"].dim() == 3:  # multiple choice: the model sees one row per choice
            features = features.view(*logits.shape, -1)
        return Output(logits, features)


def _mix_of_choices(mix: Mix, choices: int) -> Mix:
    """The same mix for layers that see one row per choice."""
    assert mix.partner is not None
    rows = mix.partner[:, None] * choices + torch.arange(choices, device=mix.partner.device)
    return mix._replace(partner=rows.flatten(), weight=mix.weight.repeat_interleave(choices))


def pad_to_same_length(first: Tensors, second: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return two batches of tokens, the shorter one padded with zeros to the length of the longer.

    Parameters
    ----------
    first, second : mapping of str to Tensor, shape (..., L)
        The batches, with ``input_ids`` among their names; each has a length L of its own.

    Returns
    -------
    tuple of two dict of str to Tensor
        The batches in the same order, both of the larger length.
    """
    length = max(first["input_ids"].shape[-1], second["input_ids"].shape[-1])
    return _pad_tokens(first, length), _pad_tokens(second, length)


def _pad_tokens(inputs: Tensors, length: int) -> dict[str, Tensor]:
    missing = length - inputs["input_ids"].shape[-1]
    if not missing:
        return dict(inputs)
    return {name: nn.functional.pad(value, (0, missing)) for name, value in inputs.items()}


class TextEncoder(nn.Module):
    """A pretrained encoder without head; both of its outputs are the features.

    Parameters
    ----------
    model : PreTrainedModel
        An encoder with ``last_hidden_state``.
    pooling : {"mean", "first"}, default "mean"
        Features are the last states averaged over the tokens, or the state of the first token.
    """

    def __init__(self, model: Any, *, pooling: Pooling = "mean"):
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, inputs: Tensors) -> Output:
        """Return features (N, D) of texts, or (N, choices, D) of multiple choice."""
        if inputs["input_ids"].dim() == 3:
            rows_and_choices = inputs["input_ids"].shape[:2]
            features = self._features({name: value.flatten(0, 1) for name, value in inputs.items()})
            features = features.view(*rows_and_choices, -1)
        else:
            features = self._features(inputs)
        return Output(features, features)

    def _features(self, inputs: Tensors) -> Tensor:
        states: Tensor = self.model(**inputs).last_hidden_state  # (N, L, D)
        if self.pooling == "first":
            return states[:, 0]
        mask = inputs["attention_mask"][..., None].to(states.dtype)
        return (states * mask).sum(dim=1) / mask.sum(dim=1)


@contextmanager
def first_token_only(model: Any) -> Iterator[None]:
    """While the context lasts, take only the first token through the end of the last layer, if a classifier reads no other.

    Logits stay the same, to rounding, and most of the layer's work is saved. With dropout fewer random numbers are drawn.

    Parameters
    ----------
    model : PreTrainedModel
        A classifier. Those whose type is not in ``AFTER_ATTENTION`` are left as they are.
    """
    layers = encoder_layers(model)
    place = AFTER_ATTENTION.get(model.config.model_type)
    if layers is None or place is None:
        yield
        return

    def keep_first(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(states[:, :1] for states in args)  # each (N, L, D)

    handle = layers[-1].get_submodule(place).register_forward_pre_hook(keep_first)
    try:
        yield
    finally:
        handle.remove()


def encoder_layers(model: Any) -> nn.ModuleList | None:
    """Return the list of layers that a model's configuration counts.

    Parameters
    ----------
    model : PreTrainedModel
        The model.

    Returns
    -------
    ModuleList or None
        The first list of ``num_hidden_layers`` modules; None if the model has no such list.
    """
    count = int(model.config.num_hidden_layers)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    return None


def last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return the name of a model's last linear layer, that of the classes, and the layer.

    Parameters
    ----------
    model : Module
        A model with at least one linear layer. Of a model of transformers it is the last one outside the encoder: some define
        their head before their encoder.

    Returns
    -------
    name : str
        The layer's name within the model.
    layer : Linear
        The layer itself.

    Raises
    ------
    IndexError
        If the model has no linear layer.

    Examples
    --------
    >>> last_linear(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ('2', Linear(in_features=3, out_features=2, bias=True))
    """
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    encoder = f"{getattr(model, 'base_model_prefix', '')}."
    return [(name, layer) for name, layer in linear if not name.startswith(encoder)][-1]


def architecture(model: Any) -> dict[str, Any]:
    """Return what a model computes beside its weights: its configuration without where it came from.

    Parameters
    ----------
    model : PreTrainedModel
        The model.

    Returns
    -------
    dict
        The configuration without names, versions, types and labels.
    """
    unrelated = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "id2label", "label2id")
    return {key: value for key, value in model.config.to_dict().items() if key not in unrelated}
