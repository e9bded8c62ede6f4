"""The HTTP application in front of an engine: the service's own routes, and all others as the engine has them."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from prometheus_client import generate_latest
from starlette.types import Receive, Scope, Send

from emblema.serve import faults
from emblema.serve.endpoints import SHARED, Endpoint, add_endpoints
from emblema.serve.faults import ServeError, missing
from emblema.serve.front.body_media import FORMS
from emblema.serve.front.engine_body import check_options
from emblema.serve.front.front import Front
from emblema.serve.front.relay import RelayedReply, relay
from emblema.serve.front.reply_notes import ReplyNotes
from emblema.serve.guard import guard
from emblema.serve.host import Owner, host_of, tenant_of
from emblema.serve.keys import LOCAL
from emblema.serve.schema import DescribedApp

OPEN = ("/ping", "/version", "/load", "/ready")
"""Paths of engines that need no key."""
OFFERED = ("/v1/models",)
"""Paths of engines that tenants are offered beside those of `FORMS`. The others know no salt, or are the operator's."""
Fronted = Annotated[Front, Depends(host_of)]


def make_front(front: Front) -> FastAPI:
    """Return the application in front of an engine."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        front.upkeep.begin("sweep", front.sweep())
        try:
            yield
        finally:
            await front.close()

    app = DescribedApp(title="Emblema", version="1", lifespan=lifespan, openapi_url=None)
    app.state.host = lambda: front
    faults.install(app)
    add_endpoints(app, (*OWN, *SHARED))
    for path in FORMS:
        app.post(path, include_in_schema=False)(answer)
    not_found = app.router.default

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await not_found(scope, receive, send)
            return
        reply = await _passed_on(Request(scope, receive), front)
        await reply(scope, receive, send)

    app.router.default = pass_on
    guard(app, front.settings)
    return app


async def answer(request: Request, front: Fronted, tenant: Owner) -> Response:
    """Answer a request with media, as the engine does once they are read."""
    path, api = request.url.path, await front.engine.learn()
    if tenant is not LOCAL and path in api.unsalted:
        raise _not_offered(path)
    body = await front.engine_body(await request.body(), FORMS[path], tenant)
    notes = None
    if body.kept:
        done = [await front.keep_part(tenant, part, seconds) for part, seconds in body.kept]
        remarks = tuple(dict.fromkeys(remark for _, remark in done if remark is not None))
        notes = ReplyNotes(api, sum(written for written, _ in done), remarks).write
    return await relay(request, front.engine, body.written, front.settings.deadline, notes)


async def _passed_on(request: Request, front: Front) -> RelayedReply:
    """Return the engine's reply to a request that is none of the service's."""
    path = request.scope["path"]
    if {".", ".."} & {*path.split("/")}:
        raise missing("route", path)
    if not _begins(path, OPEN) and await tenant_of(request) is not LOCAL and not _begins(path, OFFERED):
        raise _not_offered(path)
    body = await request.body()
    if b'"emblema"' in body:
        await front.pools.tables.run(LOCAL.owner, check_options, body, await front.engine.learn())
    return await relay(request, front.engine, body, front.settings.deadline)


def _not_offered(path: str) -> ServeError:
    return ServeError(404, f"{path[:80]} is not offered where requests need a key", "not_offered")


def _begins(path: str, paths: Iterable[str]) -> bool:
    return any(path == known or path.startswith(f"{known}/") for known in paths)


async def health(front: Fronted) -> dict[str, Any]:
    """Say that the engine answers, and what is done beside it that fails now."""
    await front.engine.look()
    return {"status": "ok", "model": front.engine.model} | front.failing


async def live() -> dict[str, str]:
    """Say that the process need not be started again, whatever its engine does."""
    return {"status": "ok"}


async def metrics(front: Fronted) -> Response:
    """Return the service's counters for Prometheus, and behind them the engine's where it has some."""
    told = generate_latest(front.registry)
    with suppress(ServeError):
        if front.engine.known.options_in is not None:
            status, theirs = await front.engine.ask("GET", "/metrics")
            told += theirs if status == 200 else b""
    return Response(told, media_type="text/plain; version=0.0.4")


async def description(request: Request, front: Fronted) -> dict[str, Any]:
    """Return the description of the engine's routes, and of the service's."""
    status, theirs = await front.engine.ask("GET", "/openapi.json")
    ours: dict[str, Any] = request.app.openapi()
    try:
        told = json.loads(theirs) if status == 200 else {}
        schemas = told.get("components", {}).get("schemas", {}) | ours["components"]["schemas"]
        return {**told, **ours, "paths": told.get("paths", {}) | ours["paths"],
                "components": {**ours["components"], "schemas": schemas}}  # fmt: skip
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ours


OWN = (
    Endpoint("GET", "/health", health),
    Endpoint("GET", "/readyz", health),
    Endpoint("GET", "/livez", live),
    Endpoint("GET", "/metrics", metrics),
    Endpoint("GET", "/openapi.json", description, {"include_in_schema": False}),
)
"""Endpoints of the service that are none of the engine's."""
