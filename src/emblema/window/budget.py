"""How much a window may hold, and which parts leave when more comes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from emblema.errors import CapacityError, WindowError
from emblema.window.parts import WindowPart
from emblema.window.state import WindowState

OverBudget = Literal["slide", "refuse"]


@dataclass(frozen=True, slots=True)
class WindowBudget:
    """Bounds of a window; None is no bound.

    Attributes:
        tokens: rows, the template's opening included, those of questions not.
        bytes: bytes of rows, those to come counted, of their repairs, and of kept embeddings.
        over: whether the oldest parts that are not pinned leave for a new one, or it is refused.
        recall_bytes: bytes of embeddings kept of parts that have left; beyond it the longest gone cannot be recalled.
    """

    tokens: int | None = None
    bytes: int | None = None
    over: OverBudget = "slide"
    recall_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "bytes", "recall_bytes"):
            bound = getattr(self, name)
            if bound is not None and (type(bound) is not int or bound < 0):
                raise WindowError(f"the window's budget of {name} is {bound!r}: give a whole number, or None")
        if self.over not in get_args(OverBudget):
            raise WindowError(f"over is {self.over!r}: a window over its budget can slide or refuse")

    def choose_leaving(self, state: WindowState, coming: WindowPart | None, row_bytes: int) -> tuple[WindowPart, ...]:
        """Return the oldest parts that have to leave so that a new one fits.

        Raises:
            CapacityError: it does not fit beside what stays.
        """
        tokens, size = weigh(state.all_parts, row_bytes)
        extra_tokens, extra_bytes = (0, 0) if coming is None else weigh([coming], row_bytes)
        leaving: list[WindowPart] = []
        free = iter([part for part in state.parts if not part.pinned])
        while not is_within(self, tokens + extra_tokens, size + extra_bytes):
            oldest = next(free, None) if self.over == "slide" else None
            if oldest is None:
                bounds = [
                    f"{bound} {name}" for name, bound in (("tokens", self.tokens), ("bytes", self.bytes)) if bound
                ]
                raise CapacityError(
                    f"a part of {extra_tokens} tokens and {extra_bytes} bytes does not fit into the window beside "
                    f"{tokens} tokens and {size} bytes that stay; its budget is {' and '.join(bounds) or 'nothing'}"
                )
            freed_tokens, freed_bytes = weigh([oldest], row_bytes)
            tokens, size = tokens - freed_tokens, size - freed_bytes
            leaving.append(oldest)
        return tuple(leaving)

    def tighten(self, other: "WindowBudget") -> "WindowBudget":
        """Return the tighter bounds of both in rows and bytes."""
        return replace(self, tokens=_least(self.tokens, other.tokens), bytes=_least(self.bytes, other.bytes))

    def holds(self, state: WindowState, row_bytes: int) -> bool:
        """Return whether a state is within the bounds."""
        return is_within(self, *weigh(state.all_parts, row_bytes))

    def recallable(self, evicted: Sequence[WindowPart]) -> tuple[WindowPart, ...]:
        """Return the parts that have left and can be kept: all but the longest gone that exceed `recall_bytes`."""
        size, first = sum(part.embedding_bytes for part in evicted), 0
        while self.recall_bytes is not None and size > self.recall_bytes:
            size -= evicted[first].embedding_bytes
            first += 1
        return tuple(evicted[first:])


def insert_part(
    budget: WindowBudget, state: WindowState, part: WindowPart, at: int, row_bytes: int
) -> tuple[WindowState, tuple[WindowPart, ...]]:
    """Return the state with a part before the place `at`, and the parts that left for it.

    Raises:
        CapacityError: it does not fit beside what stays.
    """
    leaving = budget.choose_leaving(state, part, row_bytes)
    at -= sum(other in leaving for other in state.parts[:at])
    evicted = tuple(other for other in state.evicted if other.handle != part.handle)
    left = evict_parts(budget, replace(state, evicted=evicted), leaving)
    return replace(left, parts=(*left.parts[:at], part, *left.parts[at:])), leaving


def evict_parts(budget: WindowBudget, state: WindowState, leaving: Sequence[WindowPart]) -> WindowState:
    """Return the state with parts evicted, and without those that can be kept for recall no more."""
    left = state.evict(leaving)
    return replace(left, evicted=budget.recallable(left.evicted))


def is_within(budget: WindowBudget, tokens: int, size: int) -> bool:
    """Return whether so many rows and bytes fit into a budget."""
    return (budget.tokens is None or tokens <= budget.tokens) and (budget.bytes is None or size <= budget.bytes)


def weigh(parts: Sequence[WindowPart], row_bytes: int) -> tuple[int, int]:
    """Return tokens of parts, and their bytes once their rows are written."""
    tokens = sum(part.tokens for part in parts)
    repairs = sum(part.rows.repair_bytes for part in parts if part.rows is not None)
    return tokens, tokens * row_bytes + repairs + sum(part.embedding_bytes for part in parts)


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
