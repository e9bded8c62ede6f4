"""What a placement is made of: chunks with sizes and worth, what is held of them, limits, prices, and the outcome."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from emblema.errors import CapacityError, PlanError
from emblema.store.keys import ArtifactKind, PatchKey

Lane = Literal["leading", "patch", "orbit", "settled", "fresh"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that may stand in the window.

    Attributes:
        worth: what leaving it out costs, in the unit of the prices; without an end it has to stand there.
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
class Held:
    """What saves computing a chunk.

    Attributes:
        patches: the ordered antecedents behind which a chunk has a stored patch, by chunk.
        orbits: the sets of antecedents behind which it has an orbit patch.
        settled: of a chunk that stands in the window, the chunks that its rows absorbed when they were written. They
            serve behind any of those (a survivor is only relocated), not behind others.
        canonical: chunks whose canonical rows are there, so that they cost nothing to lead; None says that all have.
    """

    patches: Mapping[str, frozenset[tuple[str, ...]]] = field(default_factory=dict)
    orbits: Mapping[str, frozenset[frozenset[str]]] = field(default_factory=dict)
    settled: Mapping[str, frozenset[str]] = field(default_factory=dict)
    canonical: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        keys: Iterable[PatchKey],
        settled: Mapping[str, Iterable[str]] | None = None,
        canonical: Iterable[str] | None = None,
    ) -> "Held":
        """What stored keys say; pieces that are no patches are passed over."""
        patches: dict[str, set[tuple[str, ...]]] = {}
        orbits: dict[str, set[frozenset[str]]] = {}
        for key in keys:
            if key.orbit and key.held_out is None:
                orbits.setdefault(key.chunk, set()).add(frozenset(key.antecedents))
            elif key.kind is ArtifactKind.PATCH:
                patches.setdefault(key.chunk, set()).add(key.antecedents)
        return cls(
            {chunk: frozenset(every) for chunk, every in patches.items()},
            {chunk: frozenset(every) for chunk, every in orbits.items()},
            {chunk: frozenset(before) for chunk, before in (settled or {}).items()},
            None if canonical is None else frozenset(canonical),
        )

    def lanes(self, chunk: str, before: Sequence[str]) -> tuple[Lane, ...]:
        """The ways to have a chunk behind others; `fresh`, computing it there, always is one."""
        found: list[Lane] = []
        if not before and self.leads(chunk):
            found.append("leading")
        if chunk in self.settled and self.settled[chunk].issuperset(before):
            found.append("settled")
        if tuple(before) in self.patches.get(chunk, ()):
            found.append("patch")
        if frozenset(before) in self.orbits.get(chunk, ()):
            found.append("orbit")
        return (*found, "fresh")

    def leads(self, chunk: str) -> bool:
        """Whether a chunk's canonical rows are there to stand at the front."""
        return self.canonical is None or chunk in self.canonical


Price = Callable[[Candidate, Lane], float]
"""What a chunk costs in a lane; finite and not below zero."""


def rows_to_compute(candidate: Candidate, lane: Lane) -> float:
    """The price in rows: a chunk that is computed costs its tokens, all else nothing."""
    return float(candidate.tokens) if lane == "fresh" else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the chunks of a window may take together; None is no limit."""

    bytes: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("bytes", self.bytes), ("tokens", self.tokens)):
            if limit is not None and limit < 0:
                raise PlanError(f"a limit of {limit} {name}: give 0 or more, or None for no limit")

    def hold(self, tokens: int, size: int) -> bool:
        """Whether so many tokens and bytes fit."""
        return (self.tokens is None or tokens <= self.tokens) and (self.bytes is None or size <= self.bytes)


@dataclass(frozen=True, slots=True)
class Placement:
    """A window: who stands in it, in which order, and how each is had.

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
        """What is made least."""
        return self.cost + self.loss


@dataclass(frozen=True, slots=True)
class Task:
    """A placement to be found, checked: see `place`."""

    candidates: tuple[Candidate, ...]
    held: Held
    limits: Limits
    price: Price
    front: tuple[Candidate, ...]

    def __post_init__(self) -> None:
        every = [one.id for one in (*self.front, *self.candidates)]
        if len(set(every)) < len(every):
            twice = next(one for one in every if every.count(one) > 1)
            raise PlanError(f"chunk {twice[:12]} is given twice: give every chunk of the window once")
        needed = [*self.front, *(one for one in self.candidates if one.required)]
        if not self.fits(needed):
            raise CapacityError(
                f"the {len(needed)} chunks that have to stand in the window take {sum(one.bytes for one in needed)} "
                f"bytes and {sum(one.tokens for one in needed)} tokens, more than {self.limits}: ask for fewer, or "
                "raise the budget"
            )

    def fits(self, chunks: Iterable[Candidate]) -> bool:
        """Whether chunks fit together."""
        every = list(chunks)
        return self.limits.hold(sum(one.tokens for one in every), sum(one.bytes for one in every))

    def way(self, candidate: Candidate, before: Sequence[str]) -> tuple[float, Lane]:
        """The cheapest lane of a chunk behind others, and its price.

        Raises:
            PlanError: the price is below zero, or not finite.
        """
        return min(((self.priced(candidate, lane), lane) for lane in self.held.lanes(candidate.id, before)), key=_first)

    def priced(self, candidate: Candidate, lane: Lane) -> float:
        """A lane's price, checked."""
        price = self.price(candidate, lane)
        if not 0 <= price < inf:
            raise PlanError(f"chunk {candidate.id[:12]} costs {price} as {lane}: prices are finite and not below zero")
        return price

    def least(self, candidate: Candidate) -> float:
        """A bound: what a candidate costs at best, wherever it stands."""
        names = {one.id for one in (*self.front, *self.candidates)}
        lanes: list[Lane] = ["fresh"]
        if not self.front and self.held.leads(candidate.id):
            lanes.append("leading")
        if candidate.id in self.held.settled:
            lanes.append("settled")
        if any(names.issuperset(before) for before in self.held.patches.get(candidate.id, ())):
            lanes.append("patch")
        if any(names.issuperset(before) for before in self.held.orbits.get(candidate.id, ())):
            lanes.append("orbit")
        return min(candidate.worth, *(self.priced(candidate, lane) for lane in lanes))

    def placed(self, order: Sequence[Candidate], exact: bool = False) -> Placement:
        """What an order of chunks, those in front included, comes to."""
        names = [one.id for one in order]
        ways = [self.way(one, names[:place]) for place, one in enumerate(order)]
        left = [one for one in self.candidates if one.id not in set(names)]
        return Placement(
            tuple(names),
            tuple(lane for _, lane in ways),
            tuple(one.id for one in left),
            sum(cost for cost, _ in ways),
            sum(one.worth for one in left),
            exact,
        )


def _first(way: tuple[float, Lane]) -> float:
    return way[0]
