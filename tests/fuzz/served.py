"""Bodies that a client sends to `emblema serve`: any bytes as a chat request, any form as an upload.

The application is the real one, with its guard, its errors, its files and the bundled model's tokenizer. Only what
answers a prompt is replaced: it reads the prompt and gives the same reply each time.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from emblema.engine.generation import GenerateRequest
from emblema.errors import MediaError
from emblema.media import source
from emblema.media.limits import MediaLimits
from emblema.serve.app import make_app
from emblema.serve.file_routes import LONGEST, SHORTEST
from emblema.serve.keys import LOCAL
from emblema.serve.service import Service
from emblema.serve.settings import ServeSettings
from emblema.session.replies import Piece
from tests.fuzz.targets import FuzzTarget

BOUNDARY = b"fuzz"
FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]", "file")
FETCH = source.fetch
# A fuzzer does not end by itself: what starts it gives a folder, and removes it.
MEMORY = None if "TMPDIR" in os.environ or not os.access("/dev/shm", os.W_OK) else "/dev/shm"


@dataclass(frozen=True, slots=True)
class Served:
    """A service that runs on a loop of its own."""

    loop: asyncio.AbstractEventLoop
    app: FastAPI
    service: Service


@cache
def home() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder that goes when the process ends; in memory where there is such a place."""
    return tempfile.TemporaryDirectory(prefix="emblema-fuzz-", dir=MEMORY)


@cache
def served() -> Served:
    """Return the one service of this process."""
    settings = ServeSettings.read(store=Path(home().name), text_bytes=4_000, file_bytes=20_000, parts=4)
    loop, app = asyncio.new_event_loop(), make_app(settings)

    async def open_service() -> Service:
        service = await Service.open(settings)
        reply = await service.engine.generate("where ?", max_new_tokens=1)

        async def answer(
            request: GenerateRequest, *, seconds: float | None, rows: int, choices: int
        ) -> AsyncIterator[Piece]:
            reader = service.engine.engine.session.prompt_reader
            reader.parts(request.parts, request.template, lambda given: (), request.tools)
            for choice in range(choices):
                piece = Piece(reply.text, reply)
                piece.choice = choice
                yield piece

        service.engine.pieces = answer  # type: ignore[method-assign]
        service.read_later = lambda tenant, id: None  # type: ignore[method-assign]
        await service.upkeep.close()
        return service

    loading = loop.create_task(open_service())
    app.state.loading = loading
    return Served(loop, app, loop.run_until_complete(loading))


def fetch_data_alone(address: str, limits: MediaLimits) -> bytes:
    """Fetch a data address; nothing is connected to."""
    if not address[:5].lower() == "data:":
        raise MediaError("nothing is fetched here")
    return FETCH(address, limits)


