"""The figures of load as plain rows: what a run writes into its JSON file, and what the page is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import read_figures, rounded, write_figures
from benchmarks.intervals import bootstrap
from benchmarks.load.requests import SHOWN, LoadRequest, Traffic
from benchmarks.load.stages import AUTO, FULL, LoadAnswer
from emblema.errors import EmblemaError

STRETCH = 40
"""Requests that a bar is held on together, and points of a curve by requests seen."""
MILLI = 1e3


@dataclass(frozen=True, slots=True)
class RunNote:
    """What of a run its figures do not say; `load` is the machine's load average before and after."""

    part: str
    engine: str
    stage: str
    model: str
    command: str
    device: str
    date: str
    load: str


@dataclass(frozen=True, slots=True)
class StageFigures:
    """A stage as one arm served it, beside the stage's first arm; None where it was not counted.

    Attributes:
        seen: requests until the end of these: of the whole stage, or of a stretch of it; `requests`: how many they are.
        prompt_rows: of a prompt, on average.
        ms, ms_least, ms_most: time to the first token: median, least and most.
        rate: answers a second.
        rows, ran: rows computed before the answer, and all that the decoder ran, over the prompts' rows.
        ttft: median of the times to the first token over the first arm's for the same request.
        throughput, processor: ratios of sums of seconds to the first arm's.
        agrees, low, high: share of answers that are those of `full`, with its 95 % interval.
        right: share of right answers, those about dropped legends left out.
        sure, wrong: answers that did not fall back to computing all, and the share of them that are not `full`'s.
    """

    engine: str
    stage: str
    method: str
    seen: int
    requests: int
    prompt_rows: float | None
    ms: float
    ms_least: float | None
    ms_most: float | None
    rate: float | None
    rows: float | None
    ran: float | None
    ttft: float
    throughput: float | None
    processor: float | None
    agrees: float | None
    low: float | None
    high: float | None
    right: float | None
    sure: int
    wrong: float | None


@dataclass(frozen=True, slots=True)
class RateFigures:
    """An arm at a rate of requests a second, 0: one after another, None: at once; `taken`: share of stored rows."""

    engine: str
    stage: str
    method: str
    rate: float | None
    requests: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    tokens_s: float
    answers_s: float
    processor_ms: float
    taken: float | None
    agrees: float
    right: float


@dataclass(frozen=True, slots=True)
class LoadBar:
    """What has to hold of `auto` in a stage: as `table.Bar`."""

    part: str
    engine: str
    stage: str
    name: str
    value: float | None
    bound: float
    least: bool
    count: int
    aim: bool = False


@dataclass(slots=True)
class LoadFigures:
    """All figures, as the JSON file has them."""

    runs: list[RunNote] = field(default_factory=list)
    stages: list[StageFigures] = field(default_factory=list)
    stretches: list[StageFigures] = field(default_factory=list)
    rates: list[RateFigures] = field(default_factory=list)
    bars: list[LoadBar] = field(default_factory=list)

    def put(self, other: "LoadFigures") -> None:
        """Take figures of another run, in place of those of the same parts, engines and stages."""
        for one in fields(self):
            own, new = getattr(self, one.name), getattr(other, one.name)
            replaced = {_about(row) for row in new}
            own[:] = [row for row in own if _about(row) not in replaced] + new

    def of(self, engine: str, stage: str) -> dict[str, StageFigures]:
        """Return a stage's figures by method."""
        return {row.method: row for row in self.stages if (row.engine, row.stage) == (engine, stage)}

    def write(self, path: Path) -> Path:
        """Write the file, and return its path."""
        return write_figures({one.name: rounded([asdict(row) for row in getattr(self, one.name)])
                              for one in fields(self)}, path)  # fmt: skip


KINDS: Mapping[str, type[Any]] = {"runs": RunNote, "stages": StageFigures, "stretches": StageFigures,
                                  "rates": RateFigures, "bars": LoadBar}  # fmt: skip
"""The class of the rows of each list."""


def _about(row: Any) -> tuple[str, ...]:
    return tuple(getattr(row, name, "") for name in ("part", "engine", "stage"))


def read_load(path: Path) -> LoadFigures:
    """Return what a run wrote."""
    try:
        found = read_figures(path)
        return LoadFigures(**{name: [kind(**row) for row in found[name]] for name, kind in KINDS.items()})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EmblemaError(f"{path}: this is no file of `benchmarks load` ({error}); measure again") from error


