"""The HTTP application: ``/predict``, ``/health``, a page to try the model, and the description of it all.

A request is read in parts and refused as soon as it is too large, parsed without conversion, and answered by the model in a
thread. Nothing is read from disk after the start, and no page loads anything from elsewhere.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from numpy.typing import NDArray
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distilcal import __version__
from distilcal.data.dataset import Dataset
from distilcal.errors import InputError, TeacherError, TeacherTimeoutError
from distilcal.inference import Acceptance, DeferralTeacher, Student
from distilcal.inference.called import CalledAnswer
from distilcal.inference.deferral import ask_about, merge_answers
from distilcal.inference.remote import is_url, remote_teacher
from distilcal.predictions import FloatArray
from distilcal.report.formatting import printable
from distilcal.serve.documentation import render_documentation
from distilcal.serve.images import check_pillow, decode_images
from distilcal.serve.messages import (
    Counts,
    Health,
    ParsedRequest,
    PredictResponse,
    ServiceError,
    TeacherState,
    parse_request,
    request_model,
)
from distilcal.serve.pages import read_page, render_page
from distilcal.serve.queue import ModelQueue, TooManyRequests

MAX_BATCH = 256
MAX_BYTES = 1_000_000
MAX_CHARS = 100_000
MAX_REQUESTS = 256
MAX_DEFERRED = 32  # requests that may wait for the teacher, and no more than MAX_REQUESTS
BODY_SECONDS = 10.0  # in which the whole body of a request must have arrived
ERRORS = (400, 408, 413, 415, 422, 500, 503)  # statuses of answers to /predict
KEPT_THRESHOLDS = 64  # for different accuracies of requests
SERVICE_THREADS = 16  # in which another service is asked
PAUSE_SECONDS = 5.0  # in which a service that did not answer in time is not asked
LOG_SECONDS = 60.0  # between lines of the log about a teacher that fails: one for every request would fill disks
TOO_LOW = "the confidence is below the threshold"
NO_ANSWER = "the teacher has no answer"
TEACHER_FAILED = "the teacher failed; the log of the service says why"
TEACHER_BUSY = "the teacher is busy"
TEACHER_PAUSED = "the teacher did not answer in time and is not asked for a few seconds"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class RequestLimits:
    """What one request may hold, and how many may be under way."""

    max_batch: int
    max_bytes: int
    max_chars: int
    max_requests: int


@dataclass(frozen=True)
class DeferredRequest:
    """A request of which the model has done its part, and a teacher has the rest to do."""

    data: Dataset
    probs: FloatArray
    acceptance: Acceptance
    deferred: NDArray[np.bool_]


logger = logging.getLogger(__name__)


def create_app(
    student: Student,
    *,
    accuracy: float | None = None,
    confidence: float | None = None,
    max_loss: float | None = None,
    defer_to: Any = None,
    max_batch: int = MAX_BATCH,
    max_bytes: int = MAX_BYTES,
    max_chars: int = MAX_CHARS,
    max_requests: int = MAX_REQUESTS,
    threads: int = 1,
) -> FastAPI:
    """Build the HTTP application of a student, for any ASGI server.

    Parameters
    ----------
    student : Student
        What ``distilcal.load`` returned.
    accuracy : float, optional
        The accuracy that answers should have which are not handed over; a request may name another. By default the one that
        the student's run required. Without dev predictions nothing can be promised, and the flags are null.
    confidence : float, optional
        The lowest confidence of these answers, in place of an accuracy.
    max_loss : float, optional
        In place of both, the accuracy that student and teacher together may lose to the teacher alone.
    defer_to : object, optional
        A teacher that answers in place of a human: the URL of another service, or all else that `Student.predict` takes. Where
        it fails, the answer is handed over to a human.
    max_batch : int, default 256
        How many examples a request may hold.
    max_bytes : int, default 1,000,000
        How large the body of a request may be.
    max_chars : int, default 100,000
        How long a text may be.
    max_requests : int, default 256
        How many requests may be under way, running or waiting; more are refused with 503 and ``Retry-After``. Those that wait
        for the teacher are not among them: they may be as many, but at most 32, and the examples of more are handed over.
    threads : int, default 1
        How many requests the model runs at a time. The model itself may use more threads.

    Returns
    -------
    FastAPI
        With ``POST /predict``, ``GET /health``, ``/docs``, ``/openapi.json`` and a page to try it at ``/``.

    Raises
    ------
    InputError
        If the accuracy is not between 0 and 1, or the teacher cannot answer for this student.
    MissingDependencyError
        If the student reads images and Pillow is not installed.

    Examples
    --------
    >>> class Length:
    ...     def compute_logits(self, data, on_progress=None):
    ...         return np.array([[0.0, len(text) - 5.0] for text in data.inputs.text])
    >>> app = create_app(Student(Length(), ("short", "long"), "texts"))
    >>> sorted(app.openapi()["paths"])
    ['/health', '/predict']
    """
    if student.input_kind == "images":
        check_pillow()
    limits = RequestLimits(max_batch, max_bytes, max_chars, max_requests)
    acceptance = None
    if student.dev is not None or any(setting is not None for setting in (accuracy, confidence, max_loss, defer_to)):
        acceptance = student.acceptance(accuracy=accuracy, confidence=confidence, max_loss=max_loss)
    teacher = None if defer_to is None else find_teacher(student, defer_to)
    service = Service(student, acceptance, teacher, limits, threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title=service.student.name,
        summary="Calibrated predictions, and what to hand over to a human.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,  # the address of a redirect would be the Host that the client names
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
    )
    app.add_middleware(SecurityHeaders)
    request_schema = {"application/json": {"schema": service.request_model.model_json_schema()}}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ServiceError} for status in (400, 408, 413, 415, 422, 500, 503)
    }

    @app.post(
        "/predict",
        summary="Classify examples.",
        response_model=PredictResponse,
        responses=errors,
        openapi_extra={"requestBody": {"required": True, "content": request_schema}},
    )
    async def predict(request: Request) -> Response:
        return JSONResponse(await service.predict(request))

    @app.get("/health", summary="Describe the model and the state of the service.", response_model=Health)
    async def health() -> Response:
        return JSONResponse(service.health())

    _add_pages(app, service.student)
    return app


class Service:
    """A student behind HTTP: reads requests, keeps their limits, and answers them.

    Parameters
    ----------
    student : Student
        The model.
    acceptance : Acceptance, optional
        Which answers are kept where a request names no accuracy.
    teacher : DeferralTeacher, optional
        Who answers what is deferred.
    limits : RequestLimits
        What requests may hold.
    threads : int
        How many requests the model runs at a time; as many run a teacher that is a model, beside them.
    """

    def __init__(
        self,
        student: Student,
        acceptance: Acceptance | None,
        teacher: DeferralTeacher | None,
        limits: RequestLimits,
        threads: int,
    ):
        self.student = copy.copy(student)
        self.student.name = shown_name(student.name)  # clients need not know where it is on disk
        self.default = acceptance
        self.teacher = teacher
        self.limits = limits
        self.queue = ModelQueue(threads, limits.max_requests)
        is_service = teacher is not None and teacher.is_service
        max_deferred = min(MAX_DEFERRED, limits.max_requests)
        self.teacher_queue = ModelQueue(SERVICE_THREADS if is_service else threads, max_deferred)
        self.request_model = request_model(student.input_kind, limits.max_batch)
        self.accept = lru_cache(KEPT_THRESHOLDS)(lambda accuracy: self.student.acceptance(accuracy=accuracy))
        self.counts = Counts(examples=0, deferred=0, by_teacher=0)
        self._teacher_failing = False
        self._paused_until = self._silent_until = -math.inf
        self._started = time.monotonic()

    def close(self) -> None:
        """Let the threads end."""
        self.queue.close()
        self.teacher_queue.close()

    async def predict(self, request: Request) -> dict[str, Any]:
        """Return the answers to a request as the content of its response."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":  # what a foreign page may send without asking is not accepted
            raise HTTPException(415, "send JSON, with the header Content-Type: application/json")
        try:
            with self.queue.admit():
                body = await read_body(request, self.limits.max_bytes)
                answered = await self.queue.run(self._answer, body, is_abandoned=request.is_disconnected)
        except TooManyRequests:
            message = f"{self.limits.max_requests} requests are under way; try again later"
            raise HTTPException(503, message, headers={"Retry-After": "1"}) from None
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        if isinstance(answered, DeferredRequest):  # it no longer counts among those of the student
            answered = await self._defer(answered, request)
        if answered is None:  # the client has left
            return {}
        self._count(answered["predictions"])
        return answered

    def health(self) -> dict[str, Any]:
        """Return the content of ``/health``."""
        promise = "the model has no dev predictions, so no accuracy can be promised: hand_over is null"
        return {
            "status": "ok",
            "model": self.student.name,
            "classes": list(self.student.classes),
            "input_kind": self.student.input_kind,
            "calibrated": self.student.calibration is not None,
            "calibration": self.student.calibration,
            "accuracy": None if self.default is None else self.default.accuracy,
            "threshold": None if self.default is None else self.default.confidence,
            "hand_over": promise if self.default is None else self.default.message,
            "teacher": self._teacher_state(),
            "counts": self.counts.model_dump(),
            "limits": vars(self.limits),
            "pending": self.queue.pending + self.teacher_queue.pending,
            "version": __version__,
            "uptime_seconds": round(time.monotonic() - self._started, 3),
        }

    def _teacher_state(self) -> dict[str, Any] | None:
        if self.teacher is None:
            return None
        # Clients need not know where it is, neither on disk nor in the network.
        name = "another service" if self.teacher.is_service else shown_name(self.teacher.name)
        return TeacherState(name=name, is_service=self.teacher.is_service, failing=self._teacher_failing).model_dump()

    def _count(self, answers: list[dict[str, Any]]) -> None:
        """Add the examples of a response; called by the one thread of the event loop."""
        self.counts.examples += len(answers)
        self.counts.deferred += sum(answer["deferred"] for answer in answers)
        self.counts.by_teacher += sum(answer["answered_by"] == "teacher" for answer in answers)

    def _parse(self, body: bytes) -> ParsedRequest:
        """Return what a request asks for, after checking the length of its texts."""
        kind = self.student.input_kind
        parsed = parse_request(self.request_model, body, kind)
        if kind not in ("texts", "choices"):
            return parsed
        for row, example in enumerate(parsed.examples):
            length = text_length(example)
            if length > self.limits.max_chars:
                limit = f"send at most {self.limits.max_chars:,} in one example"
                raise HTTPException(413, f"{kind}[{row}] has {length:,} characters; {limit}")
        return parsed

    def _answer(self, body: bytes) -> dict[str, Any] | DeferredRequest:
        """Parse a request and run the model; called in a thread. Requests that wait are bytes: parsed they take more memory."""
        parsed = self._parse(body)
        acceptance = self.default if parsed.accuracy is None else self.accept(parsed.accuracy)
        if acceptance is None and parsed.defer:
            self.student.acceptance()  # raises: nothing can be promised
        convert = CONVERT.get(self.student.input_kind, list)
        data = self.student.as_dataset(convert(parsed.examples))
        probs = self.student.predictions(data).probs
        nothing = np.zeros(len(data), dtype=bool)
        if acceptance is None:
            return self._content(probs, None, nothing, [None] * len(data))
        too_low = acceptance.defers(probs.max(axis=1))
        if parsed.defer is False or (parsed.defer is None and self.teacher is None):
            return self._content(probs, acceptance, nothing, too_low.tolist())
        if self.teacher is None or not too_low.any():
            return self._content(probs, acceptance, too_low, too_low.tolist(), reason=TOO_LOW)
        return DeferredRequest(data, probs, acceptance, too_low)

    async def _defer(self, deferred: DeferredRequest, request: Request) -> dict[str, Any] | None:
        """Wait for the teacher's part of a request; it is handed over at once in a pause, or if too many wait already."""
        if self._is_paused():
            return self._hand_over(deferred, TEACHER_PAUSED)
        try:
            with self.teacher_queue.admit():
                return await self.teacher_queue.run(self._complete, deferred, is_abandoned=request.is_disconnected)
        except TooManyRequests:
            return self._hand_over(deferred, TEACHER_BUSY)

    def _complete(self, request: DeferredRequest) -> dict[str, Any]:
        """Ask the teacher about what the model deferred; called in a thread."""
        assert self.teacher is not None
        if self._is_paused():  # since the request began to wait
            return self._hand_over(request, TEACHER_PAUSED)
        try:
            answer = ask_about(self.teacher, request.data.select(request.deferred))
        except TeacherError as error:
            self._note_failure(error)
            return self._hand_over(request, TEACHER_FAILED)
        self._teacher_failing = False
        handed_over = request.deferred.copy()
        handed_over[request.deferred] = answer.predicted < 0
        return self._content(request.probs, request.acceptance, request.deferred, handed_over.tolist(), answer, NO_ANSWER)

    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def _note_failure(self, error: TeacherError) -> None:
        """Log why the teacher failed, and give it a pause if it was too slow."""
        now = time.monotonic()
        self._teacher_failing = True
        if isinstance(error, TeacherTimeoutError):
            self._paused_until = now + PAUSE_SECONDS
        if now >= self._silent_until:
            self._silent_until = now + LOG_SECONDS
            logger.warning("%s; what is deferred is handed over until it answers", error)

    def _hand_over(self, request: DeferredRequest, reason: str) -> dict[str, Any]:
        """The content of a response without a teacher's answers."""
        deferred = request.deferred
        return self._content(request.probs, request.acceptance, deferred, deferred.tolist(), reason=reason)

    def _content(
        self,
        probs: FloatArray,
        acceptance: Acceptance | None,
        deferred: NDArray[np.bool_],
        hand_over: list[Any],
        answer: CalledAnswer | None = None,
        reason: str = "",
    ) -> dict[str, Any]:
        """The content of a response."""
        merged = merge_answers(self.student.classes, probs, deferred, answer)
        answers = []
        for one, row, is_handed_over in zip(merged.to_list(), merged.probs.tolist(), hand_over, strict=True):
            known = None if row[0] != row[0] else dict(zip(self.student.classes, row, strict=True))  # NaN: a label only
            fields = {**one._asdict(), "probabilities": known, "hand_over": is_handed_over}
            answers.append({**fields, "reason": reason if one.label is None else None})
        return {
            "predictions": answers,
            "accuracy": None if acceptance is None else acceptance.accuracy,
            "threshold": None if acceptance is None else acceptance.confidence,
            "model": self.student.name,
        }


