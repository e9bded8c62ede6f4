"""The disk tier's index by itself: look-ups, uses and insertions as it grows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.store.material import MODEL
from benchmarks.table import Bar, Plot, Table
from emblema.errors import StoreError
from emblema.eval.progress import steps
from emblema.store.disk.entry import DiskEntry
from emblema.store.disk.index import Index
from emblema.store.record import Terms

LOOKUP = 50.0
"""Microseconds that looking up one of `BAR_ENTRIES` may take."""
BAR_ENTRIES = 1_000_000
BATCH = 10_000
OWNERS = 16
TOUCHED = 512
"""Uses that the tier records at once."""


@dataclass(frozen=True, slots=True)
class IndexTimes:
    """One size of the index; microseconds for one entry.

    Attributes:
        hits, misses: p50 and p99 of looking up an id that is there, and one that is not.
        touch: of recording a use, in batches of `TOUCHED`; median.
        put: of inserting, in batches of `BATCH`; mean over the growth to this size.
        bytes: of the index's file.
    """

    entries: int
    lookups: int
    hits: tuple[float, float]
    misses: tuple[float, float]
    touch: float
    put: float
    bytes: int


def measure(folder: Path, sizes: tuple[int, ...], lookups: int, seed: int, screen: Console) -> tuple[IndexTimes, ...]:
    """Grow one index through `sizes`; it is filled through its own class, each stretch in the order of its ids."""
    random = np.random.default_rng([seed, 2])
    path = folder / "index.sqlite"
    index = Index(path)
    owners = [random.bytes(32).hex() for _ in range(OWNERS)]
    ids: list[str] = []
    found = []
    try:
        with steps(screen, f"index of {sizes[-1]:,} entries", -(-sizes[-1] // BATCH)) as advance:
            for size in sizes:
                fresh = sorted(random.bytes(32).hex() for _ in range(size - len(ids)))
                spent = 0.0
                for start in range(0, len(fresh), BATCH):
                    batch = [_entry(id, owners, random) for id in fresh[start : start + BATCH]]
                    began = time.perf_counter()
                    with index.transaction():
                        for entry in batch:
                            index.put(entry, 1)
                    spent += time.perf_counter() - began
                    advance()
                ids += fresh
                index.checkpoint()
                put = spent / max(1, len(fresh)) * 1e6
                found.append(_look(index, path, ids, lookups, put, random))
    finally:
        index.close()
    return tuple(found)


def _look(
    index: Index, path: Path, ids: list[str], lookups: int, put: float, random: np.random.Generator
) -> IndexTimes:
    there = [ids[place] for place in random.integers(len(ids), size=lookups)]
    absent = [random.bytes(32).hex() for _ in range(lookups)]
    hits = _times(index, there, True)
    misses = _times(index, absent, False)
    touches = []
    for start in range(0, max(1, lookups - TOUCHED), TOUCHED):
        batch = there[start : start + TOUCHED]
        began = time.perf_counter()
        with index.transaction():
            index.set_accessed(dict.fromkeys(batch, time.time()))
        touches.append((time.perf_counter() - began) / len(batch) * 1e6)
    return IndexTimes(len(ids), lookups, hits, misses, float(np.median(touches)), put, path.stat().st_size)


def _times(index: Index, ids: list[str], there: bool) -> tuple[float, float]:
    """Return p50 and p99 of single look-ups in microseconds.

    Raises:
        StoreError: the index does not hold what was put into it, so there is nothing to time.
    """
    nanoseconds = np.empty(len(ids))
    for place, id in enumerate(ids):
        began = time.perf_counter_ns()
        entry = index.get(id)
        nanoseconds[place] = time.perf_counter_ns() - began
        if (entry is not None) != there or (entry is not None and entry.id != id):
            raise StoreError(f"the index answered {entry} for {id}")
    p50, p99 = np.quantile(nanoseconds / 1e3, (0.5, 0.99))
    return float(p50), float(p99)


def _entry(id: str, owners: list[str], random: np.random.Generator) -> DiskEntry:
    now = time.time()
    owner = owners[int(random.integers(len(owners)))]
    size = int(random.integers(2**20, 2**26))
    return DiskEntry(id, owner, "chunk", MODEL, size, now, now - float(random.random()) * 1e6, Terms(), ())


def index_table(found: Sequence[IndexTimes]) -> Table:
    """Return microseconds of every operation by size, and the bar of the largest."""
    columns = ("entries", "hit p50", "hit p99", "miss p50", "miss p99", "use", "insert", "bytes each")
    return Table(
        "index",
        "The index, µs for an entry",
        f"{found[0].lookups:,} random look-ups at each size, each row's checksum compared. A use is recorded in "
        f"batches of {TOUCHED}; an insertion includes its share of the commit.",
        columns,
        tuple(
            (size.entries, *size.hits, *size.misses, size.touch, size.put, size.bytes / size.entries) for size in found
        ),
        tuple(Plot("entries", y, doubling=True) for y in columns[1:5]),
        tuple(
            Bar(f"index look-up of {size.entries:,} entries, p50, µs", size.hits[0], LOOKUP, False)
            for size in found
            if size.entries >= BAR_ENTRIES
        ),
    )
