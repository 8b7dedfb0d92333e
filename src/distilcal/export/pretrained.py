"""Folders that ship a student: calibration is folded into the last layer, so that plain transformers is calibrated too.

==========================  ============================================================================================
``model.safetensors``       the network; ``network.safetensors`` for networks that are not from transformers
``config.json``             of transformers, with the names of the classes and what was folded (``"distilcal"``)
``distilcal.json``          how inputs are prepared, the calibration, the dev rows on which thresholds are chosen
``calibrator.json, .npz``   a calibrator that cannot be folded; plain transformers warns that it does not apply it
``encoder/``                the encoder of a model whose encoder was frozen
``manifest.json``           checksums of all of these, which are checked when the folder is loaded
``README.md``               the model card, with ``reliability.png``
==========================  ============================================================================================
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from distilcal.calibrate import Calibrator, Matrix, Temperature, Vector
from distilcal.errors import InputError
from distilcal.export.card import write_card
from distilcal.export.graph import affine_map
from distilcal.export.student import CALIBRATOR_FILES
from distilcal.inference.onnx_description import encode_dev_rows
from distilcal.io.atomic import system_errors
from distilcal.io.folders import MANIFEST, read_manifest, write_manifest
from distilcal.io.parts import give_usual_mode, part_folder
from distilcal.models.classifier import CARD, WEIGHTS, Classifier, save_classifier
from distilcal.models.inputs import TokenInputs
from distilcal.models.network import Network
from distilcal.models.text import TextNetwork

if TYPE_CHECKING:
    from distilcal.export.student import TorchStudent

FORMAT = 1
# A tensor that no network has: transformers names it among the weights that it does not use.
NOT_APPLIED = "calibrator_not_applied__load_with_distilcal"
LAST_FILES = ("config.json", CARD, MANIFEST)  # with them the folder is complete


def write_pretrained(student: TorchStudent, folder: Path) -> None:
    """Save a student in a folder; see `TorchStudent.save_pretrained`.

    Parameters
    ----------
    student : TorchStudent
        The student; stays as it is.
    folder : Path
        Created if it does not exist; files of an earlier save are replaced.

    Raises
    ------
    InputError
        If the folder cannot be written, is that of a run or of one of its stages, or holds anything but a saved student.
    """
    _check_folder(folder)
    classifier, record = _with_calibration(student)
    facts: dict[str, Any] = {
        "format": FORMAT,
        "calibration": record,
        "dev": None if student.dev is None else encode_dev_rows(student.dev, student.teacher_correct),
        "required_accuracy": student.required_accuracy,
    }
    with _created(folder), part_folder(folder / "model") as new:  # in it, because it may be a disk of its own
        save_classifier(classifier, new, with_encoder=True, **facts)
        if record is not None and not record["folded"]:
            assert student.calibrator is not None
            student.calibrator.save(new / record["file"])
            _add_warning_tensor(new)
        give_usual_mode(new)
        write_manifest(new)
        write_card(student, new)  # has no checksum: it is there to be edited
        _move_files(new, folder)


@contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Create a folder unless it exists, and remove it again if the block fails before anything is in it."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):  # not empty
                folder.rmdir()
        raise


def _check_folder(folder: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        kind = "a file" if folder.exists() else "a link that leads nowhere"
        raise InputError(f"this is {kind}, not a folder", source=str(folder), remedy="give the name of a folder")
    if (folder / "metrics.json").exists():
        raise InputError("this is the folder of a run", source=str(folder), remedy="give the name of another folder")
    stage = folder.resolve().parent
    if (stage / "stage.json").exists() or (stage / "history.json").exists():  # of a run, or in the store
        raise InputError(
            f"this is a part of the stage {stage.name!r}, which would be damaged",
            source=str(folder),
            remedy="give the name of another folder",
        )
    if folder.is_dir() and not (folder / CARD).exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise InputError("the folder is not empty and holds no saved student", source=str(folder), remedy="give a new folder")
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK):
        raise InputError("the folder is not writable", source=str(there), remedy="choose another")


def _with_calibration(student: TorchStudent) -> tuple[Classifier, dict[str, Any] | None]:
    """A copy of the classifier as it is saved, and the record of its calibration."""
    settings = student.classifier.settings
    if Path(settings.name).is_absolute():  # of no use elsewhere
        settings = settings.replace(name=f"./{Path(settings.name).name}")
    network = copy.deepcopy(student.classifier.network).cpu()
    classifier = replace(student.classifier, network=network, settings=settings)
    calibrator, record = student.calibrator, student.folded
    if calibrator is not None and can_fold(calibrator, classifier):
        fold_calibrator(classifier.network, calibrator, classifier.classes)
        record = {"kind": calibrator.kind, **_fold_record(calibrator), "folded": True}
    elif calibrator is not None:
        record = {"kind": calibrator.kind, "folded": False, "file": "calibrator.npz"}
    inputs = classifier.inputs
    if isinstance(network, TextNetwork) and isinstance(inputs, TokenInputs):
        network.model.config.distilcal = {"format": FORMAT, "calibration": record}
        if not classifier.multiple_choice:
            network.model.config.problem_type = "single_label_classification"
        tokenizer = copy.deepcopy(inputs.tokenizer)
        tokenizer.model_max_length = inputs.max_length
        classifier = replace(classifier, inputs=replace(inputs, tokenizer=tokenizer))
    return classifier, record


def _fold_record(calibrator: Calibrator) -> dict[str, Any]:
    numbers = calibrator.to_json()
    return {name: numbers[name] for name in ("value", "weight", "bias") if name in numbers}


def can_fold(calibrator: Calibrator, classifier: Classifier) -> bool:
    """Return whether a calibrator can become part of a classifier's last layer.

    Parameters
    ----------
    calibrator : Calibrator
        A temperature always can. Vector and matrix scaling can where the last layer has an output and a bias for each class.
    classifier : Classifier
        The classifier.

    Returns
    -------
    bool
    """
    if isinstance(calibrator, Temperature):
        return True
    has_bias = classifier.network.output.bias is not None
    return isinstance(calibrator, (Vector, Matrix)) and has_bias and not classifier.multiple_choice


@torch.no_grad()
def fold_calibrator(network: Network, calibrator: Calibrator, classes: tuple[str, ...]) -> None:
    """Multiply the last layer by a calibrator, in place: the softmax of the network is then the calibrated one.

    Parameters
    ----------
    network : Network
        The network to change.
    calibrator : Temperature, Vector or Matrix
        What to fold, see `can_fold`.
    classes : tuple of str
        The classes in the order of the network's outputs.

    Examples
    --------
    >>> from distilcal.models.network import VectorNetwork
    >>> network = VectorNetwork(width=2, classes=2)
    >>> inputs = {"vectors": torch.ones(1, 2)}
    >>> before = network(inputs).logits
    >>> fold_calibrator(network, Temperature(value=2.0, classes=("no", "yes"), fit=None), ("no", "yes"))
    >>> torch.allclose(network(inputs).logits, before / 2)
    True
    """
    layer = network.output
    if isinstance(calibrator, Temperature):  # also where one output scores every choice
        scale, shift = np.eye(layer.out_features) / calibrator.value, np.zeros(layer.out_features)
    else:
        scale, shift = affine_map(calibrator, classes)
    factor = torch.from_numpy(scale)
    layer.weight.copy_(factor @ layer.weight.double())
    if layer.bias is not None:
        layer.bias.copy_(factor @ layer.bias.double() + torch.from_numpy(shift))


def _add_warning_tensor(folder: Path) -> None:
    """Add a tensor that transformers reports as unexpected: whoever loads the folder without us is told."""
    path = folder / "model.safetensors"
    if path.exists():
        with system_errors(path):
            save_file({**load_file(path), NOT_APPLIED: torch.zeros(1)}, path, metadata={"format": "pt"})


def _earlier_files(folder: Path) -> list[Path]:
    """The files of an earlier save: without them, a folder would be loaded as what it was before."""
    names = {*CALIBRATOR_FILES, "config.json", "model.safetensors", WEIGHTS, "reliability.png"}
    with suppress(InputError):  # earlier versions wrote no manifest
        names |= set(read_manifest(folder)["files"])
    return [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).as_posix() in names]


def _move_files(new: Path, folder: Path) -> None:
    """Move complete files into their place, those that make a folder loadable last."""
    for path in _earlier_files(folder):
        if not (new / path.relative_to(folder)).exists():
            path.unlink()
    for path in sorted(new.iterdir(), key=lambda path: LAST_FILES.index(path.name) if path.name in LAST_FILES else -1):
        target = folder / path.name
        if path.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        os.replace(path, target)
