"""What can be measured, by name: strategies, oracles, methods at a share of the KV bytes, and groups of them.

A share of the bytes is what a method may spend beside the canonical rows of the chunks in the window. The chunks that
count are those that are not slid and do not lead, together n rows of F numbers each, so a share s is worth s n F
numbers. The knob is the largest that stays within it; where not even the smallest fits, the method has nothing to spend
and is `blind`. Rows that are only looked at to choose among, and what an oracle computes to choose, are not charged.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.fidelity.ablations import (
    ABLATIONS,
    Basis,
    DeepReprefill,
    LowRankKeys,
    ShallowReprefill,
    TwoStepCacheBlend,
    slot_widths,
)
from benchmarks.fidelity.oracles import Oracle
from benchmarks.hybrids.hypic import Hypic
from emblema.errors import StrategyError
from emblema.kv.layout import LayerLayout
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.cacheblend import CacheBlend
from emblema.link.strategies.first_tokens import FirstTokens
from emblema.link.strategies.orbit import OrbitStrategy
from emblema.link.strategies.patch import PatchStrategy
from emblema.link.strategies.query import QueryStrategy
from emblema.link.strategies.registry import KINDS, NUMBER, StrategyKind, parse, whole_number
from emblema.link.strategies.vlcache import VLCache
from emblema.models.adapter import Adapter

FULL, BLIND = "full", "blind"
SHARES = (6, 25)
ORACLES = ("oracle-deficit", "oracle-query")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a share is worth on one prompt.

    Attributes:
        tokens: rows of each chunk that counts.
        candidates: rows of all chunks but one that leads, slid ones included.
        hidden: numbers in a row of the residual stream.
    """

    share: float
    tokens: tuple[int, ...]
    candidates: int
    layouts: tuple[LayerLayout, ...]
    hidden: int

    @classmethod
    def of(cls, share: float, prompt: Prompt, adapter: Adapter) -> "Budget":
        """Return the budget of a prompt."""
        counted = [each for each in prompt.chunk_segments if not prompt.leads(each[0], adapter.anchor)]
        tokens = tuple(chunk.tokens for segment, chunk in counted if segment.rows not in prompt.slid_rows)
        return cls(
            share, tokens, sum(chunk.tokens for _, chunk in counted), tuple(adapter.layouts), adapter.hidden_size
        )

    @property
    def rows(self) -> int:
        """Whole rows of KV that it is worth."""
        return int(self.share * sum(self.tokens) + 1e-9)

    @property
    def numbers(self) -> float:
        return self.share * sum(self.tokens) * sum(layout.features for layout in self.layouts)

    def largest(self, most: int, price: Callable[[int], float]) -> int:
        """Return the largest knob from 1 to `most` whose price in numbers is within the budget, 0 if there is none."""
        return bisect_right(range(1, most + 1), self.numbers + 1e-6, key=price)


Maker = Callable[[Budget], Strategy]
HYPIC = StrategyKind(
    "hypic-K",
    "HYPIC: K rows of each chunk computed, the rest one map of the state",
    rf"hypic-{NUMBER}",
    lambda match: Hypic(whole_number(match, "the seam")),
)


def _ranked(budget: Budget, make: Callable[[int], Strategy], widths: Sequence[int], *, own: bool = True) -> Strategy:
    """Return the largest rank m with m (n + w) numbers for a slot of width w; m n where directions are the model's."""

    def price(rank: int) -> int:
        return sum(min(rank, n, w) * (n + w if own else n) for n in budget.tokens for w in widths)

    rank = budget.largest(max(widths), price)
    return make(rank) if rank else Blind()


def _first_tokens(budget: Budget, name: Literal["mpic", "epic"]) -> Strategy:
    counts = range(1, max(budget.tokens) + 1)
    count = bisect_right(counts, budget.rows, key=lambda k: sum(min(k, n) for n in budget.tokens))
    return FirstTokens(name, count) if count else Blind()


def _cacheblend(budget: Budget, make: Callable[[float], Strategy] = CacheBlend) -> Strategy:
    if not budget.rows:
        return Blind()
    # The strategy rounds its share of all candidates up, to just these rows.
    return make(100 * (budget.rows - 0.5) / budget.candidates)


