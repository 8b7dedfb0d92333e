"""Checks of a recipe against its data, models, losses and files, before anything is trained.

Rules that need none of these are on the settings themselves, in `distilcal.config.schema`. These checks are in the pipeline and
not in ``config`` because they use data, losses and models, which come later in the order of imports.

To add a check of a stage: a function of a `StageToCheck` that raises `InputError`, and its entry in ``STAGE_CHECKS``.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distilcal.config.schema import ModelSettings, Recipe, StageSettings, TermSettings, ViewSettings, is_folder
from distilcal.data import Choices, Dataset, Images, Vectors
from distilcal.data.splits import Splits
from distilcal.dynamics import load_dynamics
from distilcal.errors import InputError
from distilcal.io.atomic import check_input
from distilcal.losses import LOSSES, needs_labels, required_inputs
from distilcal.models.classifier import weights_path
from distilcal.models.image import build_image_network
from distilcal.models.pretrained import check_class_names, resolve_model
from distilcal.pipeline.encoders import NO_CONFIGS, Configs, encoder_config, has_classification_head, label_names, layer_count
from distilcal.pipeline.rows import stage_data
from distilcal.pipeline.sizes import check_size
from distilcal.pipeline.stage import Stage
from distilcal.pipeline.teacher import different_inputs
from distilcal.pipeline.views import stage_views
from distilcal.predictions import SURROGATE, Predictions
from distilcal.selective import counted
from distilcal.views import MIXED, VIEWS, View, build_term

LOCK = ".lock"  # in the folder of a run that is under way
RUN_MARKS = (LOCK, "metrics.json", "environment.json", ".budget.json")  # a folder with one of these is that of a run
HARMLESS_FILES = ("points.csv", "best.toml", "sweep.json", ".gitignore", ".gitkeep", ".DS_Store", "desktop.ini")
LONGEST_FILE_NAME = 255  # bytes, on nearly every file system
PREDICTIONS_FILE = ".{}.npz.12345678.part"  # the longest name of a file that is written for a split
MIN_DEV_EXAMPLES = 20  # epochs and temperatures are chosen on dev
TRIAL_ROWS = 4  # random rows on which each loss is computed once
TRIAL_FEATURES = 3


@dataclass(frozen=True)
class StageToCheck:
    """A stage of a recipe with the data that it is trained on."""

    name: str
    settings: StageSettings
    recipe: Recipe
    train: Dataset
    configs: Configs

    @property
    def path(self) -> str:
        """Where the stage is in the recipe."""
        return f"stages.{self.name}"

    @property
    def network(self) -> ModelSettings:
        """The settings of the network, which may be those of the stage that it starts from."""
        stage = self.settings
        while stage.model.start_from:
            stage = self.recipe.stages[stage.model.start_from]
        return stage.model

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The config.json of its text encoder; None if it has none, or one on the hub: nothing is downloaded for a check."""
        name = self.network.name
        if not name or not self.has_texts:
            return None
        if name in self.configs:
            return self.configs[name]
        return encoder_config(name) if Path(resolve_model(name)).is_dir() else None

    @property
    def has_texts(self) -> bool:
        """Whether its network is a text encoder."""
        return not isinstance(self.train.inputs, Images | Vectors)


def check_recipe(recipe: Recipe, splits: Splits, configs: Configs = NO_CONFIGS) -> None:
    """Refuse a recipe that could not be trained on its data.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    splits : Splits
        Its data.
    configs : mapping of str to mapping
        Models and predictions that are written later: the configuration of a model by its folder, an empty one by the file of
        predictions.

    Raises
    ------
    InputError
        For the first check that fails, with the path of the setting and a remedy.
    """
    if len(splits.dev) < MIN_DEV_EXAMPLES:
        raise InputError(
            f"dev has {counted(len(splits.dev), 'example')}",
            remedy=f"give at least {MIN_DEV_EXAMPLES}: epochs and temperatures are chosen on it",
        )
    for data in splits:
        check_split_name(data.name)
    check_names_differ([data.name for data in splits])
    for name, settings in recipe.stages.items():
        stage = StageToCheck(name, settings, recipe, stage_data(settings, splits), configs)
        for check in STAGE_CHECKS:
            check(stage)
        _check_pairs_everywhere(stage, splits)


