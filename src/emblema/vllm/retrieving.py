"""Linking while decoding, on a server: where the model asks the reply stops, and a request with what was found goes on.

A middleware in front of vLLM's chat completions. The continuation is a request like any other (the conversation, what
the model has said so far, and the pictures), so they are linked as they are anywhere in a prompt. The client sees one
reply, streamed or whole.
"""

import json
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emblema.errors import EmblemaError
from emblema.vllm.asking import VARIABLE, Asking
from emblema.vllm.continuing import Reply, asked_for
from emblema.vllm.pictures import Pictures

_log = logging.getLogger(__name__)
PATH = "/v1/chat/completions"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Retrieving:
    """`--middleware emblema.vllm.retrieving.Retrieving`, with an `Asking` in the environment.

    Raises:
        EmblemaError: the environment does not say how a model asks, or the library cannot be opened.
    """

    def __init__(self, app: App) -> None:
        if VARIABLE not in os.environ:
            raise EmblemaError(f"{VARIABLE} is not set: start the server with `emblema vllm-serve --library FOLDER`")
        self.app, self.asking = app, Asking.read(os.environ[VARIABLE])
        self.library = Pictures(Path(self.asking.library))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(PATH):
            await self.app(scope, receive, send)
            return
        raw = await _whole(receive)
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        try:
            asking = asked_for(body, self.asking)
        except EmblemaError as error:
            await _send_json(send, 400, {"error": {"message": str(error), "type": "BadRequestError", "code": 400}})
            return
        if asking is None:
            await self.app(scope, _given(raw, receive), send)
            return
        reply = Reply(body, asking, self.library)
        relay = Streamed(reply, send) if reply.stream else Whole(reply, send)
        while True:
            await self.app(scope, _given(json.dumps(reply.body).encode(), receive), relay.catch)
            done = relay.finished()
            if done is None or done.stopped != asking.end:
                break
            try:
                if not reply.goes_on(done.text, done.tokens):
                    break
            except EmblemaError as error:
                _log.warning("emblema: a reply ends where its model asked: %s", error)
                break
        await relay.end()


@dataclass(frozen=True, slots=True)
class Said:
    """What one request of a reply gave: text, its tokens, and the text that stopped it."""

    text: str
    tokens: int
    stopped: str | None


@dataclass(slots=True)
class Whole:
    """Answers in one piece. One that the server refuses in mid-reply ends the reply with what was said before."""

    reply: Reply
    send: Send
    status: int = 0
    start: Message = field(default_factory=dict)
    body: bytes = b""
    answers: list[dict[str, Any]] = field(default_factory=list)

    async def catch(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start, self.status, self.body = message, message["status"], b""
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    def finished(self) -> Said | None:
        if self.status != 200:
            return None
        answer = json.loads(self.body)
        self.answers.append(answer)
        choice = answer["choices"][0]
        made = answer["usage"]["completion_tokens"]
        return Said(choice["message"]["content"] or "", made, choice.get("stop_reason"))

    async def end(self) -> None:
        if not self.answers:
            await self.send(self.start)
            await self.send({"type": "http.response.body", "body": self.body})
            return
        first, last = self.answers[0], self.answers[-1]
        choice = dict(last["choices"][0])
        said = [one["choices"][0]["message"]["content"] or "" for one in self.answers]
        choice["message"] = choice["message"] | {"content": "".join(said)}
        logprobs = [one["choices"][0].get("logprobs") for one in self.answers]
        if all(logprobs):
            choice["logprobs"] = {"content": [token for one in logprobs for token in one["content"]]}
        made = sum(one["usage"]["completion_tokens"] for one in self.answers)
        usage = first["usage"] | {
            "completion_tokens": made,
            "total_tokens": first["usage"]["prompt_tokens"] + made,
        }
        told = [(one.get("kv_transfer_params") or {}).get("emblema") for one in self.answers]
        for found, linking in zip(self.reply.found, told[1:], strict=False):
            found["linking"] = linking
        own = {"emblema": (told[0] or {}) | {"found": self.reply.found}}
        await _send_json(self.send, 200, first | {"choices": [choice], "usage": usage, "kv_transfer_params": own})


@dataclass(slots=True)
class Streamed:
    """Answers as server-sent events: passed on as they come, but for those that end one."""

    reply: Reply
    send: Send
    status: int = 0
    id: str | None = None
    buffer: bytes = b""
    text: str = ""
    tokens: int = 0
    made: int = 0
    stopped: str | None = None
    last: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None

    async def catch(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.buffer, self.text, self.tokens, self.stopped = message["status"], b"", "", 0, None
            if self.id is None:
                await self.send(message)
        elif message["type"] == "http.response.body":
            part = message.get("body", b"")
            if self.status != 200 and self.id is None:
                await self.send(message)
            elif self.status == 200:
                *events, self.buffer = (self.buffer + part).split(b"\n\n")
                for event in events:
                    await self._event(event.removeprefix(b"data: "))

    async def _event(self, data: bytes) -> None:
        if not data.startswith(b"{"):
            return
        event = json.loads(data)
        self.id = self.id or event.get("id")
        if "choices" in event:
            event["id"] = self.id
        if event.get("usage") and not event.get("choices"):
            self.tokens = event["usage"]["completion_tokens"]
            self.usage = self.usage or event
            return
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            self.text += delta.get("content") or ""
            empty = not any(value for name, value in delta.items() if name != "role")
            if choice.get("finish_reason"):
                self.stopped = choice.get("stop_reason")
                self.last = event | {"choices": [choice | {"delta": {}}]}
                choice["finish_reason"] = choice["stop_reason"] = None
            if empty and (self.made or "role" not in delta):
                # One opening for the whole reply; what closes it comes at its end.
                return
        await self._tell(event)

    def finished(self) -> Said | None:
        self.made += self.tokens
        return Said(self.text, self.tokens, self.stopped) if self.status == 200 else None

    async def end(self) -> None:
        if self.id is None:
            return
        if self.last is not None:
            await self._tell(self.last | {"kv_transfer_params": {"emblema": {"found": self.reply.found}}})
        if self.usage is not None and self.reply.usage_wanted:
            usage = self.usage["usage"]
            total = {"completion_tokens": self.made, "total_tokens": usage["prompt_tokens"] + self.made}
            await self._tell(self.usage | {"usage": usage | total})
        await self.send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _tell(self, event: dict[str, Any]) -> None:
        body = f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        await self.send({"type": "http.response.body", "body": body, "more_body": True})


async def _whole(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


def _given(body: bytes, receive: Receive) -> Receive:
    """A body, and whatever comes behind it: the client that goes away."""
    left = [body]

    async def given() -> Message:
        return {"type": "http.request", "body": left.pop()} if left else await receive()

    return given


async def _send_json(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content, ensure_ascii=False).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
