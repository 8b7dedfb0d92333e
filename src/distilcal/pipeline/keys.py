"""The name of a stage in the store: a hash of all that determines it. Same hash, already trained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from distilcal.config.loading import as_table
from distilcal.config.schema import Recipe, StageSettings, is_folder
from distilcal.data.splits import Splits
from distilcal.io.atomic import check_input
from distilcal.io.folders import MANIFEST, digest, file_digest
from distilcal.models.classifier import weights_path
from distilcal.models.pretrained import PACKAGE, resolve_model
from distilcal.pipeline.rows import stage_data

# What is done after training, and what the key holds by another key.
NOT_IN_KEY = ("calibrate", "teacher", "predictions", "map", "unlabelled")  # the data, which are in it, say the last
MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".model")


def stage_key(name: str, recipe: Recipe, splits: Splits, keys: Mapping[str, str]) -> str:
    """Return the hash of all that determines a stage: settings, what it depends on, data it is fitted on, seed.

    Parameters
    ----------
    name : str
        Name of the stage in the recipe; the name itself is not part of the key.
    recipe : Recipe
        The recipe.
    splits : Splits
        Its data: train and dev decide the key of a stage that is trained, unlabelled examples only if it can use them.
    keys : mapping of str to str
        The keys of the stages that it depends on.
    """
    stage = recipe.stages[name]
    if stage.predictions:
        return digest(["predictions", [file_digest(Path(path)) for path in stage.predictions if Path(path).exists()]])
    files = _model_files_digest(stage)
    parts: list[Any] = [
        _settings_in_key(stage, model_is_files=bool(files), partly_labelled=_is_partly_labelled(stage, splits)),
        files,
        recipe.seed,
        recipe.data.soft_labels,
        keys.get(stage.teacher, ""),
        keys.get(stage.model.start_from, ""),
        _map_key(stage, keys),
    ]
    if stage.terms:
        parts += [stage_data(stage, splits).fingerprint, splits.dev.fingerprint]
    else:
        parts += [list(splits.train.classes), type(splits.train.inputs).__name__]
    return digest(parts)


def _is_partly_labelled(stage: StageSettings, splits: Splits) -> bool:
    """Whether the stage trains on labelled and unlabelled examples."""
    is_labelled = stage_data(stage, splits).is_labelled
    return bool(is_labelled.any() and not is_labelled.all())


def _settings_in_key(stage: StageSettings, *, model_is_files: bool, partly_labelled: bool) -> dict[str, Any]:
    settings: dict[str, Any] = as_table(stage)
    for field in NOT_IN_KEY:
        settings.pop(field, None)
    if not stage.record:
        settings.pop("record_features")
    if not partly_labelled:
        settings["train"].pop("labelled_share", None)
    if not stage.train.freeze_embeddings:  # as before there was this setting: old keys stay valid
        settings["train"].pop("freeze_embeddings")
    if not stage.terms:  # nothing is chosen; the default when such models were first stored
        settings["train"]["choose"] = "nll"
    model = settings["model"]
    model.pop("start_from", None)
    if stage.model.pairs == "together":  # the only way before there was a setting: old keys stay valid
        model.pop("pairs")
    if model_is_files:  # their content is in the key, wherever they lie
        model.pop("name")
        model.pop("weights")
    return settings


def _model_files_digest(stage: StageSettings) -> dict[str, str]:
    """The hashes of the files that a model's name or weights stand for; empty for a hub model, whose name is in the key."""
    model = stage.model
    digests: dict[str, str] = {}
    if model.weights and weights_path(model.weights).exists():
        digests["weights"] = _cached_file_digest(weights_path(model.weights))
    if model.name and (model.name.startswith(PACKAGE) or Path(model.name).is_dir()):
        folder = Path(resolve_model(model.name))
        for file in sorted(folder.iterdir()):
            if file.suffix in MODEL_FILES and file.name != MANIFEST:  # which says nothing that the others do not
                digests[file.name] = _cached_file_digest(file)
    if digests:
        digests["network"] = model.name if "weights" in digests else ""
    return digests


def _map_key(stage: StageSettings, keys: Mapping[str, str]) -> str:
    """The key of the stage that recorded the map, or the hash of the map's folder."""
    if not is_folder(stage.map):
        return keys.get(stage.map, "")
    folder = Path(stage.map)
    manifest = folder / "dynamics" / MANIFEST
    return file_digest(manifest if manifest.exists() else folder / MANIFEST)


def _cached_file_digest(path: Path) -> str:
    """A file's hash, taken once in each process while the file does not change: the stages of a study share encoders."""
    check_input(path)  # a pipe would block
    stat = path.stat()
    return _digest_of_version(path.resolve(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _digest_of_version(path: Path, size: int, modified: int) -> str:
    return file_digest(path)
