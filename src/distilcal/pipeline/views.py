"""The views and the recorder of a stage, built from its settings and the map that they read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from distilcal.config.schema import StageSettings, ViewSettings, is_folder
from distilcal.data import Dataset, labelled_part
from distilcal.dynamics import Dynamics, Recorder, load_dynamics
from distilcal.errors import InputError
from distilcal.models.classifier import Classifier
from distilcal.views import MIXED, VIEWS, ViewMaker, build_view
from distilcal.views.pairs import divide_in_halves

IN_MEMORY = 1 << 28  # bytes of a recorded table beyond which it is kept in files
PAIRS_BY_HALF = ("halves", "similar", "dissimilar")


def stage_views(stage: StageSettings) -> dict[str, ViewSettings]:
    """Return the views that the terms of a stage use beside the plain one, also those that are named without settings.

    Parameters
    ----------
    stage : StageSettings
        The stage.

    Returns
    -------
    dict of str to ViewSettings
        The views by name; a kind of mixing that has no settings gets the defaults.
    """
    defaults: dict[str, ViewSettings] = {kind: ViewSettings(kind=kind) for kind in MIXED}
    views = {**defaults, **stage.views}
    return {term.view: views[term.view] for term in stage.terms if term.view not in VIEWS}


def build_views(
    name: str, stage: StageSettings, train: Dataset, classifier: Classifier, map_folders: Mapping[str, Path], seed: int = 0
) -> tuple[dict[str, ViewMaker], NDArray[Any] | None]:
    """Build the views of a stage.

    Parameters
    ----------
    name : str
        Name of the stage, for errors.
    stage : StageSettings
        Its settings.
    train : Dataset
        The training data.
    classifier : Classifier
        The network that the views go through.
    map_folders : mapping of str to Path
        Where each stage of the recipe keeps its map.
    seed : int, default 0
        Decides the division into random halves.

    Returns
    -------
    views : dict of str to ViewMaker
        The views by name, the plain one included.
    groups : array of shape (N,), optional
        The halves that batches shall hold in equal parts, where pairs come from both halves.
    """
    settings = stage_views(stage)
    dynamics = None
    if any(view.pairs != "random" for view in settings.values()):
        dynamics = _load_map(stage, train, map_folders)
    depth = len(classifier.network.layers)
    views: dict[str, ViewMaker] = dict(VIEWS)
    for number, (view_name, view) in enumerate(settings.items()):
        path = f"stages.{name}.views.{view_name}"
        if any(layer > depth for layer in view.layers):
            raise InputError(f"{path}.layers: the network has {depth} layers", remedy=f"give numbers from 0 to {depth}")
        views[view_name] = build_view(view, len(train.classes), dynamics, number=number, path=path, seed=seed)
    by_half = [view for view in settings.values() if view.pairs in PAIRS_BY_HALF and not view.any_half]
    if dynamics is None or not by_half:
        return views, None
    return views, divide_in_halves(by_half[0], dynamics, seed)


def _load_map(stage: StageSettings, train: Dataset, map_folders: Mapping[str, Path]) -> Dynamics:
    """The map that pairs are chosen by, row by row as the training data."""
    assert train.labels is not None
    dynamics = load_dynamics(stage.map if is_folder(stage.map) else map_folders[stage.map])
    return dynamics.for_examples(train.ids, train.labels, train.classes, stage.map)


def build_recorder(stage: StageSettings, train: Dataset, classifier: Classifier, folder: Path) -> Recorder:
    """Build a recorder for the training data; a large table is memory-mapped in the folder.

    Parameters
    ----------
    stage : StageSettings
        Its ``record_features`` decides whether features are recorded beside the logits.
    train : Dataset
        The training data, labelled examples first; these are recorded, each once an epoch.
    classifier : Classifier
        The network that is trained.
    folder : Path
        Where each process keeps a table of more than 256 MiB, in a folder of its own.

    Returns
    -------
    Recorder
    """
    repeats_rows = not train.is_labelled.all()  # a batch with a stated share of labelled examples may repeat them
    train = labelled_part(train)
    assert train.labels is not None
    width = feature_width(classifier) if stage.record_features else 0
    is_large = len(train) * (len(train.classes) + width) * 4 > IN_MEMORY
    own_folder = folder / f"dynamics-{os.environ.get('RANK', '0')}"
    return Recorder(
        train.ids,
        train.labels,
        train.classes,
        width=width,
        folder=own_folder if is_large else None,
        own_rows=False,
        once=repeats_rows,
    )


def feature_width(classifier: Classifier) -> int:
    """Return the number of features of an example; for multiple choice, of all its choices together.

    Parameters
    ----------
    classifier : Classifier
        The classifier.

    Returns
    -------
    int
    """
    width = classifier.network.output.in_features
    return width * len(classifier.classes) if classifier.multiple_choice else width