def _query(budget: Budget) -> Strategy:
    # The strategy rounds its share of the candidates up, to just these rows.
    return QueryStrategy((budget.rows - 0.5) / sum(budget.tokens), least_margin=None) if budget.rows else Blind()


def _layers(budget: Budget, *, deepest: bool) -> Strategy:
    """Return as many layers as the share holds, the deepest with the residual stream kept at the cut."""
    rows, count = sum(budget.tokens), len(budget.layouts)
    order = list(reversed(budget.layouts)) if deepest else list(budget.layouts)

    def price(layers: int) -> float:
        kept = budget.hidden if deepest and layers < count else 0
        return rows * (kept + sum(layout.features for layout in order[:layers]))

    # Dearer by the residual stream until nothing is cut, where it is not needed: not one rising line.
    fits = [layers for layers in range(1, count + 1) if price(layers) <= budget.numbers + 1e-6]
    if not fits:
        return Blind()
    return (DeepReprefill if deepest else ShallowReprefill)(100 * fits[-1] / count)


MAKERS: dict[str, Maker] = {
    "patch": lambda budget: PatchStrategy(share=budget.share),
    "patch-deep": lambda budget: PatchStrategy(share=budget.share, deep=True),
    "orbit": lambda budget: _ranked(budget, OrbitStrategy, slot_widths(budget.layouts)),
    "basis": lambda budget: _ranked(budget, Basis, slot_widths(budget.layouts), own=False),
    "lowrank-k": lambda budget: _ranked(budget, LowRankKeys, slot_widths(budget.layouts)[::2]),
    "mpic": lambda budget: _first_tokens(budget, "mpic"),
    "epic": lambda budget: _first_tokens(budget, "epic"),
    "cacheblend": _cacheblend,
    "cacheblend2": lambda budget: _cacheblend(budget, TwoStepCacheBlend),
    "vlcache": lambda budget: VLCache(100 * budget.share),
    "vlcache-uniform": lambda budget: VLCache(100 * budget.share, uniform=True),
    "reprefill-deep": lambda budget: _layers(budget, deepest=True),
    "reprefill-shallow": lambda budget: _layers(budget, deepest=False),
    "query": _query,
}
_HEADLINE = ("full", "blind", "patch-6%", "patch-25%", "patch-50%")
GROUPS: dict[str, tuple[str, ...]] = {
    "headline": _HEADLINE,
    "every": (
        *_HEADLINE, "patch-25%-deep", "orbit-16", "basis-16", "mpic-8", "full-reuse", "cacheblend-15",
        "cacheblend2-15", "epic-8", "vlcache-15", "vlcache-15-uniform", "sink", "lowrank-k-16", "reprefill-deep-50",
        "reprefill-shallow-50", "oracle-deficit-15", "oracle-query-15",
    ),
    "matched": tuple(f"{method}@{share}%" for share in SHARES for method in (*MAKERS, *ORACLES)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AtShare:
    """A method whose knob is worth a share of the KV bytes; see the module."""

    method: str
    percent: float

    @property
    def name(self) -> str:
        return f"{self.method}@{self.percent:.12g}%"

    def fitted(self, budget: Budget) -> Strategy:
        """Return the strategy for one prompt."""
        return MAKERS[self.method](budget)


Arm = Strategy | Oracle | AtShare


def arm_of(name: str) -> Arm:
    """Return the strategy, oracle or method at a share of a name.

    Raises:
        StrategyError: the name is unknown, or its knob is out of range.
    """
    oracle = re.fullmatch(r"oracle-(deficit|query)(?:-([0-9.]+)|@([0-9.]+)%)", name)
    shared = re.fullmatch(r"([a-z0-9-]+)@([0-9.]+)%", name)
    try:
        if oracle is not None:
            return Oracle(oracle[1], _percent(name, oracle[2] or oracle[3]))
        if shared is not None and shared[1] in MAKERS:
            return AtShare(shared[1], _percent(name, shared[2]))
        return parse(name, (*KINDS, *ABLATIONS, HYPIC))
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
