"""Knobs from a share of the KV bytes: what each method may spend beside the canonical rows of the chunks in the window.

The chunks that count are those that are neither slid nor at row 0, together n rows of F numbers each, so a share s is
worth s n F numbers. The knob is the largest that stays within it, as `KNOBS` says for each method. Where not even the
smallest fits, the method has nothing to spend and is `blind`.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emblema.kv.layout import LayerLayout
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.basis import Basis
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.cacheblend import CacheBlend
from emblema.link.strategies.epic import Epic
from emblema.link.strategies.lowrank_keys import LowRankKeys
from emblema.link.strategies.mpic import Mpic
from emblema.link.strategies.orbit import Orbit
from emblema.link.strategies.patch import PatchStrategy
from emblema.link.strategies.reprefill_deep import ReprefillDeep
from emblema.link.strategies.reprefill_shallow import ReprefillShallow
from emblema.link.strategies.vlcache import VLCache

KNOBS: dict[str, str] = {
    "patch": "the largest rank m with m (n + w) numbers for every slot of width w",
    "patch-deep": "the same, on the deepest half of the layers",
    "orbit": "as patch",
    "basis": "the largest rank m with m n numbers for every slot: the directions are the model's, not an item's",
    "lowrank-k": "the largest rank m with m (n + w) numbers for the keys of every layer",
    "mpic": "K a chunk, s n rows in all, each a whole row of KV",
    "epic": "as mpic",
    "cacheblend": "s n rows run to the end; the rows that are only looked at in the check layers are not charged",
    "cacheblend2": "as cacheblend",
    "vlcache": "R = s, of rows times layers",
    "vlcache-uniform": "R = s, rounded to rows",
    "reprefill-deep": "as many deep layers as s holds, with the residual stream kept at the cut",
    "reprefill-shallow": "as many shallow layers as s holds",
    "oracle-deficit": "s n rows, rounded up; choosing them, and slid chunks computed for them, are not charged",
    "oracle-query": "as oracle-deficit, for every question anew",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """What a share is worth on one prompt.

    Attributes:
        tokens: rows of each chunk that counts.
        candidates: rows of all chunks behind row 0, slid ones included.
        hidden: numbers in a row of the residual stream.
    """

    share: float
    tokens: tuple[int, ...]
    candidates: int
    layouts: tuple[LayerLayout, ...]
    hidden: int

    @classmethod
    def of(cls, share: float, prompt: Prompt, layouts: Sequence[LayerLayout], hidden: int) -> "Budget":
        """The budget of a prompt."""
        behind = [(segment, chunk) for segment, chunk in prompt.chunk_segments if segment.start > 0]
        tokens = tuple(chunk.tokens for segment, chunk in behind if segment.rows not in prompt.slid_rows)
        return cls(share, tokens, sum(chunk.tokens for _, chunk in behind), tuple(layouts), hidden)

    @property
    def rows(self) -> int:
        """Whole rows of KV that it is worth."""
        return int(self.share * sum(self.tokens) + 1e-9)

    @property
    def numbers(self) -> float:
        return self.share * sum(self.tokens) * sum(layout.features for layout in self.layouts)

    @property
    def slots(self) -> list[int]:
        """Widths of all slots."""
        return [heads * width for layout in self.layouts for heads, width in (layout.keys, layout.values)]

    def largest(self, most: int, price: Callable[[int], float]) -> int:
        """The largest knob from 1 to `most` whose price in numbers is within the budget, 0 if there is none."""
        return bisect_right(range(1, most + 1), self.numbers + 1e-6, key=price)


Maker = Callable[[Budget], Strategy]


def _orbit(budget: Budget) -> Strategy:
    rank = budget.largest(max(budget.slots), lambda m: _factors(budget, budget.slots, m))
    return Orbit(rank) if rank else Blind()


def _basis(budget: Budget) -> Strategy:
    rank = budget.largest(
        max(budget.slots), lambda m: sum(min(m, n, w) * n for n in budget.tokens for w in budget.slots)
    )
    return Basis(rank) if rank else Blind()


def _lowrank(budget: Budget) -> Strategy:
    widths = [layout.keys[0] * layout.keys[1] for layout in budget.layouts]
    rank = budget.largest(max(widths), lambda m: _factors(budget, widths, m))
    return LowRankKeys(rank) if rank else Blind()


def _factors(budget: Budget, widths: Sequence[int], rank: int) -> int:
    return sum(min(rank, n, w) * (n + w) for n in budget.tokens for w in widths)


def _first(budget: Budget) -> int:
    counts = range(1, max(budget.tokens) + 1)
    return bisect_right(counts, budget.rows, key=lambda k: sum(min(k, n) for n in budget.tokens))


def _mpic(budget: Budget) -> Strategy:
    return Mpic(_first(budget)) if _first(budget) else Blind()


def _epic(budget: Budget) -> Strategy:
    return Epic(_first(budget)) if _first(budget) else Blind()


def _cacheblend(budget: Budget, two_steps: bool = False) -> Strategy:
    if not budget.rows:
        return Blind()
    # The strategy rounds its share of all candidates up, to just these rows.
    return CacheBlend(100 * (budget.rows - 0.5) / budget.candidates, two_steps)


def _deep(budget: Budget) -> Strategy:
    return _layers(budget, deepest=True)


def _shallow(budget: Budget) -> Strategy:
    return _layers(budget, deepest=False)


def _layers(budget: Budget, *, deepest: bool) -> Strategy:
    rows, count = sum(budget.tokens), len(budget.layouts)
    order = list(reversed(budget.layouts)) if deepest else list(budget.layouts)

    def price(layers: int) -> float:
        kept = budget.hidden if deepest and layers < count else 0
        return rows * (kept + sum(layout.features for layout in order[:layers]))

    # Dearer by the residual stream until nothing is cut, where it is not needed: not one rising line.
    fits = [layers for layers in range(1, count + 1) if price(layers) <= budget.numbers + 1e-6]
    if not fits:
        return Blind()
    return (ReprefillDeep if deepest else ReprefillShallow)(100 * fits[-1] / count)


MAKERS: dict[str, Maker] = {
    "patch": lambda budget: PatchStrategy(share=budget.share),
    "patch-deep": lambda budget: PatchStrategy(share=budget.share, deep=True),
    "orbit": _orbit,
    "basis": _basis,
    "lowrank-k": _lowrank,
    "mpic": _mpic,
    "epic": _epic,
    "cacheblend": _cacheblend,
    "cacheblend2": lambda budget: _cacheblend(budget, two_steps=True),
    "vlcache": lambda budget: VLCache(100 * budget.share),
    "vlcache-uniform": lambda budget: VLCache(100 * budget.share, uniform=True),
    "reprefill-deep": _deep,
    "reprefill-shallow": _shallow,
}
