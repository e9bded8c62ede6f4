"""What can be measured, by name: strategies, oracles, methods at a share of the KV bytes, and groups of them.

A share of the bytes is what a method may spend beside the canonical rows of the chunks in the window. The chunks that
count are those that are neither slid nor at row 0, together n rows of F numbers each, so a share s is worth s n F
numbers. The knob is the largest that stays within it, as `KNOBS` says for each method. Where not even the smallest
fits, the method has nothing to spend and is `blind`.

A method may also be given the rows that another computes, or a multiple of them: `mpic@2x-query-12%` has the smallest
knob of `mpic` with which at least twice the rows of `query-12%` are computed on the same prompt.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.fidelity.oracles import Oracle
from emblema.errors import StrategyError
from emblema.kv.layout import LayerLayout
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.link.strategies.basis import Basis
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.cacheblend import CacheBlend
from emblema.link.strategies.first_tokens import FirstTokens
from emblema.link.strategies.lowrank_keys import LowRankKeys
from emblema.link.strategies.orbit import OrbitStrategy
from emblema.link.strategies.pair import Pair
from emblema.link.strategies.patch import PatchStrategy
from emblema.link.strategies.query import QueryStrategy
from emblema.link.strategies.registry import parse
from emblema.link.strategies.reprefill import Reprefill
from emblema.link.strategies.vlcache import VLCache

FULL, BLIND = "full", "blind"
SHARES = (6, 25)
TOKEN_SHARES = (5, 10, 15, 25, 50)
TOKEN_METHODS = ("mpic", "cacheblend", "vlcache-uniform", "oracle-deficit", "oracle-query")
ORACLES = ("oracle-deficit", "oracle-query")
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
    "query": "s n rows, chosen for every question; no answer is computed again in full",
    "oracle-deficit": "s n rows, rounded up; choosing them, and slid chunks computed for them, are not charged",
    "oracle-query": "as oracle-deficit, for every question",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """What a share is worth on one prompt.

    Attributes:
        tokens: rows of each chunk that counts.
        candidates: rows of all chunks after row 0, slid ones included.
        hidden: numbers in a row of the residual stream.
    """

    share: float
    tokens: tuple[int, ...]
    candidates: int
    layouts: tuple[LayerLayout, ...]
    hidden: int

    @classmethod
    def of(cls, share: float, prompt: Prompt, layouts: Sequence[LayerLayout], hidden: int) -> "Budget":
        """Return the budget of a prompt."""
        counted = [(segment, chunk) for segment, chunk in prompt.chunk_segments if segment.start > 0]
        tokens = tuple(chunk.tokens for segment, chunk in counted if segment.rows not in prompt.slid_rows)
        return cls(share, tokens, sum(chunk.tokens for _, chunk in counted), tuple(layouts), hidden)

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
        """Return the largest knob from 1 to `most` whose price in numbers is within the budget, 0 if there is none."""
        return bisect_right(range(1, most + 1), self.numbers + 1e-6, key=price)


Maker = Callable[[Budget], Strategy]


def _orbit(budget: Budget) -> Strategy:
    rank = budget.largest(max(budget.slots), lambda m: _factors(budget, budget.slots, m))
    return OrbitStrategy(rank) if rank else Blind()


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


def _first_tokens(budget: Budget, name: Literal["mpic", "epic"]) -> Strategy:
    counts = range(1, max(budget.tokens) + 1)
    count = bisect_right(counts, budget.rows, key=lambda k: sum(min(k, n) for n in budget.tokens))
    return FirstTokens(name, count) if count else Blind()


def _cacheblend(budget: Budget, two_steps: bool = False) -> Strategy:
    if not budget.rows:
        return Blind()
    # The strategy rounds its share of all candidates up, to just these rows.
    return CacheBlend(100 * (budget.rows - 0.5) / budget.candidates, two_steps)


def _query(budget: Budget) -> Strategy:
    # The strategy rounds its share of the candidates up, to just these rows.
    return QueryStrategy((budget.rows - 0.5) / sum(budget.tokens), least_margin=0) if budget.rows else Blind()


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
    return Reprefill(100 * fits[-1] / count, deepest)


MAKERS: dict[str, Maker] = {
    "patch": lambda budget: PatchStrategy(share=budget.share),
    "patch-deep": lambda budget: PatchStrategy(share=budget.share, deep=True),
    "orbit": _orbit,
    "basis": _basis,
    "lowrank-k": _lowrank,
    "mpic": lambda budget: _first_tokens(budget, "mpic"),
    "epic": lambda budget: _first_tokens(budget, "epic"),
    "cacheblend": _cacheblend,
    "cacheblend2": lambda budget: _cacheblend(budget, two_steps=True),
    "vlcache": lambda budget: VLCache(100 * budget.share),
    "vlcache-uniform": lambda budget: VLCache(100 * budget.share, uniform=True),
    "reprefill-deep": lambda budget: _layers(budget, deepest=True),
    "reprefill-shallow": lambda budget: _layers(budget, deepest=False),
    "query": _query,
}
KNOB_STEPS = 1000
BY_ROWS: dict[str, Callable[[int], Strategy]] = {
    "mpic": lambda rows: FirstTokens("mpic", rows),
    "epic": lambda rows: FirstTokens("epic", rows),
    "cacheblend": lambda step: CacheBlend(100 * step / KNOB_STEPS),
    "vlcache": lambda step: VLCache(100 * step / KNOB_STEPS),
}
"""Methods by a knob from 1 to `KNOB_STEPS`, rows of a chunk or thousandths of all: the larger, the more is computed."""
_HEADLINE = ("full", "blind", "patch-6%", "patch-25%", "patch-50%")
_EVERY = (
    *_HEADLINE, "patch-25%-deep", "orbit-16", "basis-16", "mpic-8", "mpic-8-raw", "full-reuse", "full-reuse-raw",
    "cacheblend-15", "cacheblend2-15", "epic-8", "vlcache-15", "vlcache-15-uniform", "sink", "lowrank-k-16",
    "reprefill-deep-50", "reprefill-shallow-50", "oracle-deficit-15", "oracle-query-15",
)  # fmt: skip
_LIMITS = ("full", "cacheblend-100", "mpic-all", "reprefill-deep-100", "reprefill-shallow-100", "patch-100%")
GROUPS: dict[str, tuple[str, ...]] = {
    "headline": _HEADLINE,
    "every": _EVERY,
    "matched": tuple(f"{method}@{share}%" for share in SHARES for method in (*MAKERS, *ORACLES)),
    "ranks": tuple(f"patch-{2**power}" for power in range(9)),
    "tokens": tuple(f"{method}@{share}%" for share in TOKEN_SHARES for method in ("patch", *TOKEN_METHODS)),
    "limits": _LIMITS,
}


@dataclass(frozen=True, slots=True)
class AtShare:
    """A method whose knob is worth a share of the KV bytes; see `budgets`."""

    method: str
    percent: float

    @property
    def name(self) -> str:
        return f"{self.method}@{self.percent:.12g}%"

    def fitted(self, budget: Budget) -> Strategy:
        """Return the strategy for one prompt."""
        return MAKERS[self.method](budget)


@dataclass(frozen=True, slots=True)
class AtRows:
    """A method that computes at least a multiple of the rows that another strategy computes on the same prompt."""

    method: str
    times: float
    like: Strategy

    @property
    def name(self) -> str:
        return f"{self.method}@{self.times:.12g}x-{self.like.name}"

    def fitted(self, prompt: Prompt, knowledge: Knowledge) -> Strategy:
        """Return the strategy with the smallest knob that computes as many rows; the largest where none does."""
        make = BY_ROWS[self.method]

        def rows(strategy: Strategy) -> float:
            return strategy.plan(prompt, knowledge).cost(knowledge.layouts, 1).rows_computed

        wanted = self.times * rows(self.like)
        steps = range(1, KNOB_STEPS + 1)
        place = bisect_left(steps, wanted - 1e-6, key=lambda step: rows(make(step)))
        return make(steps[min(place, KNOB_STEPS - 1)])


Arm = Strategy | Oracle | AtShare | AtRows


def arm_of(name: str) -> Arm:
    """Return the strategy, oracle or method at a share of a name.

    Raises:
        StrategyError: the name is unknown, or its knob is out of range.
    """
    oracle = re.fullmatch(r"oracle-(deficit|query)(?:-([0-9.]+)|@([0-9.]+)%)", name)
    shared = re.fullmatch(r"([a-z0-9-]+)@([0-9.]+)%", name)
    rows = re.fullmatch(r"([a-z0-9-]+)@([0-9]+(?:[.][0-9]+)?)x-(.+)", name)
    try:
        if oracle is not None:
            return Oracle(oracle[1], _percent(name, oracle[2] or oracle[3]))
        if shared is not None and shared[1] in MAKERS:
            return AtShare(shared[1], _percent(name, shared[2]))
        if rows is not None and rows[1] in BY_ROWS:
            return AtRows(rows[1], float(rows[2]), parse(rows[3]))
        strategy = parse(name)
        if isinstance(strategy, Pair):
            raise StrategyError(f"{name!r}: the memory of pairs is not measured here; commit 91b59e0 does")
        return strategy
    except StrategyError as error:
        if "unknown strategy" not in str(error):
            raise
        more = f"{', '.join(f'{method}@S%' for method in (*MAKERS, *ORACLES))}, or a group: {', '.join(GROUPS)}"
        raise StrategyError(f"{error}; or oracle-deficit-R, oracle-query-R, {more}") from error


def names_of(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return names in order, groups spread out, each once; re-prefill and blind reuse come first in any case.

    Raises:
        StrategyError: there are none, or one is unknown.
    """
    given = [part.strip() for part in wanted if part.strip()]
    if not given:
        raise StrategyError(f"no strategies: give names with commas between them, or a group: {', '.join(GROUPS)}")
    spread = [name for part in given for name in GROUPS.get(part, (part,))]
    for name in spread:
        arm_of(name)
    return tuple(dict.fromkeys((FULL, BLIND, *spread)))


def _percent(name: str, text: str) -> float:
    try:
        percent = float(text)
    except ValueError as error:
        raise StrategyError(f"{name!r}: {text!r} is no number") from error
    if not 0 < percent <= 100:
        raise StrategyError(f"{name!r}: the share must be above 0 and at most 100 percent")
    return percent
