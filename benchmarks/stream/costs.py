"""How time and bytes grow with a stream's length (Mosaic, table I and figures 3b, 3c, 11)."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy
import torch
from rich.console import Console

from benchmarks.stream.plan import ARMS
from benchmarks.stream.running import (
    AskCost,
    SystemsOptions,
    ask_in_turns,
    ask_word,
    cpu_ratio,
    feed,
    film_of,
    opened,
    questions,
    ttft_ratio,
)
from benchmarks.table import Bar, Cell, Table
from benchmarks.tasks.streams import GeneratedStream
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.method import MemoryBytes, Query, Selection, VisibleRange
from emblema.stream.methods import METHODS
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.mosaic.retrieval import choose_frames
from emblema.stream.stream import Stream

STOCK, ALIKE = "rekv", "rekv-orders"
TIMED, COMPARED = ("full", STOCK, ALIKE, "mosaic"), (STOCK, ALIKE, "mosaic")
OVER = {STOCK: 1.0, ALIKE: 1.2}
"""How much longer than ReKV's a first token may take, by ReKV's scores."""
FOUND = 0.95
SHORT, LONG, SLOWER = 256, 4096, 1.3
GROWTH_COLUMNS = (
    "kind", "method", "frames", "CPU ms", "CPU over shorter", "CPU over ReKV", "mass found", "encode frames/s",
    "device bytes", "host bytes",
)  # fmt: skip
GROWTH_NOTE = "Questions go to all streams in turns, {rounds} times; over shorter: over the time at {short} frames."
Key = tuple[str, int]
Asks = dict[Key, list[AskCost]]
"""Answers by method and length."""


def measure_growth(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure time to the first token, and bytes, of full attention, ReKV and Mosaic by length."""
    rows, asks, shares_found = list[tuple[Cell, ...]](), dict[str, Asks](), list[float]()
    short = shorter(options.lengths)
    for kind in options.kinds:
        film = film_of(kind, options.lengths[-1], options)
        texts = [question.text for question in questions(film, options.lengths[0])]
        methods = TIMED if kind == options.kinds[0] else COMPARED
        keys = [(method, frames) for method in methods for frames in options.lengths]
        with ExitStack() as stack:
            arms = {key: ARMS[key[0]] for key in keys}
            streams = {
                key: opened(stack, engine, arm.method, options.settings, **arm.changes) for key, arm in arms.items()
            }
            rates = _encode_rates(streams, film, options, console)
            with steps(console, f"growth, {kind}: questions", options.rounds + 1) as tick:
                asks[kind] = ask_in_turns(streams, texts, options.rounds, tick)
            for key in keys:
                held = streams[key].bytes
                sizes = (held.device.get("local", 0) + memory_bytes(held), sum(held.host.values()))
                found = mass_found(streams[key], texts) if key[0] == "mosaic" else None
                if found is not None and key[1] == LONG:
                    shares_found.append(found)
                rows.append((kind, *key, *_times(key, asks[kind], short), found, rates[key], *sizes))
    note = GROWTH_NOTE.format(rounds=options.rounds, short=short)
    bars = growth_bars(asks)
    if shares_found:
        name = f"mass found, worst layer, {LONG:,} frames"
        bars = (*bars, Bar(name, min(shares_found), FOUND, count=len(shares_found)))
    return Table("growth", "Time and bytes by length", note, GROWTH_COLUMNS, tuple(rows), (), bars)


def shorter(lengths: tuple[int, ...]) -> int:
    """Return the length that longer ones are held against."""
    return SHORT if SHORT in lengths else lengths[0]


