"""Accuracy of streams as tables: at equal budget, by question, budget and length, with one thing changed; the bars."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from benchmarks.intervals import Interval, bootstrap
from benchmarks.stream.passes import PassRecord, PassResults
from benchmarks.stream.plan import ARMS, BASELINES, FITS, FULL, OURS, SEARCH_SEEDS, AccuracyOptions
from benchmarks.table import Bar, Cell, Plot, Table
from benchmarks.tasks.streams import QUESTION_KINDS, STREAM_KINDS
from emblema.errors import EmblemaError

ALL, LIVE = "all", "live"
THREE = ("nocache", "streammem", OURS)
SLACK, LONG_SLACK = -0.01, 0.0
"""What Mosaic may lose to full attention, at equal budget and at the longest length at which that is measured."""
ABOVE = 2
"""Kinds on which Mosaic has to be above the best baseline."""
ORDERED = "ordered"
FRAMES, SEEDS = 512, 3
"""Fewest frames and seeds that anything is claimed for."""
TTFT, CPU, RATE = "TTFT ms", "TTFT CPU ms", "frames/CPU s"
LESS_IT, LESS_OURS, OVER_OURS = "mosaic less it", "less mosaic", "TTFT CPU / mosaic's"

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


def counted(records: Sequence[PassRecord], *names: str) -> float | None:
    """Return the mean of counts added up, over streams; None where the memory has no such counts."""
    if not records or any(name not in record.counts for record in records for name in names):
        return None
    return float(np.mean([sum(record.counts[name] for name in names) for record in records]))


FIGURES: dict[str, Callable[[Sequence[PassRecord]], Cell]] = {
    "accuracy": accuracy,
    TTFT: median_ms,
    CPU: lambda records: median_ms(records, cpu=True),
    RATE: encoded,
    "streams": len,
    "asked": questions,
    "cuts": lambda records: counted(records, "semantic_cuts", "visual_cuts"),
    "clusters": lambda records: counted(records, "clusters"),
}
"""A cell of an arm by the name of its column."""


def _figure(column: str, arm: str, own: ByArm) -> Cell:
    """Return an arm's cell; nothing of an arm with itself, and of any without Mosaic."""
    if column in FIGURES:
        return FIGURES[column](own[arm])
    ours = own.get(OURS)
    if column == OVER_OURS:
        spent, least = median_ms(own[arm], cpu=True), None if ours is None else median_ms(ours, cpu=True)
        return spent / least if spent is not None and least else None
    if ours is None or arm == OURS:
        return None
    return paired(ours, own[arm]) if column == LESS_IT else paired(own[arm], ours)


