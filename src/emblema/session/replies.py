"""Replies: the text of tokens as they are made, its pieces, and the finished reply."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, Self

from emblema.errors import PromptError
from emblema.link.plan import LinkPlan
from emblema.session.decode_batch import TokenProbability
from emblema.session.decoding import Sampling
from emblema.session.requests import Prefill, Usage
from emblema.session.vocabulary import EMPTY

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request of the model's that a retrieval answered.

    Attributes:
        query: what was searched for.
        chunks: ids of the chunks that were linked; none if nothing fitted.
        names: of the library's items that they belong to, one for each; none where a function found them.
    """

    query: str
    chunks: tuple[str, ...]
    names: tuple[str, ...] = ()


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
        remark: words of the prompt that the model does not know, if its words are a closed list, and that an answer
            is empty; None if there is nothing to say.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    found: tuple[AnsweredRequest, ...]
    plan: LinkPlan = field(repr=False)
    remark: str | None = None


class Piece(str):
    """A piece of a streamed answer: a string, so that pieces join to the answer.

    Attributes:
        reply: the whole reply, in the last piece.
        probability: of the piece's token, where it was asked for.
        choice: which of a prompt's replies it belongs to, from 0.
    """

    reply: Reply | None
    probability: TokenProbability | None
    choice: int

    def __new__(cls, text: str, reply: Reply | None = None, probability: TokenProbability | None = None) -> Self:
        piece = super().__new__(cls, text)
        piece.reply, piece.probability, piece.choice = reply, probability, 0
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

    def peek(self, token: int) -> str:
        """Return the text that a token would add, whole or not; it is not taken."""
        self.token_ids.append(token)
        fresh = self._fresh()
        self.token_ids.pop()
        return fresh

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


class ReplyText:
    """The text of a reply as its tokens are made, and why it ended.

    What may become a stop string is held back, and the text ends before one.

    Args:
        tokenizer: of the model.
        ends: tokens that end a reply.
        sampling: its stop strings, and the most tokens.

    Attributes:
        text: the text so far, what is held back included.
        made: the tokens, the one that ended the reply included.
    """

    def __init__(self, tokenizer: Any, ends: frozenset[int], sampling: Sampling) -> None:
        self.text = ""
        self.made: list[int] = []
        self._decoder = TextDecoder(tokenizer, skip_special_tokens=True)
        self._ends, self._stop, self._most = ends, sampling.stop, sampling.max_new_tokens
        self._given = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens that gave text: all but an end token."""
        return tuple(self._decoder.token_ids)

    def remark(self, prompt: str | None) -> str | None:
        """Return what is said of the prompt, and whether the answer is empty as the model ended it at once."""
        empty = EMPTY if len(self.made) == 1 and self.made[0] in self._ends else None
        return "; ".join(filter(None, [prompt, empty])) or None

    def push(self, token: int) -> tuple[str, FinishReason | None]:
        """Take a token; return the text that is now certain, perhaps empty, and at the end why the reply ended."""
        self.made.append(token)
        ended = token in self._ends
        stopped = self._append(self._decoder.finish() if ended else self._decoder.push(token))
        full = not ended and not stopped and len(self.made) == self._most
        if full:
            self._append(self._decoder.finish())
        reason: FinishReason | None = "stop" if ended or stopped else "length" if full else None
        held = 0 if reason else max((_overlap(self.text, stop) for stop in self._stop), default=0)
        return self._give(len(self.text) - held), reason

    def _append(self, fresh: str) -> bool:
        """Add text up to the first stop string; return whether there is one."""
        text = self.text + fresh
        found = [index for index in (text.find(stop) for stop in self._stop) if index >= 0]
        self.text = text[: min(found)] if found else text
        return bool(found)

    def _give(self, until: int) -> str:
        piece = self.text[self._given : until]
        self._given = max(self._given, until)
        return piece


class ReplyWriter:
    """Writes a reply: takes its tokens as they are made, and gives its pieces.

    Args:
        text: of the reply.
        prefill: the linked prompt.
        began: `time.perf_counter` at the caller's call, for the time to first token.

    Attributes:
        usage: what the reply has cost so far.
        found: requests for retrieval that were answered so far.
    """

    def __init__(self, text: ReplyText, prefill: Prefill, began: float) -> None:
        self.usage: Usage = prefill.usage
        self.found: tuple[AnsweredRequest, ...] = ()
        self._text, self._plan, self._remark, self.began = text, prefill.plan, prefill.remark, began

    def push(self, token: int) -> Piece:
        """Take a token and return a piece, perhaps empty; the last holds the reply."""
        text = self._text
        if not text.made:
            self.usage = replace(self.usage, ttft_seconds=perf_counter() - self.began)
        fresh, reason = text.push(token)
        if reason is None:
            return Piece(fresh)
        usage = replace(self.usage, completion_tokens=len(text.made))
        remark = text.remark(self._remark)
        return Piece(fresh, Reply(text.text, text.token_ids, reason, usage, self.found, self._plan, remark))

    def pieces(self, tokens: Iterator[int]) -> Iterator[Piece]:
        """Make the first token, and return a piece for every token."""
        first = self.push(next(tokens))
        return self._after(first, tokens)

    def _after(self, piece: Piece, tokens: Iterator[int]) -> Iterator[Piece]:
        yield piece
        while piece.reply is None:
            piece = self.push(next(tokens))
            yield piece


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