def _check_pairs_everywhere(stage: StageToCheck, splits: Splits) -> None:
    """A head on the features of two texts has no use for those of one; other models read single texts as another domain."""
    if stage.network.pairs != "apart" or not splits.train.holds_pairs:
        return
    for data in splits:
        if not data.holds_pairs:
            raise InputError(
                f"{stage.path}.model: pairs = 'apart' needs two texts, {data.name!r} holds single ones",
                remedy="leave out pairs, or that data",
            )


def check_folders(folder: Path, store: Path, *, kind: str = "run", marks: Sequence[str] = RUN_MARKS) -> None:
    """Refuse a folder of a run that holds something else, a store that is a run, and folders that cannot be created.

    Needs no data.

    Parameters
    ----------
    folder : Path
        The folder of the results: new, empty, or that of earlier results.
    store : Path
        Where trained stages are kept.
    kind : str, default "run"
        Whose results, for the messages.
    marks : sequence of str, optional
        A folder with a file of one of these names holds such results; by default those of a run.

    Raises
    ------
    InputError
        With the folder, and a file in it that does not belong to the results, or a folder in it whose content cannot be
        replaced.
    """
    for path, remedy in ((folder, f"give the folder of a {kind}"), (store, "give the folder of the store")):
        check_creatable(path, remedy)
    if folder.resolve() == store.resolve():
        raise InputError(f"the {kind} and the store are one folder, {str(folder)!r}", remedy="give two")
    if any((store / name).exists() for name in RUN_MARKS):  # stages of that run may be called as folders of a store
        raise InputError("this is the folder of a run, not a store", source=str(store), remedy="give another --store")
    inside = folder.iterdir() if folder.is_dir() else ()
    names = sorted(path.name for path in inside if os.path.realpath(path) != os.path.realpath(store))  # links may be circles
    foreign = [name for name in names if name not in (*HARMLESS_FILES, LOCK)]
    is_known = any(name in marks for name in names) or (folder / "data" / "answers").is_dir()
    if foreign and not is_known:
        raise InputError(
            f"this folder is not empty and not that of a {kind}: it holds {foreign[0]!r}",
            source=str(folder),
            remedy="give a new folder",
        )
    for stage in (path.parent for path in folder.glob("*/stage.json")):
        for path in (stage, *stage.rglob("*")):
            if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
                raise InputError(
                    f"the results of an earlier run are in it, and {str(path)!r} is not writable",
                    source=str(folder),
                    remedy="give a new folder",
                )


def check_creatable(path: Path, remedy: str) -> None:
    """Refuse a folder that is a file or lies in one, whose name the system does not allow, or that is not writable.

    Parameters
    ----------
    path : Path
        The folder, which need not exist.
    remedy : str
        What to do about it.

    Raises
    ------
    InputError
        With the folder.
    """
    for part in path.parts:
        size = len(os.fsencode(part))
        if "\0" in part or size > LONGEST_FILE_NAME:
            raise InputError(
                f"{part[:40]!r} of {size} bytes cannot be the name of a folder",
                remedy=f"give a name of at most {LONGEST_FILE_NAME} bytes",
            )
        if SURROGATE.search(part):  # a byte that is no text, as Python spells it: safetensors cannot open files there
            raise InputError(f"{part[:40]!r} is not UTF-8", source=str(path), remedy=remedy)
    there = next(parent for parent in (path, *path.absolute().parents) if os.path.lexists(parent))
    if not there.is_dir():
        kind = "a file" if there.exists() else "a link that leads nowhere"
        raise InputError(f"{'this' if there == path else repr(str(there))} is {kind}", source=str(path), remedy=remedy)
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{str(there)!r} is not writable", source=str(path), remedy=remedy)


def check_split_name(name: str) -> None:
    """Check that files can be named after a split.

    Parameters
    ----------
    name : str
        Name of a split: that of its file or folder, or of a benchmark.

    Raises
    ------
    InputError
        If the name is too long, or holds control characters or separators.

    Examples
    --------
    >>> check_split_name("tweets")
    >>> check_split_name("a" * 250)
    Traceback (most recent call last):
    distilcal.errors.InputError: a name of 250 bytes is too long for files of results; rename the data, to at most 236 bytes
    """
    size, longest = len(name.encode(errors="surrogatepass")), LONGEST_FILE_NAME - len(PREDICTIONS_FILE.format(""))
    if size > longest:
        raise InputError(
            f"a name of {size} bytes is too long for files of results",
            source=name[:40] + "…" if size > LONGEST_FILE_NAME else "",
            remedy=f"rename the data, to at most {longest} bytes",
        )
    if not name.isprintable() or set(name) & set("/\\"):
        raise InputError(f"{name!r} cannot be the name of a file of results", remedy="rename the data")