def _arm_rows(lead: tuple[Cell, ...], own: ByArm, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
    return [(*lead, arm, *(_figure(column, arm, own) for column in columns)) for arm in own]


def by_arm(
    results: PassResults, kind: str = ALL, frames: int | None = None, budget: int | None = None
) -> dict[str, list[PassRecord]]:
    """Return records by arm, as the passes are named; of one kind, length and budget, if given."""
    found: dict[str, list[PassRecord]] = {}
    for wanted, record in results.items():
        stream = wanted.stream
        if kind in (ALL, stream.kind) and frames in (None, stream.frames) and budget in (None, wanted.budget):
            found.setdefault(wanted.arm, []).append(record)
    return found


def kinds_of(options: AccuracyOptions) -> tuple[str, ...]:
    """Return the kinds, and all of them together where there are several."""
    return (*options.kinds, ALL) if len(options.kinds) > 1 else options.kinds


def asked_words(options: AccuracyOptions, *, frames: bool = True, budget: bool = True) -> str:
    """Return how streams were asked, for a note; without what the table varies."""
    settings = options.settings
    streams = f"Streams of {options.frames} frames, asked" if frames else "Streams are asked"
    limit = f"budget {options.budget} frames a layer, " if budget else ""
    return (
        f"{streams} {options.times} times in their second half, the last time at the end; {limit}sinks "
        f"{settings.sinks}, window {settings.window}, blocks of {settings.block}, {settings.positions} positions for "
        "all. Intervals: 95 %, bootstrap over streams."
    )


def accuracy_tables(results: PassResults, options: AccuracyOptions) -> tuple[Table, ...]:
    """Return all tables of the comparison at equal budget."""
    kinds: dict[str, ByArm] = {kind: by_arm(results, kind) for kind in kinds_of(options)}
    found = [_methods(kinds, options), _questions(kinds[kinds_of(options)[-1]], options)]
    if all(set(THREE) <= set(records) for records in kinds.values()):
        found.append(_three(kinds, options))
    if LIVE in kinds and OURS in kinds[LIVE]:
        found.append(_live(kinds[LIVE], options))
    return tuple(found)


def _methods(kinds: Mapping[str, ByArm], options: AccuracyOptions) -> Table:
    columns = ("accuracy", LESS_IT, TTFT, CPU, RATE, "streams", "asked")
    note = (
        "Mosaic's figure 7 and table III, accuracy with time to first token. Mosaic less a method: over the same "
        "questions, paired. Times are medians over questions that went to all methods in turn (runs that were joined "
        "were made one after the other); CPU: seconds of the processor, which a busy machine does not stretch. "
        f"{asked_words(options)}"
    )
    stated = claims(options)
    if not stated:
        note += f" No bar is stated: they want all kinds and methods, {FRAMES} frames and {SEEDS} seeds or more."
    return Table(
        "accuracy",
        "Accuracy at equal budget, by method and kind of stream",
        note,
        ("kind", "method", *columns),
        tuple(row for kind, own in kinds.items() for row in _arm_rows((kind,), own, columns)),
        (Plot("kind", "accuracy", "method", bars=True), Plot("kind", CPU, "method", bars=True)),
        accuracy_bars({kind: kinds[kind] for kind in options.kinds}) if stated else (),
    )


def _questions(records: ByArm, options: AccuracyOptions) -> Table:
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
        f"{asked_words(options)}"
    )
    columns = ("question", "method", "accuracy", "asked")
    plot = Plot("question", "accuracy", "method", bars=True)
    return Table("question-kinds", "Accuracy by kind of question", note, columns, tuple(rows), (plot,))


def _three(kinds: Mapping[str, ByArm], options: AccuracyOptions) -> Table:
    rows = [
        (kind, *(accuracy(own[arm]) for arm in THREE), *(median_ms(own[arm]) for arm in THREE))
        for kind, own in kinds.items()
    ]
    columns = ("kind", *THREE, *(f"{arm} ms" for arm in THREE))
    note = f"Mosaic's table III: NoCache / StreamMem / Mosaic, accuracy and time to first token. {asked_words(options)}"
    return Table("table-three", "NoCache, StreamMem and Mosaic", note, columns, tuple(rows))


def _live(records: ByArm, options: AccuracyOptions) -> Table:
    columns = ("accuracy", LESS_IT, TTFT, OVER_OURS)
    note = (
        "Mosaic's figure 13, live streams: abrupt changes of scene and near-duplicate frames. Generated ones stand for "
        f"those of a live platform, which are not public. {asked_words(options)}"
    )
    plots = (Plot("method", "accuracy", bars=True), Plot("method", OVER_OURS, bars=True))
    return Table("live", "Live streams", note, ("method", *columns), tuple(_arm_rows((), records, columns)), plots)


def search_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return how settings of the baselines do on streams of other seeds."""
    own, columns = by_arm(results), ("accuracy", CPU, RATE, "streams", "asked")
    changed = "; ".join(f"{name}: {ARMS[name].words}" for name in own if ARMS[name].words)
    note = (
        f"Settings of the baselines on seeds {' '.join(map(str, SEARCH_SEEDS))}, which no other part has. {changed}. "
        f"Frames that are always seen and frames retrieved are as many for all. {asked_words(options)}"
    )
    rows = tuple(_arm_rows((), own, columns))
    return Table("search", "Settings of the baselines", note, ("arm", *columns), rows)


def budget_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return figure 10: accuracy by budget."""
    columns = ("accuracy", LESS_IT, TTFT, CPU, "asked")
    rows = [
        row
        for kind in kinds_of(options)
        for budget in options.budgets
        for row in _arm_rows((kind, budget), by_arm(results, kind, budget=budget), columns)
    ]
    note = (
        "Mosaic's figure 10: retrieved frames, Mosaic against ReKV. Both have the same window beside them. "
        f"{asked_words(options, budget=False)}"
    )
    names = ("kind", "budget", "method", *columns)
    return Table("budgets", "Accuracy by budget", note, names, tuple(rows), _sweep_plots("budget", options))


