"""Writing a student as an ONNX file, float or in 8 bits, calibrated either way, with its tokenizer and a report."""

from __future__ import annotations

import copy
import hashlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from distilcal.calibrate import FITS, Calibrator, cross_fitted
from distilcal.data import Dataset, Images, choices, texts
from distilcal.errors import InputError
from distilcal.export.graph import add_calibration, check_packages, in_graph, is_apart, quantise, trace_logits
from distilcal.export.report import AccuracyWarning, ExportReport, build_report
from distilcal.inference import Student
from distilcal.inference.onnx import load_onnx
from distilcal.inference.onnx_description import METADATA, OnnxDescription, TokenizerFile, encode_dev_rows
from distilcal.inference.onnx_digest import append_digest
from distilcal.io.atomic import atomic_write, check_output
from distilcal.models.inputs import FrozenInputs, ImageInputs, TokenInputs, VectorInputs
from distilcal.predictions import Predictions

if TYPE_CHECKING:
    from distilcal.export.student import TorchStudent

logger = logging.getLogger(__name__)

PACKAGES = ("distilcal", "torch", "transformers", "onnx", "onnxruntime", "tokenizers")
RANGED_IMAGES = 256  # images that decide the ranges of activations
TOLERANCE = 1e-4  # largest difference of a probability to torch's; a faithful export stays far below
ODD_TEXTS = ("", " ", "a fine film", "naïve 中文 😀👩‍👩‍👧 x̂", "[SEP] </s> <mask> #tag\t\n", "word " * 700)


@dataclass(frozen=True)
class OnnxContent:
    """All that one exported file consists of: the graph from tensors to logits, and what is written around it."""

    logits: Any  # onnx.ModelProto
    calibrator: Calibrator | None
    dev: Predictions | None
    quantised: bool = False


def write_onnx(
    student: TorchStudent,
    path: Path,
    *,
    int8: bool = False,
    max_drop: float = 0.5,
    dev: Dataset | None = None,
    test: Dataset | None = None,
) -> ExportReport:
    """Export a student as an ONNX file whose output is calibrated probabilities; see `TorchStudent.export_onnx`.

    Parameters
    ----------
    student : TorchStudent
        The student.
    path : Path
        The .onnx to write; its tokenizer and report are written beside it.
    int8 : bool, default False
        Whether weights are in 8 bits. Then dev is predicted with the file, and the calibrator fitted again.
    max_drop : float, default 0.5
        Percentage points of test accuracy that 8 bits may cost.
    dev, test : Dataset, optional
        Labelled data; by default those of the student's run.

    Returns
    -------
    ExportReport

    Raises
    ------
    InputError
        If the file cannot be written, data are missing, or 8 bits cost more than ``max_drop`` for certain.
    """
    if path.suffix != ".onnx":
        raise InputError(f"{str(path)!r} is not an .onnx", remedy="give a name that ends in .onnx")
    if not max_drop >= 0:  # nor is NaN
        raise InputError(f"max_drop {max_drop} is not a loss of accuracy", remedy="give points, such as 0.5")
    check_output(path)
    check_packages("onnx", "onnxscript", "onnxruntime", "tokenizers")
    dev, test, notes = _labelled_data(student, dev, test, needed=int8)
    image_size = _image_size(student, dev, test)
    tokenizer = _tokenizer_bytes(student)
    content = OnnxContent(trace_logits(student.classifier, image_size=image_size), student.calibrator, student.dev)
    if not in_graph(student.calibrator):
        assert student.calibrator is not None
        notes += (
            f"The {student.calibrator.kind} calibrator is not part of the graph: distilcal applies it to the file's logits, "
            "plain onnxruntime does not.",
        )
    with tempfile.TemporaryDirectory() as temporary, one_thread():
        float_file = _write_files(Path(temporary) / "float" / path.name, student, content, tokenizer)
        float_student = load_onnx(float_file, threads=1)
        _check_against_torch(student, float_student, test or dev)
        float_model = ("float", float_file.stat().st_size, float_student)
        if int8:
            assert dev is not None
            float_content = content
            content = _quantised(student, content, dev, Path(temporary) / "logits.onnx", tokenizer)
            file = _write_files(Path(temporary) / "int8" / path.name, student, content, tokenizer)
            models = [float_model, ("int8", file.stat().st_size, load_onnx(file, threads=1))]
        else:
            models = [("torch", 4 * student.classifier.parameters, student), float_model]
        notes += _doubts(content.calibrator)
        report = build_report(path, models, test, notes=notes)
    if int8 and _certainly_above(report, max_drop):
        kept = _write_files(path.with_name(f"{path.stem}.float.onnx"), student, float_content, tokenizer)
        raise InputError(
            f"{_loss(report)}, more than the {max_drop:g} that are allowed",
            source=str(path),
            remedy=f"use the float model, written as {kept}, or allow a larger loss with max_drop",
        )
    if int8 and report.accuracy_drop is not None and report.accuracy_drop[0] > max_drop:
        warnings.warn(AccuracyWarning(f"{_loss(report)}, more than the {max_drop:g} that are allowed"), stacklevel=3)
    _write_files(path, student, content, tokenizer)
    report.save(path.with_suffix(".report.json"))
    return report


