"""Replies as clients expect them: one body, or events that carry its pieces."""

import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from emblema.errors import EmblemaError
from emblema.serve.faults import error_body
from emblema.session.decode_batch import TokenProbability
from emblema.session.replies import Piece, Reply

_REPORTED = (
    "lane", "cached_tokens", "patched_tokens", "computed_tokens", "captured_tokens", "linked_tokens",
    "repeated_tokens", "margin", "ttft_seconds",
)  # fmt: skip
"""What the block `emblema` of a reply takes from its usage as it is."""


@dataclass(slots=True)
class ChatAnswer:
    """One reply of a chat.

    Attributes:
        model: as clients call it.
        tokenizer: of the model, to spell tokens.
        probabilities: whether tokens' probabilities are told.
        note: called with the whole reply once it is there.
        written: rows of chunks that were made for parts with a breakpoint.
        remarks: what could not be done as asked before the prompt was linked.
        id, created: of the reply.
    """

    model: str
    tokenizer: Any
    probabilities: bool
    note: Callable[[Reply], None]
    written: int = 0
    remarks: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self, pieces: AsyncIterator[Piece]) -> dict[str, Any]:
        """Return the body of a whole reply."""
        told: list[dict[str, Any]] = []
        reply: Reply | None = None
        async for piece in pieces:
            told += self._told(piece.probability)
            reply = piece.reply or reply
        if reply is None:
            raise EmblemaError("the reply ended before its end")
        self.note(reply)
        message = {"role": "assistant", "content": reply.text, "refusal": None}
        logprobs = {"content": told, "refusal": None} if self.probabilities else None
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": logprobs}
        return self._frame("chat.completion", [choice]) | self._costs(reply)

    async def events(self, first: Piece, others: AsyncIterator[Piece], usage: bool) -> AsyncIterator[bytes]:
        """Yield server-sent events, at the end one with the usage if asked; an error on the way is an event too."""
        yield self._chunk({"role": "assistant", "content": ""}, None)
        try:
            piece: Piece | None = first
            while piece is not None:
                told = self._told(piece.probability)
                if piece or told:
                    yield self._chunk({"content": str(piece)}, None, told)
                if piece.reply is not None:
                    self.note(piece.reply)
                    costs = self._costs(piece.reply)
                    yield self._chunk({}, piece.reply.finish_reason, more={"emblema": costs["emblema"]})
                    if usage:
                        yield _event(self._frame("chat.completion.chunk", []) | {"usage": costs["usage"]})
                piece = await anext(others, None)
        except Exception as error:
            yield _event(error_body(error))
            if not isinstance(error, EmblemaError):
                raise
        yield b"data: [DONE]\n\n"

    def _costs(self, reply: Reply) -> dict[str, Any]:
        """Return a reply's usage in OpenAI's fields (`cached_tokens` are the rows that were taken), and the rest."""
        usage = reply.usage
        details = {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.captured_tokens + self.written,
            "audio_tokens": 0,
        }
        told = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": details,
        }
        report = {name: getattr(usage, name) for name in _REPORTED} | {
            "found": [{"query": answered.query, "items": answered.names} for answered in reply.found],
            "remark": "; ".join(filter(None, [*self.remarks, usage.fallback])) or None,
        }
        return {"usage": told, "emblema": report}

    def _chunk(
        self, delta: dict[str, Any], reason: str | None, told: list[dict[str, Any]] | None = None, more: Any = None
    ) -> bytes:
        logprobs = {"content": told, "refusal": None} if self.probabilities and told else None
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
        return _event(self._frame("chat.completion.chunk", [choice]) | (more or {}))

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _told(self, probability: TokenProbability | None) -> list[dict[str, Any]]:
        if probability is None:
            return []
        likeliest = [self._spelled(token, logprob) for token, logprob in probability.likeliest]
        return [self._spelled(probability.token, probability.logprob) | {"top_logprobs": likeliest}]

    def _spelled(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.decode([token])
        # JSON has no infinity; this is what OpenAI sends for a token out of reach.
        return {"token": text, "bytes": list(text.encode()), "logprob": max(logprob, -9999.0)}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"
