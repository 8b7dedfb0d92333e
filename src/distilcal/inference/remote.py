"""Deferring to another service: examples are posted to the ``/predict`` of a ``distilcal serve``.

The URL is fixed by who starts a program, never taken from a request. Redirects are not followed, answers have limits in time
and size, and nothing in them is trusted: every label and number is checked.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from distilcal.data.dataset import Dataset, Images, Vectors
from distilcal.errors import DistilcalError, InputError, MissingDependencyError, TeacherError, TeacherTimeoutError
from distilcal.inference.called import NO_CLASS, CalledAnswer, match_labels, plain_inputs, unknown_classes
from distilcal.inference.deferral import DeferralTeacher
from distilcal.io.atomic import parse_json
from distilcal.predictions import ROW_SUM_TOLERANCE, FloatArray, IntArray

SECONDS = 10.0  # in which a service must have answered
MAX_ANSWER = 16_000_000  # bytes
READ_AT_ONCE = 65_536  # bytes
MAX_BATCH, MAX_BYTES = 256, 1_000_000  # of a request, unless the service names other limits
RETRIED = (502, 503, 504)  # statuses after which a request is sent a second time
RETRY_AFTER = 0.2  # seconds
UNREACHABLE = (OSError, http.client.HTTPException, UnicodeError)  # the last for names that cannot be of a machine


def is_url(text: str) -> bool:
    """Return whether a text is a URL of HTTP.

    Parameters
    ----------
    text : str
        A URL, a path or a name.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_url("https://models.example.org/teacher"), is_url("runs/teacher")
    (True, False)
    """
    return text.lower().startswith(("http://", "https://"))


def remote_teacher(
    url: str, classes: Sequence[str], input_kind: str, *, seconds: float = SECONDS, check: bool = True
) -> DeferralTeacher:
    """Return a service as a teacher.

    Parameters
    ----------
    url : str
        Where ``distilcal serve`` answers, with or without ``/predict``.
    classes : sequence of str
        The student's classes.
    input_kind : {"texts", "choices", "images", "vectors"}
        What the student reads.
    seconds : float, default 10
        In which the service must answer.
    check : bool, default True
        Whether to ask the service now what it reads, which classes it knows and which limits it has. Otherwise that is done
        before the first examples are sent, and raises the same errors then.

    Returns
    -------
    DeferralTeacher

    Raises
    ------
    InputError
        If the URL is invalid, or the service reads other inputs or knows a class that the student does not know.
    TeacherError
        If it does not answer.
    """
    service = RemoteService(_parse(url), tuple(classes), input_kind, seconds)
    if check:
        service.check()
    return DeferralTeacher(url, service.answer, is_service=True)


@dataclass(frozen=True)
class Address:
    """Where a service is.

    Attributes
    ----------
    secure : bool
        Whether the connection is encrypted.
    host : str
        Name or address.
    port : int or None
        None is that of the protocol.
    path : str
        What comes before ``/predict``.
    """

    secure: bool
    host: str
    port: int | None
    path: str

    def connect(self, seconds: float) -> http.client.HTTPConnection:
        """Return a connection, not open yet."""
        if self.secure:
            return http.client.HTTPSConnection(self.host, self.port, timeout=seconds)
        return http.client.HTTPConnection(self.host, self.port, timeout=seconds)

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"http{'s' if self.secure else ''}://{self.host}{port}{self.path}"


class RemoteService:
    """A service that answers for a student.

    Parameters
    ----------
    address : Address
        Where it is.
    classes : tuple of str
        The student's classes.
    input_kind : {"texts", "choices", "images", "vectors"}
        What the student reads.
    seconds : float
        In which it must answer.
    """

    def __init__(self, address: Address, classes: tuple[str, ...], input_kind: str, seconds: float):
        self.address = address
        self.classes = classes
        self.input_kind = input_kind
        self.seconds = seconds
        self.source = f"teacher {address}"
        self.max_batch, self.max_bytes = MAX_BATCH, MAX_BYTES
        self.is_checked = False

    def check(self) -> None:
        """Ask the service what it reads, which classes it knows and which limits it has; raise an error if they do not fit."""
        health = self._fetch("GET", "/health")
        if not isinstance(health, dict) or not isinstance(health.get("classes"), list) or "input_kind" not in health:
            raise InputError(
                "this is not a service of distilcal", source=self.source, remedy="give the URL of a distilcal serve"
            )
        if health["input_kind"] != self.input_kind:
            raise InputError(
                f"it reads {health['input_kind']}, the student {self.input_kind}",
                source=self.source,
                remedy=f"give a service that reads {self.input_kind}",
            )
        unknown = [name for name in health["classes"] if name not in self.classes]
        if unknown:
            raise unknown_classes(unknown, self.classes, self.source)
        limits = health.get("limits")
        if isinstance(limits, dict):
            self.max_batch = _limit(limits.get("max_batch"), MAX_BATCH)
            self.max_bytes = _limit(limits.get("max_bytes"), MAX_BYTES)
        self.is_checked = True

    def answer(self, data: Dataset) -> CalledAnswer:
        """Return the service's answers; after a failure it is checked again, as it may have been started anew."""
        if not self.is_checked:
            self.check()
        try:
            return self._answer(data)
        except DistilcalError:
            self.is_checked = False
            raise

    def _answer(self, data: Dataset) -> CalledAnswer:
        """The service's answers, asked for in as few requests as its limits allow."""
        rows: list[Any] = []
        for body, count in self._bodies(data):
            rows += self._rows(self._fetch("POST", "/predict", body), count)
        labels = [row.get("label") for row in rows]
        if not all(label is None or isinstance(label, str) for label in labels):
            raise self._failure("one of its labels is not a text")
        confidence = np.array([self._probability(row.get("confidence")) for row in rows])
        matched = match_labels(labels, confidence, self.classes, self.source)
        probs = np.array([self._probabilities(row) for row in rows])
        self._check_agreement(matched.predicted, probs)
        return CalledAnswer(matched.predicted, confidence, probs)

    def _check_agreement(self, predicted: IntArray, probs: FloatArray) -> None:
        """Refuse a label that its own probabilities contradict; those that were rounded may tie."""
        rows = np.flatnonzero((predicted != NO_CLASS) & np.isfinite(probs).all(axis=1))
        contradicted = probs[rows, predicted[rows]] < probs[rows].max(axis=1) - ROW_SUM_TOLERANCE
        if contradicted.any():
            row = rows[contradicted.argmax()]
            given, best = (self.classes[k] for k in (predicted[row], probs[row].argmax()))
            raise self._failure(f"one of its answers has the label {given!r}, but {best!r} is more probable in it")

    def _bodies(self, data: Dataset) -> Iterator[tuple[bytes, int]]:
        """Requests and the number of examples in each."""
        frame = b'{"%s": [%%s]}' % self.input_kind.encode()
        parts: list[bytes] = []
        left = self.max_bytes - len(frame)
        for example in _json_examples(data):
            encoded = json.dumps(example).encode()
            if parts and (len(parts) == self.max_batch or len(encoded) > left):
                yield frame % b",".join(parts), len(parts)
                parts, left = [], self.max_bytes - len(frame)
            parts.append(encoded)
            left -= len(encoded) + 1
        yield frame % b",".join(parts), len(parts)

    def _rows(self, content: Any, count: int) -> list[dict[str, Any]]:
        """The predictions in an answer, one for each example."""
        rows = content.get("predictions") if isinstance(content, dict) else None
        if not isinstance(rows, list) or len(rows) != count or not all(isinstance(row, dict) for row in rows):
            number = len(rows) if isinstance(rows, list) else "none"
            raise self._failure(f"expected {count} predictions, got {number}")
        return rows

    def _probabilities(self, row: dict[str, Any]) -> list[float]:
        """The probabilities of all classes (K,); NaN if the service gave a label only."""
        given = row.get("probabilities")
        if given is None:
            return [math.nan] * len(self.classes)
        if not isinstance(given, dict) or not all(name in self.classes for name in given):
            raise self._failure("its probabilities are not those of the student's classes")
        probabilities = [self._probability(given.get(name, 0.0)) for name in self.classes]
        if not abs(sum(probabilities) - 1) <= ROW_SUM_TOLERANCE:  # one that is null is NaN here
            raise self._failure("the probabilities of one of its answers do not sum to 1")
        return probabilities

    def _probability(self, value: Any) -> float:
        if value is None:
            return math.nan
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self._failure(f"{value!r:.40} is not a probability")
        return float(value)

    def _fetch(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Return the JSON that the service answers; where it cannot be reached or is busy, it is asked once more."""
        deadline = time.monotonic() + self.seconds
        try:
            status, content = self._request(method, path, body, deadline)
        except TimeoutError:
            raise self._too_late() from None
        except UNREACHABLE:
            status, content = 503, b""
        if status in RETRIED:
            time.sleep(RETRY_AFTER)
            try:
                status, content = self._request(method, path, body, deadline)
            except TimeoutError:
                raise self._too_late() from None
            except UNREACHABLE as error:
                raise self._failure(f"it cannot be reached: {getattr(error, 'strerror', None) or error}") from None
        try:
            parsed = parse_json(content)
        except (ValueError, RecursionError):
            raise self._failure(f"it answered with status {status} and no JSON") from None
        if status != 200:
            message = parsed.get("error") if isinstance(parsed, dict) else parsed
            raise self._failure(f"it answered with status {status}: {message!s:.200}")
        return parsed

    def _request(self, method: str, path: str, body: bytes | None, deadline: float) -> tuple[int, bytes]:
        connection = self.address.connect(max(deadline - time.monotonic(), 0.001))
        try:
            connection.connect()
            with cut_off(connection.sock, deadline):
                connection.request(method, self.address.path + path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                content = bytearray()
                while part := answer.read1(READ_AT_ONCE):
                    content += part
                    if len(content) > MAX_ANSWER:
                        raise self._failure(f"its answer is larger than {MAX_ANSWER:,} bytes")
            return answer.status, bytes(content)
        finally:
            connection.close()

    def _failure(self, problem: str) -> TeacherError:
        return TeacherError(problem, source=self.source)

    def _too_late(self) -> TeacherTimeoutError:
        return TeacherTimeoutError(f"it did not answer within {self.seconds:g} seconds", source=self.source)


@contextmanager
def cut_off(connection: socket.socket, deadline: float) -> Iterator[None]:
    """End what is sent and received over a connection at a deadline; a timeout of the socket starts anew with every byte.

    Parameters
    ----------
    connection : socket
        An open connection.
    deadline : float
        According to ``time.monotonic()``.

    Raises
    ------
    TimeoutError
        If the deadline has passed.
    """
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):  # it is closed already
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # that of TLS is not safe while another thread reads

    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except UNREACHABLE:
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError


def _parse(url: str) -> Address:
    invalid = InputError(f"{url!r} is not the URL of a service", remedy="give one such as http://127.0.0.1:8001")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise invalid from None
    if not parts.hostname or parts.query or parts.fragment:
        raise invalid
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "the URL holds a user or a password, which would be shown in messages",
            remedy="give one without them, of a proxy on this machine that adds them",
        )
    path = parts.path.rstrip("/").removesuffix("/predict")
    return Address(parts.scheme.lower() == "https", parts.hostname, port, path)


def _json_examples(data: Dataset) -> Any:
    """Examples as the service reads them."""
    if isinstance(data.inputs, Images):
        return map(_as_png, data.inputs.pixels)
    if isinstance(data.inputs, Vectors):
        return data.inputs.values.astype(np.float64).tolist()
    return plain_inputs(data.inputs)


def _as_png(pixels: Any) -> str:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise MissingDependencyError("sending images to a service needs Pillow", remedy="pip install pillow") from None
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _limit(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default
