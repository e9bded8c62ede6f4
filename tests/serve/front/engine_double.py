"""A small engine that answers as OpenAI's clients expect it, on a socket of its own."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from emblema.serve.front.body_media import FORMS


class EngineDouble:
    """An engine that answers with the body that it was given.

    Attributes:
        owner: whose its models are said to be, by which the service knows the engine.
        chunks: what it says that the media of a request are stored as, where a request asks.
        status: of its replies, and of its health.
        asked: the headers of each request.
        left: how many of its replies were not waited for to their end.
        broken: whether its streams break off.
    """

    def __init__(self, owner: str = "vllm") -> None:
        self.owner, self.chunks, self.status = owner, list[str](), 200
        self.asked, self.left, self.broken = list[dict[str, str]](), 0, False
        self.app = FastAPI()
        for path in (*FORMS, "/v1/completions", "/tokenize"):
            self.app.post(path)(self._answer)
        self.app.get("/v1/models")(self._models)
        self.app.get("/v1/models/{id}")(self._models)
        self.app.get("/health")(lambda: Response(status_code=self.status))
        self.app.get("/metrics")(lambda: Response("engine_steps 1.0\n", media_type="text/plain"))
        self.app.get("/away")(lambda: RedirectResponse("http://127.0.0.1:1/"))
        self.app.get("/heavy")(lambda: Response(headers={"x-heavy": "x" * 200_000}))
        self.app.get("/cookie")(lambda: Response("{}", headers={"set-cookie": "a=b", "x-other": "c"}))

    async def _models(self, request: Request) -> Any:
        self.asked.append(dict(request.headers))
        return {"object": "list", "data": [{"id": "reference", "owned_by": self.owner}]}

    async def _answer(self, request: Request) -> Any:
        self.asked.append(dict(request.headers))
        body = await request.json()
        if body.get("stream"):
            return StreamingResponse(self._events(body), media_type="text/event-stream")
        until = time.monotonic() + body.get("seconds", 0)
        while time.monotonic() < until:
            await asyncio.sleep(0.02)
            if await request.is_disconnected():
                self.left += 1
                return Response()
        options = (body.get("kv_transfer_params") or {}).get("emblema") or {}
        if "pieces" not in options:
            return JSONResponse(body, self.status)
        pieces = {"model": "model", "chunks": self.chunks, "forming": [], "shards": 1}
        told = {**options, "media_tokens": 4, "stored": True, "pieces": pieces}
        return JSONResponse({"kv_transfer_params": {"emblema": told}}, self.status)

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        whole = False
        try:
            for number in range(body.get("events", 3)):
                yield b"data: " + json.dumps({"number": number}).encode() + b"\n\n"
                if self.broken:
                    raise OSError("the engine breaks")
                await asyncio.sleep(body.get("seconds", 0))
            yield b"data: [DONE]\n\n"
            whole = True
        finally:
            self.left += not whole


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Serve an application on a port of its own until the block ends, and yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()
