"""How much a window may hold, and who leaves when more comes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from emblema.errors import CapacityError, WindowError
from emblema.window.parts import Part
from emblema.window.state import State

Over = Literal["slide", "refuse"]


@dataclass(frozen=True, slots=True)
class WindowBudget:
    """Bounds of a window; None is no bound.

    Attributes:
        tokens: rows, the template's opening among them; a question comes on top.
        bytes: bytes of rows, those to come counted, of what repairs add to them, and of kept embeddings.
        over: whether the oldest parts that are not pinned leave for a new one, or it is refused.
        recall_bytes: bytes of embeddings kept of parts that have left; beyond it the longest gone cannot be recalled.
    """

    tokens: int | None = None
    bytes: int | None = None
    over: Over = "slide"
    recall_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "bytes", "recall_bytes"):
            bound = getattr(self, name)
            if bound is not None and (type(bound) is not int or bound < 0):
                raise WindowError(f"the window's budget of {name} is {bound!r}: give a whole number, or None")
        if self.over not in get_args(Over):
            raise WindowError(f"over is {self.over!r}: a window over its budget can slide or refuse")

    def leavers(self, state: State, coming: Part | None, row_bytes: int) -> tuple[Part, ...]:
        """The oldest parts that have to leave so that a new one fits.

        Raises:
            CapacityError: it does not fit beside what stays.
        """
        tokens, size = weight(state.all, row_bytes)
        extra_tokens, extra_bytes = (0, 0) if coming is None else weight([coming], row_bytes)
        leaving: list[Part] = []
        free = iter([part for part in state.parts if not part.pinned])
        while not self._holds(tokens + extra_tokens, size + extra_bytes):
            oldest = next(free, None) if self.over == "slide" else None
            if oldest is None:
                raise CapacityError(
                    f"a part of {extra_tokens} tokens and {extra_bytes} bytes does not fit into the window beside "
                    f"{tokens} tokens and {size} bytes that stay; its budget is {self._told()}"
                )
            gone_tokens, gone_bytes = weight([oldest], row_bytes)
            tokens, size = tokens - gone_tokens, size - gone_bytes
            leaving.append(oldest)
        return tuple(leaving)

    def within(self, other: "WindowBudget") -> "WindowBudget":
        """The tighter of both in rows and bytes."""
        return replace(self, tokens=_least(self.tokens, other.tokens), bytes=_least(self.bytes, other.bytes))

    def holds(self, state: State, row_bytes: int) -> bool:
        """Whether a state keeps within the bounds."""
        return self._holds(*weight(state.all, row_bytes))

    def expired(self, departed: Sequence[Part]) -> int:
        """How many of the parts that have left, from the longest gone, cannot be kept."""
        size = sum(part.embedding_bytes for part in departed)
        count = 0
        while self.recall_bytes is not None and size > self.recall_bytes:
            size -= departed[count].embedding_bytes
            count += 1
        return count

    def _holds(self, tokens: int, size: int) -> bool:
        return (self.tokens is None or tokens <= self.tokens) and (self.bytes is None or size <= self.bytes)

    def _told(self) -> str:
        bounds = [f"{bound} {name}" for name, bound in (("tokens", self.tokens), ("bytes", self.bytes)) if bound]
        return " and ".join(bounds) or "nothing"


def _least(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def weight(parts: Sequence[Part], row_bytes: int) -> tuple[int, int]:
    """Tokens of parts, and their bytes once their rows are written."""
    tokens = sum(part.tokens for part in parts)
    repairs = sum(part.written.repair_bytes for part in parts if part.written is not None)
    return tokens, tokens * row_bytes + repairs + sum(part.embedding_bytes for part in parts)
