"""Encoding: blocks in one forward or frame by frame, and in several processes at once (Mosaic, figures 9a and 14).

`python -m benchmarks.stream.systems.encoding JOB`, a job as JSON, is one of several processes: it loads, says `ready`,
waits for a line, encodes, and prints what that took as JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any

import torch
from rich.console import Console

from benchmarks.stream.systems.running import RunTime, SystemsOptions, cpu_ratio, feed, film_of, opened, ratio, timed
from benchmarks.table import Cell, Plot, Table
from benchmarks.tasks.streams import stream_of
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.eval.progress import steps
from emblema.stream.settings import StreamSettings, change_settings

BLOCKS = (1, 2, 4, 8, 16)
TOGETHER, ALONE = "one forward", "frame by frame"
BATCHING_COLUMNS = (
    "block", "decoder", "CPU ms a frame", "wall ms a frame", "frames/s", "CPU over frame by frame",
    "wall over frame by frame", "CPU over blocks of 1",
)  # fmt: skip
BATCHING_NOTE = (
    "Mosaic's figure 9a. One film to streams of several block sizes, in turns, {together} frames at a time. A block "
    "of frames goes through the vision tower at once either way; its rows run through the decoder in one forward "
    "under a mask, or frame by frame, which gives the same rows. Blocks of one do everything one by one. Ratios are "
    "medians over turns, with 95 % bootstrap intervals: against frame by frame at the same block size, and against "
    "blocks of 1. Frames/s go by CPU time; drawing the frames is not counted, keeping clusters in order is."
)
MOST = 512
LONGEST = 600.0
WORKERS_COLUMNS = ("workers", "frames/s together", "over one", "a worker's share", "CPU ms a frame", "frames", "cores")
WORKERS_NOTE = (
    "Mosaic's figure 14, data partitioned. So many processes, each with an engine and a stream of its own and one "
    "computing thread, encode {frames} frames each at the same time; they share nothing. The clock runs from when all "
    "have loaded until the last has done, drawing the frames not counted. 'over one' is throughput against one "
    "worker's, 'a worker's share' is that over the number of workers (1 is linear), which cannot hold beyond the "
    "cores that there are: {cores}. CPU time a frame says what each worker's frames cost it."
)
BlockArm = tuple[int, str]


def measure_batching(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure encoding time by block size, both ways."""
    together, frames = max(BLOCKS), min(options.frames, MOST)
    film = film_of(options.kinds[0], frames, options)
    arms = [arm for arm in product(BLOCKS, (TOGETHER, ALONE)) if arm != (1, ALONE)]
    with ExitStack() as stack, steps(console, "batching", -(-frames // together)) as tick:
        streams = {
            arm: opened(stack, engine, "mosaic", options.settings, block=arm[0], batched=arm[1] == TOGETHER)
            for arm in arms
        }
        spent = feed(streams, film, 0, frames, together, tick)
    rows = tuple(_batching_row(arm, spent, frames) for arm in arms)
    drawn = ("CPU ms a frame", "frames/s", "CPU over frame by frame")
    plots = tuple(Plot("block", y, "decoder", doubling=True) for y in drawn)
    title, note = "Blocks in one forward against frame by frame", BATCHING_NOTE.format(together=together)
    return Table("batching", title, note, BATCHING_COLUMNS, rows, plots)


def _batching_row(arm: BlockArm, spent: dict[BlockArm, list[RunTime]], frames: int) -> tuple[Cell, ...]:
    block, decoder = arm
    own, first = spent[arm], spent[1, TOGETHER]
    alone = first if block == 1 else spent[block, ALONE]
    cpu, wall = sum(push.cpu for push in own), sum(push.wall for push in own)
    walls = ratio([push.wall for push in own], [push.wall for push in alone])
    rates = (1000 * cpu / frames, 1000 * wall / frames, frames / cpu)
    return (block, decoder, *rates, cpu_ratio(own, alone), walls, cpu_ratio(own, first))


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """What one worker does: `frames` of a film of its own, after a first block that is not counted."""

    model: str
    device: str
    kind: str
    frames: int
    seed: int
    item: int
    settings: Mapping[str, Any]


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_workers(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure frames a second of several processes together."""
    frames = min(options.frames, MOST)
    model = options.model or str(engine.adapter.model.config.name_or_path or "")
    if not model:
        raise EmblemaError("workers load the model themselves: give its name or folder as `model`")
    about = (model, str(engine.adapter.device), options.kinds[0], frames, options.seed)
    found: dict[int, list[RunTime]] = {}
    with steps(console, "workers", len(options.workers)) as tick:
        for count in options.workers:
            found[count] = run_together([EncodeJob(*about, item, options.settings.flat()) for item in range(count)])
            tick()
    rates = {count: count * frames / max(spent.wall for spent in own) for count, own in found.items()}
    rows: list[tuple[Cell, ...]] = []
    for count, own in found.items():
        over = rates[count] / rates[1] if 1 in rates else None
        cpu = 1000 * sum(spent.cpu for spent in own) / (count * frames)
        rows.append((count, rates[count], over, None if over is None else over / count, cpu, count * frames, cores()))
    plots = (Plot("workers", "frames/s together"), Plot("workers", "CPU ms a frame"))
    note = WORKERS_NOTE.format(frames=frames, cores=cores())
    return Table("workers", "Several processes at once", note, WORKERS_COLUMNS, tuple(rows), plots)


def run_together(jobs: Sequence[EncodeJob], longest: float = LONGEST) -> list[RunTime]:
    """Run jobs at the same time, a process each, which begin once all have loaded; return what each took.

    Raises:
        EmblemaError: a worker failed, or was not done in time.
    """
    with ExitStack() as stack:
        workers = [EncodeWorker(job, stack, stack.enter_context(TemporaryFile("w+"))) for job in jobs]

        def kill() -> None:
            for worker in workers:
                worker.kill()

        timer = Timer(longest, kill)
        timer.start()
        stack.callback(timer.cancel)
        for worker in workers:
            worker.line()
        for worker in workers:
            worker.begin()
        return [RunTime(**json.loads(worker.line())) for worker in workers]


class EncodeWorker:
    """A process that does a job, with its errors in a file, so that it never waits for a reader."""

    def __init__(self, job: EncodeJob, stack: ExitStack, errors: IO[str]) -> None:
        self._errors = errors
        command = [sys.executable, "-m", "benchmarks.stream.systems.encoding", json.dumps(asdict(job))]
        # What can be imported here can be there.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pipe = subprocess.PIPE
        started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, env=environment)
        self._process = stack.enter_context(started)
        stack.callback(self.kill)

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def begin(self) -> None:
        """Send the line that it waits for once it is ready."""
        assert self._process.stdin is not None
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Return its next line; it has ended if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            errors = self._errors.read().strip().splitlines() or ["it was stopped, as it took too long"]
            raise EmblemaError(f"a worker ended before it was done: {errors[-1]}")
        return line


def main(line: str) -> None:
    """Do a job in this process."""
    torch.set_num_threads(1)
    job = EncodeJob(**json.loads(line))
    settings = change_settings(StreamSettings(), job.settings)
    block, frames = settings.block, job.frames + settings.block
    film = stream_of(job.kind, frames, job.seed, job.item)
    pictures = list(film.frames())
    with Engine.load(job.model, device=job.device) as engine, engine.stream("mosaic", settings) as stream:
        stream.push(pictures[:block])
        print("ready", flush=True)
        sys.stdin.readline()
        _, spent = timed(lambda: [stream.push(pictures[at : at + block]) for at in range(block, frames, block)])
    print(json.dumps(asdict(spent)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
