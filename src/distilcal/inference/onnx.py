"""Students in ONNX files, run by onnxruntime: needs NumPy, tokenizers and onnxruntime, and neither torch nor transformers.

A file that `distilcal.export` wrote holds the network, its calibration and, as metadata under ``"distilcal"``, an
`OnnxDescription`: the classes, how examples become tensors, and the dev rows on which thresholds are chosen. The tokenizer lies
beside the file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.calibrate import Calibrator, calibrator_from_json
from distilcal.data.dataset import Choices, Dataset, Images, Texts
from distilcal.errors import InputError, MissingDependencyError
from distilcal.inference.student import OnProgress, Student
from distilcal.predictions import Predictions

FORMAT = 1
METADATA = "distilcal"  # the key of the description among the metadata of a file
PROBABILITIES, LOGITS = "probabilities", "logits"  # the outputs of a graph
BATCH = 32  # examples of one pass
TEXT_BATCH = 8  # texts of one pass: as fast as 32 where all have one length, and with less padding where they differ
TOKENIZED_AT_ONCE = 4096  # texts
SMALLEST = float(np.finfo(np.float32).tiny)  # in place of a probability of 0, whose logarithm is not finite

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TokenizerFile:
    """The tokenizer of an exported student.

    Attributes
    ----------
    file : str
        Name of the file, beside the .onnx.
    sha256 : str
        Hash of its content.
    pad_id : int
        The token that fills up a batch.
    token_types : bool
        Whether the network reads which of two texts a token belongs to.
    split_special_tokens : bool
        Whether special tokens in a text are split like any other word.
    """

    file: str
    sha256: str
    pad_id: int
    token_types: bool
    split_special_tokens: bool = False


@dataclass(frozen=True)
class OnnxDescription:
    """What an ONNX file holds beside its graph.

    Attributes
    ----------
    classes : tuple of str
        The classes in the order of the outputs.
    input_kind : {"texts", "choices", "images", "vectors"}
        What it reads.
    apart : bool
        Whether the texts of a pair, or a prompt and its endings, are encoded each alone.
    max_length : int
        Tokens after which a text is cut.
    tokenizer : TokenizerFile, optional
        For models that read texts.
    calibration : dict, optional
        The calibrator as JSON.
    calibration_in_graph : bool
        Whether the outputs of the graph are calibrated. Otherwise the calibrator is applied to them here.
    dev : dict, optional
        Confidences and outcomes of dev rows, as `encode_dev_rows` writes them.
    required_accuracy : float
        The accuracy that the run required of answers that are not handed over.
    quantised : bool
        Whether weights are in 8 bits.
    versions : dict
        Versions of the packages that wrote it.
    format : int
        Version of this description.
    """

    classes: tuple[str, ...]
    input_kind: str
    apart: bool = False
    max_length: int = 0
    tokenizer: TokenizerFile | None = None
    calibration: dict[str, Any] | None = None
    calibration_in_graph: bool = True
    dev: dict[str, Any] | None = None
    required_accuracy: float = 0.95
    quantised: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the description as the text that is stored in the file."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, source: str) -> OnnxDescription:
        """Read the description of a file.

        Parameters
        ----------
        text : str
            What `to_json` returned.
        source : str
            The file, for messages.

        Raises
        ------
        InputError
            If it is of a newer format, or not a description.
        """
        try:
            values = json.loads(text)
            if values["format"] > FORMAT:
                raise InputError(
                    f"it is of format {values['format']}, this version of distilcal reads up to {FORMAT}",
                    source=source,
                    remedy="install a newer distilcal, or export it again",
                )
            known = {name: values[name] for name in (f.name for f in fields(cls)) if name in values}
            if known.get("tokenizer") is not None:
                known["tokenizer"] = TokenizerFile(**known["tokenizer"])
            return cls(**{**known, "classes": tuple(known["classes"])})
        except InputError:
            raise
        except (KeyError, TypeError, ValueError):
            raise InputError("its description is damaged", source=source, remedy="export it again") from None


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
    if not path.is_file():
        raise InputError("there is no such file", source=str(path), remedy="give an .onnx that distilcal exported")
    session = _open_session(path, threads)
    metadata = session.get_modelmeta().custom_metadata_map
    if METADATA not in metadata:
        raise InputError(
            "this .onnx was not exported by distilcal: it does not say what its inputs and classes are",
            source=str(path),
            remedy="export the student with distilcal export, or run this file with onnxruntime",
        )
    description = OnnxDescription.from_json(metadata[METADATA], str(path))
    tokenizer = None
    if description.tokenizer is not None:
        tokenizer = _load_tokenizer(path, description.tokenizer)
    calibrator: Calibrator | None = None
    if description.calibration is not None and not description.calibration_in_graph:
        calibrator = calibrator_from_json(description.calibration)
    return Student(
        OnnxBackend(session, description, tokenizer),
        description.classes,
        description.input_kind,
        calibrator=calibrator,
        dev=None if description.dev is None else decode_dev_rows(description.dev),
        name=str(path),
        required_accuracy=description.required_accuracy,
        teacher_correct=decode_teacher_correct(description.dev),
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
        expected, count = len(description.classes), inputs.endings.shape[1]
        if count != expected:
            raise InputError(f"the model reads {expected} choices, got {count}", remedy="give as many endings everywhere")
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


def encode_dev_rows(dev: Predictions, teacher_correct: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Return confidences and outcomes of dev rows as text that fits into the metadata of a file.

    Parameters
    ----------
    dev : Predictions
        Calibrated predictions on labelled rows.
    teacher_correct : array of bool, shape (N,), optional
        Whether the student's teacher was right about them.

    Returns
    -------
    dict
        ``rows``; ``confidence`` (float32), ``correct`` and, if known, ``teacher_correct`` (bits) as base64.

    Examples
    --------
    >>> dev = Predictions([[2.0, 0.0], [0.0, 1.0]], [0, 0])
    >>> decode_dev_rows(encode_dev_rows(dev)).confidence.round(3).tolist()
    [0.881, 0.731]
    """
    rows: dict[str, Any] = {
        "rows": len(dev),
        "confidence": base64.b64encode(dev.confidence.astype("<f4").tobytes()).decode(),
        "correct": base64.b64encode(np.packbits(dev.correct).tobytes()).decode(),
    }
    if teacher_correct is not None:
        rows["teacher_correct"] = base64.b64encode(np.packbits(teacher_correct).tobytes()).decode()
    return rows