def _encode_rates(
    streams: dict[Key, Stream], film: GeneratedStream, options: SystemsOptions, console: Console
) -> dict[Key, float]:
    """Return frames a second of processor time; streams leave the turns when they are as long as they get."""
    cpu = dict.fromkeys(streams, 0.0)
    spans = list(zip((0, *options.lengths), options.lengths, strict=False))
    together = options.settings.block
    with steps(console, "growth: frames", sum(-(-(stop - start) // together) for start, stop in spans)) as tick:
        for start, stop in spans:
            longer = {key: stream for key, stream in streams.items() if key[1] >= stop}
            for key, spent in feed(longer, film, start, stop, together, tick).items():
                cpu[key] += sum(push.cpu for push in spent)
    return {key: key[1] / seconds for key, seconds in cpu.items()}


def _times(key: Key, asks: Asks, short: int) -> tuple[Cell, ...]:
    own = asks[key]
    others = (asks[key[0], short], asks[STOCK, key[1]])
    return (1000 * median(ask.cpu for ask in own), *(cpu_ratio(own, other) for other in others))


def growth_bars(asks: Mapping[str, Asks]) -> tuple[Bar, ...]:
    """Return the bars at their lengths, where these were measured: on the clock, and by processor time."""
    pairs = [
        (own["mosaic", LONG], own["mosaic", SHORT])
        for own in asks.values()
        if {("mosaic", LONG), ("mosaic", SHORT)} <= set(own)
    ]
    if not pairs:
        return ()
    count = sum(len(long) for long, _ in pairs)
    worst = {
        "TTFT": max(ttft_ratio(long, short).value for long, short in pairs),
        "CPU time": max(cpu_ratio(long, short).value for long, short in pairs),
    }
    bars = [
        Bar(f"{name} at {LONG:,} frames over that at {SHORT}", value, SLOWER, least=False, count=count)
        for name, value in worst.items()
    ]
    for arm, bound in OVER.items():
        both = [(own["mosaic", LONG], own[arm, LONG]) for own in asks.values() if (arm, LONG) in own]
        for name, over in (("TTFT", ttft_ratio), ("CPU time", cpu_ratio)):
            if both:
                value = max(over(*pair).value for pair in both)
                bars.append(
                    Bar(f"{name} over {arm}'s at {LONG:,} frames", value, bound, least=False, count=count)
                )
    return tuple(bars)


def mass_found(stream: Stream, texts: list[str]) -> float | None:
    """Return the share of the attention on the frames of an exact retrieval that is on those retrieved, worst layer.

    None where the memory compares all frames in any case.
    """
    memory = stream.memory
    if not isinstance(memory, Mosaic) or not memory.postings or stream.settings.budget is None:
        return None
    wanted, found = torch.zeros(len(memory.stores)), torch.zeros(len(memory.stores))
    read = memory.read

    def noting(layer: int, query: Query, visible: VisibleRange) -> Selection:
        keys, postings, settings = memory.keys[layer], memory.postings[layer], stream.settings
        gone = stream.log.gone
        exact, near = (choose_frames(keys, own, query, visible, settings, gone)[0] for own in (None, postings))
        states = query.states[:, query.groups >= 0].reshape(keys.heads, -1, keys.width)
        shares = keys.logits_between(states, 0, keys.count).softmax(2).unflatten(2, (-1, keys.parts)).sum((0, 1, 3))
        wanted[layer] += shares[torch.from_numpy(exact) - keys.first].sum()
        found[layer] += shares[torch.from_numpy(numpy.intersect1d(exact, near)) - keys.first].sum()
        return read(layer, query, visible)

    memory.read = noting  # type: ignore[method-assign]
    try:
        for text in texts:
            stream.prefill(text)
    finally:
        memory.__dict__.pop("read")
    return float((found / wanted).min())


HELD_AT, HALF, HOST = 1024, 0.5, 1.3
SHORTEST = 64
APART = ("local", "phases", "fetched")
"""Places on the device that are not the memory's own."""
ASKED = 3
BYTES_COLUMNS = (
    "kind", "method", "frames", "memory bytes", "always seen bytes", "fetched for a question", "host bytes",
    "memory over ReKV",
)  # fmt: skip
BYTES_NOTE = f"Weights apart; every stream is asked {ASKED} questions at each length."


@dataclass(frozen=True, slots=True)
class StreamBytes:
    """What one stream held at one length; `rekv` is what ReKV's memory held there."""

    kind: str
    method: str
    frames: int
    bytes: MemoryBytes
    fetched: int
    rekv: int

    @property
    def against(self) -> float | None:
        """The memory's bytes on the device over ReKV's."""
        return memory_bytes(self.bytes) / self.rekv if self.rekv else None

    @property
    def row(self) -> tuple[Cell, ...]:
        """Cells under `BYTES_COLUMNS`."""
        host, local = sum(self.bytes.host.values()), self.bytes.device.get("local", 0)
        held = (memory_bytes(self.bytes), local, self.fetched, host)
        return (self.kind, self.method, self.frames, *held, self.against)


def memory_bytes(held: MemoryBytes) -> int:
    """Return what a memory holds on the device, what a question brings there aside."""
    return sum(count for name, count in held.device.items() if name not in APART)


def lengths_to(frames: int) -> tuple[int, ...]:
    """Return frames at which bytes are taken: doubled from 64, and the last one."""
    found = [SHORTEST * 2**power for power in range(32) if SHORTEST * 2**power < frames]
    return (*found, frames)


def measure_bytes(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure bytes by place, of every method on one kind of film, of Mosaic and ReKV on all."""
    found = list[StreamBytes]()
    lengths, together = lengths_to(options.frames), options.settings.block
    with steps(console, "bytes", len(options.kinds) * -(-options.frames // together)) as tick:
        for kind in options.kinds:
            film = film_of(kind, options.frames, options)
            names = METHODS if kind == options.kinds[0] else ("mosaic", "rekv")
            with ExitStack() as stack:
                streams = {name: opened(stack, engine, name, options.settings) for name in names}
                for start, stop in zip((0, *lengths), lengths, strict=False):
                    feed(streams, film, start, stop, together, tick)
                    found += _held(kind, stop, streams, [question.text for question in questions(film, stop)][:ASKED])
    rows = tuple(held.row for held in found)
    return Table("bytes", "Bytes by place and length", BYTES_NOTE, BYTES_COLUMNS, rows, (), bytes_bars(found))


def _held(kind: str, frames: int, streams: dict[str, Stream], texts: list[str]) -> list[StreamBytes]:
    fetched = {
        name: int(max(ask_word(stream, text).counts.get("fetched_bytes", 0.0) for text in texts))
        for name, stream in streams.items()
    }
    rekv = memory_bytes(streams[STOCK].bytes)
    return [StreamBytes(kind, name, frames, stream.bytes, fetched[name], rekv) for name, stream in streams.items()]


def bytes_bars(found: Sequence[StreamBytes]) -> tuple[Bar, ...]:
    """Return the bars at their length, where it was measured; they go by the worst kind of video."""
    last = [held for held in found if held.method == "mosaic" and held.frames == HELD_AT and held.against is not None]
    if not last:
        return ()
    half = max(held.against or 0.0 for held in last)
    host = max(sum(held.bytes.host.values()) / held.bytes.host["rows"] for held in last)
    return (
        Bar(f"device bytes over ReKV's, {HELD_AT:,} frames", half, HALF, least=False, count=len(last)),
        Bar(f"host bytes over those of the rows, {HELD_AT:,} frames", host, HOST, least=False, count=len(last)),
    )