def send(path: str, kind: bytes, body: bytes) -> tuple[int, bytes]:
    """Send a body; return the status, which is not the server's fault, and what came back."""
    server, pieces = served(), [{"type": "http.request", "body": body, "more_body": False}]
    replies: list[MutableMapping[str, Any]] = []

    async def receive() -> Any:
        return pieces.pop(0) if pieces else await asyncio.get_running_loop().create_future()

    async def answer(message: MutableMapping[str, Any]) -> None:
        replies.append(message)

    headers = [(b"host", b"127.0.0.1:8000"), (b"content-type", kind), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path, "query_string": b"",
        "raw_path": path.encode(), "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    source.fetch = fetch_data_alone
    try:
        server.loop.run_until_complete(asyncio.wait_for(server.app(scope, receive, answer), 15))
    finally:
        source.fetch = FETCH
    starts = [message["status"] for message in replies if message["type"] == "http.response.start"]
    assert len(starts) == 1 and 200 <= starts[0] < 500, starts
    return starts[0], b"".join(message.get("body", b"") for message in replies)


def send_chat(data: bytes) -> None:
    """Send a chat request; it is answered, or refused as clients expect it."""
    status, body = send("/v1/chat/completions", b"application/json", data)
    if status == 200 and body.startswith(b"data: "):
        *events, last = body.decode().removesuffix("\n\n").split("\n\n")
        assert last == "data: [DONE]" and all(json.loads(event.removeprefix("data: ")) for event in events)
    elif status == 200:
        assert json.loads(body)["choices"][0]["message"]["role"] == "assistant"
    else:
        assert isinstance(json.loads(body)["error"]["message"], str)


def send_upload(data: bytes) -> None:
    """Send a form: as it is (first byte even), or one with these fields; a file that is kept is as the form says."""
    form = data[1:] if data[:1] and data[0] % 2 == 0 else form_of(*data[1:].split(b"\0", 4))
    status, body = send("/v1/files", b"multipart/form-data; boundary=" + BOUNDARY, form)
    told = json.loads(body)
    if status != 200:
        assert isinstance(told["error"]["message"], str)
        return
    files = served().service.files
    assert 0 < told["bytes"] == len(files.read(LOCAL, told["id"])) and len(told["filename"]) <= 200
    if told["expires_at"] is not None:
        assert SHORTEST - 1 <= told["expires_at"] - told["created_at"] <= LONGEST + 1
    while not files.delete(LOCAL, files.entry(LOCAL, told["id"])):
        pass


def form_of(*fields: bytes) -> bytes:
    """Return a form: the contents of a file and its name, and in their order the fields that are given."""
    contents, name, *others = (*fields, *(b"",) * (2 - len(fields)))
    parts = [b'name="file"; filename="' + name + b'"\r\n\r\n' + contents]
    parts += [b'name="%s"\r\n\r\n%s' % (key.encode(), value) for key, value in zip(FIELDS, others, strict=False)]
    lines = [b"--%s\r\nContent-Disposition: form-data; %s\r\n" % (BOUNDARY, part) for part in parts]
    return b"".join(lines) + b"--%s--\r\n" % BOUNDARY


def chats() -> Iterator[bytes]:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "where ?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
        {"type": "file", "file": {"file_id": "file-0"}},
        {"type": "video_url", "video_url": {"url": "http://a.example/"}},
    ]
    for content in ("where ?", parts[:1], parts[:2], parts[2:3], parts[3:], [], [{}]):
        body = {"model": "reference", "messages": [{"role": "user", "content": content}]}
        yield json.dumps(body).encode()
    asked = {"model": "reference", "messages": [{"role": "system", "content": "be brief"}]}
    for field, values in {
        "stream": (True, "x"), "stream_options": ({"include_usage": True}, "x"), "max_tokens": (1, 0, 10**30, -1),
        "temperature": (2, 1e400, "1"), "top_p": (0, 1), "seed": (2**63, -(2**63), 1.5), "stop": (["a"] * 5, "", [""]),
        "logprobs": (True,), "top_logprobs": (20, 21), "strategy": ("full", "patch-25%", "x" * 101), "max_kl": (0, -1),
        "survivors": ("keep", "x"), "n": (1, 2), "tools": ([], [1]), "response_format": ({"type": "text"}, []),
        "cache_salt": ("x",), "messages": ([], None, [{"role": "user", "content": "\ud800"}]),
    }.items():  # fmt: skip
        for value in values:
            yield json.dumps(asked | {"stream": field == "stream_options", field: value}).encode()
    yield from (b"[" * 5000, b"\xff\xfe{}", b"", b"null", b'{"model": "reference", "model": 1}', b'{"messages": NaN}')


def uploads() -> Iterator[bytes]:
    for seconds in (
        b"3600",
        b"2592000",
        b"3599",
        b"1e9",
        b"-3600",
        "\u0663600".encode(),
        b"000000003600" + b"9" * 400,
        b"",
    ):
        yield b"\1" + b"\0".join((b"contents", b"a.png", b"vision", b"created_at", seconds))
    for name in (b"../../etc/passwd", b"", b'a"b', "bücher.png".encode(), b"\xff", b"a" * 300):
        yield b"\1" + b"\0".join((b"contents", name))
    yield b"\1" + b"\0".join((b"contents", b"a.png", b"nonsense"))
    yield b"\1" + b"\0".join((b"contents", b"a.png", b"vision", b"last_active_at", b"3600"))
    yield b"\1" + bytes(20)
    for form in (form_of(b"contents", b"a.png", b"vision"), b"", b"--fuzz--\r\n", b"--fuzz\r\n\r\n", b"--fuzz" * 2000):
        yield b"\0" + form
    yield b"\0" + form_of(b"a", b"a").replace(b'name="file"', b'name="purpose"')


TARGETS = {"chat": FuzzTarget(send_chat, chats), "upload": FuzzTarget(send_upload, uploads)}
