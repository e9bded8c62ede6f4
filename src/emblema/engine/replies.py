"""What the engine hands back: a prefill, a reply, and the pieces of a streamed one."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from torch import Tensor

from emblema.kv.layout import KVRows
from emblema.link.executor import Linked
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
    linked: Linked = field(repr=False)

    @property
    def logits(self) -> Tensor:
        """Logits of the last position, [vocab] float32."""
        return self.linked.logits

    @property
    def kv(self) -> KVRows:
        """Per layer, the rows of the linked prompt in the family's own layout (absent rows left out), as views."""
        table = self.linked.table
        rows = self.trace.computed + self.trace.cached - sum(stop - start for start, stop in self.plan.leaving)
        return tuple(table.read(layer, 0, rows) for layer in range(self.plan.layers))

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
    """A finished answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
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

    def push(self, token: int) -> str:
        """Take a token and return the text that is now certain."""
        self.token_ids.append(token)
        text = self.tokenizer.decode(self.token_ids, skip_special_tokens=True)
        found = [index for index in (text.find(one) for one in self.stop) if index >= 0]
        if found:
            self.text, self.stopped = text[: min(found)], True
            return self._give(len(self.text))
        self.text = text
        held = max((_overlap(text, one) for one in self.stop), default=0)
        if text.endswith("\ufffd"):
            return ""
        return self._give(len(text) - held)

    def finish(self) -> str:
        """The text held back, at the end."""
        return self._give(len(self.text))

    def _give(self, until: int) -> str:
        piece = self.text[self._given : until]
        self._given = max(self._given, until)
        return piece


def _overlap(text: str, stop: str) -> int:
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)


def stream_reply(tokens: Iterator[int], stream: TextStream, prefill: Prefill, ends: frozenset[int]) -> Iterator[Piece]:
    """Pieces of text as tokens arrive; the last piece holds the reply."""
    reason: FinishReason = "length"
    count = 0
    for token in tokens:
        count += 1
        if token in ends:
            reason = "stop"
            break
        piece = stream.push(token)
        if piece:
            yield Piece(piece)
        if stream.stopped:
            reason = "stop"
            break
    rest = stream.finish()
    usage = replace(prefill.usage, completion_tokens=count)
    yield Piece(rest, Reply(stream.text, tuple(stream.token_ids), reason, usage, prefill.plan))