def shown_name(path: str) -> str:
    """Return the last part of a path as text that JSON can hold; names of files may be other bytes.

    Parameters
    ----------
    path : str
        Where a model is.

    Returns
    -------
    str

    Examples
    --------
    >>> shown_name("models/student.onnx")
    'student.onnx'
    """
    return printable(PurePath(path).name)


def find_teacher(student: Student, defer_to: Any) -> DeferralTeacher:
    """Return who answers what a student defers; another service need not answer yet.

    Parameters
    ----------
    student : Student
        Who defers.
    defer_to : object
        See `create_app`.

    Returns
    -------
    DeferralTeacher

    Raises
    ------
    InputError
        If it cannot answer for this student.
    """
    try:
        return student.teacher(defer_to)
    except TeacherError as error:
        if not isinstance(defer_to, str) or not is_url(defer_to):
            raise
        logger.warning("%s; what is deferred is handed over until it answers", error)
        return remote_teacher(defer_to, student.classes, student.input_kind, check=False)


class SecurityHeaders:
    """Middleware that adds the security headers to every response.

    Parameters
    ----------
    app : ASGI application
        What answers.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body of a request in parts; stop as soon as it is too large or too slow.

    Parameters
    ----------
    request : Request
        The request, none of whose body has been read.
    max_bytes : int
        How many bytes are accepted.

    Returns
    -------
    bytes

    Raises
    ------
    HTTPException
        413 if the body is larger, 408 if it takes longer than ``BODY_SECONDS``, 400 if the client leaves or states two lengths.
    """
    # The connection cannot be used again: the rest of the body is not read.
    close = {"Connection": "close"}
    too_large = HTTPException(413, f"the request is larger than {max_bytes:,} bytes; send fewer examples at a time", close)
    if "transfer-encoding" in request.headers and "content-length" in request.headers:
        raise HTTPException(400, "a request has a Content-Length or a Transfer-Encoding, not both", close)  # RFC 9112, 6.1
    declared = request.headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit()):
        raise HTTPException(400, "the Content-Length is not a number", close)
    if int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                if len(body) + len(chunk) > max_bytes:
                    raise too_large
                body += chunk
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed before the request was complete", close) from None
    except TimeoutError:
        raise HTTPException(408, f"the request took longer than {BODY_SECONDS:g} seconds to arrive", close) from None
    return bytes(body)


