"""What a bench can be asked to measure, by name: strategies, oracles, methods at a share of the bytes, and groups."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.fidelity.budgets import MAKERS, Budget
from benchmarks.fidelity.oracles import Oracle
from emblema.errors import StrategyError
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.registry import parse

FULL, BLIND = "full", "blind"
SHARES = (6, 25)
TOKEN_SHARES = (5, 10, 15, 25, 50)
TOKEN_METHODS = ("mpic", "cacheblend", "vlcache-uniform", "oracle-deficit", "oracle-query")
ORACLES = ("oracle-deficit", "oracle-query")
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
        """The strategy for one prompt."""
        return MAKERS[self.method](budget)


Arm = Strategy | Oracle | AtShare


def arm_of(name: str) -> Arm:
    """The strategy, oracle or method at a share of a name.

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
        return parse(name)
    except StrategyError as error:
        if "unknown strategy" not in str(error):
            raise
        more = f"{', '.join(f'{method}@S%' for method in (*MAKERS, *ORACLES))}, or a group: {', '.join(GROUPS)}"
        raise StrategyError(f"{error}; or oracle-deficit-R, oracle-query-R, {more}") from error


def names_of(wanted: Iterable[str]) -> tuple[str, ...]:
    """Names in order, groups spread out, each once; re-prefill and blind reuse come first in any case.

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
