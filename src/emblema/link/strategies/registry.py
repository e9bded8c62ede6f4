"""Strategies by name: the string carries the knob."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from emblema.errors import StrategyError
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.full import Full
from emblema.link.strategies.patch import PatchStrategy
from emblema.link.strategies.prefix import Prefix

LARGEST_RANK = 65_536


@dataclass(frozen=True, slots=True)
class StrategyKind:
    """A family of strategy names: how it is written, one line of what it does, its pattern and its maker."""

    usage: str
    summary: str
    pattern: str
    make: Callable[[re.Match[str]], Strategy]


def _patch(match: re.Match[str]) -> Strategy:
    deep = match["deep"] is not None
    if match["percent"] is None:
        rank = int(match["number"]) if match["number"].isdigit() else 0
        if not 1 <= rank <= LARGEST_RANK:
            raise StrategyError(f"{match[0]!r}: the rank must be a whole number from 1 to {LARGEST_RANK}")
        return PatchStrategy(rank=rank, deep=deep)
    share = float(match["number"]) / 100
    if not 0 < share <= 1:
        raise StrategyError(f"{match[0]!r}: the share must be above 0% and at most 100%")
    return PatchStrategy(share=share, deep=deep)


KINDS: tuple[StrategyKind, ...] = (
    StrategyKind("auto", "an exact prefix where it holds every chunk, else patch-25%", "auto", lambda match: Auto()),
    StrategyKind("full", "every row computed: re-prefill, the ceiling", "full", lambda match: Full()),
    StrategyKind(
        "prefix", "the longest exact prefix of earlier prompts, the rest computed", "prefix", lambda match: Prefix()
    ),
    StrategyKind("blind", "chunks relocated as they were prefilled alone: the floor", "blind", lambda match: Blind()),
    StrategyKind(
        "patch-M | patch-P%",
        "relocated chunks with a rank-M patch, or one of at most P % of their bytes",
        r"patch-(?P<number>[0-9]+(?:[.][0-9]+)?)(?P<percent>%)?(?P<deep>(?!))?",
        _patch,
    ),
    StrategyKind(
        "patch-M-deep | patch-P%-deep",
        "the patch on the deepest half of the layers only",
        r"patch-(?P<number>[0-9]+(?:[.][0-9]+)?)(?P<percent>%)?(?P<deep>-deep)",
        _patch,
    ),
)


def strategies() -> dict[str, str]:
    """The strategies that can be named, with one line each."""
    return {kind.usage: kind.summary for kind in KINDS}


def parse(name: str | Strategy) -> Strategy:
    """The strategy of a name such as `full` or `patch-25%`.

    Raises:
        StrategyError: the name is unknown, or its knob is out of range.
    """
    if not isinstance(name, str):
        if not hasattr(name, "plan"):
            raise StrategyError(f"a strategy is a name or has a plan method; this is a {type(name).__name__}")
        return name
    for kind in KINDS:
        match = re.fullmatch(kind.pattern, name.strip())
        if match is not None:
            return kind.make(match)
    known = ", ".join(kind.usage for kind in KINDS)
    raise StrategyError(f"unknown strategy {name!r}: choose one of {known}")
