"""Strategies by name: the string carries the knob."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from emblema.errors import StrategyError
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy, strategy_name
from emblema.link.strategies.basis import Basis
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.cacheblend import CacheBlend
from emblema.link.strategies.first_tokens import FirstTokens
from emblema.link.strategies.full import Full
from emblema.link.strategies.full_reuse import FullReuse
from emblema.link.strategies.lowrank_keys import LowRankKeys
from emblema.link.strategies.orbit import OrbitStrategy
from emblema.link.strategies.pair import Pair
from emblema.link.strategies.patch import PatchStrategy
from emblema.link.strategies.prefix import Prefix
from emblema.link.strategies.query import QueryStrategy
from emblema.link.strategies.reprefill import Reprefill
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


def _whole(match: re.Match[str], what: str) -> int:
    number = int(match["number"]) if match["number"].isdecimal() else 0
    if not 1 <= number <= LARGEST_RANK:
        raise StrategyError(f"{match[0]!r}: {what} must be a whole number from 1 to {LARGEST_RANK}")
    return number


def _percent(match: re.Match[str]) -> float:
    percent = float(match["number"])
    if not 0 < percent <= 100:
        raise StrategyError(f"{match[0]!r}: the share must be above 0 and at most 100 percent")
    return percent


def _patch(match: re.Match[str]) -> Strategy:
    deep = match["deep"] is not None
    if match["percent"] is None:
        return PatchStrategy(rank=_whole(match, "the rank"), deep=deep)
    share = float(match["number"]) / 100
    if not 0 < share <= 1:
        raise StrategyError(f"{match[0]!r}: the share must be above 0% and at most 100%")
    return PatchStrategy(share=share, deep=deep)


def _mpic(match: re.Match[str]) -> Strategy:
    tokens = None if match["number"] is None else _whole(match, "the number of tokens")
    return FirstTokens("mpic", tokens, relocated=match["raw"] is None)


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
        lambda match: OrbitStrategy(_whole(match, "the rank")),
    ),
    StrategyKind(
        "basis-M",
        "a patch on M directions shared with other items, only coefficients its own",
        rf"basis-{NUMBER}",
        lambda match: Basis(_whole(match, "the rank")),
    ),
    StrategyKind(
        "query-R%",
        "the R % of chunk tokens that the question attends most computed again; in full where that leaves it unsure",
        rf"query-{NUMBER}%",
        lambda match: QueryStrategy(_percent(match) / 100),
    ),
    StrategyKind(
        "pair",
        "chunks with what their rows are known to take from each single chunk before them; learnt from other prompts",
        "pair",
        lambda match: Pair(),
    ),
    StrategyKind(
        "pair+query-R%",
        "the same, and the R % of chunk tokens that the question attends most computed again, as by query-R%",
        rf"pair[+]query-{NUMBER}%",
        lambda match: Pair(_percent(match) / 100),
    ),
    StrategyKind(
        "mpic-K | mpic-all",
        "text and the first K tokens of every chunk computed, in one step; -raw: chunks not relocated",
        rf"mpic-(?:{NUMBER}|all)(?P<raw>-raw)?",
        _mpic,
    ),
    StrategyKind(
        "full-reuse",
        "text computed blind to all chunks, then the last token over both; -raw: chunks not relocated",
        "full-reuse(?P<raw>-raw)?",
        lambda match: FullReuse(relocated=match["raw"] is None),
    ),
    StrategyKind(
        "cacheblend-R",
        "the R % of chunk tokens whose KV deviates most computed again, in context",
        rf"cacheblend-{NUMBER}",
        lambda match: CacheBlend(_percent(match)),
    ),
    StrategyKind(
        "cacheblend2-R",
        "the same in two steps, text computed before and blind to all chunks",
        rf"cacheblend2-{NUMBER}",
        lambda match: CacheBlend(_percent(match), two_steps=True),
    ),
    StrategyKind(
        "epic-K",
        "LegoLink: text and the first K tokens of every chunk computed",
        rf"epic-{NUMBER}",
        lambda match: FirstTokens("epic", _whole(match, "the number of tokens")),
    ),
    StrategyKind(
        "vlcache-R",
        "the first tokens of every chunk computed, R % on average, fewer in deeper layers",
        rf"vlcache-{NUMBER}",
        lambda match: VLCache(_percent(match)),
    ),
    StrategyKind(
        "vlcache-R-uniform",
        "the first R % of every chunk's tokens computed in every layer",
        rf"vlcache-{NUMBER}-uniform",
        lambda match: VLCache(_percent(match), uniform=True),
    ),
    StrategyKind(
        "sink", "text and the first four tokens of every chunk computed", "sink", lambda match: FirstTokens("sink")
    ),
    StrategyKind(
        "lowrank-k-M",
        "chunks with their own keys rebuilt from rank-M factors: a control",
        rf"lowrank-k-{NUMBER}",
        lambda match: LowRankKeys(_whole(match, "the rank")),
    ),
    StrategyKind(
        "reprefill-deep-F",
        "chunks computed again in the deepest F % of the layers, from a kept residual stream",
        rf"reprefill-deep-{NUMBER}",
        lambda match: Reprefill(_percent(match), deep=True),
    ),
    StrategyKind(
        "reprefill-shallow-F",
        "chunks computed again in the shallowest F % of the layers only",
        rf"reprefill-shallow-{NUMBER}",
        lambda match: Reprefill(_percent(match), deep=False),
    ),
)


def strategies() -> dict[str, str]:
    """Return the strategies that can be named, with one line each."""
    return {kind.usage: kind.summary for kind in KINDS}


def parse(name: str | Strategy) -> Strategy:
    """Return the strategy of a name such as `full` or `patch-25%`.

    Raises:
        StrategyError: the name is unknown, or its knob is out of range.
    """
    wanted = strategy_name(name)
    if not isinstance(name, str):
        return name
    for kind in KINDS:
        match = re.fullmatch(kind.pattern, wanted)
        if match is not None:
            return kind.make(match)
    known = ", ".join(kind.usage for kind in KINDS)
    raise StrategyError(f"unknown strategy {name!r}: choose one of {known}")
