"""Recipes: what to train on what, from which teacher, as frozen dataclasses and as TOML.

A field stands here once, with its default and what it means. An unknown key is an error that names its path and the near ones.
"""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from distilcal.errors import InputError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of runs and stages, which are folders
RESERVED = ("metrics.json", "evaluation.json", "report.html", "recipe.toml", "environment.json")


@dataclass(frozen=True)
class DataSettings:
    """Which examples: files, folders, ``hub:NAME/CONFIG@SPLIT`` or benchmarks of the catalogue (``benchmark:NAME``)."""

    train: str = ""  # "benchmark:NAME" brings its own dev and test
    dev: str = ""  # empty: held out of train
    test: str = ""  # empty: held out of train
    ood: tuple[str, ...] = ()  # other domains to test on
    corrupt: tuple[str, ...] = ()  # corruptions of test to test on too: "frost:3", or "frost" for all five severities
    dev_fraction: float = 0.1
    test_fraction: float = 0.2
    limit: int = 0  # train on at most this many examples, each class in its share; 0: all
    limit_test: int = 0  # the same for dev, test and each ood set
    soft_labels: bool = False  # train on the raters' votes where the data have them
    classes: tuple[str, ...] = ()  # names and order; empty: found in train
    text: str = ""  # columns; empty: the usual names
    pair: str = ""
    choices: tuple[str, ...] = ()
    label: str = "label"
    id: str = ""
    group: str = ""  # examples of one group are never split between train, dev and test
    size: int = 0  # scale pictures to this side; 0: as they are
    seed: int = 0  # of the splits and corruptions


@dataclass(frozen=True)
class ModelSettings:
    """A network: a text encoder, a network for images, or a head on vectors."""

    name: str = ""  # hub name, folder, package:NAME/FOLDER; a network of docs/models.md for images; "linear" for vectors
    start_from: str = ""  # a stage whose trained network this one starts as
    layers: tuple[int, ...] = ()  # keep only these layers of a text encoder
    head: Literal["auto", "new", "keep"] = "auto"
    labels: tuple[str, ...] = ()  # what the model's outputs stand for, if it only says LABEL_0, LABEL_1, …
    dropout: float | None = None  # None: as the model says
    max_length: int = 256  # tokens
    frozen: bool = False  # keep the encoder as it is, cache its features, train a head on them
    # frozen, of two texts: read together, or each alone as sentence encoders are made for: (u, v, |u - v|, u·v)
    pairs: Literal["together", "apart"] = "together"
    hidden: tuple[int, ...] = ()  # widths of a perceptron in place of a linear head on vectors or frozen features
    weights: str = ""  # .safetensors of a network for images; $DISTILCAL_DATA in it is put in
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)  # of the channels of images in [0, 1]
    std: tuple[float, ...] = (0.2023, 0.1994, 0.2010)
    augment: bool = True  # crop and flip images in training


@dataclass(frozen=True)
class TrainSettings:
    """How to train: one optimiser, one schedule, which epoch to keep."""

    epochs: int = 3
    batch: int = 32
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 5e-5
    weight_decay: float = 0.01  # adamw: not on biases and norms
    momentum: float = 0.9  # sgd
    nesterov: bool = False  # sgd
    schedule: Literal["none", "linear", "cosine", "steps"] = "linear"
    warmup: float = 0.0  # share of all steps in which the rate rises from 0
    milestones: tuple[int, ...] = ()  # steps: epochs after which the rate is multiplied by gamma
    gamma: float = 0.1
    clip: float = 1.0  # largest norm of the gradient; 0: none
    accumulate: int = 1  # split each batch into so many parts: same gradient, less memory
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    choose: Literal["nll", "accuracy", "last"] = "nll"  # which epoch to keep, by dev
    choose_among: tuple[int, ...] = ()  # only after so many epochs, as [2, 4, 8]; empty: after any
    patience: int = 0  # stop after so many epochs without a better one; 0: never


@dataclass(frozen=True)
class TermSettings:
    """One term of the sum that is minimised. Keys beyond these are settings of the loss."""

    loss: str = "cross_entropy"
    weight: float = 1.0
    view: str = "plain"
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.weight:g}·{self.loss}{'' if self.view == 'plain' else f' ({self.view})'}"


