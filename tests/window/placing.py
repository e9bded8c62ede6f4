"""Prices of a placement problem in plain data, as stored patches and written rows give them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from emblema.link.lanes import Lane


@dataclass(frozen=True)
class PlainPrices:
    """Prices by lane; FRESH costs a chunk's tokens.

    Attributes:
        tokens: by chunk.
        patches: by chunk, the orders after which it has a stored patch.
        written: by chunk with rows, the chunks after any of which they are valid.
        canonical: chunks that may lead.
        other: price of every lane but FRESH.
    """

    tokens: Mapping[str, int]
    patches: Mapping[str, set[tuple[str, ...]]] = field(default_factory=dict)
    written: Mapping[str, set[str]] = field(default_factory=dict)
    canonical: frozenset[str] = frozenset()
    other: Mapping[Lane, float] = field(default_factory=dict)

    def cheapest(self, id: str, before: tuple[str, ...]) -> tuple[float, Lane]:
        lanes = [Lane.LEADING] if not before and id in self.canonical else []
        lanes += [Lane.SETTLED] if id in self.written and self.written[id].issuperset(before) else []
        lanes += [Lane.PATCH] if before in self.patches.get(id, ()) else []
        return min(((self.price(id, lane), lane) for lane in (*lanes, Lane.FRESH)), key=lambda found: found[0])

    def least(self, id: str, before: tuple[str, ...]) -> float:
        found = [self.price(id, Lane.FRESH)]
        if id in self.written and self.written[id].issuperset(before):
            found.append(self.price(id, Lane.SETTLED))
        if any(order[: len(before)] == before for order in self.patches.get(id, ())):
            found.append(self.price(id, Lane.PATCH))
        return min(found)

    def price(self, id: str, lane: Lane) -> float:
        return float(self.tokens[id]) if lane is Lane.FRESH else self.other.get(lane, 0.0)