def check_names_differ(names: Sequence[str]) -> None:
    """Check that no two splits share a file of results where a disk ignores upper and lower case.

    Parameters
    ----------
    names : sequence of str
        Names of the splits.

    Raises
    ------
    InputError
        If two names differ in case only.

    Examples
    --------
    >>> check_names_differ(["dev", "news", "tweets"])
    >>> check_names_differ(["dev", "News", "news"])
    Traceback (most recent call last):
    distilcal.errors.InputError: data 'News' and 'news' differ in case only, and so would their files; rename one of them
    """
    by_file: dict[str, str] = {}
    for name in names:
        other = by_file.setdefault(unicodedata.normalize("NFC", name.casefold()), name)
        if other != name:
            raise InputError(
                f"data {other!r} and {name!r} differ in case only, and so would their files", remedy="rename one of them"
            )


# ---- checks of a stage -------------------------------------------------------------------------------------------------


def check_prediction_files(stage: StageToCheck) -> None:
    """Check that the files of a model that is known by its predictions exist.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        With the first file that does not exist.
    """
    for path in stage.settings.predictions:
        if path not in stage.configs:
            check_input(Path(path), f"check {stage.path}.predictions")


def check_views_exist(stage: StageToCheck) -> None:
    """Check that every term uses a view that is built in or defined in the stage.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        With the first view that does not exist.
    """
    known = (*VIEWS, *MIXED, *stage.settings.views)
    for index, term in enumerate(stage.settings.terms):
        if term.view not in known:
            raise InputError(
                f"{stage.path}.terms[{index}]: there is no view {term.view!r}", remedy=f"views: {', '.join(known)}"
            )


def check_losses(stage: StageToCheck) -> None:
    """Check that each loss exists, has its settings, and can be computed with their values.

    Parameters
    ----------
    stage : StageToCheck
        The stage; its losses are computed once on a few random rows.

    Raises
    ------
    InputError
        For the first loss that fails.
    """
    trial_view, context = _trial_batch(len(stage.train.classes))
    for index, term in enumerate(stage.settings.terms):
        where = f"{stage.path}.terms[{index}]"
        with torch.random.fork_rng(devices=[]):
            trial = build_term(term.loss, term.weight, term.view, _trial_settings(term), context, where)
            if term.loss == "crd":  # rows of one class have no negatives
                continue
            try:
                trial(trial_view)
            except (InputError, TypeError, ValueError, ArithmeticError, MemoryError, RuntimeError) as error:
                raise InputError(
                    f"{where}: {term.loss} cannot be computed with {term.settings}: {error}", remedy="check its settings"
                ) from None


def check_labels_of_mixed_terms(stage: StageToCheck) -> None:
    """Check that no loss that needs one label for each example uses mixed examples, which have two.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        For the first such term.
    """
    views = stage_views(stage.settings)
    for index, term in enumerate(stage.settings.terms):
        mixes = term.view in views and views[term.view].kind != "cutout"
        if mixes and "labels" in required_inputs(LOSSES[term.loss]):
            raise InputError(
                f"{stage.path}.terms[{index}]: {term.loss} needs one label for each example, a mixed one has two",
                remedy="use cross_entropy, softmax_bce or kd on a view that mixes",
            )


def check_views(stage: StageToCheck) -> None:
    """Check that the views are possible with this kind of data, its size and this network.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        For the first view that is not possible.
    """
    for name, view in stage_views(stage.settings).items():
        path = f"{stage.path}.views.{name}"
        _check_view_fits_inputs(view, stage.train, path)
        _check_region_size(view, stage.train, path)
        if stage.network.frozen:
            _check_view_of_frozen_encoder(view, stage.network, path)
        elif stage.has_texts:
            _check_layers_of_view(view, stage, path)


