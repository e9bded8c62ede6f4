"""Endpoints: a line of a table each. The embedded engine's are in `app.py`.

Here are those for the server of any engine, and those that clients know and the embedded server has not.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from emblema.serve import cache_routes, file_routes
from emblema.serve.client_body import known_parameters
from emblema.serve.faults import ServeError


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


_VLLM = "vLLM does, with a model for it: `emblema vllm-serve MODEL`"
_UNKEPT = "replies are not kept: send the whole conversation to /v1/chat/completions, /v1/responses or /v1/messages"
_NOBODY = "no server of this package does"
ABSENT = {
    "/v1/embeddings": _VLLM,
    "/v1/rerank": _VLLM,
    "/v1/score": _VLLM,
    "/v1/audio/": _VLLM,
    "/tokenize": _VLLM,
    "/detokenize": _VLLM,
    "/v1/messages/": "usage in a reply of /v1/messages has the number of its tokens",
    "/v1/batches": "send the requests at once: they are decoded together",
    "/v1/uploads": "a POST to /v1/files takes a whole file",
    "/v1/vector_stores": "/v1/collections hold what a model may look up",
    "/v1/responses": _UNKEPT,
    "/v1/conversations": _UNKEPT,
    "/v1/assistants": _UNKEPT,
    "/v1/threads": _UNKEPT,
    "/v1/moderations": _NOBODY,
    "/v1/images/": _NOBODY,
    "/v1/videos": _NOBODY,
    "/v1/fine_tuning/": _NOBODY,
    "/v1/evals": _NOBODY,
    "/v1/realtime": _NOBODY,
    "/api/": "Ollama's interface is not; OpenAI's is, under /v1",
}
"""What paths begin with that are not offered, and who offers the same."""


def add_absent(app: FastAPI) -> None:
    """Add routes behind all others that say what is not offered."""
    router = APIRouter()
    for path, instead in ABSENT.items():
        route = router.api_route(f"{path}{{rest:path}}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
        route(_refusing(path, instead))
    app.include_router(router)


def _refusing(path: str, instead: str) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        raise ServeError(404, f"{path.rstrip('/')} is not offered here: {instead}", "not_offered")

    return refuse
