"""Encoding in several processes at once, each with streams of its own (Mosaic, figure 14)."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from tempfile import TemporaryFile
from threading import Timer
from typing import IO

from rich.console import Console

from benchmarks.stream.systems.clock import Spent
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.stream.systems.worker import Job
from benchmarks.table import Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.eval.progress import steps

MOST = 512
LONGEST = 600.0
COLUMNS = ("workers", "frames/s together", "over one", "a worker's share", "CPU ms a frame", "frames", "cores")
NOTE = (
    "Mosaic's figure 14, data partitioned. So many processes, each with an engine and a stream of its own and one "
    "computing thread, encode {frames} frames each at the same time; they share nothing. The clock runs from when all "
    "have loaded until the last has done, drawing the frames not counted. 'over one' is throughput against one "
    "worker's, 'a worker's share' is that over the number of workers (1 is linear), which cannot hold beyond the "
    "cores that there are: {cores}. CPU time a frame says what each worker's frames cost it."
)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_workers(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Frames a second of several processes together."""
    began, frames = time.perf_counter(), min(wanted.frames, MOST)
    model = wanted.model or str(engine.adapter.model.config.name_or_path or "")
    if not model:
        raise EmblemaError("workers load the model themselves: give its name or folder as `model`")
    found: dict[int, list[Spent]] = {}
    told = wanted.settings.flat()
    with steps(console, "workers", len(wanted.workers)) as tick:
        for count in wanted.workers:
            jobs = [
                Job(model, str(engine.adapter.device), wanted.kinds[0], frames, wanted.seed, item, told)
                for item in range(count)
            ]
            found[count] = together(jobs)
            tick()
    rates = {count: count * frames / max(one.wall for one in own) for count, own in found.items()}
    one = rates.get(1)
    rows: list[tuple[Cell, ...]] = []
    for count, own in found.items():
        over = None if one is None else rates[count] / one
        cpu = 1000 * sum(worker.cpu for worker in own) / (count * frames)
        rows.append((count, rates[count], over, None if over is None else over / count, cpu, count * frames, cores()))
    plots = (Plot("workers", "frames/s together"), Plot("workers", "CPU ms a frame"))
    note, spent = NOTE.format(frames=frames, cores=cores()), time.perf_counter() - began
    return Table("workers", "Several processes at once", note, COLUMNS, tuple(rows), plots, seconds=spent)


def together(jobs: Sequence[Job], longest: float = LONGEST) -> list[Spent]:
    """Run jobs at the same time, a process each, which begin once all have loaded; what each took.

    Raises:
        EmblemaError: a worker failed, or was not done in time.
    """
    with ExitStack() as stack:
        workers = [_Worker(job, stack, stack.enter_context(TemporaryFile("w+"))) for job in jobs]
        timer = Timer(longest, _kill, [workers])
        timer.start()
        stack.callback(timer.cancel)
        for worker in workers:
            worker.line()
        for worker in workers:
            worker.begin()
        return [Spent(**json.loads(worker.line())) for worker in workers]


def _kill(workers: "Sequence[_Worker]") -> None:
    for worker in workers:
        worker.kill()


class _Worker:
    """A process that does a job, with what it says of its troubles in a file, so that it never waits for a reader."""

    def __init__(self, job: Job, stack: ExitStack, errors: IO[str]) -> None:
        self._errors = errors
        command = [sys.executable, "-m", "benchmarks.stream.systems.worker", json.dumps(asdict(job))]
        # What can be imported here can be there.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pipe = subprocess.PIPE
        started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, env=environment)
        self._process = stack.enter_context(started)
        stack.callback(self.kill)

    def kill(self) -> None:
        self._process.kill()

    def begin(self) -> None:
        """What it waits for once it is ready."""
        assert self._process.stdin is not None
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Its next line; it has ended if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines() or ["it was stopped, as it took too long"]
            raise EmblemaError(f"a worker ended before it was done: {said[-1]}")
        return line
