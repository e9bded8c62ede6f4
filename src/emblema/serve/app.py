"""The HTTP application of the embedded engine."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from emblema.serve import faults
from emblema.serve.cache_routes import cache_routes
from emblema.serve.collection_routes import collection_routes
from emblema.serve.collections import retrieval_of
from emblema.serve.faults import ServeError, missing
from emblema.serve.file_routes import file_routes
from emblema.serve.guard import Guard
from emblema.serve.host import Owner
from emblema.serve.messages import ChatRequest, MediaItem, generate_request
from emblema.serve.page import add_page
from emblema.serve.parts import CacheContent, MediaContent, refuse_large
from emblema.serve.replies import ChatAnswer
from emblema.serve.service import Served, Service
from emblema.serve.settings import ServeSettings
from emblema.session.replies import Reply

_LOG = logging.getLogger("emblema.serve")
ROWS_OF_A_PICTURE = 256
"""Rows that a part with media is taken to have, for admission."""


def make_app(settings: ServeSettings, loaded: Callable[[bool], None] = lambda well: None) -> FastAPI:
    """Return the application. Its model is loaded when it starts; `loaded` is called with whether it could be."""

    def check(loading: asyncio.Task[Service]) -> None:
        if loading.cancelled():
            return
        error = loading.exception()
        if error is not None:
            _LOG.error("the server cannot start: %s", error)
        loaded(error is None)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(Service.open(settings))
        loading.add_done_callback(check)
        app.state.loading = loading
        try:
            yield
        finally:
            if loading.done() and loading.exception() is None:
                await loading.result().close()

    app = FastAPI(title="Emblema", version="1", lifespan=lifespan)
    app.state.host = lambda: _loaded(app)
    faults.install(app)
    _add_routes(app)
    add_page(app)
    app.add_middleware(Guard, settings=settings)
    return app


def _loaded(app: FastAPI) -> Service:
    loading: asyncio.Task[Service] = app.state.loading
    if not loading.done():
        raise ServeError(503, "the model is being loaded", "loading")
    if loading.exception() is not None:
        raise ServeError(503, f"the model could not be loaded: {loading.exception()}", "failed")
    return loading.result()


def _add_routes(app: FastAPI) -> None:
    app.get("/health")(health)
    app.get("/metrics")(metrics)
    app.get("/v1/models")(models)
    app.get("/v1/models/{model:path}")(model)
    app.post("/v1/chat/completions")(chat)
    for routes in (file_routes(), cache_routes(), collection_routes()):
        app.include_router(routes)


async def health(service: Served) -> dict[str, str]:
    """Say that the model answers."""
    return {"status": "ok", "model": service.settings.name}


async def metrics(service: Served) -> Response:
    """Return the counters for Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def models(service: Served, tenant: Owner) -> dict[str, Any]:
    """List the model."""
    return {"object": "list", "data": [await model(service.settings.name, service, tenant)]}


async def model(model: str, service: Served, tenant: Owner) -> dict[str, Any]:
    """Return the model."""
    if model != service.settings.name:
        raise missing("model", model)
    return {"id": model, "object": "model", "created": 0, "owned_by": "emblema"}


async def chat(body: ChatRequest, request: Request, service: Served, tenant: Owner) -> Response:
    """Answer a conversation."""
    began, settings = time.perf_counter(), service.settings
    if body.model != settings.name:
        raise missing("model", body.model)
    body.refuse_unserved()
    media, characters = len(list(body.media)), body.text_length
    refuse_large(settings, media, characters)
    for part in body.media:
        if isinstance(part, CacheContent):
            entry = await asyncio.to_thread(service.caches.entry, tenant, part.cache.cache_id)
            media, characters = media + len(entry.files) - 1, characters + entry.characters
    refuse_large(settings, media, characters)
    engine = service.engine_of(tenant)

    def note(finished: Reply) -> None:
        service.metrics.note(finished, time.perf_counter() - began)
        request.state.lane = finished.usage.lane

    reply = ChatAnswer(settings.name, engine.engine.tokenizer, bool(body.logprobs), note)

    async def read(part: MediaContent | CacheContent) -> Sequence[str | MediaItem]:
        found = await service.content.read(tenant, part, body.kept_seconds(part))
        reply.written += found.written
        reply.remarks += [] if found.remark is None else [found.remark]
        return found.items

    retrieval = await asyncio.to_thread(retrieval_of, body, engine.engine, settings)
    asked = await generate_request(body, read, settings.strategy, engine.engine.policy, retrieval)
    pieces = engine.pieces(asked, seconds=settings.deadline, rows=characters // 3 + media * ROWS_OF_A_PICTURE)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        # Its first piece is waited for, so that what is refused has a status of its own.
        events = reply.events(await anext(pieces), pieces, usage)
        return StreamingResponse(events, media_type="text/event-stream")
    return JSONResponse(await _unless_left(request, reply.whole(pieces)))


async def _unless_left(request: Request, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Wait for an answer; give it up when the client leaves."""
    task = asyncio.ensure_future(answer)
    while not task.done():
        await asyncio.wait((task,), timeout=0.5)
        if not task.done() and await request.is_disconnected():
            task.cancel()
            raise ServeError(499, "the client left", "cancelled")
    return task.result()
