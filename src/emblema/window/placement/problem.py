"""A placement problem: candidates with sizes and worth, the rows that are available, limits, prices; and its solution.

A *lane* says where the rows of a placed chunk come from: LEADING canonical rows at the front, a stored PATCH or ORBIT
patch, SETTLED rows that the window wrote, or FRESH ones that are computed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from emblema.errors import CapacityError, PlanError
from emblema.link.policy.policy import Lane


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that may be in the window.

    Attributes:
        worth: what leaving it out costs, in the unit of the prices; infinite if it has to be there.
    """

    id: str
    tokens: int
    bytes: int
    worth: float = inf

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.bytes < 0 or not self.worth >= 0:
            raise PlanError(
                f"chunk {self.id[:12]}: {self.tokens} tokens, {self.bytes} bytes and a worth of {self.worth} are no "
                "sizes: give one token or more, and nothing below zero"
            )

    @property
    def required(self) -> bool:
        return self.worth == inf


@dataclass(frozen=True, slots=True)
class AvailableRows:
    """Rows that make computing a chunk unnecessary.

    Attributes:
        patches: by chunk, the ordered antecedents after which it has a stored patch.
        orbits: by chunk, the sets of antecedents after which it has an orbit patch.
        written: by chunk in the window, the chunks that its rows absorbed when they were written. They are valid after
            any of those (a survivor is only relocated), not after others.
        canonical: chunks whose canonical rows are there, so that they cost nothing at the front; None for all.
    """

    patches: Mapping[str, frozenset[tuple[str, ...]]] = field(default_factory=dict)
    orbits: Mapping[str, frozenset[frozenset[str]]] = field(default_factory=dict)
    written: Mapping[str, frozenset[str]] = field(default_factory=dict)
    canonical: frozenset[str] | None = None

    def lanes(self, chunk: str, before: Sequence[str]) -> tuple[Lane, ...]:
        """Return the lanes of a chunk after others; FRESH always is one."""
        found: list[Lane] = []
        if not before and self.can_lead(chunk):
            found.append(Lane.LEADING)
        if chunk in self.written and self.written[chunk].issuperset(before):
            found.append(Lane.SETTLED)
        if tuple(before) in self.patches.get(chunk, ()):
            found.append(Lane.PATCH)
        if frozenset(before) in self.orbits.get(chunk, ()):
            found.append(Lane.ORBIT)
        return (*found, Lane.FRESH)

    def can_lead(self, chunk: str) -> bool:
        """Return whether a chunk's canonical rows are there."""
        return self.canonical is None or chunk in self.canonical


Price = Callable[[Candidate, Lane], float]
"""What a chunk costs in a lane; finite and not below zero."""


def price_in_rows(candidate: Candidate, lane: Lane) -> float:
    """Return the rows to compute: a fresh chunk costs its tokens, any other nothing."""
    return float(candidate.tokens) if lane is Lane.FRESH else 0.0


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """What the chunks of a window may take together; None is no limit."""

    bytes: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("bytes", self.bytes), ("tokens", self.tokens)):
            if limit is not None and limit < 0:
                raise PlanError(f"a limit of {limit} {name}: give 0 or more, or None for no limit")

    def allow(self, tokens: int, size: int) -> bool:
        """Return whether so many tokens and bytes fit."""
        return (self.tokens is None or tokens <= self.tokens) and (self.bytes is None or size <= self.bytes)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which chunks are in a window, in which order, and where the rows of each come from.

    Attributes:
        order: ids in order.
        lanes: the cheapest lane of each.
        left: ids that were left out.
        cost: prices of the lanes, summed.
        loss: worth of what was left out, summed.
        exact: whether no other placement has a lower total; otherwise it is the best that was found.
    """

    order: tuple[str, ...]
    lanes: tuple[Lane, ...]
    left: tuple[str, ...]
    cost: float
    loss: float
    exact: bool

    @property
    def total(self) -> float:
        """The quantity that is minimized."""
        return self.cost + self.loss


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """The problem of `solve_placement`, checked.

    Raises:
        CapacityError: the chunks that have to be in the window do not fit.
        PlanError: a chunk is given twice.
    """

    candidates: tuple[Candidate, ...]
    rows: AvailableRows
    limits: PlacementLimits
    price: Price
    front: tuple[Candidate, ...]

    def __post_init__(self) -> None:
        ids = [chunk.id for chunk in (*self.front, *self.candidates)]
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise PlanError(f"chunk {twice[:12]} is given twice: give every chunk of the window once")
        required = [*self.front, *self.required]
        if not self.fits(required):
            raise CapacityError(
                f"the {len(required)} chunks that have to be in the window take {sum(c.bytes for c in required)} "
                f"bytes and {sum(c.tokens for c in required)} tokens, more than {self.limits}: ask for fewer, or "
                "raise the budget"
            )

    @property
    def required(self) -> list[Candidate]:
        return [chunk for chunk in self.candidates if chunk.required]

    @property
    def optional(self) -> list[Candidate]:
        return [chunk for chunk in self.candidates if not chunk.required]

    def fits(self, chunks: Iterable[Candidate]) -> bool:
        """Return whether chunks fit together."""
        chunks = list(chunks)
        return self.limits.allow(sum(chunk.tokens for chunk in chunks), sum(chunk.bytes for chunk in chunks))

    def cheapest(self, candidate: Candidate, before: Sequence[str]) -> tuple[float, Lane]:
        """Return the price and lane of a chunk after others.

        Raises:
            PlanError: the price is below zero, or not finite.
        """
        lanes = self.rows.lanes(candidate.id, before)
        return min(((self.lane_price(candidate, lane), lane) for lane in lanes), key=lambda found: found[0])

    def lane_price(self, candidate: Candidate, lane: Lane) -> float:
        """Return a lane's price, checked."""
        price = self.price(candidate, lane)
        if not 0 <= price < inf:
            raise PlanError(f"chunk {candidate.id[:12]} costs {price} as {lane}: prices are finite and not below zero")
        return price

    def least_price(self, candidate: Candidate) -> float:
        """Return a lower bound: what a candidate costs at best, wherever it is, or its worth."""
        names = {chunk.id for chunk in (*self.front, *self.candidates)}
        lanes = [Lane.FRESH]
        if not self.front and self.rows.can_lead(candidate.id):
            lanes.append(Lane.LEADING)
        if candidate.id in self.rows.written:
            lanes.append(Lane.SETTLED)
        if any(names.issuperset(before) for before in self.rows.patches.get(candidate.id, ())):
            lanes.append(Lane.PATCH)
        if any(names.issuperset(before) for before in self.rows.orbits.get(candidate.id, ())):
            lanes.append(Lane.ORBIT)
        return min(candidate.worth, *(self.lane_price(candidate, lane) for lane in lanes))

    def placement(self, order: Sequence[Candidate], exact: bool = False) -> Placement:
        """Return the placement of an order of chunks, those at the front included."""
        names = [chunk.id for chunk in order]
        found = [self.cheapest(chunk, names[:place]) for place, chunk in enumerate(order)]
        left = [chunk for chunk in self.candidates if chunk.id not in set(names)]
        return Placement(
            tuple(names),
            tuple(lane for _, lane in found),
            tuple(chunk.id for chunk in left),
            sum(cost for cost, _ in found),
            sum(chunk.worth for chunk in left),
            exact,
        )
