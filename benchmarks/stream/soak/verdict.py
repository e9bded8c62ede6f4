"""What has to hold of a soak: its last quarter against its second one, and the answers behind the kill."""

from collections.abc import Callable, Sequence
from statistics import fmean, median

import numpy

from benchmarks.stream.soak.records import Round, Said
from benchmarks.table import Bar, Cell, Plot, Table
from benchmarks.tasks.streams import QUESTION_KINDS
from emblema.eval.metrics import Share

MEGA = 1e6
LINES = 20
"""Lines of the table over a whole soak."""
NOISE = 1.1
"""By how much a ratio of times, or of bytes, may pass what it is held against."""
SPARE = 0.5
"""What the process may take beside each byte that the stream counts: gaps of the allocator and working space, which
weigh most in the first minutes."""
UNCOUNTED = "bytes of the process that the stream does not count, for each that it does, last quarter less the second"
INDEX = ("index", "waiting")
"""Places of the device whose bytes go with the clusters."""

Figure = Callable[[Round], float]


def ttft(one: Round) -> float:
    """Median CPU seconds to the first token."""
    return median(one.ttft_cpu)


def encoding(one: Round) -> float:
    """CPU seconds to encode a frame."""
    return one.encode_cpu / one.encoded


def index_bytes(one: Round) -> float:
    """Device bytes that go with the clusters."""
    return sum(one.device.get(place, 0) for place in INDEX)


def other_bytes(one: Round) -> float:
    """Device bytes that do not."""
    return sum(one.device.values()) - index_bytes(one)


def uncounted(one: Round) -> float:
    """Bytes of the process that the stream does not count: the program, the model, its own numbers of frames."""
    return one.resident - one.counted


def counted(one: Round) -> float:
    """Bytes of the process that the stream counts."""
    return one.counted


def host_bytes(one: Round) -> float:
    """Bytes on the host."""
    return sum(one.host.values())


def quarters(rounds: Sequence[Round]) -> tuple[list[Round], list[Round]]:
    """The second quarter of a soak, and its last one."""
    end = rounds[-1].frames
    second = [one for one in rounds if end < 4 * one.frames <= 2 * end]
    return second, [one for one in rounds if 4 * one.frames > 3 * end]


def growth(rounds: Sequence[Round], figure: Figure) -> float:
    """The mean over the last quarter as a multiple of that over the second."""
    second, last = quarters(rounds)
    before = fmean(map(figure, second))
    return fmean(map(figure, last)) / before if before else float("nan")


def more(rounds: Sequence[Round], figure: Figure) -> float:
    """By how much the mean over the last quarter is above that over the second."""
    second, last = quarters(rounds)
    return fmean(map(figure, last)) - fmean(map(figure, second))


def slope(rounds: Sequence[Round], across: Figure, up: Figure) -> float:
    """Of the line through all rounds that fits best."""
    xs, ys = [across(one) for one in rounds], [up(one) for one in rounds]
    return float(numpy.polyfit(xs, ys, 1)[0]) if len(set(xs)) > 1 else float("nan")


def soak_bars(said: Said) -> tuple[Bar, ...]:
    """Everything that has to hold."""
    rounds = said.rounds
    second, last = quarters(rounds)
    count, asked = len(second) + len(last), len(said.before.tokens)
    same = said.before.same(said.after) / asked if asked else None
    clusters = growth(rounds, lambda one: one.clusters)

    def held(name: str, value: float, bound: float) -> Bar:
        return Bar(f"{name}, last quarter to the second", value, bound, least=False, count=count)

    return (
        Bar("same answers from the same frames behind the kill", same, 1, count=asked),
        held("time to first token over growth of clusters", growth(rounds, ttft) / clusters, NOISE),
        held("CPU seconds to encode a frame over growth of clusters", growth(rounds, encoding) / clusters, NOISE),
        # The index grows by a quarter at a time.
        held("device bytes of a cluster", growth(rounds, lambda one: index_bytes(one) / one.clusters), 1.25),
        held("other device bytes", growth(rounds, other_bytes), 1.01),
        held("host bytes of a frame", growth(rounds, lambda one: host_bytes(one) / one.frames), NOISE),
        Bar(UNCOUNTED, more(rounds, uncounted) / more(rounds, counted), SPARE, least=False, count=count),
    )


