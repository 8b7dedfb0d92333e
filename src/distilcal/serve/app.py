"""The HTTP application: ``/predict``, ``/health``, a page to try the model, and the description of it all.

A request is read in parts and refused as soon as it is too large, parsed without conversion, and answered by the model in a
thread. Nothing is read from disk after the start, and no page loads anything from elsewhere.
"""

from __future__ import annotations

import asyncio
import copy
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
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distilcal import __version__
from distilcal.errors import InputError
from distilcal.inference import Student
from distilcal.selective import Threshold
from distilcal.serve.documentation import render_documentation
from distilcal.serve.images import check_pillow, decode_images
from distilcal.serve.messages import Health, PredictResponse, ServiceError, parse_request, request_model
from distilcal.serve.pages import read_page, render_page
from distilcal.serve.queue import ModelQueue, TooManyRequests

MAX_BATCH = 256
MAX_BYTES = 1_000_000
MAX_CHARS = 100_000
MAX_REQUESTS = 256
BODY_SECONDS = 10.0  # in which the whole body of a request must have arrived
ERRORS = (400, 408, 413, 415, 422, 500, 503)  # statuses of answers to /predict
KEPT_THRESHOLDS = 64  # for different accuracies of requests

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


def create_app(
    student: Student,
    *,
    accuracy: float | None = None,
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
    max_batch : int, default 256
        How many examples a request may hold.
    max_bytes : int, default 1,000,000
        How large the body of a request may be.
    max_chars : int, default 100,000
        How long a text may be.
    max_requests : int, default 256
        How many requests may be under way, running or waiting; more are refused with 503 and ``Retry-After``.
    threads : int, default 1
        How many requests the model runs at a time. The model itself may use more threads.

    Returns
    -------
    FastAPI
        With ``POST /predict``, ``GET /health``, ``/docs``, ``/openapi.json`` and a page to try it at ``/``.

    Raises
    ------
    InputError
        If the accuracy is not between 0 and 1.
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
    accuracy = student.required_accuracy if accuracy is None else accuracy
    service = Service(student, accuracy, limits, ModelQueue(threads, max_requests))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.queue.close()

    app = FastAPI(
        title=service.student.name,
        summary="Calibrated predictions, and what to hand over to a human.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
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
    accuracy : float
        Required accuracy where a request names none.
    limits : RequestLimits
        What requests may hold.
    queue : ModelQueue
        Where the model runs.
    """

    def __init__(self, student: Student, accuracy: float, limits: RequestLimits, queue: ModelQueue):
        self.student = copy.copy(student)
        self.student.name = PurePath(student.name).name  # clients need not know where it is on disk
        self.limits = limits
        self.queue = queue
        self.request_model = request_model(student.input_kind, limits.max_batch)
        self.threshold = lru_cache(KEPT_THRESHOLDS)(self.student.threshold)
        self.default: Threshold | None = None if student.dev is None else self.threshold(accuracy)
        self._started = time.monotonic()

    async def predict(self, request: Request) -> dict[str, Any]:
        """Return the answers to a request as the content of its response."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":  # what a foreign page may send without asking is not accepted
            raise HTTPException(415, "send JSON, with the header Content-Type: application/json")
        try:
            with self.queue.admit():
                body = await read_body(request, self.limits.max_bytes)
                return await self.queue.run(self._answer, body, is_abandoned=request.is_disconnected) or {}
        except TooManyRequests:
            message = f"{self.limits.max_requests} requests are under way; try again later"
            raise HTTPException(503, message, headers={"Retry-After": "1"}) from None
        except InputError as error:
            raise HTTPException(422, str(error)) from None

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
            "accuracy": None if self.default is None else self.default.target_accuracy,
            "threshold": None if self.default is None else self.default.confidence,
            "hand_over": promise if self.default is None else self.default.message,
            "limits": vars(self.limits),
            "pending": self.queue.pending,
            "version": __version__,
            "uptime_seconds": round(time.monotonic() - self._started, 3),
        }

    def _parse(self, body: bytes) -> tuple[list[Any], float | None]:
        """Return the examples and the accuracy of a request, after checking the length of its texts."""
        kind = self.student.input_kind
        examples, accuracy = parse_request(self.request_model, body, kind)
        if kind not in ("texts", "choices"):
            return examples, accuracy
        for row, example in enumerate(examples):
            length = text_length(example)
            if length > self.limits.max_chars:
                limit = f"send at most {self.limits.max_chars:,} in one example"
                raise HTTPException(413, f"{kind}[{row}] has {length:,} characters; {limit}")
        return examples, accuracy

    def _answer(self, body: bytes) -> dict[str, Any]:
        """Parse a request and run the model; called in a thread. Requests that wait are bytes: parsed they take more memory."""
        examples, accuracy = self._parse(body)
        lowest = self.default if accuracy is None else self.threshold(accuracy)
        convert = CONVERT.get(self.student.input_kind, list)
        predictions = self.student.predictions(self.student.as_dataset(convert(examples)))
        classes = self.student.classes
        answers = []
        for probs, predicted in zip(predictions.probs.tolist(), predictions.predicted.tolist(), strict=True):
            answer = {
                "label": classes[predicted],
                "confidence": probs[predicted],
                "probabilities": dict(zip(classes, probs, strict=True)),
                "hand_over": None if lowest is None else is_handed_over(probs[predicted], lowest),
            }
            answers.append(answer)
        return {
            "predictions": answers,
            "accuracy": None if lowest is None else lowest.target_accuracy,
            "threshold": None if lowest is None else lowest.confidence,
            "model": self.student.name,
        }


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
        413 if the body is larger, 408 if it takes longer than ``BODY_SECONDS``, 400 if the client leaves.
    """
    # The connection cannot be used again: the rest of the body is not read.
    close = {"Connection": "close"}
    too_large = HTTPException(413, f"the request is larger than {max_bytes:,} bytes; send fewer examples at a time", close)
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


def is_handed_over(confidence: float, threshold: Threshold) -> bool:
    """Return whether an answer of this confidence is handed over."""
    return threshold.confidence is None or confidence < threshold.confidence


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
