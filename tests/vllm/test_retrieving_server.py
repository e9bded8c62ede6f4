"""The middleware around a server: what it reads and when, what it refuses, and that it never holds up the loop."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from emblema.errors import EmblemaError
from emblema.serve.guard import Message, Receive, Send
from emblema.vllm import retrieving
from emblema.vllm.retrieving import (
    LARGEST_WISH,
    LONGEST_WORDS,
    RETRIEVAL_VARIABLE,
    ChatReply,
    PictureRetrieval,
    Retrieving,
)
from emblema.vllm.word_search import PictureFolder

KEY = b"Bearer secret"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "where is the tent ?"}]}


class ChatServer:
    """What the middleware is around: it checks a key before it reads a body, and answers with the texts it is given."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.bodies: list[Any] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if dict(scope["headers"]).get(b"authorization") != KEY:
            await self._answer(send, 401, {"error": "Unauthorized"})
            return
        try:
            raw = b""
            while True:
                message = await receive()
                raw += message.get("body", b"")
                if not message.get("more_body"):
                    break
            self.bodies.append(json.loads(raw))
        except Exception:
            # As FastAPI does.
            await self._answer(send, 400, {"error": "There was an error parsing the body"})
            return
        text = self.texts.pop(0) if self.texts else "done"
        stopped = "</search>" if text.endswith("</search>") else None
        choice = {"message": {"content": text}, "stop_reason": stopped, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        await self._answer(send, 200, {"choices": [choice], "usage": usage})

    async def _answer(self, send: Send, status: int, content: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})


class Exchange:
    """One request through the middleware: its reply, and how many parts of its body were read."""

    def __init__(self, middleware: Retrieving, body: bytes, key: bytes | None = KEY) -> None:
        self.read = 0
        self.status = 0
        self.reply = b""
        headers = [] if key is None else [(b"authorization", key)]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]

        async def receive() -> Message:
            self.read += 1
            if not parts:
                return {"type": "http.disconnect"}
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Message) -> None:
            self.status = message.get("status", self.status)
            self.reply += message.get("body", b"")

        asyncio.run(middleware(scope, receive, send))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    for number in range(12):
        Image.effect_noise((64, 64), 90).save(folder / f"tent {number:02}.png")
    return folder


