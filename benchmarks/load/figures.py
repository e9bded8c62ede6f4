"""The figures of load as plain rows, list by list: what a run writes into its JSON file, and what the page is made of.

`runs` say how the others were measured. A row of `stages` is an arm beside the stage's first arm: `ms` to the first
token with the least and the most of them, `ttft` as the median of its ratios to the first arm's, `throughput` as the
ratio of sums of seconds; `rows` computed before the answer and all that `ran`, over the prompts' rows; the share that
`agrees` with `full`, with its interval, and the share `wrong` of the `sure` answers, which did not fall back to
computing all. `stretches` are such rows of `auto` over some requests, until so many were `seen`. A row of `rates` is an
arm at a rate of requests a second, 0 for one after another and None for all at once; `taken` is the share of stored
rows. `bars` are what has to hold of `auto`, as `table.Bar`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.figures import read_figures, rounded, write_figures
from benchmarks.intervals import bootstrap
from benchmarks.load.requests import LoadRequest
from benchmarks.load.stages import AUTO, FULL, LoadAnswer
from benchmarks.window.experiment import Row
from emblema.errors import EmblemaError

STRETCH = 40
"""Requests that a bar is held on together, and points of a curve by requests seen."""
MILLI = 1e3
LISTS = ("runs", "stages", "stretches", "rates", "bars")

Figures = dict[str, list[Row]]


def put(found: Figures, other: Figures) -> None:
    """Take figures of another run, in place of those of the same parts, engines and stages."""
    for name, rows in other.items():
        replaced = {_about(row) for row in rows}
        found[name] = [row for row in found[name] if _about(row) not in replaced] + rows


def _about(row: Row) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in ("part", "engine", "stage"))


def by_method(rows: Sequence[Row], engine: str, stage: str) -> dict[str, Row]:
    """Return a stage's figures by method."""
    return {row["method"]: row for row in rows if (row["engine"], row["stage"]) == (engine, stage)}


def write_load(found: Figures, path: Path) -> Path:
    """Write the file, and return its path."""
    return write_figures(rounded(found), path)


def read_load(path: Path) -> Figures:
    """Return what a run wrote."""
    try:
        found = read_figures(path)
        return {name: list(found[name]) for name in LISTS}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EmblemaError(f"{path}: this is no file of `benchmarks load` ({error}); measure again") from error


def stage_figures(
    requests: Sequence[LoadRequest], answers: Mapping[str, Sequence[LoadAnswer]]
) -> tuple[list[Row], list[Row]]:
    """Return the figures of every arm over all requests, and those of `auto` stretch by stretch."""
    count = len(requests)
    parts = stretches(count) if AUTO in answers else []
    return (
        [_figures(name, requests, answers, range(count)) for name in answers],
        [_figures(AUTO, requests, answers, part) for part in parts],
    )


def stretches(count: int) -> list[range]:
    """Return the requests of each stretch; what is left at the end joins the last."""
    starts = range(0, max(1, count - STRETCH + 1), STRETCH)
    return [range(start, count if start == starts[-1] else start + STRETCH) for start in starts]


def _figures(
    name: str, requests: Sequence[LoadRequest], answers: Mapping[str, Sequence[LoadAnswer]], chosen: range
) -> Row:
    start = next(iter(answers))
    arms = (name, start, FULL if FULL in answers else start)
    own, first, full = (answers[arm][chosen.start : chosen.stop] for arm in arms)
    prompt = sum(answer.prompt for answer in own)
    same = [answer.text == other.text for answer, other in zip(own, full, strict=True)]
    sure = [value for answer, value in zip(own, same, strict=True) if not answer.fell_back]
    agrees = bootstrap(same, [requests[place].group for place in chosen])
    times = np.array([answer.ttft for answer in own])
    return {
        "method": name,
        "seen": chosen.stop,
        "requests": len(own),
        "prompt_rows": prompt / len(own),
        "ms": MILLI * float(np.median(times)),
        "ms_least": MILLI * float(times.min()),
        "ms_most": MILLI * float(times.max()),
        "rows": _share([answer.computed for answer in own], prompt),
        "ran": _share([answer.ran for answer in own], prompt),
        "ttft": float(np.median(times / [answer.ttft for answer in first])),
        "throughput": sum(answer.ended for answer in first) / sum(answer.ended for answer in own),
        "agrees": agrees.value,
        "low": agrees.low,
        "high": agrees.high,
        "sure": len(sure),
        "wrong": 1 - sum(sure) / len(sure) if sure else None,
    }


def _share(counted: Sequence[float | None], prompt: int) -> float | None:
    known = [value for value in counted if value is not None]
    return sum(known) / prompt if known else None


def rate_figures(
    name: str, rate: float, answers: Sequence[LoadAnswer], spent: tuple[float, float], plain: Sequence[str]
) -> Row:
    """Return the figures of an arm at one rate, beside `plain` answers; `spent`: seconds of both clocks."""
    (seconds, processor), count = spent, len(answers)
    computed = _share([answer.computed for answer in answers], sum(answer.prompt for answer in answers))
    return {
        "method": name,
        "rate": rate if rate < float("inf") else None,
        "requests": count,
        "ttft_p50_ms": MILLI * float(np.median([answer.ttft for answer in answers])),
        "tokens_s": sum(answer.tokens for answer in answers) / seconds,
        "answers_s": count / seconds,
        "processor_ms": MILLI * processor / count,
        "taken": None if computed is None else 1 - computed,
        "agrees": sum(answer.text == text for answer, text in zip(answers, plain, strict=True)) / count,
    }