def soak_tables(said: Said) -> tuple[Table, ...]:
    """The soak line by line, what grows with what, and how it answered."""
    return _rounds(said), _slopes(said), _answers(said)


def _rounds(said: Said) -> Table:
    rounds = said.rounds
    size = -(-len(rounds) // LINES)
    lines = [rounds[start : start + size] for start in range(0, len(rounds), size)]
    note = (
        "Each line is the mean over the rounds up to so many frames; a round is some frames, and a question of every "
        "kind. TTFT: CPU milliseconds to the first token of questions about the whole stream. Clusters are those of "
        f"one layer. Resident: memory of the process. It was killed behind {said.before.frames:,} frames and went on "
        "from there. Uncounted: what of it the stream does not say that it holds."
    )
    over = ("clusters", "TTFT ms", "frames a CPU second", "index MB", "host MB", "resident MB", "uncounted MB")
    columns = ("frames", "process", "clusters", "visual clusters", "TTFT ms", "frames a CPU second", "index MB")
    return Table(
        "soak",
        f"{rounds[-1].frames:,} frames, asked all the way",
        note,
        (*columns, "other device MB", "host MB", "resident MB", "uncounted MB", "right"),
        tuple(_line(line) for line in lines),
        (*(Plot("frames", column) for column in over), Plot("clusters", "TTFT ms")),
        soak_bars(said),
        said.seconds,
    )


def _line(rounds: Sequence[Round]) -> tuple[Cell, ...]:
    last = rounds[-1]
    right = [each for one in rounds for each in one.right.values()]
    return (
        last.frames,
        "first" if last.process == 0 else "second",
        fmean(one.clusters for one in rounds),
        fmean(one.visual for one in rounds),
        1000 * fmean(map(ttft, rounds)),
        1 / fmean(map(encoding, rounds)),
        *(fmean(map(figure, rounds)) / MEGA for figure in (index_bytes, other_bytes, host_bytes)),
        fmean(one.resident for one in rounds) / MEGA,
        fmean(map(uncounted, rounds)) / MEGA,
        Share(sum(right) / len(right) if right else float("nan"), len(right)),
    )


def _slopes(said: Said) -> Table:
    rounds = said.rounds
    frames, clusters = (lambda one: float(one.frames)), (lambda one: one.clusters)
    figures = (
        ("clusters of one layer, for 1,000 frames", slope(rounds, frames, clusters) * 1000),
        ("device bytes, for a cluster of one layer", slope(rounds, clusters, index_bytes)),
        ("host bytes, for a frame", slope(rounds, frames, host_bytes)),
        ("uncounted bytes of the process, for a frame", slope(rounds, frames, uncounted)),
        ("TTFT, microseconds for a cluster of one layer", slope(rounds, clusters, ttft) * MEGA),
        ("encoding, microseconds of a frame for a cluster of one layer", slope(rounds, clusters, encoding) * MEGA),
        ("clusters, last quarter to the second", growth(rounds, clusters)),
        ("TTFT, last quarter to the second", growth(rounds, ttft)),
        ("encoding, last quarter to the second", growth(rounds, encoding)),
        ("frames that the killed process had seen since it saved", said.lost),
        ("megabytes of the saved stream", said.saved_bytes / MEGA),
    )
    note = "Slopes of the straight lines through all rounds that fit best, and means of quarters."
    return Table("soak-slopes", "What grows with what", note, ("figure", "value"), figures)


def _answers(said: Said) -> Table:
    rows = []
    for kind in sorted({one.kind for one in said.rounds}):
        rounds = [one for one in said.rounds if one.kind == kind]
        cells: list[Cell] = []
        for question in QUESTION_KINDS:
            right = [one.right[question] for one in rounds if question in one.right]
            cells.append(Share(sum(right) / len(right), len(right)) if right else None)
        rows.append((kind, *cells))
    note = "Share of right answers about the latest stretch, with no more than that in sight."
    columns = ("stretch", *QUESTION_KINDS)
    return Table("soak-answers", "Answers by kind of stretch and question", note, columns, tuple(rows))