def check_map_folder(stage: StageToCheck) -> None:
    """Check that a map from a folder is of the same examples, labels and classes.

    Parameters
    ----------
    stage : StageToCheck
        The stage; its training data are labelled.

    Raises
    ------
    InputError
        If the map cannot be read, or is of other data.
    """
    if is_folder(stage.settings.map):
        train = stage.train
        assert train.labels is not None
        load_dynamics(stage.settings.map).for_examples(train.ids, train.labels, train.classes, stage.settings.map)


def check_rows(stage: StageToCheck) -> None:
    """Check that every term sees some examples, and that unlabelled ones fit the views and the share of labelled ones.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        If a term needs labels and there are none, or if unlabelled examples cannot take part.
    """
    is_labelled = stage.train.is_labelled
    if is_labelled.all() or not stage.settings.terms:
        return
    for index, term in enumerate(stage.settings.terms):
        if needs_labels(LOSSES[term.loss]) and not is_labelled.any():
            raise InputError(
                f"{stage.path}.terms[{index}]: {term.loss} needs labels, and no training example has one",
                remedy="label some, or leave out this term",
            )
    for name, view in stage_views(stage.settings).items():
        if view.pairs != "random":
            raise InputError(
                f"{stage.path}.views.{name}: a map has no unlabelled examples, so pairs = {view.pairs!r} cannot be drawn",
                remedy="use pairs = 'random', leave out the terms that need no labels, or the unlabelled data",
            )
    if stage.settings.record and not is_labelled.any():
        raise InputError(f"{stage.path}: no labelled example to record", remedy="leave out record")
    if stage.settings.train.labelled_share == 1 and is_labelled.any():
        raise InputError(
            f"{stage.path}.train: labelled_share = 1 leaves no room for the unlabelled examples",
            remedy="lower it, or leave out the unlabelled data",
        )


def check_network(stage: StageToCheck) -> None:
    """Check that the network exists for this kind of data and has the layers that are kept.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        If there is no such network, its weights are missing, or it has fewer layers.
    """
    model = stage.settings.model
    if stage.settings.train.freeze_embeddings and (stage.network.frozen or not stage.has_texts):
        raise InputError(f"{stage.path}.train: freeze_embeddings is for text encoders that are trained", remedy="leave it out")
    if not model.name:
        return
    if model.weights and not isinstance(stage.train.inputs, Images):
        raise InputError(f"{stage.path}.model: weights is for networks for images", remedy="leave it out, or name a folder")
    if isinstance(stage.train.inputs, Images):
        build_image_network(model.name, 2)
        if model.weights:
            check_input(weights_path(model.weights), f"check {stage.path}.model.weights")
    elif isinstance(stage.train.inputs, Vectors):
        if model.name not in ("linear", "mlp"):
            raise InputError(
                f"{stage.path}.model: there is no network {model.name!r} for vectors", remedy="give 'linear' or 'mlp'"
            )
    else:
        _check_kept_layers(stage)


def check_head(stage: StageToCheck) -> None:
    """Check that a text model whose head is kept has one, for the classes of the data.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        If it has no head, or one for other classes.
    """
    model, config = stage.settings.model, stage.config
    if config is None or not model.name or model.frozen or model.head == "new":
        return
    if not has_classification_head(config):
        if model.head == "keep" or not stage.settings.terms:
            raise InputError(
                f"{stage.path}: {model.name} has no trained head", remedy="train it first, or give a model that was trained"
            )
    elif not isinstance(stage.train.inputs, Choices):
        check_class_names(model.labels or label_names(config), stage.train.classes, model.name)


def check_network_size(stage: StageToCheck) -> None:
    """Check that the network is not larger than any that could be trained here.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        With an estimate of its parameters or its memory.
    """
    if stage.settings.model.name:
        check_size(stage.settings, stage.train, stage.config, stage.path)


def check_teacher_inputs(stage: StageToCheck) -> None:
    """Refuse a teacher that is to be run on the student's inputs if only one of them reads features of a frozen encoder.

    Parameters
    ----------
    stage : StageToCheck
        The stage.

    Raises
    ------
    InputError
        With the remedy. Tokenizers are compared when both networks are loaded.
    """
    settings, stages = stage.settings, stage.recipe.stages
    sees_mixes = any(view.teacher == "mixed" for view in stage_views(settings).values())
    is_run = settings.teacher_input == "live" or sees_mixes
    if not settings.teacher or not is_run or not stage.has_texts or stages[settings.teacher].predictions:
        return
    teacher = replace(stage, name=settings.teacher, settings=stages[settings.teacher])
    if stage.network.frozen != teacher.network.frozen:
        raise different_inputs(stage.name, teacher.name, sees_mixes=sees_mixes)


