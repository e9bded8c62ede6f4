"""Accuracy of streams as tables: at equal budget, by question and length, with one thing changed; and the bars."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from benchmarks.intervals import Interval, bootstrap
from benchmarks.stream.passes import PassRecord, PassResults
from benchmarks.stream.plan import ARMS, BASELINES, FITS, FULL, OURS, AccuracyOptions
from benchmarks.table import Bar, Cell, Table
from benchmarks.tasks.streams import QUESTION_KINDS, STREAM_KINDS
from emblema.errors import EmblemaError

ALL = "all"
SLACK, LONG_SLACK = -0.01, 0.0
"""What Mosaic may lose to full attention, at equal budget and at the longest length at which that is measured."""
ABOVE = 2
"""Kinds on which Mosaic has to be above the best baseline."""
ORDERED = "ordered"
FRAMES, SEEDS = 512, 3
"""Fewest frames and seeds that anything is claimed for."""
TTFT, CPU, RATE = "TTFT ms", "TTFT CPU ms", "frames/CPU s"
LESS_IT, LESS_OURS = "mosaic less it", "less mosaic"

PAIRED = "Differences are paired, over the same questions; intervals: 95 %, bootstrap over streams."

ByArm = Mapping[str, Sequence[PassRecord]]


def accuracy(records: Iterable[PassRecord], question: str | None = None) -> Interval | None:
    """Return the share of questions answered right, with an interval by stream; None without any.

    Args:
        question: those of this kind alone.
    """
    pairs = [
        (answer.right, record.stream)
        for record in records
        for answer in record.answers
        if question in (None, answer.kind)
    ]
    return bootstrap(*zip(*pairs, strict=True)) if pairs else None


def paired(first: Iterable[PassRecord], second: Iterable[PassRecord], question: str | None = None) -> Interval | None:
    """Return the accuracy of the first less the second's, over the same questions, with an interval by stream.

    Args:
        question: those of this kind alone.

    Raises:
        EmblemaError: a stream was asked other questions.
    """
    others = {record.stream: record for record in second}
    differences: list[int] = []
    streams: list[str] = []
    for own in first:
        other = others.get(own.stream)
        if other is None:
            continue
        if [(a.kind, a.at) for a in own.answers] != [(a.kind, a.at) for a in other.answers]:
            raise EmblemaError(
                f"{own.arm} and {other.arm} were asked other questions about {own.stream}: remove the records"
            )
        pairs = [
            int(a.right) - int(b.right)
            for a, b in zip(own.answers, other.answers, strict=True)
            if question in (None, a.kind)
        ]
        differences += pairs
        streams += [own.stream] * len(pairs)
    return bootstrap(differences, streams) if differences else None


def questions(records: Iterable[PassRecord], question: str | None = None) -> int:
    """Return how many were asked."""
    return sum(question in (None, answer.kind) for record in records for answer in record.answers)


def median_ms(records: Iterable[PassRecord], *, cpu: bool = False) -> float | None:
    """Return the median time to the first token in milliseconds, by the clock or of the processor."""
    times = [answer.cpu if cpu else answer.ttft for record in records for answer in record.answers]
    return 1e3 * float(np.median(times)) if times else None


def encoded(records: Sequence[PassRecord]) -> float | None:
    """Return the frames encoded in a second of the processor."""
    spent = sum(record.encode_cpu for record in records)
    return sum(record.frames for record in records) / spent if spent else None


FIGURES: dict[str, Callable[[Sequence[PassRecord]], Cell]] = {
    "accuracy": accuracy,
    TTFT: median_ms,
    CPU: lambda records: median_ms(records, cpu=True),
    RATE: encoded,
    "streams": len,
    "asked": questions,
}
"""A cell of an arm by the name of its column."""


def _figure(column: str, arm: str, own: ByArm) -> Cell:
    """Return an arm's cell; nothing of an arm with itself, and of any without Mosaic."""
    if column in FIGURES:
        return FIGURES[column](own[arm])
    ours = own.get(OURS)
    if ours is None or arm == OURS:
        return None
    return paired(ours, own[arm]) if column == LESS_IT else paired(own[arm], ours)