def decode_dev_rows(rows: dict[str, Any]) -> Predictions:
    """Return the dev rows that `encode_dev_rows` wrote.

    Parameters
    ----------
    rows : dict
        Its result.

    Returns
    -------
    Predictions
        Confidences and outcomes; nothing is known about single classes.
    """
    confidence = np.frombuffer(base64.b64decode(rows["confidence"]), dtype="<f4")
    return Predictions.from_confidences(confidence.astype(np.float64), _decode_bits(rows, "correct"), name="dev")


def decode_teacher_correct(rows: dict[str, Any] | None) -> NDArray[np.bool_] | None:
    """Return whether the teacher was right about the dev rows that `encode_dev_rows` wrote; None if that is not known.

    Parameters
    ----------
    rows : dict or None
        Its result; None if there are no dev rows.

    Returns
    -------
    array of bool, shape (N,), or None
    """
    return None if rows is None or "teacher_correct" not in rows else _decode_bits(rows, "teacher_correct")


def _decode_bits(rows: dict[str, Any], name: str) -> NDArray[np.bool_]:
    bits = np.frombuffer(base64.b64decode(rows[name]), dtype=np.uint8)
    return np.unpackbits(bits, count=rows["rows"]).astype(bool)


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
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.encode_special_tokens = facts.split_special_tokens
    return tokenizer


def _missing(package: str) -> MissingDependencyError:
    return MissingDependencyError(f"running an exported student needs {package}", remedy="pip install 'distilcal[onnx]'")
