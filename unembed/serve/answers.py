"""What goes out: messages of the worker as events, and mistakes as one sentence that never holds what was sent."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.sse import ServerSentEvent
from starlette.exceptions import HTTPException

from unembed.serve import models
from unembed.serve.jobs import Finished, Job, Stepped
from unembed.serve.limits import Refusal, internal
from unembed.serve.service import Service


def event(name: str, data: Any) -> ServerSentEvent:
    """One server-sent event."""
    return ServerSentEvent(event=name, data=data)


def step_event(message: Stepped) -> models.StepEvent:
    """A step as it goes out."""
    step, masked = message.step, set(message.step.masked)
    tokens = ["[MASK]" if place in masked else token for place, token in enumerate(step.tokens)]
    return models.StepEvent(
        step=step.step,
        tokens=tokens,
        confidence=[round(p, 4) for p in step.confidence],
        masked=list(step.masked),
        passes=step.passes,
        text=step.text,
        ms=milliseconds(message.seconds),
    )


async def done_event(service: Service, job: Job, last: Stepped, message: Finished) -> models.DoneEvent:
    """The result; the encoder is asked only now, to check it."""
    found = message.results[0]
    cosine = await service.cosine(job.vectors[0], found.text) if found.cosine is None else round(found.cosine, 4)
    return models.DoneEvent(
        text=found.text,
        tokens=list(last.step.tokens),
        confidence=[round(p, 4) for p in found.confidence],
        score=round(found.score, 4),
        steps=found.steps,
        passes=found.passes,
        ms=milliseconds(message.seconds),
        wait_ms=milliseconds(message.waited),
        cosine=cosine,
        encoder_queries=found.queries + found.gradients,
        check_queries=int(found.cosine is None and cosine is not None),
    )


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse({"error": error.error, "message": error.message}, error.status, headers)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    """The first mistake, in one sentence that never holds what was sent."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"error": "bad_input", "message": _sentence(first)}, 422)


def _sentence(mistake: dict[str, Any]) -> str:
    kind, place = mistake["type"], [str(part) for part in mistake["loc"][1:]]
    if kind == "json_invalid":
        return "the body is not JSON: check its syntax"
    if kind == "extra_forbidden":
        return "the body has a field that is not known: /docs lists them"
    if not place:
        return "the body is not a JSON object: send one, with Content-Type: application/json"
    what = str(mistake["msg"]).removeprefix("Value error, ")
    return f"{'.'.join(place)}: {what[:1].lower()}{what[1:]}"


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    known = {
        400: ("bad_request", "the body cannot be read: send JSON in UTF-8"),
        404: ("not_found", "there is nothing at this address: /docs lists what there is"),
        405: ("wrong_method", "this address takes another method: see /docs"),
    }
    slug, message = known.get(error.status_code, ("http_error", f"the request failed ({error.status_code}): see /docs"))
    return JSONResponse({"error": slug, "message": message}, error.status_code, dict(error.headers or {}))


async def _fault(request: Request, _: Exception) -> JSONResponse:
    """A fault of ours; the framework raises it again behind this answer, and the guard logs its place."""
    return await _refused(request, internal())


def milliseconds(seconds: float) -> float:
    """Rounded for people."""
    return round(1000 * seconds, 1)


def add_error_answers(app: FastAPI) -> None:
    """Every error of the app as `models.ErrorBody`."""
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _fault)
