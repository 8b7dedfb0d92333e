"""What the service reads and writes as JSON: pydantic models, which also make its OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, FailFast, Field, FiniteFloat, ValidationError, create_model
from starlette.exceptions import HTTPException

from distilcal.errors import InputError
from distilcal.io.atomic import parse_json

# The JSON of the examples, by the kind of input that a student reads. Lists fail at the first fault: a request may hold many.
EXAMPLES: dict[str, Any] = {
    "texts": Annotated[list[str | tuple[str, str]], FailFast()],
    "choices": Annotated[list[tuple[str, Annotated[list[str], FailFast(), Field(min_length=2)]]], FailFast()],
    "images": Annotated[list[str], FailFast()],
    "vectors": Annotated[list[Annotated[list[FiniteFloat], FailFast()]], FailFast()],
}
EXPECTED = {
    "texts": "a text, or a pair of texts as [text, text]",
    "choices": "a prompt with its endings as [prompt, [ending, ending]]",
    "images": "a PNG or JPEG image in base64",
    "vectors": "a list of finite numbers",
}


class PredictedExample(BaseModel):
    """The answer to one example."""

    label: str | None = Field(description="The class; null if it was deferred and nobody answered.")
    confidence: float | None = Field(
        description="Its calibrated probability; that of the model's own answer if nobody answered, null if a teacher gave a "
        "label only."
    )
    probabilities: dict[str, float] | None = Field(description="The same for every class; null if a teacher gave a label only.")
    hand_over: bool | None = Field(
        description="Whether a human should answer, because the confidence is too low and no teacher answered; "
        "null if the model has no dev predictions to choose a threshold on."
    )
    deferred: bool = Field(description="Whether the model left the answer to others, because its confidence is too low.")
    answered_by: Literal["student", "teacher"] | None = Field(description="Who gave the label: the model, or its teacher.")
    reason: str | None = Field(description="Why there is no label.")


class PredictResponse(BaseModel):
    """The answers to one request."""

    predictions: list[PredictedExample] = Field(description="One per example, in the order of the request.")
    accuracy: float | None = Field(
        description="The accuracy that the model's own answers should have; null if the threshold itself was chosen."
    )
    threshold: float | None = Field(
        description="Answers of lower confidence are handed over or deferred; null if none can be promised, so that all are."
    )
    model: str = Field(description="Name of the model.")


class Limits(BaseModel):
    """What one request may hold, and how many may be under way."""

    max_batch: int = Field(description="Examples in a request.")
    max_bytes: int = Field(description="Bytes of a request.")
    max_chars: int = Field(description="Characters of a text.")
    max_requests: int = Field(description="Requests under way, running or waiting, without those that wait for the teacher.")


class TeacherState(BaseModel):
    """Who answers what the model defers."""

    name: str = Field(description="Name of the model.")
    is_service: bool = Field(description="Whether it is asked over HTTP.")
    failing: bool = Field(description="Whether it failed when it was last asked.")


class Counts(BaseModel):
    """Examples since the start."""

    examples: int = Field(description="All that were answered or handed over.")
    deferred: int = Field(description="Those that the model left to others.")
    by_teacher: int = Field(description="Those that the teacher answered.")


class Health(BaseModel):
    """The state of the service."""

    status: str = Field(description="Always ok: the service answers.")
    model: str = Field(description="Name of the model.")
    classes: list[str] = Field(description="The classes, in order.")
    input_kind: str = Field(description="What the model reads: the key of the examples in a request.")
    calibrated: bool = Field(description="Whether the confidences are known to be calibrated.")
    calibration: str | None = Field(description="How, such as temperature.")
    accuracy: float | None = Field(description="The accuracy of hand-over if a request names none.")
    threshold: float | None = Field(description="The confidence below which answers are then handed over.")
    hand_over: str = Field(description="What can be promised, as a sentence.")
    teacher: TeacherState | None = Field(description="Who answers what the model defers; null: a human.")
    counts: Counts
    limits: Limits
    pending: int = Field(description="Requests under way, those that wait for the teacher included.")
    version: str = Field(description="Version of distilcal.")
    uptime_seconds: float


class ServiceError(BaseModel):
    """Every error."""

    error: str = Field(description="What is wrong and what to do.")


class ParsedRequest(NamedTuple):
    """What a request asks for."""

    examples: list[Any]
    accuracy: float | None
    defer: bool | None


def request_model(input_kind: str, max_batch: int) -> type[BaseModel]:
    """Return the model of a request to ``/predict`` for a student that reads this kind of input.

    Parameters
    ----------
    input_kind : {"texts", "choices", "images", "vectors"}
        The key that holds the examples.
    max_batch : int
        How many examples a request may hold.

    Returns
    -------
    type of BaseModel
        With the examples, an optional accuracy and whether to defer; nothing else is accepted and nothing is converted.

    Examples
    --------
    >>> model = request_model("texts", max_batch=2)
    >>> model.model_validate_json('{"texts": ["a fine film"]}').texts
    ['a fine film']
    """
    examples = Field(description=f"Each {EXPECTED[input_kind]}.", min_length=1, max_length=max_batch)
    accuracy = Field(default=None, gt=0, le=1, description="Required accuracy of the answers that are not handed over.")
    defer = Field(
        default=None,
        description="Whether others answer where the confidence is too low: the teacher, or a human, for whom the label is "
        "null. By default if the service has a teacher.",
    )
    fields: dict[str, Any] = {
        input_kind: (EXAMPLES[input_kind], examples),
        "accuracy": (float | None, accuracy),
        "defer": (bool | None, defer),
    }
    # Unknown keys are refused by `parse_request`: pydantic would write a message for each of them.
    config = ConfigDict(extra="allow", strict=True, json_schema_extra={"additionalProperties": False})
    model: type[BaseModel] = create_model("PredictRequest", __config__=config, **fields)
    return model


def parse_request(model: type[BaseModel], body: bytes, input_kind: str) -> ParsedRequest:
    """Return what a request asks for.

    Parameters
    ----------
    model : type of BaseModel
        From `request_model`.
    body : bytes
        The JSON.
    input_kind : {"texts", "choices", "images", "vectors"}
        The key that holds the examples.

    Returns
    -------
    ParsedRequest

    Raises
    ------
    HTTPException
        400 if the body is not JSON, 413 if there are too many examples, 422 if something else is wrong: one sentence says what.

    Examples
    --------
    >>> parse_request(request_model("texts", max_batch=2), b'{"texts": ["a fine film"], "accuracy": 0.9}', "texts")
    ParsedRequest(examples=['a fine film'], accuracy=0.9, defer=None)
    """
    try:
        message = model.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error, input_kind) from None
    for key in message.model_extra or ():
        raise HTTPException(422, f"unknown key {key!r:.60}; {_usage(input_kind)}")
    try:
        parse_json(body)  # pydantic takes the last of equal keys
    except InputError as error:
        raise HTTPException(422, str(error)) from None
    values = dict(message)
    return ParsedRequest(values[input_kind], values["accuracy"], values["defer"])


def _refusal(error: ValidationError, input_kind: str) -> HTTPException:
    """Return the answer to an invalid request, which names the first fault and its place."""
    first = error.errors(include_url=False, include_input=False)[0]
    place, kind = first["loc"], first["type"]
    if kind == "json_invalid":
        return HTTPException(400, f"the body is not valid JSON ({first['ctx']['error']}); {_usage(input_kind)}")
    if not place or kind == "missing":
        return HTTPException(422, f"the examples are missing; {_usage(input_kind)}")
    if place[0] == "accuracy":
        return HTTPException(422, "accuracy must be a number between 0 and 1, such as 0.95")
    if place[0] == "defer":
        return HTTPException(422, "defer must be true or false")
    if len(place) > 1:
        return HTTPException(422, f"{input_kind}[{place[1]}]: expected {EXPECTED[input_kind]}")
    if kind == "too_long":
        return HTTPException(413, f"too many examples; send at most {first['ctx']['max_length']} in one request")
    return HTTPException(422, f"expected a list of examples that is not empty; {_usage(input_kind)}")


def _usage(input_kind: str) -> str:
    return f'give {{"{input_kind}": [...]}}, each {EXPECTED[input_kind]}'
