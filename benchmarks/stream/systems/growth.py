"""How time and bytes grow with a stream's length (Mosaic, table I and figures 3b, 3c)."""

import time
from collections.abc import Mapping
from contextlib import ExitStack

from rich.console import Console

from benchmarks.stream.systems.clock import middle, ratio
from benchmarks.stream.systems.held import local_bytes, memory_bytes
from benchmarks.stream.systems.inside import watched
from benchmarks.stream.systems.running import Ask, ask_in_turns, ask_one, feed, film_of, opened, questions
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.table import Bar, Cell, Plot, Table
from benchmarks.tasks.streams import GeneratedStream
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.stream import Stream

METHODS, COMPARED = ("full", "rekv", "mosaic"), ("rekv", "mosaic")
SHORT, LONG, SLOWER = 256, 4096, 1.3
SHARES = ("memory", "transfers", "attention", "around attention", "rest")
COLUMNS = (
    "kind",
    "method",
    "frames",
    "TTFT ms",
    "CPU ms",
    "TTFT over shorter",
    "CPU over shorter",
    "TTFT over ReKV",
    "CPU over ReKV",
    "encode frames/s",
    "device bytes",
    "host bytes",
    *SHARES,
)
NOTE = (
    "Mosaic's table I and figures 3b and 3c. One stream a kind of film, method and length, all of a kind open at "
    "once, over the beginning of one film; then the same questions to all, in turns, {rounds} times. TTFT, and CPU "
    "(of the whole process, what is done behind the first token included), are medians; their ratios are medians of "
    "ratios question by question, with 95 % bootstrap intervals: 'over shorter' against the same method at {short} "
    "frames, 'over ReKV' at the same length. Frames are encoded in turns too; frames/s go by CPU time, drawing the "
    "frames not counted. Device bytes are what is always seen and the memory's own; host bytes are all. The last "
    "columns are shares of the answers' time, taken apart: in the memory (scoring, choosing, putting rows together), "
    "waiting for transfers, in the attention function, in the rest of the attention layers (projections, rows set in "
    "their places), and the rest. Full attention runs on the first kind alone; the bars go by the worst kind."
)
Key = tuple[str, int]
Asks = dict[Key, list[Ask]]
"""Answers by method and length."""


def measure_growth(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Time to the first token, and bytes, of full attention, ReKV and Mosaic by length."""
    began, rows, asks = time.perf_counter(), list[tuple[Cell, ...]](), dict[str, Asks]()
    short = shorter(wanted.lengths)
    for kind in wanted.kinds:
        film = film_of(kind, wanted.lengths[-1], wanted)
        texts = [one.text for one in questions(film, wanted.lengths[0])]
        methods = METHODS if kind == wanted.kinds[0] else COMPARED
        keys = [(method, frames) for method in methods for frames in wanted.lengths]
        with ExitStack() as stack:
            streams = {key: opened(stack, engine, key[0], wanted.settings) for key in keys}
            rates = _encoded(streams, film, wanted, console)
            with steps(console, f"growth, {kind}: questions", wanted.rounds + 1) as tick:
                asks[kind] = ask_in_turns(streams, texts, wanted.rounds, tick)
            for key in keys:
                shares = _shares(engine, streams[key], texts)
                rows.append((kind, *_row(key, asks[kind], rates[key], streams[key], shares, short)))
    note = NOTE.format(rounds=wanted.rounds, short=short)
    drawn = ("TTFT ms", "TTFT over ReKV", "device bytes", "host bytes", "memory", "transfers")
    plots = tuple(Plot("frames", y, "method", split="kind", doubling=True) for y in drawn)
    bars, spent = bars_of(asks), time.perf_counter() - began
    return Table("growth", "Time and bytes by length", note, COLUMNS, tuple(rows), plots, bars, spent)


def shorter(lengths: tuple[int, ...]) -> int:
    """The length that longer ones are held against."""
    return SHORT if SHORT in lengths else lengths[0]


def _encoded(
    streams: dict[Key, Stream], film: GeneratedStream, wanted: SystemsWanted, console: Console
) -> dict[Key, float]:
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
    """Shares of the time of answers, all together, by `SHARES`."""
    with watched(engine, stream) as times:
        asks = [ask_one(stream, text) for text in texts]
    total = sum(one.ttft for one in asks)
    moved = sum(one.counts.get("waited_seconds", 0.0) for one in asks)
    parts = (times.reading - moved, moved, times.attending, times.layers - times.reading - times.attending)
    return (*(part / total for part in parts), 1 - sum(parts) / total)


def _row(key: Key, asks: Asks, rate: float, stream: Stream, shares: tuple[float, ...], short: int) -> tuple[Cell, ...]:
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
        ratio(cpu, [one.cpu for one in rekv]),
        rate,
        local_bytes(held) + memory_bytes(held),
        sum(held.host.values()),
        *shares,
    )


def bars_of(asks: Mapping[str, Asks]) -> tuple[Bar, ...]:
    """Held at the lengths of the bar, where these were measured: on the clock, and by processor time."""
    pairs = [
        (own["mosaic", LONG], own["mosaic", SHORT])
        for own in asks.values()
        if {("mosaic", LONG), ("mosaic", SHORT)} <= set(own)
    ]
    if not pairs:
        return ()
    wall = max(ratio([one.ttft for one in long], [one.ttft for one in short]).value for long, short in pairs)
    cpu = max(ratio([one.cpu for one in long], [one.cpu for one in short]).value for long, short in pairs)
    count = sum(len(long) for long, _ in pairs)
    return tuple(
        Bar(f"Mosaic's {name} at {LONG:,} frames over that at {SHORT}", value, SLOWER, least=False, count=count)
        for name, value in (("TTFT", wall), ("CPU time", cpu))
    )