@dataclass(frozen=True)
class ViewSettings:
    """A way of the batch through the student: who is mixed with whom, where, and how much."""

    kind: Literal["mixup", "manifold", "cutmix", "cutout"] = "mixup"  # manifold: at the features, or after layers
    # random: in the batch; regions, halves: at random in the other region or AUM half; the rest: by saliency in the other half
    pairs: Literal["random", "regions", "halves", "similar", "dissimilar"] = "random"
    regions: tuple[str, ...] = ("easy", "ambiguous")  # of the stage's map; each example of one with one of the other
    fraction: float = 0.33  # of the examples in each region
    disjoint: bool = False  # no example in two regions
    candidates: Literal["all", "batch"] = "all"  # partners from the whole training set, or from the same batch
    any_half: bool = False  # similar and dissimilar: among all examples, not in the other AUM half only
    saliency: Literal["logits", "features"] = "logits"  # what is compared; features also tell apart where there are two classes
    layers: tuple[int, ...] = ()  # manifold: drawn from these for each batch, 0 the input; empty: the features
    alpha: float | None = None  # the share of an example is drawn from Beta(alpha, alpha); None: 0.4, for cutmix 1
    shares: Literal["batch", "sample"] = "batch"  # one share for the batch, or one for each example
    probability: float = 1.0  # of a batch to be changed at all
    length: int = 16  # cutout: side of a hole in pixels
    holes: int = 1  # cutout
    teacher: Literal["clean", "mixed"] = "clean"  # what the teacher sees: each example as it is, or what the student sees
    variant: Literal["paper", "author_code"] = "paper"  # similar and dissimilar: the targets of P001's released code


@dataclass(frozen=True)
class StageSettings:
    """One model: trained with terms, taken as it stands (no terms), or known by its predictions only."""

    model: ModelSettings = ModelSettings()
    terms: tuple[TermSettings, ...] = ()
    train: TrainSettings = TrainSettings()
    views: dict[str, ViewSettings] = field(default_factory=dict)  # by name, for the terms
    record: bool = False  # keep what the model says about each training example over the epochs: its map
    record_features: bool = False  # with record: also the saliency of the features, for pairs by it
    map: str = ""  # the stage, or a folder, whose map regions and AUM halves are taken from
    teacher: str = ""  # the stage whose outputs teacher_logits and teacher_features are
    scale_teacher: bool = False  # divide the teacher's logits by the temperature that suits dev
    teacher_input: Literal["auto", "cached", "live"] = "auto"  # live: run the teacher on inputs that change; auto: if they do
    predictions: tuple[str, ...] = ()  # files of a teacher that is known by its predictions only
    calibrate: Literal["temperature", "vector", "matrix", "dirichlet", "isotonic", "histogram", "none"] = "temperature"


@dataclass(frozen=True)
class Recipe:
    """Data, stages in any order, and the seed of the models."""

    name: str = "run"
    seed: int = 0
    data: DataSettings = DataSettings()
    stages: dict[str, StageSettings] = field(default_factory=dict)
    accuracy: float = 0.95  # wanted among the answers that are not handed over
    train_predictions: bool = False  # also save what each model says about the training data


def read_recipe(path: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML file, with ``key=value`` changes."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no such file", source=str(path), remedy="make one with: distilcal example NAME") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not readable as TOML: {error}", source=str(path), remedy="mend it") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path), remedy="give a TOML file") from None
    for change in changes:
        change_table(table, change)
    try:
        return checked(recipe_from(table))
    except InputError as error:
        error.source = error.source or str(path)
        raise


def recipe_from(table: Mapping[str, Any]) -> Recipe:
    """The recipe that a table of TOML describes."""
    stages = table.get("stages")
    if isinstance(stages, Mapping):
        table = {**table, "stages": {name: _with_likeness(name, stages) for name in stages}}
    made: Recipe = settings_from(Recipe, table, "")
    return made


def _with_likeness(name: str, stages: Mapping[str, Any], below: tuple[str, ...] = ()) -> Any:
    """A stage's table on top of that of the stage it is ``like``: model, train and views of one name key by key."""
    own = stages[name]
    if not isinstance(own, Mapping) or "like" not in own:
        return own
    base = own["like"]
    if not isinstance(base, str) or base not in stages or base in (*below, name):
        raise InputError(f"stages.{name}.like = {base!r} is not another stage", remedy=f"the stages are {', '.join(stages)}")
    like = _with_likeness(base, stages, (*below, name))
    made = {**like, **{key: value for key, value in own.items() if key != "like"}}
    for key in ("model", "train"):
        if isinstance(like.get(key), Mapping) and isinstance(own.get(key), Mapping):
            made[key] = {**like[key], **own[key]}
    if isinstance(like.get("views"), Mapping) and isinstance(own.get("views"), Mapping):
        made["views"] = {
            view: {**like["views"].get(view, {}), **said} if isinstance(said, Mapping) else said
            for view, said in own["views"].items()
        }
    return made


