"""Students that torch runs: loaded from a run or a folder, saved for transformers, exported for onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.arguments import checked
from distilcal.calibrate import FITS, Calibrator, cross_fitted, load_calibrator
from distilcal.config.loading import load_recipe
from distilcal.config.schema import ModelSettings, Recipe
from distilcal.data import Dataset, Images
from distilcal.data.splits import read_splits
from distilcal.errors import InputError
from distilcal.export.graph import is_apart
from distilcal.export.report import ExportReport
from distilcal.inference import Student
from distilcal.inference.onnx_description import decode_dev_rows, decode_teacher_correct
from distilcal.inference.student import OnProgress, model_path
from distilcal.io.atomic import read_json
from distilcal.io.folders import MANIFEST, read_manifest, verify_folder
from distilcal.models.classifier import CARD, Classifier, load_classifier, read_card
from distilcal.models.inputs import ImageInputs, TokenInputs, VectorInputs, usable_length
from distilcal.models.pretrained import load_config, load_text_model, resolve_model
from distilcal.pipeline.stage import move_to_device
from distilcal.predictions import Predictions
from distilcal.runs import CHANGED_REMEDY, main_stage
from distilcal.training import compute_outputs

ONE_THREAD = Lock()  # a network keeps the features of its last batch, and a tokenizer its settings
MODEL_FILES = ("metrics.json", "config.json")  # one of them is in every folder of a run, and of transformers
CALIBRATOR_FILES = ("calibrator.json", "calibrator.npz")
RUN_FILES = ("metrics.json", "recipe.toml")  # of a run, what is loaded with a student
STAGE_FILES = ("predictions/dev.npz", f"model/{MANIFEST}", *CALIBRATOR_FILES)  # the same of a stage
LONGEST = 512  # tokens of a text, for a model whose tokenizer has no limit of its own


@dataclass(frozen=True)
class TorchBackend:
    """Runs a classifier with torch.

    Parameters
    ----------
    classifier : Classifier
        The network with its inputs and class names.
    batch : int, default 64
        Examples per forward pass.
    """

    classifier: Classifier
    batch: int = 64

    def compute_logits(self, data: Dataset, on_progress: OnProgress | None = None) -> NDArray[Any]:
        """Return the logits (N, K) of examples; threads take turns."""
        size = self.classifier.image_size
        if size is not None and isinstance(data.inputs, Images) and data.inputs.pixels.shape[1:3] != size:
            shape, needed = (" × ".join(map(str, sizes)) for sizes in (data.inputs.pixels.shape[1:], (*size, 3)))
            raise InputError(f"the model reads images of {needed}, got {shape}")
        if data.input_kind == "texts" and not data.holds_pairs and is_apart(self.classifier):
            raise InputError("the model reads pairs of texts, got single ones", remedy="give [(first, second), …]")
        with ONE_THREAD:
            return compute_outputs(self.classifier, data, batch=self.batch, on_progress=on_progress)["logits"]


@dataclass(frozen=True)
class RunStage:
    """The stage of a finished run that a student comes from.

    Attributes
    ----------
    run : Path
        The folder of the run.
    stage : str
        The name of the stage.
    """

    run: Path
    stage: str

    @property
    def exists(self) -> bool:
        """Whether the folder still holds the run: runs in temporary folders do not outlive them."""
        return (self.run / "metrics.json").exists()

    def read_dev_and_test(self) -> tuple[Dataset, Dataset]:
        """Read the dev and test data of the run again, as its recipe describes them.

        Raises
        ------
        InputError
            If they cannot be read, or are not the examples of the run: some may have been trained on.
        """
        settings = self.recipe().data
        splits = read_splits(settings)
        self._check_unchanged(splits.dev, settings.dev or settings.train)
        self._check_unchanged(splits.test, settings.test or settings.train)
        return splits.dev, splits.test

    def _check_unchanged(self, data: Dataset, source: str) -> None:
        path = self.run / self.stage / "predictions" / f"{data.name}.npz"
        if not path.exists():
            return
        known = Predictions.load(path).ids
        assert known is not None  # a run saves the ids of its examples
        if not np.array_equal(np.sort(data.ids), np.sort(known)):
            raise InputError(
                f"the data changed since the run: its {data.name} examples are not those of {self.run}",
                source=source,
                remedy="restore the data, or give others as dev and test (--dev, --test)",
            )

    def recipe(self) -> Recipe:
        """Read the recipe of the run."""
        return load_recipe(self.run / "recipe.toml")


@dataclass(repr=False)
class TorchStudent(Student):
    """A student that torch runs; `load_student` returns one.

    Parameters
    ----------
    backend : TorchBackend
        Runs the classifier.
    source : RunStage, optional
        The stage of a run that it comes from.
    folded : dict, optional
        The calibration that is part of the network's weights already, as it is recorded in the folder of a saved student.

    Examples
    --------
    >>> import numpy as np
    >>> from distilcal.data import Vectors
    >>> from distilcal.models import build_classifier
    >>> data = Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 1, 0], ("no", "yes"))
    >>> student = as_student(build_classifier(ModelSettings(name="linear"), data))
    >>> student.predict_proba(np.eye(4)).shape
    (4, 2)
    """

    backend: TorchBackend
    source: RunStage | None = None
    folded: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def calibration(self) -> str | None:
        """The kind of calibration, such as "temperature", also if it is part of the weights; None if there is none."""
        return super().calibration if self.folded is None else str(self.folded["kind"])

    @property
    def classifier(self) -> Classifier:
        """The network with its inputs and class names."""
        return self.backend.classifier

    @checked
    def save_pretrained(self, folder: str | Path) -> None:
        """Save in a folder that transformers loads, with the calibration in the weights and a model card.

        Temperature, vector and matrix scaling are folded into the last layer and recorded in the config, so that they are
        never applied twice: the plain softmax is calibrated. Other calibrators are saved beside the weights, and transformers
        warns that it does not apply them. `load_student` reads the folder.

        Parameters
        ----------
        folder : str or Path
            Created if it does not exist; files of an earlier save are replaced.

        Raises
        ------
        InputError
            If the folder cannot be written, is that of a run, or holds anything but a saved student.
        """
        from distilcal.export.pretrained import write_pretrained

        write_pretrained(self, Path(folder))

    @checked
    def export_onnx(
        self,
        path: str | Path,
        *,
        int8: bool = False,
        max_drop: float = 0.5,
        dev: Dataset | None = None,
        test: Dataset | None = None,
    ) -> ExportReport:
        """Export as an ONNX file whose output is calibrated probabilities; `distilcal.inference.onnx.load_onnx` reads it.

        The tokenizer is written beside it as ``STEM.tokenizer.json``, the report as ``STEM.report.json``. With ``int8`` dev is
        predicted again with the quantised file, the calibrator fitted to that, and the file compared with the float one on
        test.

        Parameters
        ----------
        path : str or Path
            The .onnx to write. An existing file is replaced when the new one is complete.
        int8 : bool, default False
            Whether weights are in 8 bits: a quarter of the size, and faster.
        max_drop : float, default 0.5
            Percentage points of test accuracy that 8 bits may cost: a larger loss is a warning, one whose 95 % interval lies
            above it an error, and then the float file is kept as ``STEM.float.onnx``.
        dev, test : Dataset, optional
            Labelled data; by default those of the student's run. Without a run, ``int8`` needs ``dev``, and a student that
            reads images one of both, which has their size.

        Returns
        -------
        ExportReport
            Size, speed, accuracy and calibration before and after; print it.

        Raises
        ------
        InputError
            If the file cannot be written, data are missing, or 8 bits cost too much.
        MissingDependencyError
            If onnx, onnxscript or onnxruntime is not installed.
        """
        from distilcal.export.onnx_file import write_onnx

        return write_onnx(self, Path(path), int8=int8, max_drop=max_drop, dev=dev, test=test)


def as_student(
    classifier: Classifier, *, calibrator: Calibrator | None = None, dev: Predictions | None = None, **settings: Any
) -> TorchStudent:
    """Return a classifier as a student.

    Parameters
    ----------
    classifier : Classifier
        The trained network with its inputs and class names.
    calibrator : Calibrator, optional
        Applied to its logits.
    dev : Predictions, optional
        Calibrated predictions on labelled rows that it was not trained on: thresholds are chosen on them.
    **settings
        Other fields of `TorchStudent`.

    Returns
    -------
    TorchStudent
    """
    return TorchStudent(
        TorchBackend(classifier),
        classifier.classes,
        _input_kind(classifier),
        calibrator=calibrator,
        dev=dev,
        text_pairs=classifier.text_pairs,
        **settings,
    )


def _input_kind(classifier: Classifier) -> str:
    if classifier.multiple_choice:
        return "choices"
    if isinstance(classifier.inputs, ImageInputs):
        return "images"
    return "vectors" if isinstance(classifier.inputs, VectorInputs) else "texts"


def load_student(path: str | Path, stage: str = "") -> TorchStudent:
    """Load a student from the folder of a run, from one that `save_pretrained` wrote, or from one of transformers.

    Parameters
    ----------
    path : str or Path
        The folder of a finished run, or of one of its stages; a folder written by ``student.save_pretrained``; or a folder or
        hub name of a transformers model with a classification head, which comes without calibration and without dev rows.
    stage : str, default ""
        Which model of a run; its student by default.

    Returns
    -------
    TorchStudent
        On the GPU if there is one.

    Raises
    ------
    InputError
        If there is no model, the run has no such stage, or the files are not those that were written.
    """
    folder = model_path(path)
    is_saved = _has_card(folder)
    holds_model = is_saved or any((folder / name).exists() for name in MODEL_FILES)
    if not stage and not holds_model and (folder.parent / "metrics.json").exists() and folder.is_dir():
        folder, stage, holds_model = folder.parent, folder.name, True
    if folder.is_dir() and not holds_model:
        raise InputError(
            "this is not the folder of a finished run, nor of a saved model",
            source=str(path),
            remedy="give one made by distilcal run, distill or export, or an .onnx",
        )
    if (folder / "metrics.json").exists():
        student = _load_from_run(folder, stage)
    elif stage:
        raise InputError(f"there is no stage {stage!r}: this is not a finished run", source=str(path), remedy="leave out stage")
    elif is_saved:
        student = _load_saved(folder)
    else:
        student = as_student(_load_transformers_classifier(str(path)), name=str(path))
    move_to_device(student.classifier)
    return student


def _has_card(folder: Path) -> bool:
    """Whether a folder is of a saved student: it has the file that tells it from one of transformers, or its checksums do."""
    if (folder / CARD).exists():
        return True
    try:
        return CARD in read_manifest(folder)["files"]
    except InputError:  # it has no checksums of ours
        return False


def _verify(folder: Path, remedy: str) -> None:
    """Compare a folder with its checksums; what others or earlier versions wrote has none."""
    if (folder / MANIFEST).exists():
        verify_folder(folder, remedy)


def _verify_run(run: Path, stages: Sequence[str]) -> None:
    """Compare what is loaded of a run with its checksums; runs of earlier versions have none."""
    if (run / MANIFEST).exists():
        used = [*RUN_FILES, *(f"{stage}/{name}" for stage in stages for name in STAGE_FILES)]
        verify_folder(run, CHANGED_REMEDY, used)


def _load_saved(folder: Path) -> TorchStudent:
    _verify(folder, "save or copy it again; remove its manifest.json if you changed it yourself")
    card = read_card(folder)
    record, source = card.get("calibration"), str(folder / CARD)
    required_accuracy = card.get("required_accuracy", TorchStudent.required_accuracy)
    if not isinstance(required_accuracy, int | float) or not 0 < required_accuracy <= 1:
        raise InputError(f"required_accuracy is {required_accuracy!r:.40}", source=source, remedy="save the student again")
    calibrator, folded = None, None
    if record is not None:
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise InputError("its calibration is damaged", source=source, remedy="save the student again")
        if record.get("folded") is True:
            folded = record
        elif record.get("file") in CALIBRATOR_FILES:
            calibrator = load_calibrator(folder / record["file"])
        else:
            raise InputError("it names no calibrator", source=source, remedy="save the student again")
    return as_student(
        load_classifier(folder),
        calibrator=calibrator,
        dev=None if card.get("dev") is None else decode_dev_rows(card["dev"], source),
        teacher_correct=decode_teacher_correct(card.get("dev"), source),
        required_accuracy=required_accuracy,
        name=str(folder),
        folded=folded,
    )


def _read_stages(run: Path) -> dict[str, dict[str, Any]]:
    """The part of ``metrics.json`` about the stages of a run, of which what is used here has been checked."""
    facts = read_json(run / "metrics.json")
    stages: dict[str, dict[str, Any]] | None = facts.get("stages") if isinstance(facts, dict) else None
    if not isinstance(stages, dict) or not stages or not all(map(_is_stage, stages.values())):
        raise InputError("this file is damaged", source=str(run / "metrics.json"), remedy="run the recipe of the run again")
    return stages


def _is_stage(facts: Any) -> bool:
    if not isinstance(facts, dict):
        return False
    calibrator = facts.get("calibrator", "")
    is_known = calibrator is None or (isinstance(calibrator, str) and calibrator in FITS)
    return is_known and isinstance(facts.get("teacher"), str) and isinstance(facts.get("terms"), list)


def _load_from_run(run: Path, stage: str) -> TorchStudent:
    stages = _read_stages(run)
    stage = stage or main_stage(stages)
    if stage not in stages:
        raise InputError(f"the run has no stage {stage!r}", source=str(run), remedy=f"it has {', '.join(stages)}")
    folder = run / stage
    if stages[stage].get("is_baseline"):
        raise InputError(
            f"{stage!r} ({', '.join(stages[stage]['terms'])}) is fitted for comparison only and not saved",
            source=str(run),
            remedy=f"name another stage: {', '.join(name for name in stages if name != stage)}",
        )
    if not (folder / "model").exists():
        if stages[stage].get("parameters") is not None:
            raise InputError("there is no such folder", source=str(folder / "model"), remedy="run the recipe of the run again")
        raise InputError(f"{stage!r} is known by its predictions only", source=str(run), remedy="name a stage that has a model")
    teacher = stages[stage].get("teacher", "")
    _verify_run(run, (stage, teacher))
    _verify(folder / "model", "run the recipe of the run again")
    method = stages[stage]["calibrator"]
    calibrator = None
    if method is not None:
        calibrator = load_calibrator(folder / ("calibrator.json" if method == "temperature" else "calibrator.npz"))
    dev = _calibrated_dev(folder, method)
    return as_student(
        load_classifier(folder / "model"),
        calibrator=calibrator,
        dev=dev,
        teacher_correct=None if dev is None else _teacher_correct(run, stages, teacher, dev),
        required_accuracy=load_recipe(run / "recipe.toml").accuracy,
        name=str(run),
        source=RunStage(run, stage),
    )


def _teacher_correct(run: Path, stages: dict[str, Any], teacher: str, dev: Predictions) -> NDArray[np.bool_] | None:
    """Whether the teacher of a stage was right about its dev rows; None if there is none, or it does not know them all."""
    if teacher not in stages:
        return None
    predictions = _calibrated_dev(run / teacher, stages[teacher]["calibrator"])
    if predictions is None or dev.ids is None or predictions.ids is None or not np.isin(dev.ids, predictions.ids).all():
        return None
    return predictions.correct[predictions.rows_of(dev.ids)]


def _calibrated_dev(folder: Path, method: str | None) -> Predictions | None:
    """The rows on which the run chose its threshold: each calibrated by a fit to other rows."""
    path = folder / "predictions" / "dev.npz"
    if not path.exists():
        return None
    dev = Predictions.load(path)
    return dev if method is None else cross_fitted(dev, FITS[method], seed=0)


def _load_transformers_classifier(source: str) -> Classifier:
    """A model of transformers with a classification head, under the names that its config has for the classes."""
    config = load_config(resolve_model(source))
    multiple_choice = any("ForMultipleChoice" in name for name in config.get("architectures") or [])
    if multiple_choice:
        raise InputError(
            "the number of choices is not in a model of transformers", source=source, remedy="load a run, or what it saved"
        )
    labels = {int(index): str(name) for index, name in config["id2label"].items()}
    classes = tuple(labels[index] for index in range(len(labels)))
    loaded = load_text_model(source, classes, head="keep")
    max_length = usable_length(loaded.network.model, loaded.tokenizer, LONGEST)
    settings = ModelSettings(name=source, head="keep", max_length=max_length)
    return Classifier(loaded.network, TokenInputs(loaded.tokenizer, max_length), classes, settings, new_head=False)
