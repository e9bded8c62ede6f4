"""What the service did for a chat request, written into the engine's reply to it."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from emblema.serve.faults import ServeError
from emblema.serve.front.engine import LARGEST_REPLY, whole
from emblema.serve.front.engine_api import EngineApi, add_remark


@dataclass(frozen=True, slots=True)
class ReplyNotes:
    """Adds to the usage of a reply the rows that were written to be kept, and to its block `emblema` what was not done.

    A whole reply is passed on when it is complete, a stream event by event.

    Attributes:
        api: of the engine.
        written: rows.
        remarks: what was not done as asked.
    """

    api: EngineApi
    written: int
    remarks: tuple[str, ...]

    async def write(self, body: AsyncIterator[bytes], streamed: bool) -> AsyncIterator[bytes]:
        """Yield a reply's body with the notes in it; `ServeError` where the engine's is not what was asked for."""
        if not streamed:
            yield self._noted(await whole(body))
            return
        left = b""
        async for piece in body:
            *events, left = (left + piece).split(b"\n\n")
            if len(left) > LARGEST_REPLY:
                raise ServeError(502, f"an event of the engine has more than {LARGEST_REPLY} bytes", "engine_failed")
            if events:
                yield b"".join(self._event(event) + b"\n\n" for event in events)
        yield left

    def _event(self, event: bytes) -> bytes:
        data = event.removeprefix(b"data: ")
        return b"data: " + self._noted(data) if data.startswith(b"{") else event

    def _noted(self, data: bytes) -> bytes:
        try:
            told: dict[str, Any] = json.loads(data)
            usage = told.get("usage")
            if isinstance(usage, dict):
                details = usage.get("prompt_tokens_details") or {}
                usage["prompt_tokens_details"] = {**details, "cache_write_tokens": self.written}
            ended = any(choice.get("finish_reason") for choice in told.get("choices") or ())
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ServeError(502, f"the engine's reply is no chat completion: {error}", "engine_failed") from error
        if self.remarks and ended:
            add_remark(told, "; ".join(self.remarks), self.api)
        return json.dumps(told, ensure_ascii=False).encode(errors="replace")
