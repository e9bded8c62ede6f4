"""One reply to the client of the answers to several requests, whole or streamed."""

import json
from dataclasses import dataclass, field
from typing import Any

from emblema.serve.guard import Message, Send


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """The answer to one request of a reply: its text, how many tokens that is, and the text that stopped it."""

    text: str
    tokens: int
    stopped_by: str | None


@dataclass(slots=True)
class WholeRelay:
    """Joins the server's answers to a single one. If the server refuses a continuation, the reply ends before it."""

    found: list[dict[str, Any]]
    send: Send
    start: Message = field(default_factory=dict)
    body: bytes = b""
    answers: list[dict[str, Any]] = field(default_factory=list)

    async def catch(self, message: Message) -> None:
        """Take a message of the server."""
        if message["type"] == "http.response.start":
            self.start, self.body = message, b""
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    def take_answer(self) -> PartialAnswer | None:
        """Return the answer that is complete now; None where the server refused."""
        if self.start.get("status") != 200:
            return None
        answer = json.loads(self.body)
        self.answers.append(answer)
        choice = answer["choices"][0]
        tokens = answer["usage"]["completion_tokens"]
        return PartialAnswer(choice["message"]["content"] or "", tokens, choice.get("stop_reason"))

    async def end(self) -> None:
        """Send the reply."""
        if not self.answers:
            await self.send(self.start)
            await self.send({"type": "http.response.body", "body": self.body})
            return
        first = self.answers[0]
        choices = [answer["choices"][0] for answer in self.answers]
        choice = dict(choices[-1])
        text = "".join(part["message"]["content"] or "" for part in choices)
        choice["message"] = choice["message"] | {"content": text}
        logprobs = [part.get("logprobs") for part in choices]
        if all(logprobs):
            choice["logprobs"] = {"content": [token for part in logprobs for token in part["content"]]}
        made = sum(answer["usage"]["completion_tokens"] for answer in self.answers)
        reports = [(answer.get("kv_transfer_params") or {}).get("emblema") for answer in self.answers]
        for found, linking in zip(self.found, reports[1:], strict=False):
            found["linking"] = linking
        joined = {
            "choices": [choice],
            "usage": _usage(first["usage"], made),
            "kv_transfer_params": {"emblema": (reports[0] or {}) | {"found": self.found}},
        }
        await send_json(self.send, 200, first | joined)


@dataclass(slots=True)
class StreamRelay:
    """Passes server-sent events on as they come, but for those that end an answer."""

    found: list[dict[str, Any]]
    usage_wanted: bool
    send: Send
    status: int = 0
    id: str | None = None
    buffer: bytes = b""
    text: str = ""
    tokens: int = 0
    made: int = 0
    stopped_by: str | None = None
    last: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None

    async def catch(self, message: Message) -> None:
        """Take a message of the server."""
        if message["type"] == "http.response.start":
            self.status, self.buffer, self.text, self.tokens, self.stopped_by = message["status"], b"", "", 0, None
            if self.id is None:
                await self.send(message)
        elif message["type"] == "http.response.body":
            if self.status != 200 and self.id is None:
                await self.send(message)
            elif self.status == 200:
                *events, self.buffer = (self.buffer + message.get("body", b"")).split(b"\n\n")
                for event in events:
                    await self._pass_on(event.removeprefix(b"data: "))

    async def _pass_on(self, data: bytes) -> None:
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
                self.stopped_by = choice.get("stop_reason")
                self.last = event | {"choices": [choice | {"delta": {}}]}
                choice["finish_reason"] = choice["stop_reason"] = None
            if empty and (self.made or "role" not in delta):
                # The reply opens once; what closes it comes at its end.
                return
        await self._send_event(event)

    def take_answer(self) -> PartialAnswer | None:
        """Return the answer that is complete now; None where the server refused."""
        self.made += self.tokens
        return PartialAnswer(self.text, self.tokens, self.stopped_by) if self.status == 200 else None

    async def end(self) -> None:
        """Send the events that end the reply."""
        if self.id is None:
            return
        if self.last is not None:
            await self._send_event(self.last | {"kv_transfer_params": {"emblema": {"found": self.found}}})
        if self.usage is not None and self.usage_wanted:
            await self._send_event(self.usage | {"usage": _usage(self.usage["usage"], self.made)})
        await self.send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _send_event(self, event: dict[str, Any]) -> None:
        body = f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode(errors="replace")
        await self.send({"type": "http.response.body", "body": body, "more_body": True})


def _usage(first: dict[str, Any], made: int) -> dict[str, Any]:
    return first | {"completion_tokens": made, "total_tokens": first["prompt_tokens"] + made}


async def send_json(send: Send, status: int, content: dict[str, Any]) -> None:
    """Send a whole answer."""
    body = json.dumps(content, ensure_ascii=False).encode(errors="replace")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
