"""Replies as clients expect them: one body, or events that carry its pieces."""

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from emblema.errors import EmblemaError
from emblema.link.misses import MissData
from emblema.serve.faults import error_body
from emblema.serve.token_logprobs import TokenLogprobs
from emblema.session.replies import Piece, Reply
from emblema.session.tool_calls import CallReader

_REPORTED = (
    "lane", "cached_tokens", "patched_tokens", "computed_tokens", "captured_tokens", "linked_tokens",
    "repeated_tokens", "margin", "ttft_seconds",
)  # fmt: skip
"""What the block `emblema` of a reply takes from its usage as it is."""
Json = dict[str, Any]
Entries = list[Json]


@dataclass(slots=True)
class Choice:
    """One reply of an answer while it is made.

    Attributes:
        index: of the reply.
        logprobs: tells tokens' probabilities; None where they are not asked for.
        calls: reads the calls of functions out of it; None where it can call none.
        told: what was told of its tokens so far.
        text: what was told of it so far, calls left out.
        called: the calls, at its end, as chat completions have them.
        reply: the whole of it, at its end.
        characters: of the tokens whose places in the text a stream has told.
    """

    index: int
    logprobs: TokenLogprobs | None
    calls: CallReader | None = None
    told: Entries = field(default_factory=list)
    text: str = ""
    called: list[Json] = field(default_factory=list)
    reply: Reply | None = None
    characters: int = 0

    def push(self, piece: Piece) -> tuple[str, Entries]:
        """Take its next piece, and return the text and the tokens that are certain now."""
        entries = [] if self.logprobs is None else self.logprobs.push(piece)
        fresh = str(piece) if self.calls is None else self.calls.push(piece)
        if piece.reply is not None and self.calls is not None:
            rest, called = self.calls.finish()
            fresh += rest
            # Some templates take no id but of nine letters and digits.
            self.called = [
                {
                    "id": uuid.uuid4().hex[:9],
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in called
            ]
        self.told += entries
        self.text += fresh
        self.reply = piece.reply
        return fresh, entries

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it goes on."""
        if self.reply is None:
            return None
        return "tool_calls" if self.called and self.reply.finish_reason == "stop" else self.reply.finish_reason

    @property
    def whole(self) -> Reply:
        """The whole reply; `EmblemaError` where it has not come."""
        if self.reply is None:
            raise EmblemaError("the reply ended before its end")
        return self.reply


class AnswerForm(Protocol):
    """How an endpoint writes an answer, to one request: a body, or the events of a stream."""

    last: bytes
    """What ends a stream."""

    def body(self, answer: "Answer", reply: Reply) -> Json:
        """Return the whole; `reply` is the first, its tokens those of all."""

    def begin(self, answer: "Answer") -> Iterable[Json]:
        """Return the events before the first piece."""

    def more(self, answer: "Answer", choice: Choice, fresh: str, entries: Entries) -> Iterable[Json]:
        """Return the events of a piece: its text and the tokens that are certain; at its end, the choice says why."""

    def end(self, answer: "Answer", reply: Reply) -> Iterable[Json]:
        """Return the events after the last piece; `reply` as of `body`."""

    def failed(self, error: Exception) -> Json:
        """Return the event of an error on the way."""


@dataclass(slots=True)
class Answer:
    """The replies to one request.

    Attributes:
        form: how they are written.
        choices: the replies.
        note: called once with the first reply, its tokens those of all, when all are there.
        written: rows of chunks that were made for parts with a breakpoint.
        remarks: what could not be done as asked before the prompt was linked.
        places: where each piece of media is in the client's messages; none where they were translated.
    """

    form: AnswerForm
    choices: Sequence[Choice]
    note: Callable[[Reply], None]
    written: int = 0
    remarks: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    async def whole(self, pieces: AsyncIterator[Piece]) -> Json:
        """Return the body of the whole answer."""
        async for piece in pieces:
            self.choices[piece.choice].push(piece)
        return self.form.body(self, self._noted())

    async def events(self, first: Piece, others: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
        """Yield server-sent events; an error on the way is one too."""
        for event in self.form.begin(self):
            yield _event(event)
        try:
            piece: Piece | None = first
            while piece is not None:
                choice = self.choices[piece.choice]
                for event in self.form.more(self, choice, *choice.push(piece)):
                    yield _event(event)
                piece = await anext(others, None)
            for event in self.form.end(self, self._noted()):
                yield _event(event)
        except Exception as error:
            yield _event(self.form.failed(error))
            if not isinstance(error, EmblemaError):
                raise
        yield self.form.last

    def _noted(self) -> Reply:
        """Return the first reply, with the tokens and remarks of all, when it has been noted."""
        replies = [choice.whole for choice in self.choices]
        made = sum(reply.usage.completion_tokens for reply in replies)
        remarks = dict.fromkeys(reply.remark for reply in replies if reply.remark is not None)
        first = replace(
            replies[0], usage=replace(replies[0].usage, completion_tokens=made), remark="; ".join(remarks) or None
        )
        self.note(first)
        return first

    def written_of(self, reply: Reply) -> int:
        """Return the rows that were kept for parts with a breakpoint, or captured for the prompt."""
        return reply.usage.captured_tokens + self.written

    def misses_of(self, reply: Reply) -> list[MissData]:
        """Return the media of which no row was taken; a detail begins with the place in the client's messages."""
        places = dict(enumerate(self.places))
        told = ((miss, filter(None, (places.get(miss.part), miss.detail))) for miss in reply.usage.misses)
        return [replace(miss, detail=": ".join(words)).data for miss, words in told]

    def report(self, reply: Reply) -> Json:
        """Return how a reply came about, the block `emblema`."""
        return {name: getattr(reply.usage, name) for name in _REPORTED} | {
            "found": [{"query": answered.query, "items": answered.names} for answered in reply.found],
            "parts": [[each.stop - each.start, each.lane] for each in reply.plan.decisions],
            "misses": self.misses_of(reply),
            "remark": "; ".join(filter(None, [*self.remarks, reply.usage.fallback, reply.remark])) or None,
        }


class CompletionForm(ABC):
    """Answers as OpenAI's completions have them: choices in a frame that every event repeats.

    Args:
        model: as clients call it.
        usage: whether a stream ends with the usage.
    """

    last = b"data: [DONE]\n\n"
    kind: str
    chunk_kind: str
    id_prefix: str

    def __init__(self, model: str, usage: bool) -> None:
        self._model, self._usage = model, usage
        self._id, self._created = f"{self.id_prefix}-{uuid.uuid4().hex}", int(time.time())

    @abstractmethod
    def whole(self, choice: Choice) -> Json:
        """Return a finished choice."""

    @abstractmethod
    def parts(self, choice: Choice, fresh: str, entries: Entries) -> list[Json]:
        """Return what a stream tells of a piece; at the end of a choice, the last says why it ended."""

    def body(self, answer: Answer, reply: Reply) -> Json:
        """Return the whole."""
        body = self._frame(self.kind, [self.whole(choice) for choice in answer.choices])
        return body | {"usage": _usage(answer, reply), "emblema": answer.report(reply)}

    def begin(self, answer: Answer) -> list[Json]:
        """Return nothing: a stream begins with its text."""
        return []

    def more(self, answer: Answer, choice: Choice, fresh: str, entries: Entries) -> list[Json]:
        """Return the events of a piece; the last of a choice has its report."""
        events = [self._chunk(part) for part in self.parts(choice, fresh, entries)]
        if choice.reply is not None and events:
            events[-1] |= {"emblema": answer.report(choice.reply)}
        return events

    def end(self, answer: Answer, reply: Reply) -> list[Json]:
        """Return an event with the usage, if it was asked for."""
        return [self._chunk() | {"usage": _usage(answer, reply)}] if self._usage else []

    def failed(self, error: Exception) -> Json:
        """Return the event of an error."""
        return error_body(error)

    def _chunk(self, *choices: Json) -> Json:
        return self._frame(self.chunk_kind, [*choices])

    def _frame(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


def _usage(answer: Answer, reply: Reply) -> Json:
    """Return the usage in OpenAI's fields; `cached_tokens` are the rows that were taken."""
    usage = reply.usage
    details = {
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": answer.written_of(reply),
        "audio_tokens": 0,
    }
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": details,
    }


def _event(body: Json) -> bytes:
    """Return a server-sent event; one with a type is named by it."""
    named = f"event: {body['type']}\n".encode() if "type" in body else b""
    return named + b"data: " + json_bytes(body) + b"\n\n"


def json_bytes(body: Json) -> bytes:
    """Return JSON in UTF-8; in ASCII where a text has half a surrogate pair, as what a model gives a call may."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(body, allow_nan=False).encode()
