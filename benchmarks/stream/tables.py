"""Accuracy at equal budget: by method and kind, by kind of question, Mosaic's table III and figure 13."""

from collections.abc import Mapping, Sequence

from benchmarks.stream.arms import OURS
from benchmarks.stream.bars import FRAMES, SEEDS, ByArm, accuracy_bars, claims
from benchmarks.stream.estimates import accuracy, encoded, median_ms, paired, questions
from benchmarks.stream.passes import Results
from benchmarks.stream.records import PassRecord
from benchmarks.stream.wanted import Wanted
from benchmarks.table import Cell, Plot, Table
from benchmarks.tasks.streams import QUESTION_KINDS

ALL = "all"
THREE = ("nocache", "streammem", OURS)
LIVE = "live"


def by_arm(results: Results, kind: str | None = None, frames: int | None = None) -> dict[str, list[PassRecord]]:
    """Records by arm, as the passes are named; of one kind and length, if given."""
    found: dict[str, list[PassRecord]] = {}
    for one, record in results.items():
        if kind in (None, ALL, one.place.kind) and frames in (None, one.place.frames):
            found.setdefault(one.arm, []).append(record)
    return found


def kinds_of(wanted: Wanted) -> tuple[str, ...]:
    """The kinds, and all of them together where there are several."""
    return (*wanted.kinds, ALL) if len(wanted.kinds) > 1 else wanted.kinds


def accuracy_tables(results: Results, wanted: Wanted) -> tuple[Table, ...]:
    """All tables of the comparison at equal budget."""
    kinds = {kind: by_arm(results, kind) for kind in kinds_of(wanted)}
    found = [_methods(kinds, wanted), _questions(kinds[kinds_of(wanted)[-1]], wanted)]
    if all(set(THREE) <= set(records) for records in kinds.values()):
        found.append(_three(kinds, wanted))
    if LIVE in kinds and OURS in kinds[LIVE]:
        found.append(_live(kinds[LIVE], wanted))
    return tuple(found)


def asked_words(wanted: Wanted) -> str:
    """How streams were asked, for a note."""
    settings = wanted.settings
    return (
        f"Streams of {wanted.frames} frames, asked {wanted.times} times in their second half, the last time at the "
        f"end; budget {wanted.budget} frames a layer, sinks {settings.sinks}, window {settings.window}, blocks of "
        f"{settings.block}, {settings.positions} positions for all. Intervals: 95 %, bootstrap over streams."
    )


def less(first: Sequence[PassRecord], second: Sequence[PassRecord], same: bool) -> Cell:
    """A paired difference; nothing of an arm with itself."""
    return None if same else paired(first, second)


def _methods(kinds: Mapping[str, ByArm], wanted: Wanted) -> Table:
    rows = [
        (
            kind,
            arm,
            accuracy(records),
            less(own[OURS], records, arm == OURS) if OURS in own else None,
            median_ms(records),
            median_ms(records, cpu=True),
            encoded(records),
            len(records),
            questions(records),
        )
        for kind, own in kinds.items()
        for arm, records in own.items()
    ]
    stated = claims(wanted)
    note = (
        "Mosaic's figure 7 and table III, accuracy with time to first token. Mosaic less a method: over the same "
        "questions, paired. Times are medians over questions that went to all methods in turn (runs that were joined "
        "were made one behind the other); CPU: seconds of the processor, which a busy machine does not stretch. "
        f"{asked_words(wanted)}"
    )
    if not stated:
        note += f" No bar is stated: they want all kinds and methods, {FRAMES} frames and {SEEDS} seeds or more."
    return Table(
        "accuracy",
        "Accuracy at equal budget, by method and kind of stream",
        note,
        ("kind", "method", "accuracy", "mosaic less it", "TTFT ms", "TTFT CPU ms", "frames/CPU s", "streams", "asked"),
        tuple(rows),
        (Plot("kind", "accuracy", "method", bars=True), Plot("kind", "TTFT CPU ms", "method", bars=True)),
        accuracy_bars({kind: kinds[kind] for kind in wanted.kinds}) if stated else (),
    )


def _questions(records: ByArm, wanted: Wanted) -> Table:
    rows = [
        (question, arm, accuracy(own, question), questions(own, question))
        for question in QUESTION_KINDS
        for arm, own in records.items()
        if questions(own, question)
    ]
    note = (
        "What each memory loses. recent: what is seen now; far: what was in view once, on a stay that is over; "
        "repeated: the one land in which two things were, on different visits; ordered: first, last and next; "
        "counted: visits. "
        f"{asked_words(wanted)}"
    )
    columns = ("question", "method", "accuracy", "asked")
    plot = Plot("question", "accuracy", "method", bars=True)
    return Table("question-kinds", "Accuracy by kind of question", note, columns, tuple(rows), (plot,))


def _three(kinds: Mapping[str, ByArm], wanted: Wanted) -> Table:
    rows = [
        (kind, *(accuracy(own[arm]) for arm in THREE), *(median_ms(own[arm]) for arm in THREE))
        for kind, own in kinds.items()
    ]
    columns = ("kind", *THREE, *(f"{arm} ms" for arm in THREE))
    note = f"Mosaic's table III: NoCache / StreamMem / Mosaic, accuracy and time to first token. {asked_words(wanted)}"
    return Table("table-three", "NoCache, StreamMem and Mosaic", note, columns, tuple(rows))


def _live(records: ByArm, wanted: Wanted) -> Table:
    ours = median_ms(records[OURS], cpu=True)
    rows = []
    for arm, own in records.items():
        spent = median_ms(own, cpu=True)
        ratio = spent / ours if spent is not None and ours else None
        rows.append((arm, accuracy(own), less(records[OURS], own, arm == OURS), median_ms(own), ratio))
    columns = ("method", "accuracy", "mosaic less it", "TTFT ms", "TTFT CPU / mosaic's")
    note = (
        "Mosaic's figure 13, live streams: abrupt changes of scene and near-duplicate frames. Generated ones stand for "
        f"those of a live platform, which are not public. {asked_words(wanted)}"
    )
    plots = (Plot("method", "accuracy", bars=True), Plot("method", "TTFT CPU / mosaic's", bars=True))
    return Table("live", "Live streams", note, columns, tuple(rows), plots)
