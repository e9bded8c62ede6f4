"""Routes that clients know and this server has not: each says so, and what does offer it."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter

from emblema.serve.faults import ServeError

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
"""What paths begin with, and who offers the same."""


def absent_routes() -> APIRouter:
    """Return the routes; they go behind all others."""
    router = APIRouter()
    for path, instead in ABSENT.items():
        route = router.api_route(f"{path}{{rest:path}}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
        route(_refusing(path, instead))
    return router


def _refusing(path: str, instead: str) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        raise ServeError(404, f"{path.rstrip('/')} is not offered here: {instead}", "not_offered")

    return refuse
