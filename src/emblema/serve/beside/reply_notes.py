"""What the service did for a chat request, written into the engine's reply to it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emblema.serve.guard import Message, Send


@dataclass(slots=True)
class ReplyNotes:
    """Adds to the usage of a reply the rows that were written to be kept, and to its block `emblema` what was not done.

    A whole reply is sent when it is complete, a stream event by event. A refusal passes as it is.

    Attributes:
        send: takes the server's messages.
        written: rows.
        remarks: what was not done as asked.
        remark: writes that into a reply or an event.
    """

    send: Send
    written: int
    remarks: tuple[str, ...]
    remark: Callable[[dict[str, Any], str], None]
    _start: Message = field(default_factory=dict)
    _left: bytes = b""

    async def pass_on(self, message: Message) -> None:
        """Take a message of the server."""
        if message["type"] == "http.response.start":
            self._start = message
            if message["status"] != 200 or self._streamed:
                await self.send(message)
        elif self._start["status"] != 200:
            await self.send(message)
        elif self._streamed:
            *events, self._left = (self._left + message.get("body", b"")).split(b"\n\n")
            body = b"".join(self._event(event) + b"\n\n" for event in events)
            if not message.get("more_body"):
                body, self._left = body + self._left, b""
            await self.send({**message, "body": body})
        else:
            self._left += message.get("body", b"")
            if not message.get("more_body"):
                body = json.dumps(self._noted(json.loads(self._left)), ensure_ascii=False).encode(errors="replace")
                headers = [(name, value) for name, value in self._start["headers"] if name != b"content-length"]
                headers.append((b"content-length", str(len(body)).encode()))
                await self.send({**self._start, "headers": headers})
                await self.send({"type": "http.response.body", "body": body})

    @property
    def _streamed(self) -> bool:
        return dict(self._start["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")

    def _event(self, event: bytes) -> bytes:
        data = event.removeprefix(b"data: ")
        if not data.startswith(b"{"):
            return event
        return b"data: " + json.dumps(self._noted(json.loads(data)), ensure_ascii=False).encode(errors="replace")

    def _noted(self, told: dict[str, Any]) -> dict[str, Any]:
        usage = told.get("usage")
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details") or {}
            usage["prompt_tokens_details"] = {**details, "cache_write_tokens": self.written}
        ended = any(choice.get("finish_reason") for choice in told.get("choices", ()))
        if self.remarks and ended:
            self.remark(told, "; ".join(self.remarks))
        return told