def as_table(value: Any) -> Any:
    """A recipe or a part of it as plain tables and lists; what is None is left out, since TOML has no word for it."""
    if isinstance(value, TermSettings):
        return {"loss": value.loss, "weight": value.weight, "view": value.view, **value.settings}
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: getattr(value, f.name) for f in fields(value)}
        return {name: as_table(part) for name, part in named.items() if part is not None}
    if isinstance(value, Mapping):
        return {str(key): as_table(part) for key, part in value.items()}
    return [as_table(part) for part in value] if isinstance(value, (tuple, list)) else value


def to_toml(recipe: Recipe) -> str:
    """The recipe with every field, as ``read_recipe`` reads it."""
    import tomli_w

    return tomli_w.dumps(as_table(recipe))


def ordered_stages(recipe: Recipe) -> list[str]:
    """Stage names, each after those it depends on; a missing or circular dependency is an error."""
    done: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise InputError(
                f"stages depend on each other in a circle: {' → '.join((*above, name))}", remedy="break the circle"
            )
        if name in done:
            return
        for needed in dependencies(recipe.stages[name]):
            if needed not in recipe.stages:
                raise InputError(
                    f"stages.{name} depends on {needed!r}, which is not a stage",
                    remedy=f"the stages are {', '.join(recipe.stages)}; the map of a folder is written as ./{needed}",
                )
            visit(needed, (*above, name))
        done.append(name)

    for name in recipe.stages:
        visit(name, ())
    return done


