"""How time and bytes grow with a stream's length (Mosaic, table I and figures 3b, 3c)."""

import time
from contextlib import ExitStack
from statistics import median

from rich.console import Console

from emblema.bench.progress import steps
from emblema.bench.stream.systems.clock import middle, ratio
from emblema.bench.stream.systems.held import local_bytes, memory_bytes
from emblema.bench.stream.systems.inside import watched
from emblema.bench.stream.systems.running import Ask, ask_in_turns, ask_one, feed, film_of, opened, questions
from emblema.bench.stream.systems.wanted import SystemsWanted
from emblema.bench.table import Bar, Cell, Plot, Table
from emblema.bench.tasks.streams import Stream as Film
from emblema.engine.engine import Engine
from emblema.stream.stream import Stream

METHODS = ("full", "rekv", "mosaic")
SHORT, LONG, SLOWER = 256, 4096, 1.3
SHARES = ("memory", "transfers", "attention", "around attention", "rest")
COLUMNS = (
    "method",
    "frames",
    "TTFT ms",
    "CPU ms",
    "TTFT over shorter",
    "CPU over shorter",
    "TTFT over ReKV",
    "encode frames/s",
    "device bytes",
    "host bytes",
    *SHARES,
)
NOTE = (
    "Mosaic's table I and figures 3b and 3c. One stream a method and length, all of them open at once, over the "
    "beginning of one film; then the same questions to all, in turns, {rounds} times. TTFT, and CPU (of the whole "
    "process, what is done behind the first token included), are medians; their ratios are medians of ratios question "
    "by question, with 95 % bootstrap intervals: 'over shorter' against the same method at {short} frames, 'over "
    "ReKV' at the same length. Frames are encoded in turns too; frames/s go by CPU time, drawing the frames not "
    "counted. Device bytes are what is always seen and the memory's own; host bytes are all. The last columns are "
    "shares of an answer's time, taken apart: in the memory (scoring, choosing, putting rows together), waiting for "
    "transfers, in the attention function, in the rest of the attention layers (projections, rows set in their "
    "places), and the rest."
)
Key = tuple[str, int]


def measure_growth(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Time to the first token, and bytes, of full attention, ReKV and Mosaic by length."""
    began, lengths = time.perf_counter(), wanted.lengths
    film = film_of(wanted.kinds[0], lengths[-1], wanted)
    texts = [one.text for one in questions(film, lengths[0])]
    keys = [(method, frames) for frames in lengths for method in METHODS]
    with ExitStack() as stack:
        streams = {key: opened(stack, engine, key[0], wanted.settings) for key in keys}
        rates = _encoded(streams, film, wanted, console)
        with steps(console, "growth: questions", wanted.rounds + 1) as tick:
            asks = ask_in_turns(streams, texts, wanted.rounds, tick)
        shares = {key: _shares(engine, streams[key], texts) for key in keys}
        rows = [_row(key, asks, rates[key], streams[key], shares[key], _shorter(lengths)) for key in sorted(keys)]
    note = NOTE.format(rounds=wanted.rounds, short=_shorter(lengths))
    plots = tuple(
        Plot("frames", y, "method", doubling=True)
        for y in ("TTFT ms", "CPU ms", "TTFT over shorter", "device bytes", "memory", "transfers", "attention")
    )
    bars = _bars(asks, lengths)
    spent = time.perf_counter() - began
    return Table("growth", "Time and bytes by length", note, COLUMNS, tuple(rows), plots, bars, spent)


def _shorter(lengths: tuple[int, ...]) -> int:
    return SHORT if SHORT in lengths else lengths[0]


def _encoded(streams: dict[Key, Stream], film: Film, wanted: SystemsWanted, console: Console) -> dict[Key, float]:
    """Frames a second of processor time; streams leave the turns when they are as long as they get."""
    cpu = dict.fromkeys(streams, 0.0)
    together, starts = wanted.settings.block, (0, *wanted.lengths)
    blocks = sum(-(-(stop - start) // together) for start, stop in zip(starts, wanted.lengths, strict=False))
    with steps(console, "growth: frames", blocks) as tick:
        for start, stop in zip(starts, wanted.lengths, strict=False):
            longer = {key: stream for key, stream in streams.items() if key[1] >= stop}
            for key, spent in feed(longer, film, start, stop, together, tick).items():
                cpu[key] += sum(one.cpu for one in spent)
    return {key: key[1] / seconds for key, seconds in cpu.items()}


def _shares(engine: Engine, stream: Stream, texts: list[str]) -> tuple[float, ...]:
    """Shares of an answer's time, by `SHARES`; medians over questions."""
    found = []
    for text in texts:
        with watched(engine, stream) as times:
            one = ask_one(stream, text)
        moved = one.counts.get("waited_seconds", 0.0)
        parts = (times.reading - moved, moved, times.attending, times.layers - times.reading - times.attending)
        found.append((*(part / one.ttft for part in parts), 1 - sum(parts) / one.ttft))
    return tuple(median(column) for column in zip(*found, strict=True))


def _row(
    key: Key, asks: dict[Key, list[Ask]], rate: float, stream: Stream, shares: tuple[float, ...], short: int
) -> tuple[Cell, ...]:
    method, frames = key
    own, base, rekv = asks[key], asks[method, short], asks["rekv", frames]
    ttft, cpu = [one.ttft for one in own], [one.cpu for one in own]
    held = stream.bytes
    return (
        method,
        frames,
        middle(ttft),
        middle(cpu),
        ratio(ttft, [one.ttft for one in base]),
        ratio(cpu, [one.cpu for one in base]),
        ratio(ttft, [one.ttft for one in rekv]),
        rate,
        local_bytes(held) + memory_bytes(held),
        sum(held.host.values()),
        *shares,
    )


def _bars(asks: dict[Key, list[Ask]], lengths: tuple[int, ...]) -> tuple[Bar, ...]:
    """Held at the lengths that the issue names, where these were measured: on the clock, and by processor time."""
    if not {SHORT, LONG} <= set(lengths):
        return ()
    long, short = asks["mosaic", LONG], asks["mosaic", SHORT]
    wall = ratio([one.ttft for one in long], [one.ttft for one in short])
    cpu = ratio([one.cpu for one in long], [one.cpu for one in short])
    return tuple(
        Bar(f"Mosaic's {name} at {LONG:,} frames over that at {SHORT}", found.value, SLOWER, False, len(long))
        for name, found in (("TTFT", wall), ("CPU time", cpu))
    )
