"""What moves as one when a window is arranged, and what it costs."""

from collections.abc import Iterable
from dataclasses import dataclass

from emblema.link.policy.costs import MEGABYTE, Rates
from emblema.window.parts import Part
from emblema.window.placement import Candidate, Lane
from emblema.window.state import State

PATCH_SHARE = 0.25
"""What a stored patch weighs of its rows, where prices count its bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A part of media, behind the texts right before it: they move together, and are named by the part's number."""

    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        return str(self.parts[-1].number)

    @property
    def sources(self) -> tuple[str, ...]:
        return self.parts[-1].sources

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def text(self) -> int:
        """Tokens of text."""
        return self.tokens - sum(one.tokens for one in self.parts[-1].members if one.chunk is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A window cut into what moves and what stays.

    Attributes:
        front: pinned parts at its front.
        units: what moves, in order.
        tail: texts behind all media.
    """

    front: tuple[Part, ...]
    units: tuple[Unit, ...]
    tail: tuple[Part, ...]

    @classmethod
    def of(cls, state: State) -> "Layout":
        """The layout of a window."""
        parts = list(state.parts)
        front = next((place for place, part in enumerate(parts) if not part.pinned), len(parts))
        units: list[Unit] = []
        texts: list[Part] = []
        for part in parts[front:]:
            texts.append(part)
            if part.sources:
                units.append(Unit(tuple(texts)))
                texts = []
        return cls(tuple(parts[:front]), tuple(units), tuple(texts))

    @property
    def fixed(self) -> tuple[Unit, ...]:
        """Those at the front that patches and rows are formed behind."""
        return tuple(Unit((part,)) for part in self.front if part.sources)


@dataclass(frozen=True, slots=True)
class Prices:
    """What a unit costs: seconds, where rows were measured to cost some on this machine, else rows computed."""

    units: dict[str, Unit]
    rates: Rates | None
    row_bytes: int

    @classmethod
    def of(cls, units: Iterable[Unit], rates: Rates | None, row_bytes: int) -> "Prices":
        """Prices by rates that say that computing a row is dearer than taking one; by rows without such."""
        usable = rates is not None and rates.computed > max(0.0, rates.taken)
        return cls({unit.name: unit for unit in units}, rates if usable else None, row_bytes)

    def computed(self, rows: float) -> float:
        """The price of rows that are computed."""
        return rows if self.rates is None else rows * self.rates.computed

    def __call__(self, candidate: Candidate, lane: Lane) -> float:
        unit = self.units[candidate.id]
        if lane == "fresh":
            return self.computed(unit.tokens)
        text = 0 if lane == "settled" else unit.text
        if self.rates is None:
            return self.computed(text)
        taken = max(0.0, self.rates.taken) * (unit.tokens - text)
        patched = lane in ("patch", "orbit")
        read = PATCH_SHARE * self.row_bytes * (unit.tokens - text) / MEGABYTE if patched else 0.0
        return self.computed(text) + taken + max(0.0, self.rates.megabyte) * read