def _labelled_data(
    student: TorchStudent, dev: Dataset | None, test: Dataset | None, *, needed: bool
) -> tuple[Dataset | None, Dataset | None, tuple[str, ...]]:
    """Dev and test data: those that are given, else those of the run; and what to note about them."""
    notes: tuple[str, ...] = ()
    has_run = student.source is not None and student.source.exists
    if has_run and (test is None or (needed and dev is None)):
        assert student.source is not None
        try:
            run_dev, run_test = student.source.read_dev_and_test()
        except InputError as error:
            if needed and dev is None:
                raise
            notes = (f"The test data of the run cannot be read, so that accuracy was not measured ({error}).",)
        else:
            dev, test = dev or run_dev, test or run_test
    if needed and dev is None:
        raise InputError(
            f"{student.name} has no dev data, on which the 8-bit model has to be calibrated",
            remedy="give labelled data as dev",
        )
    for data in (dev, test):
        if data is not None and data.labels is None:
            raise InputError(f"{data.name!r} has no labels", remedy="give labelled data")
        if data is not None:
            student.as_dataset(data).with_classes(student.classes)  # raises if they are not the student's
    if test is None and not notes:
        notes = ("There is no test data, so that accuracy was not measured.",)
    return dev, test, notes


def _image_size(student: TorchStudent, *parts: Dataset | None) -> tuple[int, int]:
    """Height and width of images, which are fixed in a graph; zeros for students that read something else."""
    if student.input_kind != "images":
        return 0, 0
    for data in parts:
        if data is not None and isinstance(data.inputs, Images):
            height, width = data.inputs.pixels.shape[1:3]
            return height, width
    raise InputError(
        f"the size of the images that {student.name} reads is not known without data",
        remedy="give labelled images as dev or test (--dev, --test)",
    )


# ---- 8 bits ------------------------------------------------------------------------------------------------------------


def _quantised(student: TorchStudent, content: OnnxContent, dev: Dataset, path: Path, tokenizer: bytes | None) -> OnnxContent:
    """The same network in 8 bits, calibrated on dev as the quantised file itself predicts it."""
    pixels = None
    if isinstance(dev.inputs, Images):
        rows = np.linspace(0, len(dev) - 1, min(len(dev), RANGED_IMAGES)).astype(np.int64)
        pixels = dev.inputs.pixels[rows]
    uncalibrated = OnnxContent(quantise(content.logits, pixels), None, None, quantised=True)
    # Logits, not probabilities: vector and matrix scaling of the logits of a graph differ from those of log-probabilities.
    file = _write_files(path, student, uncalibrated, tokenizer, ends_in_logits=True)
    predictions = load_onnx(file, threads=1).predictions(dev).rename("dev")
    method = _calibration_method(student)
    if method is None:
        return replace(uncalibrated, dev=predictions)
    return replace(uncalibrated, calibrator=FITS[method](predictions), dev=cross_fitted(predictions, FITS[method], seed=0))


def _doubts(calibrator: Calibrator | None) -> tuple[str, ...]:
    """A note about a calibrator whose fit did not converge, which is logged too."""
    if calibrator is None or calibrator.fit.converged:
        return ()
    note = f"The {calibrator.kind} calibrator is doubtful: {calibrator.fit.message}."
    logger.warning("%s", note)
    return (note,)


def _calibration_method(student: TorchStudent) -> str | None:
    """How the student is calibrated, also where that is part of its weights already."""
    if student.calibrator is not None:
        return student.calibrator.kind
    return None if student.folded is None else str(student.folded["kind"])


def _certainly_above(report: ExportReport, max_drop: float) -> bool:
    return report.accuracy_drop is not None and report.accuracy_drop[1] > max_drop


def _loss(report: ExportReport) -> str:
    assert report.accuracy_drop is not None
    drop, low, high = report.accuracy_drop
    return f"8 bits cost {drop:.1f} points of accuracy (95 % interval {low:.1f} to {high:.1f})"


# ---- files -------------------------------------------------------------------------------------------------------------


def _write_files(
    path: Path, student: TorchStudent, content: OnnxContent, tokenizer: bytes | None, *, ends_in_logits: bool = False
) -> Path:
    """Write the graph with its description, and the tokenizer beside it; return the path."""
    path.parent.mkdir(exist_ok=True)
    tokenizer_path = path.with_suffix(".tokenizer.json")
    if ends_in_logits:
        model = copy.deepcopy(content.logits)
    else:
        model = add_calibration(content.logits, content.calibrator, student.classes)
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, _describe(student, content, tokenizer_path.name, tokenizer).to_json()
    contents = {path: append_digest(model.SerializeToString())}
    if tokenizer is not None:
        contents[tokenizer_path] = tokenizer
    with ExitStack() as files:  # both replace those of an earlier export when both are complete: they only fit together
        for name, data in contents.items():
            file = files.enter_context(atomic_write(name))
            file.write(data)
            file.flush()
    return path


