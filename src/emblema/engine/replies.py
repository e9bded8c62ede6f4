"""What the engine hands back: a prefill, a reply, and the pieces of a streamed one."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self

from torch import Tensor

from emblema.engine.retrieval import Answered
from emblema.errors import PromptError
from emblema.kv.layout import KVRows
from emblema.link.executor import LinkedTable
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.link.trace import Trace, Usage

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Prefill:
    """A linked prompt, ready to decode from.

    Attributes:
        prompt: the prompt as rows.
        plan: the plan that was carried out.
        usage: what it cost.
        linked: the executor's outcome; decoding appends to its table.
    """

    prompt: Prompt
    plan: LinkPlan
    usage: Usage
    linked: LinkedTable = field(repr=False)

    @property
    def logits(self) -> Tensor:
        """Logits of the last position, [vocab] float32."""
        return self.linked.logits

    @property
    def kv(self) -> KVRows:
        """Per layer, the rows of the linked prompt in the family's own layout (absent rows left out), as views."""
        return tuple(self.linked.table.read(layer, 0, self.linked.rows) for layer in range(self.plan.layers))

    @property
    def token_ids(self) -> Tensor:
        """The final sequence, [tokens] int64."""
        return self.prompt.token_ids

    @property
    def trace(self) -> Trace:
        """What really ran."""
        return self.linked.trace


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
    found: tuple[Answered, ...]
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


class TextStream:
    """Turns tokens into text pieces: waits for whole characters and holds back what may become a stop string."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.token_ids: list[int] = []
        self.text = ""
        self.stopped = False
        self._given = 0
        # Tokens before `_settled` have given their text; those from `_context` on are read again, for spaces.
        self._context = self._settled = 0

    def push(self, token: int) -> str:
        """Take a token and return the text that is now certain."""
        self.token_ids.append(token)
        fresh = self._fresh()
        if fresh.endswith("\ufffd"):
            return ""
        self._settle(fresh)
        held = 0 if self.stopped else max((_overlap(self.text, one) for one in self.stop), default=0)
        return self._give(len(self.text) - held)

    def finish(self) -> str:
        """The text held back, at the end."""
        if not self.stopped:
            self._settle(self._fresh())
        return self._give(len(self.text))

    def _fresh(self) -> str:
        """What the tokens that are not settled add, read behind the last settled ones."""
        before = self.tokenizer.decode(self.token_ids[self._context : self._settled], skip_special_tokens=True)
        return self.tokenizer.decode(self.token_ids[self._context :], skip_special_tokens=True)[len(before) :]

    def _settle(self, fresh: str) -> None:
        if fresh:
            # A token without text leaves the context as it is: what comes next is read behind the last text.
            self._context, self._settled = self._settled, len(self.token_ids)
        text = self.text + fresh
        found = [index for index in (text.find(one) for one in self.stop) if index >= 0]
        self.text = text[: min(found)] if found else text
        self.stopped = bool(found)

    def _give(self, until: int) -> str:
        piece = self.text[self._given : until]
        self._given = max(self._given, until)
        return piece


def last_of(pieces: Iterator[Piece]) -> Reply:
    """The reply at the end of a stream."""
    reply = None
    for piece in pieces:
        reply = piece.reply or reply
    if reply is None:
        raise PromptError("the stream ended without a reply")
    return reply


def _overlap(text: str, stop: str) -> int:
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)


class ReplySource(Protocol):
    """What a reply is told from when its tokens are all made."""

    plan: LinkPlan
    usage: Usage
    found: tuple[Answered, ...]


def said_of(
    tokens: Iterator[int], stream: TextStream, ends: frozenset[int], said: list[int]
) -> Iterator[tuple[str, FinishReason | None]]:
    """The text of every token, perhaps empty, and None; at last what was held back, and why it ended.

    Args:
        said: takes the tokens, the one that ended it included.
    """
    reason: FinishReason = "length"
    for token in tokens:
        said.append(token)
        if token in ends:
            reason = "stop"
            break
        yield stream.push(token), None
        if stream.stopped:
            break
    rest = stream.finish()
    yield rest, "stop" if stream.stopped else reason


def stream_reply(
    tokens: Iterator[int], stream: TextStream, source: ReplySource, ends: frozenset[int]
) -> Iterator[Piece]:
    """A piece of text for every token, perhaps empty; the last piece holds the reply."""
    said: list[int] = []
    for text, reason in said_of(tokens, stream, ends, said):
        if reason is None:
            yield Piece(text)
            continue
        usage = replace(source.usage, completion_tokens=len(said))
        yield Piece(text, Reply(stream.text, tuple(stream.token_ids), reason, usage, source.found, source.plan))
