"""The routes. Each checks its input, hands the work to the worker or the encoder, and says what came of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from fastapi.telemetry import TelemetryConfig
from starlette.middleware.cors import CORSMiddleware

from unembed.data.text import decode as text_of
from unembed.decode import Step, strategies
from unembed.decode.config import WRITER
from unembed.measure.provenance import versions
from unembed.model.denoiser import parameter_counts
from unembed.serve import models
from unembed.serve.answers import add_error_answers, done_event, event, milliseconds, step_event
from unembed.serve.guard import Guard, client_of
from unembed.serve.jobs import Finished, Job, Queued, Stepped
from unembed.serve.limits import Limits, Refusal
from unembed.serve.reference import describe, page
from unembed.serve.service import HERE, PACKAGES, Service, bad

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from unembed.inverter import Inverter

EXAMPLES_SOURCE = "written for this page, in no training data"
POLL_SECONDS = 0.25  # how often a waiting batch looks whether its client is still there

# The framework reports failures with their messages, and requests, to whatever OpenTelemetry finds in the environment.
SILENT: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}

REFUSED: dict[int | str, dict[str, Any]] = {
    400: {"model": models.ErrorBody, "description": "The request cannot be read, or names another host."},
    408: {"model": models.ErrorBody, "description": "The request did not arrive in time."},
    413: {"model": models.ErrorBody, "description": "The request is too large."},
    422: {"model": models.ErrorBody, "description": "The input is not what this server takes."},
    503: {"model": models.ErrorBody, "description": "Not ready, full, or stopping; `Retry-After` says when to try."},
}
USED_UP = {"model": models.ErrorBody, "description": "Your share is used up; see `Retry-After`."}
SHARED: dict[int | str, dict[str, Any]] = {429: USED_UP, **REFUSED}
PLAIN: dict[int | str, dict[str, Any]] = {code: SHARED[code] for code in (400, 429, 503)}


def create_app(
    inverter: Inverter,
    *,
    name: str = "inverter",
    encoder: str = "auto",
    limits: Limits | None = None,
    host: str = "127.0.0.1",
    allow_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
) -> tuple[ASGIApp, Service]:
    """The app behind its guard, and what it works with."""
    service = Service(inverter, name, encoder, limits or Limits())

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start(asyncio.get_running_loop())
        service.embedding.start()
        yield
        service.worker.stop(0)
        service.searches.stop()
        service.embedding.stop()

    app = FastAPI(
        title="unembed",
        summary="Recover text from embedding vectors.",
        version=metadata.version("unembed"),
        docs_url=None,  # the framework's page loads its scripts from elsewhere
        redoc_url=None,
        telemetry=SILENT,
        lifespan=life,
        responses=PLAIN,
    )
    add_error_answers(app)
    _add_routes(app, service)
    _add_pages(app, service)
    describe(app, inverter.dim, service.limits)
    if allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allow_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Content-Type"],
            expose_headers=["Retry-After"],
        )
    return Guard(app, service.limits, allow_hosts, host, allow_origins), service


def _add_routes(app: FastAPI, service: Service) -> None:
    async def stream(body: models.DecodeRequest, request: Request) -> AsyncIterator[Job]:
        """A place in the line, for as long as the answer lasts. Refusals come before the stream begins."""
        vector = service.checked([body.vector], body.length)
        client = client_of(request.scope)
        if body.feedback:
            service.searches.reserve(client)
        try:
            job = service.worker.submit(vector, body.config(), client, live=True)
            job.feedback = body.feedback
            try:
                yield job
            finally:
                service.worker.leave(job)
        finally:
            if body.feedback:
                service.searches.release(client)

    @app.post("/decode", response_class=EventSourceResponse, responses=SHARED, tags=["decoding"])
    async def decode(job: Job = Depends(stream)) -> AsyncIterator[ServerSentEvent]:  # noqa: B008 (the framework's way)
        """Decode one vector and stream every step, as server-sent events.

        `queued` with the position in the line, `step` after each denoising step, then `done` or `error`.
        """
        last: Stepped | None = None
        while True:
            message = await job.mailbox.get()
            if isinstance(message, Queued):
                wait = round(1000 * message.expected_wait)
                yield event("queued", models.QueuedEvent(position=message.position, expected_wait_ms=wait))
            elif isinstance(message, Stepped):
                last = message
                yield event("step", step_event(message))
            elif isinstance(message, Finished) and last is not None:
                if job.feedback:
                    async for one in _search(service, job, last, message):
                        yield one
                else:
                    yield event("done", await done_event(service, job, last, message))
                return
            elif isinstance(message, Refusal):
                yield event("error", models.ErrorEvent(error=message.error, message=message.message))
                return

    @app.post("/invert", responses=SHARED, tags=["decoding"], response_model_exclude_none=True)
    async def invert(body: models.InvertRequest, request: Request) -> models.InvertAnswer:
        """Decode some vectors and answer when all are done."""
        began = time.perf_counter()
        vectors = service.checked(body.vectors, body.length)
        config = body.config(lengths=None, n_best=body.n_best)
        job = service.worker.submit(vectors, config, client_of(request.scope), live=False)
        try:
            found = await _finished(job, request)
        finally:
            service.worker.leave(job)
        results = [models.Recovered(**one.to_dict()) for one in found.results]
        return models.InvertAnswer(results=results, ms=milliseconds(time.perf_counter() - began))

    @app.post("/encode", responses=SHARED, tags=["encoding"])
    async def encode(body: models.EncodeRequest, request: Request) -> models.EncodeAnswer:
        """Embed a text."""
        text = " ".join(body.text.split())
        if not text:
            raise bad("empty_text", "the text is empty: send some words")
        if len(body.text) > service.limits.text_chars:
            raise bad("text_too_long", f"a text may have {service.limits.text_chars} characters: send a shorter one")
        began = time.perf_counter()
        vector = await service.embedding.encode(text, client_of(request.scope))
        took = time.perf_counter() - began
        tokenizer, most = service.inverter.artifact.tokenizer, service.inverter.max_tokens
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return models.EncodeAnswer(
            vector=vector.tolist(),
            dim=len(vector),
            tokens=tokens.tokens[:most],
            text=text_of(tokenizer, [tokens.ids[:most]])[0],
            truncated=len(tokens.ids) > most,
            encoder=service.embedding.name or "",
            ms=milliseconds(took),
        )

    @app.get("/random", tags=["encoding"])
    async def random_sentence() -> models.RandomAnswer:
        """An example sentence that no inverter was trained on."""
        return models.RandomAnswer(text=random.choice(service.examples), source=EXAMPLES_SOURCE)

    installed = versions(PACKAGES)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["server"])
    async def health() -> models.HealthAnswer:
        """Whether the server is ready, and what it runs."""
        return models.HealthAnswer.model_validate(
            {
                "status": service.status,
                "model": service.name,
                "encoder": service.embedding.name,
                "dim": service.inverter.dim,
                "max_tokens": service.inverter.max_tokens,
                "versions": installed,
                "uptime_s": round(time.monotonic() - service.began, 1),
            }
        )

    @app.get("/queue", tags=["server"])
    async def queue() -> models.QueueAnswer:
        """How busy the server is."""
        worker, limits = service.worker, service.limits
        return models.QueueAnswer(
            waiting=worker.waiting, running=worker.running, capacity=limits.capacity, limit=limits.queue
        )

    parameters = parameter_counts(service.inverter.artifact.net)[0]

    @app.get("/models", tags=["server"])
    async def inverters() -> models.ModelsAnswer:
        """The inverters that can be asked, with their defaults."""
        inverter = service.inverter
        default, writer = inverter.decoding(), [] if inverter.artifact.writer is None else [WRITER]
        info = models.ModelInfo(
            name=service.name,
            encoder=inverter.encoder.spec,
            dim=inverter.dim,
            max_tokens=inverter.max_tokens,
            parameters=parameters,
            strategies=[*writer, *strategies.names()],
            defaults=models.Defaults(
                strategy=default.strategy, steps=default.steps, guidance=default.guidance, seed=default.seed
            ),
            feedback=service.searches.possible,
        )
        return models.ModelsAnswer(models=[info])


def _add_pages(app: FastAPI, service: Service) -> None:
    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(HERE / "static" / "index.html")

    @app.get("/card", include_in_schema=False)
    async def card() -> PlainTextResponse:
        return PlainTextResponse(service.card)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()))

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> FileResponse:
        return FileResponse(HERE / "docs.css")

    app.mount("/static", StaticFiles(directory=HERE / "static"))


async def _search(service: Service, job: Job, last: Stepped, message: Finished) -> AsyncIterator[ServerSentEvent]:
    """What comes after decoding with encoder feedback: a step for every better text, then the best one."""
    best, began = message.results[0], time.monotonic()
    async for found in service.searches.improve(job.vectors[0], job.config, job.expires):
        if isinstance(found, Refusal):
            yield event("error", models.ErrorEvent(error=found.error, message=found.message))
            return
        if found.tokens != best.tokens:
            step = Step(
                last.step.step + 1,
                tuple(service.inverter.artifact.tokenizer.id_to_token(i) or "" for i in found.tokens),
                found.confidence,
                (),
                last.step.passes,
                found.text,
            )
            last = Stepped(step, message.seconds + time.monotonic() - began)
            yield event("step", step_event(last))
        best = found
    took = message.seconds + time.monotonic() - began
    yield event("done", await done_event(service, job, last, Finished([best], message.waited, took)))


async def _finished(job: Job, request: Request) -> Finished:
    """Wait for the results, and stop waiting when the client does."""
    while True:
        try:
            message = await asyncio.wait_for(job.mailbox.get(), POLL_SECONDS)
        except TimeoutError:
            if await request.is_disconnected():
                raise Refusal(499, "gone", "the client went away") from None
            continue
        if isinstance(message, Refusal):
            raise message
        if isinstance(message, Finished):
            return message
