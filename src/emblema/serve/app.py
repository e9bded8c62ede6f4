"""The HTTP application of the embedded engine."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI, Request, Response

from emblema.serve import anthropic_messages, collections, faults, responses
from emblema.serve.chat import chat
from emblema.serve.completions import completions
from emblema.serve.endpoints import SHARED, Endpoint, add_absent, add_endpoints
from emblema.serve.faults import ServeError, missing
from emblema.serve.guard import guard
from emblema.serve.host import Owner
from emblema.serve.page import add_page
from emblema.serve.reply_types import ChatCompletion, ListedPage, ModelObject
from emblema.serve.schema import DescribedApp
from emblema.serve.service import Served, Service
from emblema.serve.settings import ServeSettings

_LOG = logging.getLogger("emblema.serve")
LOADING_SECONDS = 2.0
"""After which it is worth asking again whether the model is loaded."""


def make_app(settings: ServeSettings, loaded: Callable[[BaseException | None], None] = lambda error: None) -> FastAPI:
    """Return the application. Its model is loaded when it starts; `loaded` is called with why it could not be."""

    def check(loading: asyncio.Task[Service]) -> None:
        if loading.cancelled():
            return
        error = loading.exception()
        if error is not None:
            _LOG.error("the server cannot start: %s", error)
        loaded(error)

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

    app = DescribedApp(title="Emblema", version="1", lifespan=lifespan)
    app.state.host = lambda: _loaded(app)
    faults.install(app)
    add_endpoints(app, EMBEDDED)
    add_absent(app)
    add_page(app)
    guard(app, settings)
    return app


def _loaded(app: FastAPI) -> Service:
    loading: asyncio.Task[Service] = app.state.loading
    if not loading.done():
        raise ServeError(503, "the model is being loaded", "loading", retry_after=LOADING_SECONDS)
    if loading.exception() is not None:
        raise ServeError(503, f"the model could not be loaded: {loading.exception()}", "failed")
    return loading.result()


async def health(service: Served) -> dict[str, str]:
    """Say that the model answers, and what is done beside it that fails now."""
    if not service.engine.scheduler.alive:
        raise ServeError(503, "the model's thread has ended: start the server again", "failed")
    return {"status": "ok", "model": service.settings.name} | service.failing


async def live(request: Request) -> dict[str, str]:
    """Say that the process need not be started again: its model is being loaded, or answers."""
    loading: asyncio.Task[Service] = request.app.state.loading
    if loading.done():
        await health(_loaded(request.app))
    return {"status": "ok"}


async def metrics(service: Served) -> Response:
    """Return the counters for Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def models(service: Served, tenant: Owner) -> ListedPage[ModelObject]:
    """List the model, for OpenAI's clients and Anthropic's."""
    name = service.settings.name
    data = [await model(name, service, tenant)]
    return {"object": "list", "data": data, "has_more": False, "first_id": name, "last_id": name}


async def model(model: str, service: Served, tenant: Owner) -> ModelObject:
    """Return the model."""
    if model != service.settings.name:
        raise missing("model", model)
    return {
        "id": model,
        "object": "model",
        "created": service.created,
        "owned_by": "emblema",
        "type": "model",
        "display_name": model,
        "created_at": _moment(service.created),
    }


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


EMBEDDED = (
    Endpoint("GET", "/health", health),
    Endpoint("GET", "/readyz", health),
    Endpoint("GET", "/livez", live),
    Endpoint("GET", "/metrics", metrics),
    Endpoint("GET", "/v1/models", models),
    Endpoint("GET", "/v1/models/{model:path}", model),
    Endpoint("POST", "/v1/chat/completions", chat, {"responses": {200: {"model": ChatCompletion}}}),
    Endpoint("POST", "/v1/completions", completions),
    Endpoint("POST", "/v1/responses", responses.respond),
    Endpoint("POST", "/v1/messages", anthropic_messages.write_message),
    *SHARED,
    Endpoint("POST", "/v1/collections", collections.make),
    Endpoint("GET", "/v1/collections", collections.collections),
    Endpoint("GET", "/v1/collections/{name}", collections.collection),
    Endpoint("PUT", "/v1/collections/{name}", collections.replace),
    Endpoint("DELETE", "/v1/collections/{name}", collections.delete),
)
"""Endpoints of the embedded engine's server."""