def _arm_rows(lead: tuple[Cell, ...], own: ByArm, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
    return [(*lead, arm, *(_figure(column, arm, own) for column in columns)) for arm in own]


def by_arm(results: PassResults, kind: str = ALL, frames: int | None = None) -> dict[str, list[PassRecord]]:
    """Return records by arm, as the passes are named; of one kind and length, if given."""
    found: dict[str, list[PassRecord]] = {}
    for wanted, record in results.items():
        stream = wanted.stream
        if kind in (ALL, stream.kind) and frames in (None, stream.frames):
            found.setdefault(wanted.arm, []).append(record)
    return found


def kinds_of(options: AccuracyOptions) -> tuple[str, ...]:
    """Return the kinds, and all of them together where there are several."""
    return (*options.kinds, ALL) if len(options.kinds) > 1 else options.kinds


def accuracy_tables(results: PassResults, options: AccuracyOptions) -> tuple[Table, ...]:
    """Return the tables of the comparison at equal budget: by method and kind of stream, and by kind of question."""
    kinds: dict[str, ByArm] = {kind: by_arm(results, kind) for kind in kinds_of(options)}
    columns = ("accuracy", LESS_IT, TTFT, CPU, RATE, "streams", "asked")
    bars = accuracy_bars({kind: kinds[kind] for kind in options.kinds}) if claims(options) else ()
    rows = tuple(row for kind, own in kinds.items() for row in _arm_rows((kind,), own, columns))
    title = "Accuracy at equal budget, by method and kind of stream"
    whole = kinds[kinds_of(options)[-1]]
    asked = tuple(
        (question, arm, accuracy(own, question), questions(own, question))
        for question in QUESTION_KINDS
        for arm, own in whole.items()
        if questions(own, question)
    )
    return (
        Table("accuracy", title, PAIRED, ("kind", "method", *columns), rows, (), bars),
        Table("questions", "Accuracy by kind of question", "", ("question", "method", "accuracy", "asked"), asked),
    )


def search_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return how settings of the baselines do on streams of other seeds."""
    columns = ("accuracy", CPU, "asked")
    rows = tuple(_arm_rows((), by_arm(results), columns))
    return Table("search", "Settings of the baselines", "On seeds of its own.", ("arm", *columns), rows)


def length_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return Mosaic's figure 12: accuracy by length of the stream."""
    columns = ("accuracy", LESS_IT, CPU, "asked")
    rows = [
        row
        for kind in kinds_of(options)
        for frames in options.lengths
        for row in _arm_rows((kind, frames), by_arm(results, kind, frames), columns)
    ]
    longest = {kind: by_arm(results, kind, FITS) for kind in options.kinds}
    complete = FITS in options.lengths and all(OURS in own for own in longest.values())
    bars = full_bars(longest, LONG_SLACK) if complete and claims(options) else ()
    named = ("kind", "frames", "method", *columns)
    return Table("lengths", "Accuracy by length of the stream", PAIRED, named, tuple(rows), (), tuple(bars))


def ablation_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return Mosaic's table IV, and what else was chosen where the paper left room."""
    columns = ("accuracy", LESS_OURS, CPU, RATE)
    own = by_arm(results)
    rows = tuple((arm, ARMS[arm].words, *(_figure(column, arm, own) for column in columns)) for arm in own)
    return Table("ablation", "Mosaic with one thing changed", PAIRED, ("arm", "what is changed", *columns), rows)


def claims(options: AccuracyOptions) -> bool:
    """Return whether a run is large enough, and complete enough, to state bars."""
    complete = {OURS, *BASELINES} <= set(options.methods) and set(options.kinds) == {*STREAM_KINDS}
    return complete and options.frames >= FRAMES and len(options.seeds) >= SEEDS


def best_baseline(records: ByArm) -> str | None:
    """Return the baseline with the highest accuracy on these records; full attention is the ceiling, and none."""
    known = {name: found.value for name in BASELINES if (found := accuracy(records.get(name, ()))) is not None}
    return max(known, key=lambda name: known[name]) if known else None


def accuracy_bars(by_kind: Mapping[str, ByArm]) -> tuple[Bar, ...]:
    """Return what has to hold at equal budget, on the lower 95 % bounds of paired differences, kind by kind.

    Mosaic is above the best baseline on two kinds, and close to full attention, on ordered questions too. The best
    baseline is the best on these very questions, which favours it.
    """
    lows = []
    for records in by_kind.values():
        best = best_baseline(records)
        found = None if best is None else paired(records[OURS], records[best])
        lows += [] if found is None else [found.low]
    bars: list[Bar] = []
    if lows:
        above, asked = sum(low > 0 for low in lows), sum(questions(records[OURS]) for records in by_kind.values())
        bars.append(Bar("kinds with Mosaic above the best baseline", above, ABOVE, count=asked))
    for question in (None, ORDERED):
        bars += full_bars(by_kind, SLACK, question)
    return tuple(bars)


def full_bars(by_kind: Mapping[str, ByArm], slack: float, question: str | None = None) -> list[Bar]:
    """Return the bars of being close to full attention, kind by kind; on questions of one kind alone, if given."""
    bars = []
    for kind, records in by_kind.items():
        found = paired(records[OURS], records.get(FULL, ()), question)
        if found is not None:
            asked = "" if question is None else f", {question} questions"
            name = f"{kind}, {records[OURS][0].frames:,} frames: lead over full attention{asked}"
            bars.append(Bar(name, found.low, slack, count=questions(records[OURS], question)))
    return bars
