"""What has to hold at equal budget: close to the best baseline on every kind, above it on one, close to full."""

from collections.abc import Mapping, Sequence

from benchmarks.intervals import Interval
from benchmarks.stream.arms import BASELINES, FULL, OURS
from benchmarks.stream.estimates import accuracy, paired, questions
from benchmarks.stream.records import PassRecord
from benchmarks.stream.wanted import Wanted
from benchmarks.table import Bar
from benchmarks.tasks.streams import STREAM_KINDS

SLACK = -0.02
FRAMES, SEEDS = 512, 3
"""Fewest frames and seeds that anything is claimed for."""

ByArm = Mapping[str, Sequence[PassRecord]]


def claims(wanted: Wanted) -> bool:
    """Whether a run is large enough, and complete enough, to state bars."""
    methods = {OURS, *BASELINES} <= set(wanted.methods)
    return methods and wanted.frames >= FRAMES and len(wanted.seeds) >= SEEDS and set(wanted.kinds) == {*STREAM_KINDS}


def best_baseline(records: ByArm) -> str | None:
    """The baseline with the highest accuracy on these records; full attention is the ceiling, and none."""
    known = {name: found.value for name in BASELINES if (found := accuracy(records.get(name, ()))) is not None}
    return max(known, key=lambda name: known[name]) if known else None


def accuracy_bars(by_kind: Mapping[str, ByArm]) -> tuple[Bar, ...]:
    """Bars on the lower 95 % bounds of paired differences, kind by kind.

    The best baseline is the best on these very questions, which favours it.
    """
    bars, lows = [], {}
    for kind, records in by_kind.items():
        best = best_baseline(records)
        if best is None:
            continue
        found = paired(records[OURS], records[best])
        count = questions(records[OURS])
        lows[kind] = _low(found)
        bars.append(Bar(f"{kind}: mosaic less {best}, {_words(found)}", _low(found), SLACK, count=count))
    known = {kind: low for kind, low in lows.items() if low is not None}
    if known:
        kind = max(known, key=lambda each: known[each])
        name = f"above the best baseline on one kind or more: {kind}, lower bound"
        bars.append(Bar(name, known[kind], 0.0, count=questions(by_kind[kind][OURS]), strict=True))
    for kind, records in by_kind.items():
        if records.get(FULL):
            found = paired(records[OURS], records[FULL])
            name = f"{kind}: mosaic less full attention, {_words(found)}"
            bars.append(Bar(name, _low(found), SLACK, count=questions(records[OURS])))
    return tuple(bars)


def _low(found: Interval | None) -> float | None:
    return None if found is None else found.low


def _words(found: Interval | None) -> str:
    return "" if found is None else f"{found.value:+.3f}, lower bound"
