"""Bytes by place and length, for every memory (Mosaic, figure 11)."""

import time
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console

from benchmarks.stream.systems.running import ask_one, feed, film_of, opened, questions
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.method import MemoryBytes
from emblema.stream.methods import METHODS
from emblema.stream.stream import Stream

HELD_AT, HALF, STEADY = 1024, 0.5, 1.25
SHORTEST = 64
APART = ("local", "phases", "fetched")
"""Places on the device that are not the memory's own."""
ASKED = 3
COMPARED = ("mosaic", "rekv")
COLUMNS = (
    "kind",
    "method",
    "frames",
    "memory bytes",
    "of them waiting",
    "always seen bytes",
    "phases bytes",
    "fetched for a question",
    "host bytes",
    "clusters",
    "bytes a cluster",
    "memory over ReKV",
)
NOTE = (
    "Mosaic's figure 11. Bytes on the device, weights apart: 'memory' is what a method keeps there of frames that "
    "have left the window (index or rows, what waits for a cluster, room kept for growth); 'always seen' is opening, "
    "sinks, window and the block under way, the same for all; 'phases' are rotary tables, one for the whole stream, "
    "as long as the largest position that was used, which packed positions or the model's context bound; 'fetched' is "
    "the most that one of the questions brought there, given back behind it. Host bytes hold members' rows, vectors "
    "that clusters are cut by, exact means, and what the encoder made, which every stream keeps. Every stream is asked "
    f"{ASKED} questions at each length, so that cuts that were put off can be done. Methods other than Mosaic and ReKV "
    "run on the first kind. Clusters are counted over all layers, the visual ones too. The bars go by the worst kind "
    "of film."
)


@dataclass(frozen=True, slots=True)
class Held:
    """What one stream held at one length; `rekv` is what ReKV's memory held there."""

    kind: str
    method: str
    frames: int
    bytes: MemoryBytes
    fetched: int
    clusters: int
    rekv: int

    @property
    def memory(self) -> int:
        return memory_bytes(self.bytes)

    @property
    def each(self) -> float | None:
        """Bytes a cluster."""
        return self.memory / self.clusters if self.clusters else None

    @property
    def against(self) -> float | None:
        """The memory's bytes over ReKV's."""
        return self.memory / self.rekv if self.rekv else None

    @property
    def row(self) -> tuple[Cell, ...]:
        device, host = self.bytes.device, sum(self.bytes.host.values())
        held = (self.memory, device.get("waiting"), local_bytes(self.bytes), device.get("phases"), self.fetched, host)
        return (self.kind, self.method, self.frames, *held, self.clusters or None, self.each, self.against)


def memory_bytes(held: MemoryBytes) -> int:
    """What a memory holds on the device, what a question brings there aside."""
    return sum(count for name, count in held.device.items() if name not in APART)


def local_bytes(held: MemoryBytes) -> int:
    """What is always seen."""
    return held.device.get("local", 0)


def lengths_to(frames: int) -> tuple[int, ...]:
    """Frames at which bytes are taken: doubled from 64, and the last one."""
    found = [SHORTEST * 2**power for power in range(32) if SHORTEST * 2**power < frames]
    return (*found, frames)


def measure_bytes(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Bytes by place, of every method on one kind of film, of Mosaic and ReKV on all."""
    began, found = time.perf_counter(), list[Held]()
    lengths, together = lengths_to(wanted.frames), wanted.settings.block
    with steps(console, "bytes", len(wanted.kinds) * -(-wanted.frames // together)) as tick:
        for kind in wanted.kinds:
            film = film_of(kind, wanted.frames, wanted)
            names = list(METHODS) if kind == wanted.kinds[0] else list(COMPARED)
            with ExitStack() as stack:
                streams = {name: opened(stack, engine, name, wanted.settings) for name in names}
                for start, stop in zip((0, *lengths), lengths, strict=False):
                    feed(streams, film, start, stop, together, tick)
                    found += _held(kind, stop, streams, [one.text for one in questions(film, stop)][:ASKED])
    plots = (
        Plot("frames", "memory bytes", "method", split="kind", doubling=True),
        Plot("frames", "memory over ReKV", "method", split="kind", doubling=True),
        Plot("clusters", "bytes a cluster", "kind", only=("method", "mosaic")),
    )
    rows = tuple(one.row for one in found)
    spent = time.perf_counter() - began
    return Table("bytes", "Bytes by place and length", NOTE, COLUMNS, rows, plots, bars_of(found), spent)


def _held(kind: str, frames: int, streams: dict[str, Stream], texts: list[str]) -> list[Held]:
    fetched = {
        name: int(max(ask_one(stream, text).counts.get("fetched_bytes", 0.0) for text in texts))
        for name, stream in streams.items()
    }
    rekv = memory_bytes(streams["rekv"].bytes)
    found = []
    for name, stream in streams.items():
        counts = stream.counts
        clusters = int(counts.get("clusters", 0) + counts.get("visual_clusters", 0))
        found.append(Held(kind, name, frames, stream.bytes, fetched[name], clusters, rekv))
    return found


def bars_of(found: list[Held]) -> tuple[Bar, ...]:
    """Held at the length of the bar, where it was measured."""
    mosaic = {(one.kind, one.frames): one for one in found if one.method == "mosaic"}
    last = [one for (_, frames), one in mosaic.items() if frames == HELD_AT]
    shares = [one.against for one in last if one.against is not None]
    earlier = [mosaic.get((one.kind, HELD_AT // 4)) for one in last]
    grown = [
        one.each / before.each
        for one, before in zip(last, earlier, strict=True)
        if before is not None and before.each and one.each
    ]
    if not shares or not grown:
        return ()
    half = f"Mosaic's memory on the device over ReKV's, {HELD_AT:,} frames"
    steady = f"bytes a cluster, {HELD_AT:,} frames over {HELD_AT // 4}"
    return (
        Bar(half, max(shares), HALF, least=False, count=len(shares)),
        Bar(steady, max(grown), STEADY, least=False, count=len(grown)),
    )