def stage_figures(
    engine: str, stage: str, traffic: Traffic, answers: Mapping[str, Sequence[LoadAnswer]]
) -> tuple[list[StageFigures], list[StageFigures]]:
    """Return the figures of every arm over all requests, and those of `auto` stretch by stretch."""
    count = len(traffic.requests)
    whole = [_figures(engine, stage, name, traffic, answers, range(count)) for name in answers]
    parts = stretches(count) if AUTO in answers else []
    return whole, [_figures(engine, stage, AUTO, traffic, answers, part) for part in parts]


def stretches(count: int) -> list[range]:
    """Return the requests of each stretch; what is left at the end joins the last."""
    starts = range(0, max(1, count - STRETCH + 1), STRETCH)
    return [range(start, count if start == starts[-1] else start + STRETCH) for start in starts]


def _figures(
    engine: str,
    stage: str,
    name: str,
    traffic: Traffic,
    answers: Mapping[str, Sequence[LoadAnswer]],
    chosen: Sequence[int],
) -> StageFigures:
    start = next(iter(answers))
    own, first, full = (
        [answers[arm][place] for place in chosen] for arm in (name, start, FULL if FULL in answers else start)
    )
    asked = [traffic.requests[place] for place in chosen]
    prompt = sum(answer.prompt for answer in own)
    same = [float(answer.text == other.text) for answer, other in zip(own, full, strict=True)]
    sure = [value for answer, value in zip(own, same, strict=True) if not answer.fell_back]
    plain = [_right(answer, item) for answer, item in zip(own, asked, strict=True) if item.where == SHOWN]
    agrees = bootstrap(same, [item.group for item in asked])
    times, others = ([answer.ttft for answer in of] for of in (own, first))
    seconds, spent, spent_first = (
        sum(values) for values in ([a.ended for a in own], [a.processor for a in own], [a.processor for a in first])
    )
    computed, ran = ([value for value in of if value is not None]
                     for of in ([answer.computed for answer in own], [answer.ran for answer in own]))  # fmt: skip
    return StageFigures(
        engine, stage, name, chosen[-1] + 1, len(own),
        prompt_rows=prompt / len(own),
        ms=MILLI * float(np.median(times)), ms_least=MILLI * min(times), ms_most=MILLI * max(times),
        rate=len(own) / seconds,
        rows=sum(computed) / prompt if computed else None,
        ran=sum(ran) / prompt if ran else None,
        ttft=float(np.median(np.divide(times, others))),
        throughput=sum(answer.ended for answer in first) / seconds,
        processor=spent / spent_first if spent_first else None,
        agrees=agrees.value, low=agrees.low, high=agrees.high,
        right=sum(plain) / len(plain) if plain and all(item.answer for item in asked) else None,
        sure=len(sure), wrong=1 - sum(sure) / len(sure) if sure else None,
    )  # fmt: skip


def _right(answer: LoadAnswer, request: LoadRequest) -> bool:
    return answer.text.strip() == request.answer


def rate_figures(
    engine: str,
    stage: str,
    name: str,
    rate: float,
    requests: Sequence[LoadRequest],
    answers: Sequence[LoadAnswer],
    spent: tuple[float, float],
    plain: Sequence[str],
) -> RateFigures:
    """Return the figures of an arm at one rate, beside `plain` answers; `spent`: seconds of both clocks."""
    seconds, processor = spent
    times, count = [MILLI * answer.ttft for answer in answers], len(answers)
    computed = [answer.computed for answer in answers if answer.computed is not None]
    return RateFigures(
        engine, stage, name, rate if rate < float("inf") else None, count,
        ttft_p50_ms=float(np.percentile(times, 50)), ttft_p99_ms=float(np.percentile(times, 99)),
        tokens_s=sum(answer.tokens for answer in answers) / seconds,
        answers_s=count / seconds,
        processor_ms=MILLI * processor / count,
        taken=1 - sum(computed) / sum(answer.prompt for answer in answers) if computed else None,
        agrees=sum(answer.text == text for answer, text in zip(answers, plain, strict=True)) / count,
        right=sum(map(_right, answers, requests)) / count,
    )  # fmt: skip