def text_length(example: Any) -> int:
    """Return the number of characters of a text, a pair of texts, or a prompt with its endings.

    Parameters
    ----------
    example : str, or sequence of these
        The example.

    Returns
    -------
    int

    Examples
    --------
    >>> text_length("abc"), text_length(("a", ["bc", "def"]))
    (3, 6)
    """
    return len(example) if isinstance(example, str) else sum(text_length(part) for part in example)


def as_vectors(rows: list[list[float]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return lists of numbers as an array.

    Parameters
    ----------
    rows : list of list of float
        One list per example.

    Returns
    -------
    array of float32, shape (N, D)

    Raises
    ------
    InputError
        If the lists have different lengths.

    Examples
    --------
    >>> as_vectors([[1, 2, 3], [4, 5, 6]]).shape
    (2, 3)
    """
    widths = [len(row) for row in rows]
    if len(set(widths)) > 1:
        row = next(row for row, width in enumerate(widths) if width != widths[0])
        raise InputError(f"vectors[{row}] has {widths[row]} numbers where the first has {widths[0]}", remedy="make them equal")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which the Dataset refuses
        return np.array(rows, dtype=np.float64).astype(np.float32)


# How the examples of a request become what `Student.as_dataset` reads; texts and choices are that already.
CONVERT: dict[str, Callable[[list[Any]], Any]] = {"images": decode_images, "vectors": as_vectors}


def _add_pages(app: FastAPI, student: Student) -> None:
    """Add the page to try the model, its style and script, and the description of the service."""
    page = render_page("index.html", model=student.name)
    style, script = read_page("style.css"), read_page("try.js")
    documentation = render_documentation(app.openapi(), student.input_kind)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(page)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(documentation)

    @app.get("/style.css", include_in_schema=False)
    async def style_sheet() -> Response:
        return Response(style, media_type="text/css")

    @app.get("/try.js", include_in_schema=False)
    async def try_script() -> Response:
        return Response(script, media_type="text/javascript")


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _internal_error(_: Request, __: Exception) -> Response:
    # The server logs the exception. This response does not pass through the middleware.
    return JSONResponse({"error": "the service failed; its log says why"}, 500, headers=HEADERS)
