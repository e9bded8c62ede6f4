"""Streams of a day: what a frame costs once there are many."""

from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from rich.console import Console

from benchmarks.stream.costs import HALF, STOCK, memory_bytes
from benchmarks.stream.running import SystemsOptions, feed, opened
from benchmarks.table import Bar, Table
from emblema.engine.engine import Engine
from emblema.eval.progress import steps

EARLY = 1000
SPAN = 25
"""Pushes, the median of which is what a frame costs at a length."""
SLOWER = 1.3
COLUMNS = ("what", "frames", "value", "of", "their value", "ratio")


def measure_long(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure encoding and device bytes at `long` frames."""
    settings = replace(options.settings, positions="packed")
    block, long, early = settings.block, options.long, min(EARLY, options.long // 2)
    film = options.film(options.kinds[0], long)
    with ExitStack() as stack, steps(console, "long: frames", -(-long // block)) as tick:
        streams = {name: opened(stack, engine, name, settings) for name in ("mosaic", STOCK)}
        spent = [cpu / block for cpu in feed(streams, film, 0, long, block, tick)["mosaic"]]
        device = [memory_bytes(stream.bytes) for stream in streams.values()]
    first, last = (1000 * median(own) for own in (spent[early // block :][:SPAN], spent[-SPAN:]))
    ratio = last / first
    bars = (
        Bar(f"encoding a frame at {long:,} over {early:,}, retrieving", ratio, SLOWER, least=False, count=SPAN),
        Bar(f"device bytes over ReKV's, {long:,} frames", device[0] / device[1], HALF, least=False, count=1),
    )
    row = ("encoding, CPU ms a frame", long, last, early, first, ratio)
    return Table("long", "Streams of a day", "", COLUMNS, (row,), (), bars)
