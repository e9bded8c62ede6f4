"""Blocks in one forward against frame by frame (Mosaic, figure 9a)."""

import time
from contextlib import ExitStack
from itertools import product

from rich.console import Console

from benchmarks.stream.systems.clock import Spent, ratio
from benchmarks.stream.systems.running import feed, film_of, opened
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.table import Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.eval.progress import steps

BLOCKS = (1, 2, 4, 8, 16)
TOGETHER, ALONE = "one forward", "frame by frame"
COLUMNS = (
    "block",
    "decoder",
    "CPU ms a frame",
    "wall ms a frame",
    "frames/s",
    "CPU over frame by frame",
    "wall over frame by frame",
    "CPU over blocks of 1",
)
NOTE = (
    "Mosaic's figure 9a. One film to streams of several block sizes, in turns, {together} frames at a time. A block "
    "of frames goes through the vision tower at once either way; its rows run through the decoder in one forward "
    "under a mask, or frame by frame, which gives the same rows. Blocks of one do everything one by one. Ratios are "
    "medians over turns, with 95 % bootstrap intervals: against frame by frame at the same block size, and against "
    "blocks of 1. Frames/s go by CPU time; drawing the frames is not counted, keeping clusters in order is."
)
Arm = tuple[int, str]


def measure_batching(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Encoding time by block size, both ways."""
    began = time.perf_counter()
    together, frames = max(BLOCKS), min(wanted.frames, 512)
    film = film_of(wanted.kinds[0], frames, wanted)
    arms = [arm for arm in product(BLOCKS, (TOGETHER, ALONE)) if arm != (1, ALONE)]
    with ExitStack() as stack, steps(console, "batching", -(-frames // together)) as tick:
        streams = {
            arm: opened(stack, engine, "mosaic", wanted.settings, block=arm[0], batched=arm[1] == TOGETHER)
            for arm in arms
        }
        spent = feed(streams, film, 0, frames, together, tick)
    rows = tuple(_row(arm, spent, frames) for arm in arms)
    plots = tuple(
        Plot("block", y, "decoder", doubling=True) for y in ("CPU ms a frame", "frames/s", "CPU over frame by frame")
    )
    title, note = "Blocks in one forward against frame by frame", NOTE.format(together=together)
    return Table("batching", title, note, COLUMNS, rows, plots, seconds=time.perf_counter() - began)


def _row(arm: Arm, spent: dict[Arm, list[Spent]], frames: int) -> tuple[Cell, ...]:
    block, decoder = arm
    own, first = spent[arm], spent[1, TOGETHER]
    alone = first if block == 1 else spent[block, ALONE]
    cpu, wall = sum(one.cpu for one in own), sum(one.wall for one in own)
    return (
        block,
        decoder,
        1000 * cpu / frames,
        1000 * wall / frames,
        frames / cpu,
        ratio([one.cpu for one in own], [one.cpu for one in alone]),
        ratio([one.wall for one in own], [one.wall for one in alone]),
        ratio([one.cpu for one in own], [one.cpu for one in first]),
    )
