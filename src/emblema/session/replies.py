"""Replies: the text of tokens as they are made, its pieces, and the finished reply."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter
from typing import Any, Literal, Self

from emblema.errors import PromptError
from emblema.link.plan import LinkPlan
from emblema.session.requests import Usage

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request of the model's that a retrieval answered.

    Attributes:
        query: what was searched for.
        chunks: ids of the chunks that were linked; none if nothing fitted.
    """

    query: str
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished answer.

    Attributes:
        text: the answer.
        token_ids: its tokens; what was linked while decoding is not among them.
        finish_reason: `stop` at an end token or stop string, `length` at the most that was allowed.
        usage: what it cost.
        found: requests for retrieval that were answered.
        plan: the prompt's plan.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    found: tuple[AnsweredRequest, ...]
    plan: LinkPlan = field(repr=False)


class Piece(str):
    """A piece of a streamed answer: a string, so that pieces join to the answer. The last carries the whole reply."""

    reply: Reply | None

    def __new__(cls, text: str, reply: Reply | None = None) -> Self:
        piece = super().__new__(cls, text)
        piece.reply = reply
        return piece

    @property
    def text(self) -> str:
        """The piece as a plain string."""
        return str(self)


class TextDecoder:
    """Decodes tokens as they are made: a token's text is given once its characters are whole."""

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool) -> None:
        self.token_ids: list[int] = []
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        # Tokens before `_settled` have given their text; those from `_context` on are read again, for spaces.
        self._context = self._settled = 0

    def push(self, token: int) -> str:
        """Take a token and return the text that it adds; empty while a character is not whole."""
        self.token_ids.append(token)
        fresh = self._fresh()
        return "" if fresh.endswith("\ufffd") else self._settle(fresh)

    def finish(self) -> str:
        """Return the text of the tokens that have given none, whole or not."""
        return self._settle(self._fresh())

    def _fresh(self) -> str:
        return self._text(self._context)[len(self._text(self._context, self._settled)) :]

    def _text(self, start: int, stop: int | None = None) -> str:
        text: str = self._tokenizer.decode(self.token_ids[start:stop], skip_special_tokens=self._skip)
        return text

    def _settle(self, fresh: str) -> str:
        if fresh:
            # A token without text leaves the context as it is: what comes next is read after the last text.
            self._context, self._settled = self._settled, len(self.token_ids)
        return fresh


class TextStream:
    """Turns tokens into pieces of text: holds back what may become a stop string, and ends before one."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:
        self.text = ""
        self.stopped = False
        self._decoder = TextDecoder(tokenizer, skip_special_tokens=True)
        self._stop = stop
        self._given = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens that were taken."""
        return tuple(self._decoder.token_ids)

    def push(self, token: int) -> str:
        """Take a token and return the text that is now certain."""
        self._append(self._decoder.push(token))
        held = 0 if self.stopped else max((_overlap(self.text, stop) for stop in self._stop), default=0)
        return self._give(len(self.text) - held)

    def finish(self) -> str:
        """Return the text held back, at the end."""
        if not self.stopped:
            self._append(self._decoder.finish())
        return self._give(len(self.text))

    def _append(self, fresh: str) -> None:
        text = self.text + fresh
        found = [index for index in (text.find(stop) for stop in self._stop) if index >= 0]
        self.text = text[: min(found)] if found else text
        self.stopped = bool(found)

    def _give(self, until: int) -> str:
        piece = self.text[self._given : until]
        self._given = max(self._given, until)
        return piece


@dataclass(slots=True)
class ReplyState:
    """What a reply will say beside its text; it changes while tokens are made.

    Attributes:
        plan: the prompt's plan.
        usage: what the reply has cost so far.
        found: requests for retrieval that were answered so far.
    """

    plan: LinkPlan
    usage: Usage
    found: tuple[AnsweredRequest, ...] = ()


def reply_pieces(
    tokens: Iterator[int], text: TextStream, ends: frozenset[int], state: ReplyState, began: float
) -> Iterator[Piece]:
    """Make the first token, and return a piece for every token, perhaps empty; the last piece holds the reply.

    Args:
        tokens: the reply's tokens, as they are made.
        text: turns them into text.
        ends: tokens that end a reply.
        state: what else the reply says.
        began: when the caller asked, for the time to first token.
    """
    first = next(tokens)
    state.usage = replace(state.usage, ttft_seconds=perf_counter() - began)
    return _pieces(chain([first], tokens), text, ends, state)


def _pieces(tokens: Iterator[int], text: TextStream, ends: frozenset[int], state: ReplyState) -> Iterator[Piece]:
    made: list[int] = []
    for piece, reason in text_pieces(tokens, text, ends, made):
        if reason is None:
            yield Piece(piece)
            continue
        usage = replace(state.usage, completion_tokens=len(made))
        yield Piece(piece, Reply(text.text, text.token_ids, reason, usage, state.found, state.plan))


def text_pieces(
    tokens: Iterator[int], text: TextStream, ends: frozenset[int], made: list[int]
) -> Iterator[tuple[str, FinishReason | None]]:
    """Yield the text of every token, perhaps empty, with None; at last the text held back, and why the reply ended.

    Args:
        tokens: the reply's tokens, as they are made.
        text: turns them into text.
        ends: tokens that end a reply.
        made: receives the tokens, the one that ended the reply included.
    """
    reason: FinishReason = "length"
    for token in tokens:
        made.append(token)
        if token in ends:
            reason = "stop"
            break
        yield text.push(token), None
        if text.stopped:
            break
    rest = text.finish()
    yield rest, "stop" if text.stopped else reason


def last_reply(pieces: Iterator[Piece]) -> Reply:
    """Return the reply at the end of a stream."""
    reply = None
    for piece in pieces:
        reply = piece.reply or reply
    if reply is None:
        raise PromptError("the stream ended without a reply")
    return reply


def _overlap(text: str, stop: str) -> int:
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)