def only_stages(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """The recipe with these stages and those they depend on."""
    unknown = [name for name in names if name not in recipe.stages]
    if unknown:
        near = get_close_matches(unknown[0], recipe.stages, n=3, cutoff=0.4) or list(recipe.stages)
        raise InputError(f"there is no stage {unknown[0]!r}", remedy=f"did you mean {', '.join(near)}?")
    wanted = list(names)
    for name in wanted:  # grows while it is gone through
        wanted += [other for other in dependencies(recipe.stages[name]) if other not in wanted]
    return replace(recipe, stages={name: stage for name, stage in recipe.stages.items() if name in wanted})


def dependencies(stage: StageSettings) -> list[str]:
    """The stages that must be there before this one."""
    return [name for name in (stage.teacher, stage.model.start_from, "" if is_folder(stage.map) else stage.map) if name]


def is_folder(map_: str) -> bool:
    """Whether a map is a folder, not a stage."""
    return "/" in map_


def checked(recipe: Recipe) -> Recipe:
    """The recipe, if it can be carried out as far as words tell."""
    if not recipe.stages:
        raise InputError("there are no stages", remedy="add [stages.student] with a model and terms")
    if not recipe.data.train:
        raise InputError("data.train is empty", remedy="name the training data")
    if not NAME.fullmatch(recipe.name):
        raise InputError(f"name {recipe.name!r} is no name for a folder", remedy="use letters, digits, dashes and dots")
    for name, stage in recipe.stages.items():
        if not NAME.fullmatch(name) or name in RESERVED:
            raise InputError(f"{name!r} is no name for a stage", remedy="use letters, digits, dashes and dots")
        if stage.predictions and (stage.terms or stage.model.name or stage.model.start_from):
            raise InputError(f"stages.{name} has predictions and a model", remedy="give one of them")
        if not stage.predictions and bool(stage.model.name) == bool(stage.model.start_from):
            raise InputError(f"stages.{name}.model needs a name, or start_from and not both", remedy="name the network")
        _check_train(stage.train, f"stages.{name}.train")
        _check_model(stage.model, f"stages.{name}.model")
        _check_views(name, stage, recipe.stages)
        taught = [t.loss for t in stage.terms if t.loss in ("kd", "rkd", "crd")]
        if taught and not stage.teacher:
            raise InputError(f"stages.{name} has the term {taught[0]!r} but no teacher", remedy='add teacher = "STAGE"')
    if recipe.seed < 0 or recipe.data.seed < 0 or min(recipe.data.limit, recipe.data.limit_test, recipe.data.size) < 0:
        raise InputError("seed, data.seed, data.limit, data.limit_test and data.size must not be negative")
    if len(set(recipe.data.corrupt)) < len(recipe.data.corrupt):
        raise InputError("data.corrupt names a corruption twice", remedy="name each once")
    if recipe.data.dev_fraction + recipe.data.test_fraction >= 1:
        raise InputError("data.dev_fraction and data.test_fraction leave nothing to train on")
    for key in ("dev_fraction", "test_fraction"):
        if not 0 < getattr(recipe.data, key) < 1:
            raise InputError(f"data.{key} = {getattr(recipe.data, key)} is not between 0 and 1")
    ordered_stages(recipe)
    return recipe


def _check_views(name: str, stage: StageSettings, stages: Mapping[str, StageSettings]) -> None:
    if stage.map and not is_folder(stage.map) and stage.map in stages and not stages[stage.map].record:
        raise InputError(
            f"stages.{name} asks for the map of {stage.map!r}, which records none",
            remedy=f"add record = true to stages.{stage.map}",
        )
    if stage.record and not any(t.view == "plain" for t in stage.terms):
        raise InputError(f"stages.{name} has no term on the plain view to record", remedy="add one, or leave out record")
    used = [t.view for t in stage.terms]
    for key, view in stage.views.items():
        path = f"stages.{name}.views.{key}"
        if key == "plain":
            raise InputError(f"{path}: the plain view is the batch as it stands", remedy="choose another name")
        if key not in used:
            raise InputError(f"{path} is used by no term", remedy=f'add view = "{key}" to a term, or leave it out')
        if view.pairs != "random" and not stage.map:
            raise InputError(
                f"{path}: pairs = {view.pairs!r} needs a map", remedy='add map = "STAGE", a stage with record = true'
            )
        if not 0 < view.fraction <= 1 or not 0 <= view.probability <= 1:
            raise InputError(f"{path}: fraction must be in (0, 1], probability in [0, 1]")
        if (view.alpha or 0) < 0 or view.length < 1 or view.holes < 1 or any(layer < 0 for layer in view.layers):
            raise InputError(f"{path}: alpha and layers must not be negative, length and holes at least 1")
        _check_in_use(view, path)
        if any(view.layers) and view.pairs != "random" and view.candidates == "all":
            raise InputError(
                f"{path}: a hidden layer mixes examples of one batch", remedy="add candidates = 'batch', or leave out layers"
            )
        recorded = stages.get(stage.map)
        if view.saliency == "features" and recorded is not None and not recorded.record_features:
            raise InputError(
                f"{path}: the map {stage.map!r} holds no saliency of features",
                remedy=f"add record_features = true to stages.{stage.map}",
            )
        if view.teacher == "mixed" and stage.teacher in stages and stages[stage.teacher].predictions:
            raise InputError(
                f"{path}: the teacher {stage.teacher!r} is known by its predictions and cannot see mixed examples",
                remedy="use teacher = 'clean'",
            )
        wrong = [r for r in view.regions if r not in ("easy", "ambiguous", "hard")]
        if wrong or len(view.regions) != 2:
            raise InputError(f"{path}.regions = {list(view.regions)!r} are not two of 'easy', 'ambiguous', 'hard'")


def _check_in_use(view: ViewSettings, path: str) -> None:
    """Refuse a setting that the view's kind or pairs does not look at: it would do nothing, and not what was meant."""
    by_saliency = view.pairs in ("similar", "dissimilar")
    cut = view.kind == "cutout"
    looked_at = {
        "pairs": not cut,
        "regions": view.pairs == "regions",
        "fraction": view.pairs == "regions",
        "disjoint": view.pairs == "regions",
        "candidates": view.pairs != "random",
        "any_half": by_saliency,
        "saliency": by_saliency,
        "variant": by_saliency,
        "layers": view.kind == "manifold",
        "alpha": not cut,
        "shares": not cut,
        "length": cut,
        "holes": cut,
    }
    for name, used in looked_at.items():
        if not used and getattr(view, name) != getattr(ViewSettings(), name):
            raise InputError(
                f"{path}.{name} does nothing with kind = {view.kind!r} and pairs = {view.pairs!r}", remedy="change one of them"
            )


def _check_model(model: ModelSettings, path: str) -> None:
    if model.max_length < 4 or any(width < 1 for width in model.hidden):
        raise InputError(f"{path}: max_length must be at least 4, the widths in hidden at least 1")
    if model.dropout is not None and not 0 <= model.dropout < 1:
        raise InputError(f"{path}.dropout = {model.dropout} is not in [0, 1)")
    if model.pairs == "apart" and not model.frozen:
        raise InputError(f"{path}.pairs = 'apart' is of frozen encoders", remedy="add frozen = true, or leave it out")
    if len(set(model.layers)) < len(model.layers):
        raise InputError(f"{path}.layers names a layer twice", remedy="name each once")


def _check_train(train: TrainSettings, path: str) -> None:
    for key in ("epochs", "batch", "accumulate"):
        if getattr(train, key) < 1:
            raise InputError(f"{path}.{key} = {getattr(train, key)} is not at least 1")
    if train.batch % train.accumulate:
        raise InputError(f"{path}.batch = {train.batch} cannot be split into {train.accumulate} equal parts")
    if train.weight_decay < 0 or not 0 <= train.momentum < 1:
        raise InputError(f"{path}: weight_decay must not be negative, momentum in [0, 1)")
    if not train.lr > 0 or not 0 <= train.warmup < 1 or train.clip < 0 or train.patience < 0:
        raise InputError(f"{path}: lr must be above 0, warmup in [0, 1), clip and patience not negative")
    if any(not 1 <= epoch <= train.epochs for epoch in train.choose_among):
        raise InputError(f"{path}.choose_among names epochs outside 1 to {train.epochs}", remedy="leave them out")
    if train.choose_among and train.choose == "last":
        raise InputError(f"{path}.choose_among does nothing with choose = 'last'", remedy="leave out one of them")
    if train.schedule == "steps" and not train.milestones:
        raise InputError(f"{path}.schedule = 'steps' needs milestones", remedy="give the epochs, as milestones = [80, 120]")


# ---- tables to dataclasses ---------------------------------------------------------------------------------------------


def settings_from(kind: Any, table: Any, path: str = "") -> Any:
    """A dataclass of settings from a table; ``path`` is where the table stands, for errors."""
    if not isinstance(table, Mapping):
        raise InputError(f"{path or 'the recipe'} is {table!r}, not a table", remedy="write it as [table] with keys")
    hints = _hints(kind)
    names = list(hints)
    values: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in table.items():
        here = f"{path}.{key}" if path else str(key)
        if key in names and not (kind is TermSettings and key == "settings"):
            values[key] = _value(hints[key], value, here)
        elif kind is TermSettings:
            rest[key] = value
        else:
            near = get_close_matches(key, names, n=3, cutoff=0.5)
            raise InputError(
                f"unknown key {here}", remedy=f"did you mean {' or '.join(near)}?" if near else f"keys: {', '.join(names)}"
            )
    if kind is TermSettings:
        values["settings"] = rest
    return kind(**values)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, in their order."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint):
        return settings_from(hint, value, path)
    if origin in (Union, types.UnionType):
        return _value(next(h for h in inside if h is not type(None)), value, path)
    if origin is Literal:
        if value not in inside:
            raise InputError(f"{path} = {value!r} is not one of {', '.join(repr(i) for i in inside)}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{path} = {value!r} is not a list", remedy=f"write {path.split('.')[-1]} = [{value!r}]")
        return tuple(_value(inside[0], part, f"{path}[{i}]") for i, part in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{path} = {value!r} is not a table")
        return {str(key): part if inside[1] is Any else _value(inside[1], part, f"{path}.{key}") for key, part in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{path} = {value!r} is not of type {hint.__name__}")
    return value


def change_table(table: dict[str, Any], change: str) -> None:
    """Put ``key.path=value`` into a table; the value is TOML, or text where it is not."""
    path, equals, text = change.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set {change!r} is not key=value", remedy="write it as stages.student.train.epochs=5")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    *above, last = path.strip().split(".")
    place: Any = table
    for key in above:
        place = place[_index(place, key, change)] if isinstance(place, list) else place.setdefault(key, {})
        if not isinstance(place, (dict, list)):
            raise InputError(f"--set {change!r}: {key} is not a table", remedy="name a key of a table")
    if isinstance(place, list):
        place[_index(place, last, change)] = value
    else:
        place[last] = value


def _index(place: list[Any], key: str, change: str) -> int:
    if not key.isdigit() or int(key) >= len(place):
        raise InputError(f"--set {change!r}: {key!r} is not one of {len(place)} entries", remedy="they are counted from 0")
    return int(key)
