"""Requests to an engine's own routes from within its server."""

import asyncio
from typing import Any

from emblema.serve.guard import App, Message


async def post(app: App, application: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Return the status and body of the answer to a request. Cancelling the call is as a client that leaves.

    Args:
        app: what answers.
        application: that its routes belong to.
        path: of the route.
        body: JSON.
    """
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "app": application, "state": {},
    }  # fmt: skip
    given, status, parts = [body], 0, []

    async def receive() -> Message:
        if given:
            return {"type": "http.request", "body": given.pop()}
        # Nobody leaves: the caller is cancelled instead.
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)
