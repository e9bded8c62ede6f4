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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console

from benchmarks.intervals import Interval
from benchmarks.store.material import SEVEN_BILLION, cooled, random_chunk
from benchmarks.table import Bar, Cell, Plot, Table
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
BOUNDS = {COLD: 0.8, WARM: 0.9}
"""Of a verified load over a plain read."""
BAR_BYTES = 16 * 10**6
"""Bars are for files from this size: below, opening a file is what takes the time."""
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
        """Return the median GB/s."""
        return self.bytes / median(seconds) / 1e9

    def ratio(self, temperature: str, plain: str = PLAIN_READ) -> float:
        """Return the throughput of the verified load over that of a plain read, of medians."""
        found = self.reads[temperature]
        return median(found[plain]) / median(found[LOAD])

    def spread(self, temperature: str) -> Interval:
        """Return the ratio with its quartiles, round by round."""
        found = self.reads[temperature]
        low, high = np.quantile(np.divide(found[PLAIN_READ], found[LOAD]), (0.25, 0.75))
        return Interval(self.ratio(temperature), float(low), float(high))

    @property
    def save_ratio(self) -> float:
        """Throughput of a save over that of a plain write, of medians."""
        return median(self.writes[PLAIN_WRITE]) / median(self.writes[SAVE])

    @property
    def megabytes(self) -> str:
        """The file's size in words."""
        return f"{self.bytes / 1e6:.0f} MB"


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
        reads: dict[str, dict[str, list[float]]] = {warmth: {name: [] for name in READS} for warmth in (COLD, WARM)}
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
    """Return every layer of a chunk, verified, as the store loads it.

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
    """Read the whole file into a buffer of its size, and return it."""
    with path.open("rb", buffering=0) as file:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while view:
            count = file.readinto(view)
            if not count:
                raise LoadError(path.stem, "the file is shorter than its buffer")
            view = view[count:]
    return buffer


def write_plainly(path: Path, contents: bytes) -> None:
    """Write a file that is durable when this returns, and whole whenever it is there."""
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


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    kept = action()
    seconds = time.perf_counter() - began
    del kept
    return seconds


def throughput_table(found: Sequence[Throughput]) -> Table:
    """Return rates and ratios by size and operation, and the bars of large files."""
    rows: list[tuple[Cell, ...]] = []
    bars = []
    for size in found:
        plain, save = (size.rate(size.writes[name]) for name in (PLAIN_WRITE, SAVE))
        rows.append((size.megabytes, "write", plain, save, size.save_ratio, None))
        for warmth in (COLD, WARM):
            rates = {name: size.rate(seconds) for name, seconds in size.reads[warmth].items()}
            ratios = (size.spread(warmth), size.ratio(warmth, REUSED))
            rows.append((size.megabytes, f"read {warmth}", rates[PLAIN_READ], rates[LOAD], *ratios))
            if size.bytes >= BAR_BYTES and (warmth == WARM or size.cold):
                name = f"verified load over plain read, {warmth}, {size.megabytes}"
                bars.append(Bar(name, size.ratio(warmth), BOUNDS[warmth]))
    cold = (
        "Before each cold read none of the file was in the page cache (mincore); what lies below the operating "
        "system may keep its own."
        if all(size.cold for size in found)
        else "Whether the cold reads were cold is not known."
    )
    return Table(
        "throughput",
        "Saving and loading against plain writing and reading",
        f"GB/s, medians of {len(found[0].writes[SAVE])} interleaved rounds, one thread. A save checks, syncs, renames "
        "and indexes; a load verifies every byte and hands tensors over. A plain read goes into fresh memory as a "
        "load's does; the last column compares with a read into a buffer that was there already. Ratios of reads "
        f"are shown with their quartiles. {cold}",
        ("file", "operation", "plain GB/s", "store GB/s", "ratio", "over a reused buffer"),
        tuple(rows),
        tuple(Plot("file", y, "operation", bars=True) for y in ("plain GB/s", "store GB/s", "ratio")),
        tuple(bars),
    )