@pytest.fixture
def around(library: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A middleware around a server."""

    def make(server: ChatServer, **rules: Any) -> Retrieving:
        rules = {"library": str(library), "most": 8, "count": 8} | rules
        monkeypatch.setenv(RETRIEVAL_VARIABLE, PictureRetrieval(**rules).to_json())
        return Retrieving(server)

    return make


def test_no_body_is_read_before_the_key_was_checked(around: Any) -> None:
    server = ChatServer()
    refused = Exchange(around(server), json.dumps(CHAT).encode(), key=b"Bearer wrong")
    assert (refused.status, refused.read) == (401, 0) and server.bodies == []
    malformed = Exchange(around(server), b"{" * 100_000, key=None)
    assert (malformed.status, malformed.read) == (401, 0)
    answered = Exchange(around(server), json.dumps(CHAT).encode())
    assert answered.status == 200 and answered.read == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"messages": "\xff\xfe"}',
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"messages": ' + b"9" * 5000 + b"}",
        json.dumps(CHAT | {"stream_options": "x"}).encode(),
        json.dumps(CHAT | {"stream": True, "stream_options": 3}).encode(),
        json.dumps(CHAT | {"stream": "x"}).encode(),
        json.dumps(CHAT | {"kv_transfer_params": {"emblema": {"retrieval": {"count": 10**9}}}}).encode(),
        json.dumps(CHAT | {"kv_transfer_params": {"emblema": {"retrieval": {"count": 1e400}}}}).encode(),
        json.dumps(CHAT | {"kv_transfer_params": {"emblema": {"retrieval": [1]}}}).encode(),
    ],
)
def test_malformed_requests_get_a_400(around: Any, body: bytes) -> None:
    server = ChatServer()
    refused = Exchange(around(server), body)
    assert refused.status == 400 and server.bodies == []
    error = json.loads(refused.reply)["error"]
    assert error["code"] == 400 and error["message"]


def test_a_body_is_bounded(around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieving, "LARGEST_BODY", 1000)
    refused = Exchange(around(ChatServer()), json.dumps(CHAT | {"user": "x" * 2000}).encode())
    assert refused.status == 400 and refused.read == 1, "the second half was not waited for"


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_NAMES = ("messages", "stream", "stream_options", "n", "max_tokens", "stop", "tools", "kv_transfer_params", "user")
_TURNS = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": _VALUES}) | _VALUES, max_size=3)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(_NAMES), _VALUES), _TURNS, st.booleans())
def test_no_body_breaks_the_reading(body: dict[str, Any], turns: list[Any], chat: bool) -> None:
    body = body | ({"messages": turns} if chat else {})
    rules = PictureRetrieval(library="pages", start=None)
    try:
        retrieval = rules.for_chat(body)
        if retrieval is not None:
            reply = ChatReply(body, retrieval, _Empty())
            reply.proceed("which?</search>", 1)
            json.dumps(reply.body)
    except EmblemaError:
        pass


class _Empty(PictureFolder):
    """A library without pictures."""

    def __init__(self) -> None:
        pass

    def search(self, query: str, count: int) -> list[Path]:
        return []


def test_wishes_are_bounded_by_number() -> None:
    rules = PictureRetrieval(library="pages")
    for name, largest in LARGEST_WISH.items():
        assert rules.for_request({name: largest}) is not None
        with pytest.raises(EmblemaError, match=f"{name} is {largest + 1}"):
            rules.for_request({name: largest + 1})
    with pytest.raises(EmblemaError, match="characters"):
        rules.for_request({"after": "x" * (LONGEST_WORDS + 1)})
    # An operator may allow more.
    assert PictureRetrieval(library="pages", count=20).for_request({"count": 20}) is not None


def shown(body: Any) -> int:
    contents = [turn["content"] for turn in body["messages"] if isinstance(turn["content"], list)]
    return sum(part["type"] == "image_url" for content in contents for part in content)


@pytest.mark.parametrize(
    ("name", "value", "expected"), [("REPLY_PICTURES", 10, 10), ("REPLY_BYTES", 20_000, None), ("REPLY_TOKENS", 30, 5)]
)
def test_a_reply_is_bounded_by_number_bytes_and_tokens(
    around: Any, library: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int, expected: int | None
) -> None:
    """64 x 64 pixels are 6 tokens; the requests ask three times for 8 of the 12 pictures."""
    monkeypatch.setattr(retrieving, name, value)
    server = ChatServer(*["<search>tent</search>"] * 3)
    answered = Exchange(around(server), json.dumps(CHAT).encode())
    assert answered.status == 200
    found = json.loads(answered.reply)["kv_transfer_params"]["emblema"]["found"]
    count = shown(server.bodies[-1])
    assert count == sum(len(entry["items"]) for entry in found)
    assert sum(entry.get("left_out", 0) for entry in found) == 24 - count > 0
    sizes = {path.name: path.stat().st_size for path in library.iterdir()}
    if expected is None:
        assert 0 < sum(sizes[item] for entry in found for item in entry["items"]) <= value
    else:
        assert count == expected


def test_the_loop_goes_on_while_pictures_are_looked_up(around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    search, parse = PictureFolder.search, json.loads

    def slow_search(self: PictureFolder, query: str, count: int) -> list[Path]:
        threads.append(threading.current_thread().name)
        time.sleep(0.05)
        return search(self, query, count)

    def noted_parse(raw: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(raw)

    monkeypatch.setattr(PictureFolder, "search", slow_search)
    monkeypatch.setattr(ChatReply, "__init__", _noting(ChatReply.__init__, threads))
    assert Exchange(around(ChatServer("<search>tent</search>")), json.dumps(CHAT).encode()).status == 200
    assert len(threads) == 2 and threading.main_thread().name not in threads


def _noting(call: Any, threads: list[str]) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return call(*args, **kwargs)

    return noted


def test_what_a_client_writes_cannot_break_the_reply(around: Any) -> None:
    """A lone surrogate is valid in JSON and no UTF-8."""
    turn = {"role": "user", "content": "tent \ud800"}
    server = ChatServer("hm</search>")
    answered = Exchange(around(server, start=None), json.dumps({"messages": [turn]}).encode())
    assert answered.status == 200 and json.loads(answered.reply)["kv_transfer_params"]["emblema"]["found"]
