"""Strategies by name: the string carries the knob."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emblema.errors import StrategyError
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy, strategy_name
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.cacheblend import CacheBlend
from emblema.link.strategies.first_tokens import FirstTokens
from emblema.link.strategies.full import Full
from emblema.link.strategies.full_reuse import FullReuse
from emblema.link.strategies.orbit import OrbitStrategy
from emblema.link.strategies.patch import PatchStrategy
from emblema.link.strategies.prefix import Prefix
from emblema.link.strategies.query import QueryStrategy
from emblema.link.strategies.vlcache import VLCache

LARGEST_RANK = 65_536


@dataclass(frozen=True, slots=True)
class StrategyKind:
    """A family of strategy names.

    Attributes:
        usage: how it is written.
        summary: one line of what it does.
        pattern: regular expression of its names.
        make: returns the strategy of a match.
    """

    usage: str
    summary: str
    pattern: str
    make: Callable[[re.Match[str]], Strategy]


NUMBER = r"(?P<number>[0-9]+(?:[.][0-9]+)?)"


def whole_number(match: re.Match[str], what: str) -> int:
    """Return the number of a name.

    Raises:
        StrategyError: it is not whole, or out of range.
    """
    number = int(match["number"]) if match["number"].isdecimal() else 0
    if not 1 <= number <= LARGEST_RANK:
        raise StrategyError(f"{match[0]!r}: {what} must be a whole number from 1 to {LARGEST_RANK}")
    return number


def percent(match: re.Match[str]) -> float:
    """Return the percentage of a name.

    Raises:
        StrategyError: it is out of range.
    """
    found = float(match["number"])
    if not 0 < found <= 100:
        raise StrategyError(f"{match[0]!r}: the share must be above 0 and at most 100 percent")
    return found


def _patch(match: re.Match[str]) -> Strategy:
    deep = match["deep"] is not None
    if match["percent"] is None:
        return PatchStrategy(rank=whole_number(match, "the rank"), deep=deep)
    share = float(match["number"]) / 100
    if not 0 < share <= 1:
        raise StrategyError(f"{match[0]!r}: the share must be above 0% and at most 100%")
    return PatchStrategy(share=share, deep=deep)


def _mpic(match: re.Match[str]) -> Strategy:
    return FirstTokens("mpic", None if match["number"] is None else whole_number(match, "the number of tokens"))


KINDS: tuple[StrategyKind, ...] = (
    StrategyKind(
        "auto",
        "for every chunk the cheapest faithful way; computed, and remembered, where nothing is known of it",
        "auto",
        lambda match: Auto(),
    ),
    StrategyKind("full", "every row computed: re-prefill, the ceiling", "full", lambda match: Full()),
    StrategyKind(
        "prefix", "the longest exact prefix of earlier prompts, the rest computed", "prefix", lambda match: Prefix()
    ),
    StrategyKind("blind", "chunks relocated as they were prefilled alone: the floor", "blind", lambda match: Blind()),
    StrategyKind(
        "patch-M | patch-P%",
        "relocated chunks with a rank-M patch, or one of at most P % of their bytes",
        rf"patch-{NUMBER}(?P<percent>%)?(?P<deep>(?!))?",
        _patch,
    ),
    StrategyKind(
        "patch-M-deep | patch-P%-deep",
        "the patch on the deepest half of the layers only",
        rf"patch-{NUMBER}(?P<percent>%)?(?P<deep>-deep)",
        _patch,
    ),
    StrategyKind(
        "orbit-M",
        "one rank-M patch that serves every ordering of the chunks before it",
        rf"orbit-{NUMBER}",
        lambda match: OrbitStrategy(whole_number(match, "the rank")),
    ),
    StrategyKind(
        "query-R%",
        "the R % of chunk tokens that the question attends most computed again; in full where that leaves it unsure",
        rf"query-{NUMBER}%",
        lambda match: QueryStrategy(percent(match) / 100),
    ),
    StrategyKind(
        "mpic-K | mpic-all",
        "text and the first K tokens of every chunk computed, in one step",
        rf"mpic-(?:{NUMBER}|all)",
        _mpic,
    ),
    StrategyKind(
        "full-reuse",
        "text computed blind to all chunks, then the last token over both",
        "full-reuse",
        lambda match: FullReuse(),
    ),
    StrategyKind(
        "cacheblend-R",
        "the R % of chunk tokens whose KV deviates most computed again, in context",
        rf"cacheblend-{NUMBER}",
        lambda match: CacheBlend(percent(match)),
    ),
    StrategyKind(
        "epic-K",
        "LegoLink: text and the first K tokens of every chunk computed",
        rf"epic-{NUMBER}",
        lambda match: FirstTokens("epic", whole_number(match, "the number of tokens")),
    ),
    StrategyKind(
        "vlcache-R",
        "the first tokens of every chunk computed, R % on average, fewer in deeper layers",
        rf"vlcache-{NUMBER}",
        lambda match: VLCache(percent(match)),
    ),
    StrategyKind(
        "vlcache-R-uniform",
        "the first R % of every chunk's tokens computed in every layer",
        rf"vlcache-{NUMBER}-uniform",
        lambda match: VLCache(percent(match), uniform=True),
    ),
    StrategyKind(
        "sink", "text and the first four tokens of every chunk computed", "sink", lambda match: FirstTokens("sink")
    ),
)

DROPPED: tuple[tuple[str, str], ...] = (
    (r"basis-.*|lowrank-k-.*", "patch-M"),
    (r"reprefill-.*", "query-R%, or full"),
    (r"cacheblend2-.*", "cacheblend-R"),
    (r"mpic-.*-raw", "mpic-K"),
    (r"full-reuse-raw", "full-reuse"),
)
"""Names of former strategies, which only comparisons of papers need, and what to use."""


def strategies() -> dict[str, str]:
    """Return the strategies that can be named, with one line each."""
    return {kind.usage: kind.summary for kind in KINDS}


def parse(name: str | Strategy, kinds: Sequence[StrategyKind] = KINDS) -> Strategy:
    """Return the strategy of a name such as `full` or `patch-25%`, one of some kinds.

    Raises:
        StrategyError: the name is unknown, or its knob is out of range.
    """
    wanted = strategy_name(name)
    if not isinstance(name, str):
        return name
    for kind in kinds:
        match = re.fullmatch(kind.pattern, wanted)
        if match is not None:
            return kind.make(match)
    for pattern, successor in DROPPED:
        if re.fullmatch(pattern, wanted):
            raise StrategyError(f"the strategy {name!r} is no longer offered: use {successor}")
    known = ", ".join(kind.usage for kind in kinds)
    raise StrategyError(f"unknown strategy {name!r}: choose one of {known}")
