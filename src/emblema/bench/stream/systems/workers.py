"""Encoding in several processes at once, each with streams of its own (Mosaic, figure 14)."""

import multiprocessing
import os
import queue
import time
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from emblema.bench.progress import steps
from emblema.bench.stream.systems.clock import Spent, timed
from emblema.bench.stream.systems.running import film_of
from emblema.bench.stream.systems.wanted import SystemsWanted
from emblema.bench.table import Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

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


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker does."""

    model: str
    device: str
    wanted: SystemsWanted
    frames: int
    item: int


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
    with steps(console, "workers", len(wanted.workers)) as tick:
        for count in wanted.workers:
            jobs = [Job(model, str(engine.adapter.device), wanted, frames, item) for item in range(count)]
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


def together(jobs: list[Job]) -> list[Spent]:
    """Run jobs at the same time, a process each; what each took.

    Raises:
        EmblemaError: a worker failed, or was not done in ten minutes.
    """
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(jobs)), context.Queue()
    workers = [context.Process(target=work, args=(job, barrier, results), daemon=True) for job in jobs]
    for worker in workers:
        worker.start()
    found, deadline = list[Spent](), time.monotonic() + LONGEST
    try:
        while len(found) < len(jobs):
            try:
                found.append(results.get(timeout=0.5))
            except queue.Empty:
                failed = [worker.exitcode for worker in workers if worker.exitcode]
                if failed or time.monotonic() > deadline:
                    why = f"ended with {failed[0]}" if failed else f"was not done in {LONGEST:g} s"
                    raise EmblemaError(f"a worker {why}: its own message is above") from None
    finally:
        for worker in workers:
            if len(found) < len(jobs):
                worker.terminate()
            worker.join()
    return found


def work(job: Job, barrier: Any, results: Any) -> None:
    """One worker: load, encode a first block, wait for the others, encode the rest."""
    torch.set_num_threads(1)
    wanted, block = job.wanted, job.wanted.settings.block
    film = film_of(wanted.kinds[0], job.frames + block, wanted, job.item)
    pictures = list(film.frames())
    with Engine.load(job.model, device=job.device) as engine, engine.stream("mosaic", wanted.settings) as stream:
        stream.push(pictures[:block])
        barrier.wait(LONGEST)
        _, spent = timed(lambda: [stream.push(pictures[at : at + block]) for at in range(block, len(pictures), block)])
    results.put(spent)
