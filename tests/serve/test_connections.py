"""Connections that say nothing, bodies that never end and clients that never read hold nobody up."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, Counter

from emblema.serve import body_reading, connections, faults
from emblema.serve.guard import Guard
from emblema.serve.held_bytes import ByteBounds, HeldBytes
from emblema.serve.keys import LOCAL, Tenant
from emblema.serve.running import make_config
from emblema.serve.settings import ServeSettings

MB = 2**20


class Host:
    """What the guard asks of a server, without a model."""

    def __init__(self) -> None:
        self.requests = Counter("requests", "Requests.", ["path", "status"], registry=CollectorRegistry())
        self.held = HeldBytes(ByteBounds(MB, 2 * MB, 4 * MB))

    async def tenant_of(self, authorization: str | None) -> Tenant:
        return LOCAL


def application(settings: ServeSettings) -> FastAPI:
    app, host = FastAPI(), Host()
    app.state.host = lambda: host

    @app.post("/v1/echo")
    async def echo(request: Request) -> dict[str, Any]:
        return {"bytes": len(await request.body()), "held": host.held.total}

    @app.get("/large")
    def large() -> Response:
        return Response(bytes(64 * MB))

    @app.get("/held")
    def held() -> int:
        return host.held.total

    faults.install(app)
    app.add_middleware(Guard, settings=settings)
    return app


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[int]:
    """Run a server, and yield its port."""
    settings = ServeSettings.read(store=folder, **options)
    server = uvicorn.Server(make_config(settings, application(settings), host="127.0.0.1", port=0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


def opened(stack: ExitStack, port: int, sent: bytes = b"") -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
    connection.sendall(sent)
    return connection


def ended(connection: socket.socket) -> bytes:
    """Return what a connection gives until the server closes it."""
    given = b""
    try:
        while data := connection.recv(65_536):
            given += data
    except ConnectionResetError:
        pass
    return given


def answer_of(connection: socket.socket) -> bytes:
    """Return the answer of a connection that stays."""
    given = b""
    while b"}" not in given and (data := connection.recv(65_536)):
        given += data
    return given


HEAD = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_headers_that_never_end_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a connection and later ones; what comes slowly, but in time, is answered."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.6)
    with running(tmp_path) as port, ExitStack() as stack:
        silent, half = opened(stack, port), opened(stack, port, HEAD)
        slow = opened(stack, port)
        for byte in (HEAD[:20], HEAD[20:], b"Content-Length: 2\r\n\r\n{}"):
            slow.sendall(byte)
            time.sleep(0.05)
        assert b'"bytes":2' in answer_of(slow)
        slow.sendall(HEAD)
        assert ended(silent) == ended(half) == ended(slow) == b""


def test_idle_connections_make_room_for_others(tmp_path: Path) -> None:
    with running(tmp_path, connections=8) as port, ExitStack() as stack:
        working = opened(stack, port, HEAD + b"Content-Length: 2\r\n\r\n{")
        while httpx.get(f"http://127.0.0.1:{port}/held").json() == 0:
            time.sleep(0.01)
        silent = [opened(stack, port, b"POST /v1/echo HTTP/1.1\r\nX: ") for _ in range(40)]
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/held", timeout=10).status_code == 200
        assert ended(silent[0]) == b"", "the oldest goes first"
        working.sendall(b"}")
        assert b'"bytes":2' in answer_of(working), "one with a request stays"


def test_a_body_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reading, "FIRST_SECONDS", 0.4)
    with running(tmp_path) as port, ExitStack() as stack:
        held = opened(stack, port, HEAD + b"Content-Length: 1000\r\n\r\n{")
        chunked = opened(stack, port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        assert b" 408 " in ended(held) and b" 408 " in ended(chunked)
        assert httpx.get(f"http://127.0.0.1:{port}/held").json() == 0


def test_bodies_are_counted_together(tmp_path: Path) -> None:
    """One tenant's may have half of two megabytes, and each counts three times."""
    with running(tmp_path) as port, ExitStack() as stack:
        first = opened(stack, port, HEAD + b"Content-Length: 300000\r\n\r\n" + b" " * 299_999)
        until = time.monotonic() + 10
        while httpx.get(f"http://127.0.0.1:{port}/held").json() < 3 * 299_999:
            assert time.monotonic() < until
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/echo", content=b" " * 100_000)
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        first.sendall(b" ")
        assert b'"bytes":300000' in answer_of(first)
        assert httpx.post(f"http://127.0.0.1:{port}/v1/echo", content=b" " * 100_000).json()["bytes"] == 100_000
        assert httpx.get(f"http://127.0.0.1:{port}/held").json() == 0


def test_a_body_of_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reading, "_MARKS", 1_000)
    with running(tmp_path, text_bytes=1_000) as port:
        body = b"[" + b"1," * 2_001 + b"1]"
        assert httpx.post(f"http://127.0.0.1:{port}/v1/echo", content=body).status_code == 413
        assert httpx.post(f"http://127.0.0.1:{port}/v1/echo", content=b"[" + b"1," * 1_000 + b"1]").status_code == 200


def test_a_client_that_reads_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.5)
    with running(tmp_path) as port, ExitStack() as stack:
        connection = opened(stack, port, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(1.5)
        assert len(ended(connection)) < 64 * MB
