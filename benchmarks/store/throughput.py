"""Saving and verified loading against plain writing and reading of the same bytes, in the same run.

Every round does each operation once, and which of a pair comes first changes from round to round. A save is the disk
tier's: checksums, temporary file, fsync, rename, fsync of the folder, index. A plain write is one buffer with the same
fsyncs and rename. A verified load is the disk tier's too: index, header, every tensor read, its checksum compared,
handed over as tensors. A plain read brings the file in one call into fresh memory, as a load has to; `reused` is the
same into a buffer that is there already, which no loader whose rows are kept could do.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console

from benchmarks.store.pages import cooled
from benchmarks.store.pieces import SEVEN_BILLION, random_chunk
from emblema.errors import LoadError
from emblema.eval.progress import steps
from emblema.kv.layout import LayerRows
from emblema.store import codec
from emblema.store.disk import DiskTier
from emblema.store.record import SHARED, Terms

PLAIN_WRITE, SAVE = "plain write", "save"
PLAIN_READ, REUSED, LOAD = "plain read", "plain read, reused buffer", "verified load"
COLD, WARM = "cold", "warm"
READS = (PLAIN_READ, LOAD, REUSED)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE, LARGEST_THRESHOLD = 2**18, 2**25


@dataclass(frozen=True, slots=True)
class Throughput:
    """One size of file.

    Attributes:
        bytes: of the file.
        writes: seconds of each round, by operation.
        reads: the same by temperature and operation.
        residency: the largest share of the file in the page cache before a cold read; NaN where unknown.
    """

    bytes: int
    writes: dict[str, tuple[float, ...]]
    reads: dict[str, dict[str, tuple[float, ...]]]
    residency: float

    @property
    def cold(self) -> bool:
        """Whether the cold reads are known to have been cold."""
        return self.residency < 0.01

    def rate(self, seconds: tuple[float, ...]) -> float:
        """Median GB/s."""
        return self.bytes / median(seconds) / 1e9

    def ratio(self, temperature: str, plain: str = PLAIN_READ) -> float:
        """Throughput of the verified load over that of a plain read, of medians."""
        found = self.reads[temperature]
        return median(found[plain]) / median(found[LOAD])

    def spread(self, temperature: str) -> tuple[float, float]:
        """The quartiles of the ratio, round by round."""
        found = self.reads[temperature]
        ratios = np.divide(found[PLAIN_READ], found[LOAD])
        low, high = np.quantile(ratios, (0.25, 0.75))
        return float(low), float(high)

    @property
    def save_ratio(self) -> float:
        """Throughput of a save over that of a plain write, of medians."""
        return median(self.writes[PLAIN_WRITE]) / median(self.writes[SAVE])


def measure(folder: Path, sizes: tuple[int, ...], rounds: int, seed: int, screen: Console) -> tuple[Throughput, ...]:
    """Write and read files with `sizes` bytes of KV each, in a folder on the disk in question."""
    random = np.random.default_rng([seed, 1])
    with steps(screen, f"save and load, {len(sizes)} sizes", len(sizes) * rounds) as advance, fresh_memory():
        return tuple(_measure(folder, size, rounds, random, advance) for size in sizes)


def _measure(
    folder: Path, size: int, rounds: int, random: np.random.Generator, advance: Callable[[], None]
) -> Throughput:
    tokens = max(1, size // SEVEN_BILLION.token_bytes)
    chunk = random_chunk(tokens, random, SEVEN_BILLION)
    record = codec.chunk_record(chunk, SHARED, created=time.time())
    tier = DiskTier(folder / f"throughput-{size}", 4 * size + 2**26)
    try:
        tier.write(record, Terms())
        path = tier.piece_path(chunk.id)
        contents = path.read_bytes()
        reused = np.zeros(len(contents), np.uint8)
        actions: dict[str, Callable[[], object]] = {
            PLAIN_READ: lambda: read_plainly(path, np.empty(len(contents), np.uint8)),
            LOAD: lambda: load(tier, chunk.id),
            REUSED: lambda: read_plainly(path, reused),
        }
        writing: dict[str, Callable[[], object]] = {
            PLAIN_WRITE: lambda: write_plainly(folder / "plain", contents),
            SAVE: lambda: tier.write(record, Terms()),
        }
        writes: dict[str, list[float]] = {PLAIN_WRITE: [], SAVE: []}
        reads: dict[str, dict[str, list[float]]] = {one: {name: [] for name in READS} for one in (COLD, WARM)}
        stayed = 0.0
        for index in range(rounds):
            for name in (PLAIN_WRITE, SAVE)[:: 1 if index % 2 else -1]:
                writes[name].append(_seconds(writing[name]))
            order = READS[index % 3 :] + READS[: index % 3]
            for name in order:
                stayed = max(stayed, cooled([path]))
                reads[COLD][name].append(_seconds(actions[name]))
            for name in order:
                reads[WARM][name].append(_seconds(actions[name]))
            advance()
    finally:
        tier.delete(chunk.id, SHARED)
        tier.close()
    kept = {warmth: {name: tuple(found) for name, found in by.items()} for warmth, by in reads.items()}
    return Throughput(len(contents), {name: tuple(found) for name, found in writes.items()}, kept, stayed)


def load(tier: DiskTier, id: str) -> tuple[LayerRows, ...]:
    """Every tensor of a chunk, verified, as the store loads it.

    Raises:
        LoadError: it is not there, or damaged.
    """
    reader = tier.open(id, SHARED)
    if reader is None:
        raise LoadError(id, "it is not in the tier")
    try:
        codec.read_encoded(reader)
        return tuple(codec.read_layers(reader))
    finally:
        reader.close()


def read_plainly(path: Path, buffer: np.ndarray) -> np.ndarray:
    """The whole file into a buffer of its size."""
    with path.open("rb", buffering=0) as file:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while view:
            count = file.readinto(view)
            if not count:
                raise LoadError(path.stem, "the file is shorter than its buffer")
            view = view[count:]
    return buffer


def write_plainly(path: Path, contents: bytes) -> None:
    """A file that is durable when this returns, and whole whenever it is there."""
    temporary = path.with_suffix(".part")
    with temporary.open("wb", buffering=0) as file:
        view = memoryview(contents)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
    temporary.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def fresh_memory() -> Iterator[None]:
    """Have the allocator (glibc's) take every large buffer from the system, where a store that keeps rows has to.

    Otherwise a plain read may be given the buffer that the one before it has just let go, in the processor's cache.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_THRESHOLD, LARGE)
    try:
        yield
    finally:
        # Where the allocator's own adjusting leads to in time; it cannot be switched on again.
        mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_THRESHOLD)


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    kept = action()
    seconds = time.perf_counter() - began
    del kept
    return seconds
