"""Students in ONNX files, run by onnxruntime: needs NumPy, tokenizers and onnxruntime, and neither torch nor transformers.

A file that `distilcal.export` wrote holds the network, its calibration and, as metadata under ``"distilcal"``, an
`OnnxDescription`: the classes, how examples become tensors, and the dev rows on which thresholds are chosen. The tokenizer lies
beside the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import Calibrator, calibrator_from_json
from distilcal.data.dataset import Choices, Dataset, Images, Texts, Vectors
from distilcal.errors import InputError, MissingDependencyError
from distilcal.inference.onnx_description import (
    METADATA,
    OnnxDescription,
    TokenizerFile,
    decode_dev_rows,
    decode_teacher_correct,
)
from distilcal.inference.onnx_digest import changed_file, check_digest
from distilcal.inference.student import OnProgress, Student
from distilcal.io.atomic import check_input

PROBABILITIES, LOGITS = "probabilities", "logits"  # the outputs of a graph
BATCH = 32  # examples of one pass
TEXT_BATCH = 8  # texts of one pass: as fast as 32 where all have one length, and with less padding where they differ
TOKENIZED_AT_ONCE = 4096  # texts
SMALLEST = float(np.finfo(np.float32).tiny)  # in place of a probability of 0, whose logarithm is not finite

Tensors = dict[str, NDArray[Any]]


def load_onnx(path: str | Path, *, threads: int = 0) -> Student:
    """Load a student that was exported with ``export_onnx``.

    Parameters
    ----------
    path : str or Path
        The .onnx file. A model that reads texts has its tokenizer beside it.
    threads : int, default 0
        Threads of one pass; 0 leaves it to onnxruntime, which takes one for each core.

    Returns
    -------
    Student
        Its probabilities are calibrated; thresholds are chosen on dev rows as this file predicts them.

    Raises
    ------
    InputError
        If there is no such file, it is damaged, of a newer format or not an export of distilcal; or if its tokenizer is
        missing or another one.
    MissingDependencyError
        If onnxruntime or tokenizers is not installed.
    """
    path = Path(path)
    check_input(path, "give an .onnx that distilcal exported")
    has_digest = check_digest(path)
    session = _open_session(path, threads)
    metadata = _read_metadata(session, path)
    if METADATA not in metadata:
        raise InputError(
            "this .onnx was not exported by distilcal: it does not say what its inputs and classes are",
            source=str(path),
            remedy="export the student with distilcal export, or run this file with onnxruntime",
        )
    description = OnnxDescription.from_json(metadata[METADATA], str(path))
    if description.has_digest and not has_digest:
        raise changed_file(path)
    _check_graph(session, description, path)
    tokenizer = None
    if description.tokenizer is not None:
        tokenizer = _load_tokenizer(path, description.tokenizer)
    calibrator: Calibrator | None = None
    if description.calibration is not None and not description.calibration_in_graph:
        calibrator = calibrator_from_json(description.calibration)
        if calibrator.classes != description.classes:
            raise InputError("its calibrator is for other classes", source=str(path), remedy="export it again")
    dev = None if description.dev is None else decode_dev_rows(description.dev, str(path))
    return Student(
        OnnxBackend(session, description, tokenizer),
        description.classes,
        description.input_kind,
        calibrator=calibrator,
        dev=dev,
        name=str(path),
        required_accuracy=description.required_accuracy,
        teacher_correct=decode_teacher_correct(description.dev, str(path)),
        text_pairs=description.text_pairs,
    )


@dataclass(frozen=True)
class OnnxBackend:
    """Runs an exported network with onnxruntime.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The opened file.
    description : OnnxDescription
        What is in it.
    tokenizer : tokenizers.Tokenizer, optional
        For models that read texts.
    """

    session: Any
    description: OnnxDescription
    tokenizer: Any = None

    @property
    def calibration(self) -> str | None:
        """The kind of calibration, such as "temperature"; None if there is none."""
        return None if self.description.calibration is None else str(self.description.calibration["kind"])

    def compute_logits(self, data: Dataset, on_progress: OnProgress | None = None) -> NDArray[np.float32]:
        """Return logits (N, K): the logarithms of the calibrated probabilities where the graph computes these."""
        names = [output.name for output in self.session.get_outputs()]
        output = PROBABILITIES if PROBABILITIES in names else LOGITS
        values = np.empty((len(data), len(self.description.classes)), dtype=np.float32)
        done = 0
        for rows, tensors in self._batches(data):
            values[rows] = self.session.run([output], tensors)[0]
            done += len(rows)
            if on_progress is not None:
                on_progress(done, len(data))
        return values if output == LOGITS else np.log(np.maximum(values, SMALLEST))

    def _batches(self, data: Dataset) -> Iterator[tuple[NDArray[np.int64], Tensors]]:
        """Rows and their tensors; texts of similar length go together."""
        inputs = data.inputs
        if isinstance(inputs, (Texts, Choices)):
            tokens = self._tokenize(inputs)
            order, batch = np.argsort(-tokens.lengths, kind="stable"), TEXT_BATCH
        else:
            order, batch = np.arange(len(data)), BATCH
            if self.description.quantised and isinstance(inputs, Vectors):
                batch = 1  # 8 bits span the range of a pass: beside one large vector, all others would be rounded to nothing
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            if isinstance(inputs, (Texts, Choices)):
                yield rows, tokens.batch(rows)
            elif isinstance(inputs, Images):
                yield rows, {"pixels": self._check_size(inputs.pixels)[rows]}
            else:
                yield rows, {"vectors": self._check_size(inputs.values)[rows].astype(np.float32)}

    def _check_size(self, values: NDArray[Any]) -> NDArray[Any]:
        """Examples of another size would be an error inside onnxruntime, in its own words."""
        expected = self.session.get_inputs()[0].shape[1:]
        if list(values.shape[1:]) != list(expected):
            shape, needed = (" × ".join(map(str, sizes)) for sizes in (values.shape[1:], expected))
            raise InputError(f"the model reads {self.description.input_kind} of {needed}, got {shape}")
        return values

    def _tokenize(self, inputs: Texts | Choices) -> Tokens:
        description = self.description
        assert description.tokenizer is not None
        columns, parts = _text_columns(inputs, description)
        ids: list[NDArray[Any]] = []
        types: list[NDArray[Any]] = []
        lengths: list[NDArray[Any]] = []
        for start in range(0, len(columns), TOKENIZED_AT_ONCE):
            encodings = self.tokenizer.encode_batch(columns[start : start + TOKENIZED_AT_ONCE])
            lengths.append(np.fromiter(map(len, encodings), dtype=np.int64))
            ids.append(np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), dtype=np.int64))
            if description.tokenizer.token_types:
                types.append(np.fromiter(chain.from_iterable(encoding.type_ids for encoding in encodings), dtype=np.int64))
        return Tokens(
            ids=np.concatenate(ids),
            types=np.concatenate(types) if types else None,
            starts=np.r_[0, np.cumsum(np.concatenate(lengths))],
            parts=parts,
            pad_id=description.tokenizer.pad_id,
        )


@dataclass(frozen=True)
class Tokens:
    """Tokens of all examples one after the other.

    Attributes
    ----------
    ids, types : array of int, shape (T,)
        Tokens, and which of two texts they belong to, for networks that read it.
    starts : array of int, shape (N · parts + 1,)
        Where each text starts.
    parts : int
        Texts of an example that are encoded each alone; 0: one, and the tensors have no axis for it.
    pad_id : int
        The token that fills up a batch.
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64] | None
    starts: NDArray[np.int64]
    parts: int
    pad_id: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example (N,), of its longest text where it has several."""
        lengths = np.diff(self.starts)
        return lengths.reshape(-1, self.parts).max(axis=1) if self.parts else lengths

    def batch(self, rows: NDArray[np.int64]) -> Tensors:
        """Return token ids and masks (N, L), padded to the longest text of the batch; (N, parts, L) where there are parts."""
        shape: tuple[int, ...] = (len(rows), -1)
        if self.parts:
            shape = (len(rows), self.parts, -1)
            rows = (rows[:, None] * self.parts + np.arange(self.parts)).ravel()
        start, length = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        column = np.arange(int(length.max()))
        inside = column < length[:, None]
        place = np.where(inside, start[:, None] + column, 0)
        tensors = {"input_ids": np.where(inside, self.ids[place], self.pad_id), "attention_mask": inside.astype(np.int64)}
        if self.types is not None:
            tensors["token_type_ids"] = np.where(inside, self.types[place], 0)
        return {name: values.reshape(shape) for name, values in tensors.items()}


def _text_columns(inputs: Texts | Choices, description: OnnxDescription) -> tuple[list[Any], int]:
    """What the tokenizer gets, a text or a pair of texts each time, and how many of these belong to one example."""
    if isinstance(inputs, Choices):
        count = inputs.endings.shape[1]
        if description.apart:
            return np.column_stack([inputs.prompt, inputs.endings]).ravel().tolist(), count + 1
        return list(zip(np.repeat(inputs.prompt, count).tolist(), inputs.endings.ravel().tolist(), strict=True)), count
    if description.apart:
        if inputs.pair is None:
            raise InputError("the model reads pairs of texts, got single ones", remedy="give [(first, second), …]")
        return np.column_stack([inputs.text, inputs.pair]).ravel().tolist(), 2
    if inputs.pair is None:
        return inputs.text.tolist(), 0
    return list(zip(inputs.text.tolist(), inputs.pair.tolist(), strict=True)), 0


# ---- files -------------------------------------------------------------------------------------------------------------


def _check_graph(session: Any, description: OnnxDescription, path: Path) -> None:
    """The inputs and outputs of a graph must be those of its description; onnxruntime would fail at the first example."""
    inputs = {"images": {"pixels"}, "vectors": {"vectors"}}.get(description.input_kind, {"input_ids", "attention_mask"})
    if description.tokenizer is not None and description.tokenizer.token_types:
        inputs = inputs | {"token_type_ids"}
    outputs = {output.name: output.shape for output in session.get_outputs()}
    shape = outputs.get(PROBABILITIES, outputs.get(LOGITS)) or [0]
    is_as_wide = not isinstance(shape[-1], int) or shape[-1] == len(description.classes)  # a width may have a name only
    if {entry.name for entry in session.get_inputs()} != inputs or not is_as_wide:
        raise InputError("its description is not that of its graph", source=str(path), remedy="export it again")


def _open_session(path: Path, threads: int) -> Any:
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as errors
    except ModuleNotFoundError:
        raise _missing("onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that spin while they wait take the processor from whoever else needs it, such as a server's own thread.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except (errors.InvalidProtobuf, errors.InvalidGraph, errors.NoModel) as error:
        raise _unreadable(path, "the file is damaged or no ONNX model", error) from None
    except (errors.Fail, errors.NotImplemented, errors.InvalidArgument, errors.RuntimeException) as error:
        raise _unreadable(path, "onnxruntime cannot run it", error) from None
    except UnicodeDecodeError as error:  # damaged names, in the middle of a message of onnxruntime
        raise _unreadable(path, "the file is damaged", error) from None


def _read_metadata(session: Any, path: Path) -> dict[str, str]:
    try:
        metadata: dict[str, str] = session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError as error:  # files of earlier versions have no digest that would have told
        raise _unreadable(path, "the file is damaged", error) from None
    return metadata


def _unreadable(path: Path, problem: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:160]
    return InputError(f"{problem}: {reason}", source=str(path), remedy="export it again")


def _load_tokenizer(path: Path, facts: TokenizerFile) -> Any:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise _missing("tokenizers") from None
    file = path.with_name(Path(facts.file).name)
    if not file.is_file():
        raise InputError(f"its tokenizer {file.name} is missing", source=str(path), remedy="keep both files in one folder")
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != facts.sha256:
        raise InputError(
            f"{file.name} is not the tokenizer it was exported with", source=str(path), remedy="copy the two files together"
        )
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception:  # what tokenizers raises is no more than an Exception
        raise InputError(f"its tokenizer {file.name} cannot be read", source=str(path), remedy="export it again") from None
    tokenizer.encode_special_tokens = facts.split_special_tokens
    return tokenizer


def _missing(package: str) -> MissingDependencyError:
    return MissingDependencyError(f"running an exported student needs {package}", remedy="pip install 'distilcal[onnx]'")
