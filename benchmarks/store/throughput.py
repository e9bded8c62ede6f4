"""Verified loads against plain reads of the same bytes: another one first each round, in the same run.

A verified load is the disk tier's: index, header, every tensor read, its checksum compared, handed over as tensors. A
plain read brings the file in one call into fresh memory, as a load has to.
"""

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.store.material import SEVEN_BILLION, cooled, random_chunk
from emblema.errors import LoadError
from emblema.kv.layout import LayerRows
from emblema.store import codec
from emblema.store.disk import DiskTier
from emblema.store.record import SHARED, Terms

COLD, WARM = "cold", "warm"
BOUNDS = {COLD: 0.8, WARM: 0.9}
"""Of a verified load over a plain read."""
BAR_BYTES = 16 * 10**6
"""Bars are for files from this size."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE, LARGEST_THRESHOLD = 2**18, 2**25


@dataclass(frozen=True, slots=True)
class Throughput:
    """Reads of files of one size: GB/s, medians of rounds, plainly and by the store; the ratio with its quartiles.

    `cold` is the largest share of the file in the page cache before a cold read; NaN where unknown.
    """

    bytes: int
    operation: str
    rounds: int
    plain: float
    store: float
    ratio: float
    low: float
    high: float
    cold: float


def measure(folder: Path, size: int, rounds: int, random: np.random.Generator) -> list[Throughput]:
    """Read a file with `size` bytes of KV, cold and warm, in a folder on the disk in question."""
    chunk = random_chunk(max(1, size // SEVEN_BILLION.token_bytes), random, SEVEN_BILLION)
    tier = DiskTier(folder / f"throughput-{size}", 4 * size + 2**26)
    stayed: list[float] = []
    try:
        tier.write(codec.chunk_record(chunk, SHARED, created=time.time()), Terms())
        path = tier.piece_path(chunk.id)
        whole = path.stat().st_size

        def timed(read: Callable[[], object], operation: str) -> float:
            if operation == COLD:
                stayed.append(cooled([path]))
            began = time.perf_counter()
            _, seconds = read(), time.perf_counter() - began
            return seconds

        actions: dict[str, Action] = {}
        for operation in (COLD, WARM):
            actions[f"plain {operation}"] = partial(
                timed, lambda: read_plainly(path, np.empty(whole, np.uint8)), operation
            )
            actions[f"store {operation}"] = partial(timed, lambda: load(tier, chunk.id), operation)
        with fresh_memory():
            taken = interleaved(actions, torch.device("cpu"), Pace(rounds, math.inf))
    finally:
        tier.delete(chunk.id, SHARED)
        tier.close()
    found = []
    for operation in (COLD, WARM):
        names = (f"plain {operation}", f"store {operation}")
        plain, own = (whole / taken.median(name) / 1e9 for name in names)
        ratio = taken.ratio(*names)
        found.append(Throughput(whole, operation, rounds, plain, own, ratio.value, ratio.low, ratio.high, max(stayed)))
    return found


def load(tier: DiskTier, id: str) -> tuple[LayerRows, ...]:
    """Return every layer of a chunk, verified, as the store loads it."""
    reader = tier.open(id, SHARED)
    if reader is None:
        raise LoadError(id, "it is not in the tier")
    try:
        codec.read_encoded(reader)
        return tuple(codec.read_layers(reader))
    finally:
        reader.close()


def read_plainly(path: Path, buffer: np.ndarray) -> np.ndarray:
    """Read the whole file into a buffer of its size, and return it."""
    with path.open("rb", buffering=0) as file:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while view:
            count = file.readinto(view)
            if not count:
                raise LoadError(path.stem, "the file is shorter than its buffer")
            view = view[count:]
    return buffer


@contextmanager
def fresh_memory() -> Iterator[None]:
    """Have the allocator (glibc's) take every large buffer from the system, where a store that keeps rows has to.

    Otherwise a plain read may be given the buffer that was freed just before, in the processor's cache.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_THRESHOLD, LARGE)
    try:
        yield
    finally:
        # Where the allocator's own adjusting leads in time; it cannot be switched on again.
        mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_THRESHOLD)
