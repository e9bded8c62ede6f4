"""Streams over workers in processes: frames a second, time to answer all of them, and to move one."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from emblema.scale.stream_partition import ProcessWorker, partition

MODEL, SIDE, QUESTION = "reference-stream", 112, "what is shown ?"


@dataclass(frozen=True, slots=True)
class StreamRates:
    """What workers did with the same streams.

    Attributes:
        workers: processes, of one thread each.
        streams, frames: of each.
        rate: frames encoded a second, of all streams together.
        ask: seconds until all streams have answered one question.
        move: seconds to move a stream, median.
        cores, load: of the machine, and what ran on it then.
        least, most: frames a second of the slowest and the fastest round.
    """

    workers: int
    streams: int
    frames: int
    rate: float
    ask: float
    move: float
    cores: int
    load: float
    least: float
    most: float


def measure_rounds(workers: Sequence[int], streams: int, frames: int, seed: int, rounds: int) -> list[StreamRates]:
    """Measure numbers of workers in turns, and return the median of each."""
    found: dict[int, list[StreamRates]] = {many: [] for many in workers}
    for _ in range(rounds):
        for many in workers:
            found[many].append(measure_streams(many, streams, frames, seed))
    medians = []
    for taken in found.values():
        rates = [one.rate for one in taken]
        medians.append(
            replace(
                taken[0],
                rate=median(rates),
                ask=median(one.ask for one in taken),
                move=median(one.move for one in taken),
                load=median(one.load for one in taken),
                least=min(rates),
                most=max(rates),
            )
        )
    return medians


def measure_streams(workers: int, streams: int, frames: int, seed: int) -> StreamRates:
    """Push frames of all streams to new workers, ask, and move every stream once."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rng = np.random.default_rng(seed)
    names = [f"camera-{number}" for number in range(streams)]
    with TemporaryDirectory() as folder:
        own = partition(partial(ProcessWorker, MODEL, Path(folder)), workers)
        try:
            for name in names:
                own.open(name)
            shown = [Image.fromarray(rng.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)) for _ in range(frames)]
            for name in names:
                # The first frames load what is loaded once.
                own.push(name, shown[:4], [0.0, 0.1, 0.2, 0.3]).result()
            began = time.perf_counter()
            pushed = [own.push(name, shown, [1.0 + number for number in range(frames)]) for name in names]
            for future in pushed:
                future.result()
            rate = streams * frames / (time.perf_counter() - began)
            began = time.perf_counter()
            own.ask(QUESTION)
            ask = time.perf_counter() - began
            moves = []
            for name in names if workers > 1 else ():
                began, others = time.perf_counter(), [other for other in own.workers if other != own.homes[name]]
                own.move(name, others[0])
                moves.append(time.perf_counter() - began)
        finally:
            own.close()
    move = float(np.median(moves)) if moves else float("nan")
    return StreamRates(workers, streams, frames, rate, ask, move, os.cpu_count() or 1, os.getloadavg()[0],
                       rate, rate)  # fmt: skip
