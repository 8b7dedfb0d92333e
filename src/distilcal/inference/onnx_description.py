"""What an exported ONNX file holds beside its graph, as JSON: the classes, how examples become tensors, dev rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilcal.errors import InputError
from distilcal.io.atomic import parse_json
from distilcal.predictions import Predictions

FORMAT = 1
METADATA = "distilcal"  # the key of the description among the metadata of a file
INPUT_KINDS = ("texts", "choices", "images", "vectors")


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
    text_pairs : bool, optional
        Whether it was trained on pairs of texts. None: not on texts, or an earlier version wrote it.
    versions : dict
        Versions of the packages that wrote it.
    has_digest : bool
        Whether the file ends with its digest, as `append_digest` writes it.
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
    text_pairs: bool | None = None
    versions: dict[str, str] = field(default_factory=dict)
    has_digest: bool = False
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
        damaged = InputError("its description is damaged", source=source, remedy="export it again")
        try:
            values = parse_json(text, source=source)
            if _is_integer(values["format"]) and values["format"] > FORMAT:
                raise InputError(
                    f"it is of format {values['format']}, this version of distilcal reads up to {FORMAT}",
                    source=source,
                    remedy="install a newer distilcal, or export it again",
                )
            known = {name: values[name] for name in (f.name for f in fields(cls)) if name in values}
            if known.get("tokenizer") is not None:
                known["tokenizer"] = TokenizerFile(**known["tokenizer"])
            if not isinstance(known["classes"], list):
                raise damaged
            description = cls(**{**known, "classes": tuple(known["classes"])})
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError):
            raise damaged from None
        if not _is_valid(description):
            raise damaged
        return description


def _is_valid(description: OnnxDescription) -> bool:
    """Whether the values of a description are of their types and in their ranges; dev and calibration are read elsewhere."""
    names, tokenizer, calibration = description.classes, description.tokenizer, description.calibration
    reads_texts = description.input_kind in ("texts", "choices")
    flags = (description.apart, description.calibration_in_graph, description.quantised, description.has_digest)
    return (
        all(isinstance(name, str) for name in names)
        and len(set(names)) == len(names) > 0
        and description.input_kind in INPUT_KINDS
        and all(isinstance(flag, bool) for flag in flags)
        and isinstance(description.text_pairs, bool | None)
        and _is_integer(description.max_length)
        and reads_texts == (tokenizer is not None)
        and (tokenizer is None or _is_valid_tokenizer(tokenizer))
        and (calibration is None or (isinstance(calibration, dict) and isinstance(calibration.get("kind"), str)))
        and isinstance(description.required_accuracy, int | float)
        and 0 < description.required_accuracy <= 1
        and isinstance(description.versions, dict)
        and _is_integer(description.format)
        and description.format == FORMAT
    )


def _is_valid_tokenizer(tokenizer: TokenizerFile) -> bool:
    texts_of = (tokenizer.file, tokenizer.sha256)
    flags = (tokenizer.token_types, tokenizer.split_special_tokens)
    return (
        all(isinstance(text, str) for text in texts_of)
        and bool(Path(tokenizer.file).name)
        and all(isinstance(flag, bool) for flag in flags)
        and _is_integer(tokenizer.pad_id)
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
        ``rows``; ``confidence`` (float64), ``correct`` and, if known, ``teacher_correct`` (bits) as base64.

    Examples
    --------
    >>> dev = Predictions([[2.0, 0.0], [0.0, 1.0]], [0, 0])
    >>> decode_dev_rows(encode_dev_rows(dev)).confidence.round(3).tolist()
    [0.881, 0.731]
    """
    rows: dict[str, Any] = {
        "rows": len(dev),
        "confidence": base64.b64encode(dev.confidence.astype("<f8").tobytes()).decode(),
        "correct": base64.b64encode(np.packbits(dev.correct).tobytes()).decode(),
    }
    if teacher_correct is not None:
        rows["teacher_correct"] = base64.b64encode(np.packbits(teacher_correct).tobytes()).decode()
    return rows


def decode_dev_rows(rows: Any, source: str = "") -> Predictions:
    """Return the dev rows that `encode_dev_rows` wrote.

    Parameters
    ----------
    rows : dict
        Its result.
    source : str
        Where they are stored, for messages.

    Returns
    -------
    Predictions
        Confidences and outcomes; nothing is known about single classes.

    Raises
    ------
    InputError
        If they are anything else.
    """
    with _dev_row_errors(source):
        correct = _decode_bits(rows, "correct")
        content = _decode(rows, "confidence")
        # Earlier versions wrote 32 bits, in which confidences near 1 are 1: a threshold there is above what the model answers.
        confidence = np.frombuffer(content, dtype="<f4" if len(content) == 4 * len(correct) else "<f8").astype(np.float64)
        if len(confidence) != len(correct):
            raise ValueError
        return Predictions.from_confidences(confidence, correct, name="dev")


def decode_teacher_correct(rows: Any, source: str = "") -> NDArray[np.bool_] | None:
    """Return whether the teacher was right about the dev rows that `encode_dev_rows` wrote; None if that is not known.

    Parameters
    ----------
    rows : dict or None
        Its result; None if there are no dev rows.
    source : str
        Where they are stored, for messages.

    Returns
    -------
    array of bool, shape (N,), or None

    Raises
    ------
    InputError
        If they are anything else.
    """
    if rows is None or "teacher_correct" not in rows:
        return None
    with _dev_row_errors(source):
        return _decode_bits(rows, "teacher_correct")


@contextmanager
def _dev_row_errors(source: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError):  # also an InputError, which a confidence of 7 would be
        raise InputError("its dev rows are damaged", source=source, remedy="write it again") from None


def _decode(rows: Any, name: str) -> bytes:
    return base64.b64decode(rows[name], validate=True)


def _decode_bits(rows: Any, name: str) -> NDArray[np.bool_]:
    bits, count = np.frombuffer(_decode(rows, name), dtype=np.uint8), rows["rows"]
    if not _is_integer(count) or len(bits) != (count + 7) // 8:
        raise ValueError
    return np.unpackbits(bits, count=count).astype(bool)