STAGE_CHECKS: tuple[Callable[[StageToCheck], None], ...] = (
    check_prediction_files,
    check_views_exist,
    check_losses,
    check_rows,
    check_views,
    check_map_folder,
    check_labels_of_mixed_terms,
    check_network,
    check_head,
    check_network_size,
    check_teacher_inputs,
)


# ---- losses ------------------------------------------------------------------------------------------------------------


def _trial_batch(classes: int) -> tuple[View, dict[str, Any]]:
    """Return a view of a few random rows, and the context in which losses are built for them."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(TRIAL_ROWS, classes, generator=generator)
    features = torch.randn(TRIAL_ROWS, TRIAL_FEATURES, generator=generator)
    labels = torch.zeros(TRIAL_ROWS, dtype=torch.int64)
    view = View(logits, features, labels, labels, torch.arange(TRIAL_ROWS), logits, features)
    context = {
        "n_data": TRIAL_ROWS,
        "classes": classes,
        "labels": labels,
        "features": TRIAL_FEATURES,
        "teacher_features": TRIAL_FEATURES,
    }
    return view, context


def _trial_settings(term: TermSettings) -> dict[str, Any]:
    """Return the settings of a loss; CRD with one negative, since the trial has few rows."""
    return {**term.settings, "negatives": 1} if term.loss == "crd" else term.settings


# ---- views -------------------------------------------------------------------------------------------------------------


def _check_view_fits_inputs(view: ViewSettings, train: Dataset, path: str) -> None:
    if view.kind in ("cutmix", "cutout") and not isinstance(train.inputs, Images):
        raise InputError(
            f"{path}: {view.kind} cuts images, the data hold {train.input_kind}", remedy="use kind = 'mixup' or 'manifold'"
        )


def _check_region_size(view: ViewSettings, train: Dataset, path: str) -> None:
    members = int(view.fraction * len(train) + 1e-9)
    if view.pairs == "regions" and members < 2:
        raise InputError(
            f"{path}: a region of fraction {view.fraction:g} has {members} of {len(train)} examples, too few to pair",
            remedy="raise fraction, or train on more examples",
        )


def _check_view_of_frozen_encoder(view: ViewSettings, model: ModelSettings, path: str) -> None:
    if view.kind == "mixup":
        raise InputError(
            f"{path}: a frozen encoder's inputs cannot be mixed, its features are cached",
            remedy="use kind = 'manifold', with layers = [0] for the features as the encoder gives them",
        )
    if any(layer > len(model.hidden) for layer in view.layers):
        raise InputError(f"{path}: the head has {len(model.hidden)} hidden layers", remedy="give numbers up to that")


def _check_layers_of_view(view: ViewSettings, stage: StageToCheck, path: str) -> None:
    depth = len(stage.network.layers) or layer_count(stage.config or {})
    if depth and any(layer > depth for layer in view.layers):
        raise InputError(f"{path}.layers: the network has {depth} layers", remedy=f"give numbers up to {depth}")


# ---- networks ----------------------------------------------------------------------------------------------------------


def _check_kept_layers(stage: StageToCheck) -> None:
    count = layer_count(stage.config or {})  # refuses a folder or package that does not exist
    missing = [layer for layer in stage.settings.model.layers if count and not 0 <= layer < count]
    if missing:
        raise InputError(
            f"{stage.path}.model: layer {missing[0]} of a model with {count} layers",
            remedy=f"give numbers from 0 to {count - 1}",
        )


# ---- predictions in place of a model -----------------------------------------------------------------------------------


def check_teachers(recipe: Recipe) -> None:
    """Refuse a loss on the features of a teacher that is known by its predictions. Needs no data.

    Parameters
    ----------
    recipe : Recipe
        The recipe.

    Raises
    ------
    InputError
        With the first such term.
    """
    for name, stage in recipe.stages.items():
        if not stage.teacher or not recipe.stages[stage.teacher].predictions:
            continue
        for index, term in enumerate(stage.terms):
            if term.loss in LOSSES and "teacher_features" in required_inputs(LOSSES[term.loss]):
                raise InputError(
                    f"stages.{name}.terms[{index}]: the teacher {stage.teacher!r} is known by its predictions only and has no "
                    f"features for {term.loss}",
                    remedy="leave out rkd and crd, or give the teacher's model",
                )


def check_known_rows(stage: Stage, students: Sequence[StageSettings], splits: Splits) -> None:
    """Refuse predictions in place of a teacher that cover too little of the data.

    Parameters
    ----------
    stage : Stage
        A model that is known by its predictions.
    students : sequence of StageSettings
        The stages that it teaches: each needs some rows of train, and rows of dev where the teacher's temperature is fitted.
    splits : Splits
        The data.

    Raises
    ------
    InputError
        If there are too few rows.
    """
    if students:
        stage.known_predictions(splits.train)
    known = int(stage.knows(splits.dev).sum())
    if any(student.scale_teacher for student in students) and known < MIN_DEV_EXAMPLES:
        raise InputError(
            f"the predictions of {stage.name!r} have {known} of the {len(splits.dev)} rows of dev, too few for its temperature",
            remedy=f"add predictions of dev, at least {MIN_DEV_EXAMPLES}, or set scale_teacher = false",
        )


def check_endpoint_rows(stage: Stage, splits: Splits) -> None:
    """Refuse a control of the endpoints, or a main model, that does not have every row that they are measured on.

    Parameters
    ----------
    stage : Stage
        A model that is known by its predictions.
    splits : Splits
        The data.

    Raises
    ------
    InputError
        If rows of dev, test or another domain are missing.
    """
    for data in (splits.dev, splits.test, *splits.ood):
        known = stage.knows(data)
        if not known.all():
            raise InputError(
                f"endpoints compare {stage.name!r} with another model, but its predictions have {int(known.sum())} of the "
                f"{len(data)} rows of {data.name!r}",
                remedy="predict all of them, or name another control in [endpoints]",
            )


def check_predictions(name: str, predictions: Predictions, splits: Splits) -> None:
    """Refuse predictions whose rows cannot be matched with the data.

    Parameters
    ----------
    name : str
        The stage that is known by these predictions.
    predictions : Predictions
        Its predictions on all splits.
    splits : Splits
        The data. Classes are matched by name, rows by id.

    Raises
    ------
    InputError
        If there are no ids, if an id belongs to different examples of two splits, or if labels disagree.
    """
    if predictions.ids is None:
        raise InputError(f"the predictions of {name!r} have no ids", remedy="add an id column, the same as in the data")
    split_of_id: dict[str, tuple[str, str]] = {}
    for data in splits:
        has_prediction = np.isin(data.ids, predictions.ids)
        if not has_prediction.any():
            continue
        predicted = data.select(has_prediction)
        _check_ids_of_one_split(name, predicted, split_of_id)
        _check_same_labels(name, predictions, predicted)


def _check_ids_of_one_split(name: str, predicted: Dataset, split_of_id: dict[str, tuple[str, str]]) -> None:
    """Refuse an id that another example of an earlier split has too, and note the ids of this split with their content."""
    for id_, content in zip(predicted.ids.tolist(), predicted.content_keys.tolist(), strict=True):
        other, other_content = split_of_id.setdefault(id_, (predicted.name, content))
        if other_content != content:
            raise InputError(
                f"id {id_!r} is in {other} and in {predicted.name}: the predictions of {name!r} cannot tell them apart",
                remedy="give every example of all splits an id of its own",
            )


def _check_same_labels(name: str, predictions: Predictions, predicted: Dataset) -> None:
    if predicted.labels is None:
        return
    theirs = predictions.reorder_classes(predicted.classes).select(predicted.ids)
    different = (theirs.labels != predicted.labels) & theirs.is_labelled & (predicted.labels >= 0)
    if different.any():
        row = int(different.argmax())
        their_class = predicted.classes[theirs.labels[row]]
        own_class = predicted.classes[predicted.labels[row]]
        raise InputError(
            f"id {str(predicted.ids[row])!r} has the label {their_class!r} in the predictions of {name!r} and {own_class!r} in "
            f"{predicted.name}",
            remedy="use ids that mean the same rows in both, or correct the label",
        )
