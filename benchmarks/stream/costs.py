"""How time and bytes grow with a stream's length (Mosaic, table I and figures 3b, 3c, 11)."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median

import numpy
import torch
from rich.console import Console

from benchmarks.stream.plan import STOCK as STOCKS
from benchmarks.stream.running import (
    AskCost,
    SystemsOptions,
    ask_in_turns,
    ask_word,
    cost_ratio,
    feed,
    opened,
    questions,
)
from benchmarks.table import Bar, Cell, Table
from benchmarks.tasks.streams import GeneratedStream
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.method import MemoryBytes, Query, Selection, VisibleRange
from emblema.stream.mosaic.frame_memory import FrameMemory
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
    short = SHORT if SHORT in options.lengths else options.lengths[0]
    for kind in options.kinds:
        film = options.film(kind, options.lengths[-1])
        texts = [question.text for question in questions(film, options.lengths[0])]
        methods = TIMED if kind == options.kinds[0] else COMPARED
        keys = [(method, frames) for method in methods for frames in options.lengths]
        with ExitStack() as stack:
            streams = {key: opened(stack, engine, key[0], options.settings) for key in keys}
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
                cpu[key] += sum(spent)
    return {key: key[1] / seconds for key, seconds in cpu.items()}


def _times(key: Key, asks: Asks, short: int) -> tuple[Cell, ...]:
    own = asks[key]
    others = (asks[key[0], short], asks[STOCK, key[1]])
    return (1000 * median(ask.cpu for ask in own), *(cost_ratio("cpu", own, other) for other in others))


def growth_bars(asks: Mapping[str, Asks]) -> tuple[Bar, ...]:
    """Return the bars at their lengths, where these were measured: on the clock, and by processor time."""
    ours = ("mosaic", LONG)
    wanted = [(f"at {LONG:,} frames over that at {SHORT}", ("mosaic", SHORT), SLOWER)]
    wanted += [(f"over {arm}'s at {LONG:,} frames", (arm, LONG), bound) for arm, bound in OVER.items()]
    bars = []
    for words, other, bound in wanted:
        pairs = [(own[ours], own[other]) for own in asks.values() if ours in own and other in own]
        count = sum(len(long) for long, _ in pairs)
        for name, field in (("TTFT", "ttft"), ("CPU time", "cpu")):
            if pairs:
                value = max(cost_ratio(field, *pair).value for pair in pairs)
                bars.append(Bar(f"{name} {words}", value, bound, least=False, count=count))
    return tuple(bars)


def mass_found(stream: Stream, texts: list[str]) -> float | None:
    """Return the share of the attention on the frames of an exact retrieval that is on those retrieved, worst layer.

    None where the memory compares all frames in any case.
    """
    memory = stream.memory
    if not isinstance(memory, FrameMemory) or stream.settings.budget is None:
        return None
    wanted, found = torch.zeros(len(memory.stores)), torch.zeros(len(memory.stores))
    read = memory.read

    def noting(layer: int, query: Query, visible: VisibleRange) -> Selection:
        keys, postings, budget = memory.keys[layer], memory.postings[layer], stream.settings.budget
        gone = stream.log.gone
        exact, near = (choose_frames(keys, own, query, visible, budget, gone)[0] for own in (None, postings))
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
APART = ("local", "phases", "fetched")
"""Places on the device that are not the memory's own."""
ASKED = 3
BYTES_COLUMNS = (
    "kind", "method", "frames", "memory bytes", "always seen bytes", "fetched for a question", "host bytes",
)  # fmt: skip
BYTES_NOTE = f"Weights apart; every stream is asked {ASKED} questions."


def memory_bytes(held: MemoryBytes) -> int:
    """Return what a memory holds on the device, what a question brings there aside."""
    return sum(count for name, count in held.device.items() if name not in APART)


def measure_bytes(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure bytes by place, of every method on one kind of film, of Mosaic and ReKV on all."""
    rows = list[tuple[Cell, ...]]()
    held = list[dict[str, MemoryBytes]]()
    frames, together = options.frames, options.settings.block
    with steps(console, "bytes", len(options.kinds) * -(-frames // together)) as tick:
        for kind in options.kinds:
            film = options.film(kind, frames)
            texts = [question.text for question in questions(film, frames)][:ASKED]
            with ExitStack() as stack:
                names = (*STOCKS, "mosaic", "full") if kind == options.kinds[0] else ("mosaic", STOCK)
                streams = {name: opened(stack, engine, name, options.settings) for name in names}
                feed(streams, film, 0, frames, together, tick)
                for name, stream in streams.items():
                    fetched = max(int(ask_word(stream, text).counts.get("fetched_bytes", 0)) for text in texts)
                    own = stream.bytes
                    local, host = own.device.get("local", 0), sum(own.host.values())
                    rows.append((kind, name, frames, memory_bytes(own), local, fetched, host))
                held.append({name: stream.bytes for name, stream in streams.items()})
    bars = bytes_bars(held) if frames == HELD_AT else ()
    return Table("bytes", "Bytes by place", BYTES_NOTE, BYTES_COLUMNS, tuple(rows), (), bars)


def bytes_bars(held: Sequence[Mapping[str, MemoryBytes]]) -> tuple[Bar, ...]:
    """Return the bars on what each method holds, kind by kind; they go by the worst kind of video."""
    half = max(memory_bytes(own["mosaic"]) / memory_bytes(own[STOCK]) for own in held)
    host = max(sum(own["mosaic"].host.values()) / own["mosaic"].host["rows"] for own in held)
    return (
        Bar(f"device bytes over ReKV's, {HELD_AT:,} frames", half, HALF, least=False, count=len(held)),
        Bar(f"host bytes over those of the rows, {HELD_AT:,} frames", host, HOST, least=False, count=len(held)),
    )
