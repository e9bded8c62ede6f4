"""Accuracy of streams as tables: at equal budget, by question and length, with one thing changed; and the bars."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmarks.intervals import Interval, bootstrap
from benchmarks.stream.passes import PassRecord, PassResults
from benchmarks.stream.plan import ARMS, BASELINES, FITS, FULL, OURS, AccuracyOptions
from benchmarks.table import Bar, Table
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
CPU, LESS_IT = "TTFT CPU ms", "mosaic less it"

PAIRED = "Differences are paired, over the same questions; intervals: 95 %, bootstrap over streams."

ByArm = Mapping[str, Sequence[PassRecord]]


def accuracy(records: Iterable[PassRecord], question: str | None = None) -> Interval | None:
    """Return the share of questions answered right, with an interval by stream; None without any.

    Args:
        question: those of this kind alone.
    """
    rights = [
        (answer.right, record.stream.name)
        for record in records
        for answer in record.answers
        if question in (None, answer.kind)
    ]
    return bootstrap(*zip(*rights, strict=True)) if rights else None


def paired(first: Iterable[PassRecord], second: Iterable[PassRecord], question: str | None = None) -> Interval | None:
    """Return the accuracy of the first less the second's, over the same questions, with an interval by stream.

    Args:
        question: those of this kind alone.

    Raises:
        EmblemaError: a stream was asked other questions.
    """
    others = {record.stream: record for record in second}
    found: list[tuple[int, str]] = []
    for own in first:
        other = others.get(own.stream)
        if other is None:
            continue
        if [(a.kind, a.at) for a in own.answers] != [(a.kind, a.at) for a in other.answers]:
            raise EmblemaError(
                f"{own.arm} and {other.arm} were asked other questions about {own.stream.name}: remove the records"
            )
        found += [
            (int(a.right) - int(b.right), own.stream.name)
            for a, b in zip(own.answers, other.answers, strict=True)
            if question in (None, a.kind)
        ]
    return bootstrap(*zip(*found, strict=True)) if found else None


def questions(records: Iterable[PassRecord], question: str | None = None) -> int:
    """Return how many were asked."""
    return sum(question in (None, answer.kind) for record in records for answer in record.answers)


def median_ms(records: Iterable[PassRecord]) -> float | None:
    """Return the median time to an answer in milliseconds of the processor."""
    times = [answer.cpu for record in records for answer in record.answers]
    return 1e3 * float(np.median(times)) if times else None


def lead(own: ByArm, arm: str) -> Interval | None:
    """Return Mosaic's accuracy less an arm's; None of itself, and where Mosaic is not there."""
    return None if arm == OURS or OURS not in own else paired(own[OURS], own[arm])


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
    bars = accuracy_bars({kind: kinds[kind] for kind in options.kinds}) if claims(options) else ()

    def rate(found: Sequence[PassRecord]) -> float:
        return sum(record.stream.frames for record in found) / sum(record.encode_cpu for record in found)

    rows = tuple(
        (kind, arm, accuracy(found), lead(own, arm), median_ms(found), rate(found), questions(found))
        for kind, own in kinds.items()
        for arm, found in own.items()
    )
    asked = tuple(
        (question, arm, accuracy(found, question), questions(found, question))
        for question in QUESTION_KINDS
        for arm, found in kinds[kinds_of(options)[-1]].items()
        if questions(found, question)
    )
    title = "Accuracy at equal budget, by method and kind of stream"
    columns = ("kind", "method", "accuracy", LESS_IT, CPU, "frames/CPU s", "asked")
    return (
        Table("accuracy", title, PAIRED, columns, rows, (), bars),
        Table("questions", "Accuracy by kind of question", "", ("question", "method", "accuracy", "asked"), asked),
    )


def search_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return how settings of the baselines do on streams of other seeds."""
    rows = tuple((arm, accuracy(own), median_ms(own), questions(own)) for arm, own in by_arm(results).items())
    columns = ("arm", "accuracy", CPU, "asked")
    return Table("search", "Settings of the baselines", "On seeds of its own.", columns, rows)


def length_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return Mosaic's figure 12: accuracy by length of the stream."""
    rows = tuple(
        (kind, frames, arm, accuracy(found), lead(own, arm), questions(found))
        for kind in kinds_of(options)
        for frames in options.lengths
        for own in (by_arm(results, kind, frames),)
        for arm, found in own.items()
    )
    longest = {kind: by_arm(results, kind, FITS) for kind in options.kinds}
    complete = FITS in options.lengths and all(OURS in own for own in longest.values())
    bars = full_bars(longest, LONG_SLACK) if complete and claims(options) else ()
    columns = ("kind", "frames", "method", "accuracy", LESS_IT, "asked")
    return Table("lengths", "Accuracy by length of the stream", PAIRED, columns, rows, (), tuple(bars))


def ablation_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return Mosaic's table IV, and what else was chosen where the paper left room."""
    own = by_arm(results)
    ours = own.get(OURS, [])
    rows = tuple(
        (arm, ARMS[arm].words, accuracy(found), None if arm == OURS else paired(found, ours))
        for arm, found in own.items()
    )
    columns = ("arm", "what is changed", "accuracy", "less mosaic")
    return Table("ablation", "Mosaic with one thing changed", PAIRED, columns, rows)


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
    best = {kind: best_baseline(records) for kind, records in by_kind.items()}
    found = [paired(by_kind[kind][OURS], by_kind[kind][name]) for kind, name in best.items() if name is not None]
    bars = full_bars(by_kind, SLACK) + full_bars(by_kind, SLACK, ORDERED)
    if not found:
        return tuple(bars)
    above = sum(own is not None and own.low > 0 for own in found)
    asked = sum(questions(records[OURS]) for records in by_kind.values())
    return (Bar("kinds with Mosaic above the best baseline", above, ABOVE, count=asked), *bars)


def full_bars(by_kind: Mapping[str, ByArm], slack: float, question: str | None = None) -> list[Bar]:
    """Return the bars of being close to full attention, kind by kind; on questions of one kind alone, if given."""
    bars = []
    for kind, records in by_kind.items():
        found = paired(records[OURS], records.get(FULL, ()), question)
        if found is not None:
            asked = "" if question is None else f", {question} questions"
            name = f"{kind}, {records[OURS][0].stream.frames:,} frames: lead over full attention{asked}"
            bars.append(Bar(name, found.low, slack, count=questions(records[OURS], question)))
    return bars
