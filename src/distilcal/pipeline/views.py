"""What a stage's views and its record need: settings, the map they read, the recorder it leaves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from distilcal.config.schema import StageSettings, ViewSettings, is_folder
from distilcal.data import Dataset
from distilcal.dynamics import Recorder, aum_halves, load_dynamics
from distilcal.errors import InputError
from distilcal.io.folders import MANIFEST, file_digest
from distilcal.models.classifier import Classifier
from distilcal.views import MIXED, VIEWS, ViewMaker, build_view

IN_MEMORY = 1 << 28  # bytes of a recorded table beyond which it is kept in files


def stage_views(stage: StageSettings) -> dict[str, ViewSettings]:
    """The views that the terms of a stage look at beside the plain one, those named without settings included."""
    usual: dict[str, ViewSettings] = {kind: ViewSettings(kind=kind) for kind in MIXED}
    named = [t.view for t in stage.terms if t.view not in VIEWS]
    return {name: stage.views[name] if name in stage.views else usual[name] for name in named}


def map_key(stage: StageSettings, keys: Mapping[str, str]) -> str:
    """What tells one map from another: the stage that recorded it, or the files of its folder."""
    if not is_folder(stage.map):
        return keys.get(stage.map, "")
    folder = Path(stage.map)
    inside = folder / "dynamics" / MANIFEST
    return file_digest(inside if inside.exists() else folder / MANIFEST)


def make_views(
    name: str, stage: StageSettings, train: Dataset, classifier: Classifier, folders: Mapping[str, Path]
) -> tuple[dict[str, ViewMaker], NDArray[Any] | None]:
    """The views of a stage, and the AUM halves that its batches shall hold in equal parts where pairs come from them.

    ``folders`` are those of the stages' maps.
    """
    assert train.labels is not None
    settings = stage_views(stage)
    dynamics = None
    if any(view.pairs != "random" for view in settings.values()):
        found = load_dynamics(stage.map if is_folder(stage.map) else folders[stage.map])
        dynamics = found.for_examples(train.ids, train.labels, train.classes, stage.map)
    views: dict[str, ViewMaker] = dict(VIEWS)
    for number, (view_name, view) in enumerate(settings.items()):
        path = f"stages.{name}.views.{view_name}"
        deepest = len(classifier.network.layers)
        if any(layer > deepest for layer in view.layers):
            raise InputError(f"{path}.layers: the network has {deepest} layers", remedy=f"give numbers from 0 to {deepest}")
        views[view_name] = build_view(view, len(train.classes), dynamics, number=number, path=path)
    by_half = dynamics is not None and any(
        v.pairs in ("halves", "similar", "dissimilar") and not v.any_half for v in settings.values()
    )
    return views, aum_halves(dynamics) if by_half and dynamics is not None else None


def make_recorder(stage: StageSettings, train: Dataset, classifier: Classifier, folder: Path) -> Recorder:
    """A recorder for the training data; a large table is memory-mapped in the folder."""
    assert train.labels is not None
    width = 0
    if stage.record_features:
        width = classifier.network.output.in_features * (len(train.classes) if classifier.multiple_choice else 1)
    large = len(train) * (len(train.classes) + width) * 4 > IN_MEMORY
    own = folder / f"dynamics-{os.environ.get('RANK', '0')}"
    return Recorder(train.ids, train.labels, train.classes, width=width, folder=own if large else None, own_rows=False)
