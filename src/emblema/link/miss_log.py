"""Logs of requests: a line of JSON for each, without content, and a summary of what was missed and why."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from emblema.link.misses import LONGEST_DETAIL, MissData

LONGEST_LINE = 2**20
"""Bytes of a line that is read; a longer one is counted as broken."""
MOST_MISSES = 256
"""Misses of a request in its line."""
MOST_REASONS = 64
"""Reasons that are told apart."""
_SHOWN_LINES = 3
_INNER = ("emblema", "kv_transfer_params", "meta_info")
"""Keys of logged lines and of replies that lead to a report."""


def request_line(request: str, rows: int, lane: str, misses: Iterable[MissData]) -> str:
    """Return a request's line: its id, the rows of its prompt, its lane, and the media that were computed."""
    told = [*misses][:MOST_MISSES]
    return json.dumps({"request": request[:200], "rows": rows, "lane": lane[:200], "misses": told})


@dataclass(frozen=True, slots=True)
class MissExample:
    """A miss that stands for others: its request's id, the line of the log, the picture's number, and the detail."""

    request: str
    line: int
    part: int
    detail: str


@dataclass(slots=True)
class MissSummary:
    """What a log tells.

    Attributes:
        requests: lines with a request that had media.
        rows: of their prompts.
        pieces, missed: media that were computed, and their rows, by reason.
        examples: the miss of most rows, by reason.
        broken: numbers of the first lines that could not be read.
        broken_lines: how many could not.
    """

    requests: int = 0
    rows: int = 0
    pieces: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[int, MissExample]] = field(default_factory=dict)
    broken: list[int] = field(default_factory=list)
    broken_lines: int = 0

    def add(self, number: int, report: Mapping[str, Any]) -> None:
        """Add the request that a line tells of; `ValueError` where its misses are none."""
        misses, rows = (
            list(map(_miss, _listed(report["misses"]))),
            _count(report.get("rows", report.get("prompt_tokens"))),
        )
        request = _word(report.get("request", ""), 200)
        self.requests += 1
        self.rows += max(rows, sum(missed for _, missed, _, _ in misses))
        for part, missed, reason, detail in misses:
            name = reason if reason in self.pieces or len(self.pieces) < MOST_REASONS else "other"
            self.pieces[name] += 1
            self.missed[name] += missed
            if name not in self.examples or missed > self.examples[name][0]:
                self.examples[name] = missed, MissExample(request, number, part, detail)

    def fail(self, number: int) -> None:
        """Count a line that cannot be read."""
        self.broken_lines += 1
        if len(self.broken) < _SHOWN_LINES:
            self.broken.append(number)


def summarize(log: BinaryIO) -> MissSummary:
    """Return what a log tells: of lines of JSON, also behind other words, and of replies, one a line.

    Lines of other things are passed over.
    """
    summary = MissSummary()
    for number, line in _lines(log):
        if line is None:
            summary.fail(number)
        elif b'"misses"' in line:
            try:
                report = _report(json.JSONDecoder().raw_decode(line[line.index(b"{") :].decode())[0])
                if report is not None:
                    summary.add(number, report)
            except (ValueError, TypeError, RecursionError):
                summary.fail(number)
    return summary


def _lines(log: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield lines with their numbers; None for one that is too long."""
    number = 0
    while line := log.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) <= LONGEST_LINE:
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = log.readline(LONGEST_LINE)
        yield number, None


def _report(told: Any) -> Mapping[str, Any] | None:
    """Return the report in what a line tells; None where it has none."""
    found = told[0] if isinstance(told, list) and told else told
    if not isinstance(found, Mapping):
        return None
    if "misses" in found:
        return found
    inner = next((found[key] for key in _INNER if key in found), None)
    report = None if inner is None else _report(inner)
    if report is None:
        return None
    usage = found.get("usage")
    rows = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    named = {"request": found.get("id", found.get("request"))} | ({} if rows is None else {"rows": rows})
    return {**{name: value for name, value in named.items() if value is not None}, **report}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("misses are no list")
    return value


def _miss(told: Any) -> MissData:
    if not isinstance(told, list) or len(told) not in (3, 4):
        raise ValueError("a miss is a number, rows, a reason and a detail")
    return (
        _count(told[0]),
        _count(told[1]),
        _word(told[2], 40),
        _word(told[3] if len(told) == 4 else "", LONGEST_DETAIL),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**40:
        raise ValueError("a count is none")
    return value


def _word(value: Any, most: int) -> str:
    """Return a text that may be shown at a terminal."""
    if not isinstance(value, str):
        raise ValueError("a word is none")
    return "".join(letter if letter.isprintable() else "?" for letter in value[:most])