def _describe(student: TorchStudent, content: OnnxContent, tokenizer_name: str, tokenizer: bytes | None) -> OnnxDescription:
    tokens = _token_inputs(student)
    facts = None
    if tokens is not None and tokenizer is not None:
        facts = TokenizerFile(
            file=tokenizer_name,
            sha256=hashlib.sha256(tokenizer).hexdigest(),
            pad_id=tokens.tokenizer.pad_token_id or 0,
            token_types="token_type_ids" in tokens.tokenizer.model_input_names,
            split_special_tokens=bool(tokens.tokenizer.split_special_tokens),
        )
    calibration = student.folded
    if content.calibrator is not None:
        calibration = content.calibrator.to_json()
    return OnnxDescription(
        classes=student.classes,
        input_kind=student.input_kind,
        apart=is_apart(student.classifier),
        max_length=0 if tokens is None else tokens.max_length,
        tokenizer=facts,
        calibration=calibration,
        calibration_in_graph=in_graph(content.calibrator),
        dev=None if content.dev is None else encode_dev_rows(content.dev, _teacher_correct(student, content.dev)),
        required_accuracy=student.required_accuracy,
        quantised=content.quantised,
        text_pairs=student.text_pairs,
        versions={name: version(name) for name in PACKAGES},
        has_digest=True,
    )


def _teacher_correct(student: TorchStudent, dev: Predictions) -> NDArray[np.bool_] | None:
    """Whether the teacher was right about dev rows; None if they are not those of the student's run."""
    known = student.dev
    if student.teacher_correct is None or known is None or len(known) != len(dev):
        return None
    if dev is known:
        return student.teacher_correct
    if known.ids is None or dev.ids is None or not np.isin(dev.ids, known.ids).all():
        return None
    return student.teacher_correct[known.rows_of(dev.ids)]


def _token_inputs(student: TorchStudent) -> TokenInputs | None:
    inputs = student.classifier.inputs
    if isinstance(inputs, (ImageInputs, VectorInputs)):
        return None
    return inputs.token_inputs if isinstance(inputs, FrozenInputs) else inputs  # type: ignore[return-value]


def _tokenizer_bytes(student: TorchStudent) -> bytes | None:
    """The tokenizer as the package tokenizers reads it, cutting texts as in training; None for models without texts."""
    from tokenizers import Tokenizer

    tokens = _token_inputs(student)
    if tokens is None:
        return None
    backend = getattr(tokens.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(
            f"{type(tokens.tokenizer).__name__} needs transformers at run time", remedy="ship the student with save_pretrained"
        )
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_padding()
    tokenizer.enable_truncation(tokens.max_length, strategy="longest_first", direction=tokens.tokenizer.truncation_side)
    tokenizer.encode_special_tokens = bool(tokens.tokenizer.split_special_tokens)
    pairs = [(first, second) for first in ODD_TEXTS for second in ODD_TEXTS[::-1]]
    for columns, examples in (((list(ODD_TEXTS),), list(ODD_TEXTS)), (tuple(map(list, zip(*pairs, strict=True))), pairs)):
        expected = tokens.tokenizer(*columns, truncation=True, max_length=tokens.max_length)["input_ids"]
        if [encoding.ids for encoding in tokenizer.encode_batch(examples)] != expected:
            raise InputError(
                f"{type(tokens.tokenizer).__name__} gives other tokens without transformers",
                remedy="ship the student with save_pretrained",
            )
    return tokenizer.to_str().encode()


def _check_against_torch(student: TorchStudent, exported: Student, data: Dataset | None) -> None:
    """Compare the probabilities of the float file with those of torch, on data or on made-up examples."""
    if data is not None:
        examples = data.select(np.arange(min(64, len(data))))
    elif student.input_kind == "texts":
        pair = ODD_TEXTS[::-1] if student.text_pairs or is_apart(student.classifier) else None
        examples = Dataset(texts(ODD_TEXTS, pair))
    elif student.input_kind == "choices":
        endings = [[f"{text} {k}" for k in student.classes] for text in ODD_TEXTS]
        examples = Dataset(choices(ODD_TEXTS, endings))
    else:
        return
    difference = float(np.abs(student.predict_proba(examples) - exported.predict_proba(examples)).max())
    if not difference < TOLERANCE:
        raise InputError(
            f"the exported network gives other probabilities than torch, by up to {difference:.2g}",
            remedy="ship the student with save_pretrained",
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread while the context lasts, as the files that it is compared with."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
