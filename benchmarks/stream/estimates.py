"""From records to figures: shares with their intervals by stream, differences of the same questions, medians."""

from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.intervals import Interval, bootstrap
from benchmarks.stream.records import Answer, PassRecord
from emblema.errors import EmblemaError

MILLI = 1e3


def accuracy(records: Iterable[PassRecord], question: str | None = None) -> Interval | None:
    """Share of questions answered right, with an interval by stream; None without any.

    Args:
        question: those of this kind alone.
    """
    pairs = [(answer.right, one.stream) for one in records for answer in one.answers if _of(answer, question)]
    return bootstrap(*zip(*pairs, strict=True)) if pairs else None


def paired(first: Iterable[PassRecord], second: Iterable[PassRecord]) -> Interval | None:
    """Accuracy of the first less the second's, over the same questions, with an interval by stream.

    Raises:
        EmblemaError: a stream was asked other questions.
    """
    others = {one.stream: one for one in second}
    differences: list[int] = []
    streams: list[str] = []
    for one in first:
        other = others.get(one.stream)
        if other is None:
            continue
        if [(a.kind, a.at) for a in one.answers] != [(a.kind, a.at) for a in other.answers]:
            raise EmblemaError(f"{one.arm} and {other.arm} were asked other questions about {one.stream}: begin anew")
        differences += [int(a.right) - int(b.right) for a, b in zip(one.answers, other.answers, strict=True)]
        streams += [one.stream] * len(one.answers)
    return bootstrap(differences, streams) if differences else None


def questions(records: Iterable[PassRecord], question: str | None = None) -> int:
    """How many were asked."""
    return sum(_of(answer, question) for one in records for answer in one.answers)


def median_ms(records: Iterable[PassRecord], *, cpu: bool = False) -> float | None:
    """Median time to the first token in milliseconds, by the clock or of the processor."""
    times = [answer.cpu if cpu else answer.ttft for one in records for answer in one.answers]
    return MILLI * float(np.median(times)) if times else None


def encoded(records: Sequence[PassRecord]) -> float | None:
    """Frames encoded in a second of the processor."""
    spent = sum(one.encode_cpu for one in records)
    return sum(one.frames for one in records) / spent if spent else None


def counted(records: Sequence[PassRecord], *names: str) -> float | None:
    """The mean of counts added up, over streams; None where the memory has no such counts."""
    if not records or any(name not in one.counts for one in records for name in names):
        return None
    return float(np.mean([sum(one.counts[name] for name in names) for one in records]))


def _of(answer: Answer, question: str | None) -> bool:
    return question is None or answer.kind == question
