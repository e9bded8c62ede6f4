"""Endpoints: a line of a table each. Those for the server of any engine are here, the embedded engine's in `app.py`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from emblema.serve import cache_routes, file_routes
from emblema.serve.client_body import known_parameters


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route.

    Attributes:
        method: of HTTP.
        path: with what varies in braces.
        answer: is called for a request, as FastAPI has it.
        options: of FastAPI's route.
    """

    method: str
    path: str
    answer: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)


SHARED = (
    Endpoint("POST", "/v1/files", file_routes.upload),
    Endpoint("GET", "/v1/files", file_routes.files),
    Endpoint("GET", "/v1/files/{id}", file_routes.file),
    Endpoint("GET", "/v1/files/{id}/content", file_routes.content),
    Endpoint("DELETE", "/v1/files/{id}", file_routes.delete),
    Endpoint("POST", "/v1/caches", cache_routes.make, {"status_code": 202}),
    Endpoint("GET", "/v1/caches", cache_routes.caches),
    Endpoint("GET", "/v1/caches/{id}", cache_routes.cache),
    Endpoint("PATCH", "/v1/caches/{id}", cache_routes.extend),
    Endpoint("DELETE", "/v1/caches/{id}", cache_routes.delete),
)
"""Endpoints of every engine's server; tenants are offered them all."""


def add_endpoints(app: FastAPI, endpoints: Iterable[Endpoint]) -> None:
    """Add endpoints to an application; each refuses parameters that it does not read."""
    router = APIRouter(dependencies=[Depends(known_parameters)])
    for each in endpoints:
        router.add_api_route(each.path, each.answer, methods=[each.method], **each.options)
    app.include_router(router)
