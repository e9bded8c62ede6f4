"""Which chunks to admit to a window, and in which order, so that what is stored stays valid. Pure data, no model.

Kamera (appendix E) leaves it open: over a set of chunks the order is free, and a chunk after antecedents that it was
conditioned on before costs nothing to compute.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from emblema.errors import CapacityError, PlanError
from emblema.link.lanes import Lane
from emblema.window.budget import WindowBudget, is_within

BEAM_WIDTH = 8
"""Orders that the beam follows at a time."""


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
        if not self.worth >= 0:
            raise PlanError(f"part {self.id} is worth {self.worth}: give a number that is not below zero")


Order = tuple[Candidate, ...]


class Prices(Protocol):
    """What chunks cost after others."""

    def cheapest(self, id: str, before: tuple[str, ...]) -> tuple[float, Lane]:
        """Return a chunk's price right after others, not below zero, and where its rows come from."""

    def least(self, id: str, before: tuple[str, ...]) -> float:
        """Return what a chunk may cost once more has come between."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which chunks are in a window, in which order, and where the rows of each come from.

    Attributes:
        order: ids in order.
        lanes: the cheapest of each: LEADING canonical rows at the front, a stored PATCH, SETTLED rows that the window
            wrote, or FRESH ones that are computed.
        left: ids that were left out.
        cost: prices of the lanes, summed.
        loss: worth of what was left out, summed.
    """

    order: tuple[str, ...]
    lanes: tuple[Lane, ...]
    left: tuple[str, ...]
    cost: float
    loss: float

    @property
    def total(self) -> float:
        """The quantity that is minimized."""
        return self.cost + self.loss


def solve_placement(candidates: Sequence[Candidate], prices: Prices, budget: WindowBudget) -> Placement:
    """Choose a window's chunks and their order so that prices plus the worth of the chunks left out are least.

    The best order that a beam search comes to, and of the orders as given. Among equals the order given is kept.

    Args:
        candidates: chunks that may be there, each once; those of infinite worth must.
        prices: of chunks after others.
        budget: what they may take together.

    Raises:
        CapacityError: the chunks that have to be there do not fit.
    """
    required = [chunk for chunk in candidates if chunk.worth == inf]
    if not _fit(budget, required):
        tokens, size = _size(required)
        raise CapacityError(
            f"the {len(required)} parts that have to be in the window take {size} bytes and {tokens} tokens, more than "
            f"the {budget.bytes} bytes and {budget.tokens} tokens that are left: ask for fewer, or raise the budget"
        )
    orders = (*_given(candidates, budget), *_grown(candidates, prices, budget))
    return min((placement_of(order, candidates, prices) for order in orders), key=lambda found: found.total)


def placement_of(order: Sequence[Candidate], candidates: Sequence[Candidate], prices: Prices) -> Placement:
    """Return the placement of an order of some of the candidates."""
    names = tuple(chunk.id for chunk in order)
    found = [prices.cheapest(name, names[:place]) for place, name in enumerate(names)]
    left = [chunk for chunk in candidates if chunk.id not in names]
    lanes = tuple(lane for _, lane in found)
    cost, loss = sum(price for price, _ in found), sum(chunk.worth for chunk in left)
    return Placement(names, lanes, tuple(chunk.id for chunk in left), cost, loss)


def _size(chunks: Iterable[Candidate]) -> tuple[int, int]:
    chunks = list(chunks)
    return sum(chunk.tokens for chunk in chunks), sum(chunk.bytes for chunk in chunks)


def _fit(budget: WindowBudget, chunks: Iterable[Candidate]) -> bool:
    return is_within(budget, *_size(chunks))


def _given(candidates: Sequence[Candidate], budget: WindowBudget) -> Iterator[Order]:
    """Yield orders as given: the required chunks, and of the others those that come first, or are worth the most."""
    for rank in (lambda chunk: 0, lambda chunk: -chunk.worth / max(1, chunk.bytes), lambda chunk: -chunk.worth):
        held = [chunk for chunk in candidates if chunk.worth == inf]
        for chunk in sorted(candidates, key=rank):
            if 0 < chunk.worth < inf and _fit(budget, [*held, chunk]):
                held.append(chunk)
        yield tuple(chunk for chunk in candidates if chunk in held)


def _grown(candidates: Sequence[Candidate], prices: Prices, budget: WindowBudget) -> Iterator[Order]:
    """Grow orders by a chunk at a time, following those that could still come to the least; yield complete ones."""
    beam: list[tuple[float, Order]] = [(0.0, ())]
    while beam:
        # By the set of chunks, the order of the least bound: bound, cost, order.
        grown: dict[frozenset[str], tuple[float, float, Order]] = {}
        for cost, order in beam:
            before = tuple(chunk.id for chunk in order)
            rest = [chunk for chunk in candidates if chunk.id not in before]
            missing = [chunk for chunk in rest if chunk.worth == inf]
            if not missing:
                yield order
            for chunk in rest:
                others = [other for other in rest if other is not chunk]
                if not _fit(budget, (*order, chunk, *(other for other in missing if other is not chunk))):
                    continue
                after, longer = (*before, chunk.id), cost + prices.cheapest(chunk.id, before)[0]
                bound = longer + sum(min(other.worth, prices.least(other.id, after)) for other in others)
                names = frozenset(after)
                if names not in grown or bound < grown[names][0]:
                    grown[names] = (bound, longer, (*order, chunk))
        best = sorted(grown.values(), key=lambda state: state[0])[:BEAM_WIDTH]
        beam = [(cost, order) for _, cost, order in best]
