"""The figures of agents: what every arm computed and read at each turn, and what that comes to under each rule.

A row of `rules` is an arm under one rule: sums of tokens, `rows` computed over the new ones, milliseconds to the first
token over all turns and after a drop with their ratio to the plain arm's, the share of answers that `agrees` with full
recompute, dropped facts that were answered, by it and by full recompute, and what 1,000 such turns cost in dollars.
New rows are those of the prompt that the request before did not have. A row of `saturation` is an arm that several
sessions asked at once. `runs` say how the others were measured, `bars` what has to hold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agents.sessions import AgentSession
from benchmarks.figures import read_figures, rounded, write_figures
from benchmarks.load.stages import LoadAnswer
from benchmarks.table import Bar
from emblema.errors import EmblemaError

Row = dict[str, Any]
Figures = dict[str, list[Row]]
LISTS = ("runs", "rules", "saturation", "bars")
ABOUT = ("part", "model", "world", "engine", "method", "rule")
"""What says which row it is: a later run's takes the place of an earlier one's."""
MILLI = 1e3
TURNS_PRICED = 1_000


@dataclass(frozen=True, slots=True)
class PriceList:
    """Public prices, in dollars for a million tokens: computed and written to a cache, and read from one."""

    name: str
    date: str
    written: float
    read: float

    def dollars(self, written: float, read: float) -> float:
        """Return what tokens cost."""
        return (self.written * written + self.read * read) / 1e6


PRICES = PriceList("Claude Sonnet 4.5", "2025-09-29", written=3.75, read=0.30)
"""All that is computed is priced as written; prices of answers are left out."""


@dataclass(frozen=True, slots=True)
class PictureRows:
    """Rows of a whole and of a cropped picture in a prompt, with what is written around them."""

    whole: int
    cropped: int


@dataclass(frozen=True, slots=True)
class SessionAnswers:
    """One arm's answers to a session.

    Attributes:
        exact, plain: the answers of full recompute, and of the arm that times are compared with; None where they were
            not asked.
    """

    engine: str
    method: str
    own: Sequence[LoadAnswer]
    exact: Sequence[LoadAnswer] | None
    plain: Sequence[LoadAnswer] | None


def new_rows(session: AgentSession, answers: Sequence[LoadAnswer], pictures: PictureRows) -> list[int]:
    """Return rows of each prompt that the one before did not have; all where a conversation begins."""
    found = list[int]()
    for place, (request, answer) in enumerate(zip(session.requests, answers, strict=True)):
        if request.anew:
            found.append(answer.prompt)
            continue
        gone = sum(pictures.cropped if picture.cropped else pictures.whole for picture in request.gone)
        found.append(answer.prompt - answers[place - 1].prompt + gone)
    return found


def rule_figures(session: AgentSession, answers: SessionAnswers, pictures: PictureRows) -> Row:
    """Return the figures of an arm under one rule."""
    own, exact, plain, requests = answers.own, answers.exact, answers.plain, session.requests
    fresh = new_rows(session, own, pictures)
    computed = [answer.prompt if answer.computed is None else answer.computed for answer in own]
    read = [answer.prompt - count for answer, count in zip(own, computed, strict=True)]
    fallen = [place for place, request in enumerate(requests) if request.gone and not request.anew]
    dropped = [place for place, turn in enumerate(session.turns) if turn.question.dropped]
    after = _median([own[place].ttft for place in fallen])
    plain_after = None if plain is None else _median([plain[place].ttft for place in fallen])
    ran = [answer.ran for answer in own if answer.ran is not None]
    return {
        "engine": answers.engine,
        "method": answers.method,
        "rule": session.rule,
        "requests": len(requests),
        "prompt": sum(answer.prompt for answer in own),
        "new": sum(fresh),
        "computed": sum(computed),
        "read": sum(read),
        "ran": sum(ran) if ran else None,
        "rows": sum(computed) / sum(fresh),
        "drops": len(fallen),
        "rows_after": sum(computed[place] for place in fallen) / sum(fresh[place] for place in fallen)
        if fallen
        else None,
        "ttft_ms": MILLI * float(np.median([answer.ttft for answer in own])),
        "ttft_after_ms": None if after is None else MILLI * after,
        "ttft_after": None if after is None or not plain_after else after / plain_after,
        "agrees": None if exact is None else _equal(own, exact, range(len(requests))),
        "right": _right(session, own, [place for place, turn in enumerate(session.turns) if turn.question.answer]),
        "dropped": len(dropped),
        "remembered": _right(session, own, dropped),
        "remembered_full": None if exact is None else _right(session, exact, dropped),
        "dollars": TURNS_PRICED / len(requests) * PRICES.dollars(sum(computed), sum(read)),
        "turns_new": fresh,
        "turns_computed": computed,
        "turns_read": read,
        "turns_ttft_ms": [MILLI * answer.ttft for answer in own],
    }


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _equal(own: Sequence[LoadAnswer], exact: Sequence[LoadAnswer], places: Sequence[int]) -> float:
    """Return the share of equal answers; servers differ in the white space that they leave around one."""
    return sum(own[place].text.strip() == exact[place].text.strip() for place in places) / len(places)


def _right(session: AgentSession, answers: Sequence[LoadAnswer], places: Sequence[int]) -> float | None:
    """Return the share of some turns that are answered with the answer of their question."""
    asked = [(answers[place].text.strip(), session.turns[place].question.answer) for place in places]
    return sum(text == answer for text, answer in asked) / len(asked) if asked else None


def rule_bars(row: Row) -> Iterator[Bar]:
    """Yield what has to hold of `auto` under one rule; what follows a drop only under rules that drop.

    What is compared with an arm that was not asked is left out.
    """
    count = row["requests"]
    yield Bar("rows computed over new rows", row["rows"], 1.1, False, count)
    if row["ttft_after"] is not None:
        yield Bar("TTFT p50 after a drop, over the plain arm's", row["ttft_after"], 0.25, False, row["drops"])
    if row["agrees"] is not None:
        yield Bar("agreement with full recompute", row["agrees"], 0.97, True, count)
    if row["remembered_full"] is not None:
        more = row["remembered"] - row["remembered_full"]
        yield Bar("dropped facts answered, less full recompute's", more, 0.0, False, row["dropped"])


def put(found: Figures, other: Mapping[str, Sequence[Row]]) -> None:
    """Take figures of another run, in place of those of the same arms, models and rules."""
    for name, rows in other.items():
        replaced = {_about(row) for row in rows}
        found[name] = [row for row in found[name] if _about(row) not in replaced] + list(rows)


def _about(row: Row) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in (*ABOUT, "name"))


def write_agents(found: Figures, path: Path) -> Path:
    """Write the file, and return its path."""
    return write_figures(rounded(found), path)


def read_agents(path: Path) -> Figures:
    """Return what a run wrote."""
    try:
        found = read_figures(path)
        return {name: list(found[name]) for name in LISTS}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EmblemaError(f"{path}: this is no file of `benchmarks agents` ({error}); measure again") from error
