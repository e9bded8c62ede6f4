"""Bodies of requests: any bytes for the server that retrieves pictures, any messages for the prompt reader."""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from emblema.errors import PromptError
from emblema.session.prompt_reader import turns_of
from emblema.vllm.retrieving import RETRIEVAL_VARIABLE, PictureRetrieval, Retrieving
from tests.fuzz.targets import FuzzTarget

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def answer(asks: bool) -> dict[str, Any]:
    """What a server answers: text that ends with a request for a picture, or does not."""
    ending = {"finish_reason": "stop", "stop_reason": "</search>" if asks else None}
    return {"id": "chat-1", "choices": [{"message": {"content": "<search> map </search>"}, **ending}], "usage": USAGE}


def events(asks: bool) -> Iterator[dict[str, Any]]:
    """Yield the same as a stream."""
    yield {"id": "chat-1", "choices": [{"delta": {"role": "assistant", "content": ""}}]}
    yield {"id": "chat-1", "choices": [{"delta": {"content": "<search> map </search>"}}]}
    ending = {"finish_reason": "stop", "stop_reason": "</search>" if asks else None}
    yield {"id": "chat-1", "choices": [{"delta": {}, **ending}]}
    yield {"id": "chat-1", "choices": [], "usage": USAGE}


@cache
def home() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder that goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="emblema-fuzz-")


@cache
def middleware() -> Retrieving:
    folder = Path(home().name)
    Image.new("RGB", (8, 8)).save(folder / "map.png")
    os.environ[RETRIEVAL_VARIABLE] = PictureRetrieval(library=str(folder)).to_json()
    return Retrieving(server)


async def server(scope: Any, receive: Any, send: Any) -> None:
    """Answer as vLLM does: what it cannot read is a 400, else a reply that asks for a picture."""
    raw = b""
    while True:
        message = await receive()
        raw += message.get("body", b"")
        if not message.get("more_body"):
            break
    try:
        body = json.loads(raw)
        messages = body["messages"]
    except (ValueError, RecursionError, TypeError, KeyError):
        messages = None
    if not isinstance(messages, list):
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    asks = body.get("stop") == ["</search>"]
    if body.get("stream"):
        for event in events(asks):
            data = f"data: {json.dumps(event)}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
    else:
        await send({"type": "http.response.body", "body": json.dumps(answer(asks)).encode()})


def send_body(data: bytes) -> None:
    """Send a body; the client has to get one reply, or a refusal."""
    pieces = [
        {"type": "http.request", "body": data[:50], "more_body": True},
        {"type": "http.request", "body": data[50:]},
    ]
    replies: list[MutableMapping[str, Any]] = []

    async def receive() -> Any:
        return pieces.pop(0) if pieces else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        replies.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    asyncio.run(middleware()(scope, receive, send))
    starts = [message["status"] for message in replies if message["type"] == "http.response.start"]
    assert len(starts) == 1 and starts[0] in (200, 400), starts


def read_messages(data: bytes) -> None:
    """Read messages of any JSON, with media that are read as nothing; all else is the error for a wrong prompt."""
    try:
        messages = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        with suppress(PromptError):
            for turn in turns_of(messages, lambda source, kind: ()):
                assert isinstance(turn.role, str)


def bodies() -> Iterator[bytes]:
    words = [{"type": "text", "text": "where ?"}, {"type": "image_url", "image_url": {"url": "data:,a"}}]
    for option in (True, False, None, {"end": "</search>", "count": 2}, {"most": 0, "after": "so"}, "x"):
        for more in ({}, {"stream": True, "stream_options": {"include_usage": True}}, {"max_tokens": 1, "n": 2}):
            body = {"messages": [{"role": "user", "content": words}], **more}
            yield json.dumps(body | {"kv_transfer_params": {"emblema": {"retrieval": option}}}).encode()
    yield b'{"messages": [], "stream": true, "stream_options": "x"}'
    yield b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
    yield b"[" * 5000
    yield b"\xff\xfe{}"


def messages() -> Iterator[bytes]:
    for content in ("text", ["text"], [{"type": "text", "text": "a"}], [{"type": "video_url", "video_url": "data:,a"}]):
        yield json.dumps([{"role": "system", "content": "be brief"}, {"role": "user", "content": content}]).encode()
    yield b'[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/"}}, [1, 2], null]}]'


TARGETS = {"body": FuzzTarget(send_body, bodies, 8192), "messages": FuzzTarget(read_messages, messages)}