def length_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return figure 12: accuracy by length of the stream."""
    columns = ("accuracy", LESS_IT, TTFT, CPU, RATE, "asked")
    rows = [
        row
        for kind in kinds_of(options)
        for frames in options.lengths
        for row in _arm_rows((kind, frames), by_arm(results, kind, frames), columns)
    ]
    note = (
        "Mosaic's figure 12: streams of several lengths, each drawn for its length. Full attention is measured to "
        f"{FITS:,} frames. {asked_words(options, frames=False)}"
    )
    names = ("kind", "frames", "method", *columns)
    plots = _sweep_plots("frames", options)
    longest = {kind: by_arm(results, kind, FITS) for kind in options.kinds}
    complete = FITS in options.lengths and all(OURS in own for own in longest.values())
    bars = full_bars(longest, LONG_SLACK) if complete and claims(options) else ()
    return Table("lengths", "Accuracy by length of the stream", note, names, tuple(rows), plots, tuple(bars))


def ablation_table(results: PassResults, options: AccuracyOptions) -> Table:
    """Return table IV, and what else was chosen where the paper left room."""
    own, columns = by_arm(results), ("accuracy", LESS_OURS, CPU, RATE, "cuts", "clusters")
    changed = "; ".join(f"{name}: {ARMS[name].words}" for name in own if ARMS[name].words)
    note = (
        "Mosaic's table IV: without clusters (ReKV, which shows nothing of what it does not retrieve, and mosaic-flat, "
        "which shows a mean row of every frame), the visual level alone, the semantic level alone; then single "
        "choices, each against Mosaic as it is by default, over the same questions; an arm that is the default's own "
        f"setting is the same. {changed}. Cuts and clusters: mean over streams, all layers together. "
        f"{asked_words(options)}"
    )
    plots = (Plot("arm", "accuracy", bars=True), Plot("arm", LESS_OURS, bars=True))
    rows = tuple(_arm_rows((), own, columns))
    return Table("ablation", "Mosaic with one thing changed", note, ("arm", *columns), rows, plots)


def _sweep_plots(x: str, options: AccuracyOptions) -> tuple[Plot, ...]:
    whole = kinds_of(options)[-1]
    return (
        Plot(x, "accuracy", "method", split="kind", doubling=True),
        Plot(x, CPU, "method", only=("kind", whole), doubling=True),
    )


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
    lows, words = [], []
    for kind, records in by_kind.items():
        best = best_baseline(records)
        found = None if best is None else paired(records[OURS], records[best])
        if found is not None:
            lows.append(found.low)
            words.append(f"{kind} {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}] over {best}")
    bars: list[Bar] = []
    if lows:
        above, asked = sum(low > 0 for low in lows), sum(questions(records[OURS]) for records in by_kind.values())
        bars.append(Bar(f"kinds with mosaic above the best baseline: {', '.join(words)}", above, ABOVE, count=asked))
    for question in (None, ORDERED):
        bars += full_bars(by_kind, SLACK, question)
    return tuple(bars)


def full_bars(by_kind: Mapping[str, ByArm], slack: float, question: str | None = None) -> list[Bar]:
    """Return the bars of being close to full attention, kind by kind; on questions of one kind alone, if given."""
    bars = []
    for kind, records in by_kind.items():
        found = paired(records[OURS], records.get(FULL, ()), question)
        if found is not None:
            about = f"{kind}: mosaic less full attention, {found.value:+.3f}, lower bound"
            name = about if question is None else f"{about}, {question} questions"
            bars.append(Bar(name, found.low, slack, count=questions(records[OURS], question)))
    return bars
