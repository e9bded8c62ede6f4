"""Loading a chunk from disk, verified, over a plain read of its file, cold and warm."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.store.material import cooled
from benchmarks.store.throughput import fresh_memory, load, read_plainly
from benchmarks.table import Bar, Cell, Table
from emblema.store import codec
from emblema.store.disk import DiskTier
from emblema.store.record import SHARED, Terms

BAR_BYTES, BAR_RATIO = 19 * 10**6, 0.9


def load_cases(subject: CostSubject, most: int) -> tuple[int, ...]:
    """Return how many rows the chunks have: some lengths, and what makes a file of 19 MB."""
    whole = round(BAR_BYTES / (subject.row_bytes + subject.adapter.hidden_size * subject.dtype.itemsize))
    return tuple(sorted({min(tokens, most) for tokens in (256, 2048, whole)}))


def load_table(subject: CostSubject, lengths: Sequence[int], folder: Path, pace: Pace) -> Table:
    """Return verified loads of chunks by length, with the bars of a file of 19 MB."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    with fresh_memory():
        for tokens in lengths:
            found, own = _measure(subject, tokens, folder, pace)
            rows += found
            bars += own
    return Table(
        "load",
        "Loading a chunk from disk",
        "A verified load is the disk tier's: index, header, every tensor read into fresh memory and its checksum "
        "compared. A plain read brings the file in one call into fresh memory. Cold: none of the file was in the page "
        "cache before (mincore), though what lies below the operating system may keep its own. share: the plain read's "
        "time over the load's.",
        ("rows", "MB", "cache", "load ms", "plain read ms", "share of plain read", "over re-prefill", "rounds"),
        tuple(rows),
        bars=tuple(bars),
    )


def _measure(subject: CostSubject, tokens: int, folder: Path, pace: Pace) -> tuple[list[tuple[Cell, ...]], list[Bar]]:
    chunk = subject.chunk(tokens)
    record = codec.chunk_record(chunk, SHARED, created=time.time())
    tier = DiskTier(folder / f"load-{tokens}", 2**34)
    stayed: list[float] = []
    try:
        tier.write(record, Terms())
        path = tier.piece_path(chunk.id)
        size = path.stat().st_size

        def timed(work: Action, cold: bool) -> float:
            if cold:
                stayed.append(cooled([path]))
            began = time.perf_counter()
            work()
            return time.perf_counter() - began

        def read() -> None:
            read_plainly(path, np.empty(size, np.uint8))

        def verify() -> None:
            load(tier, chunk.id)

        actions: dict[str, Action] = {
            f"{name} {cache}": partial(timed, work, cache == "cold")
            for cache in ("cold", "warm")
            for name, work in (("load", verify), ("read", read))
        }
        seconds = interleaved(actions, torch.device("cpu"), pace)
    finally:
        tier.delete(chunk.id, SHARED)
        tier.close()
    again = subject.reprefill(tokens, pace)
    rows: list[tuple[Cell, ...]] = []
    bars = []
    for cache in ("cold", "warm"):
        loaded, plain = seconds.median(f"load {cache}"), seconds.median(f"read {cache}")
        share = seconds.ratio(f"read {cache}", f"load {cache}")
        rows.append((tokens, size / 1e6, cache, 1e3 * loaded, 1e3 * plain, share, loaded / again, seconds.count))
        known = cache == "warm" or max(stayed) < 0.01
        if abs(size - BAR_BYTES) < 0.1 * BAR_BYTES:
            name = f"verified load of {size / 1e6:.0f} MB over a plain read, {cache}"
            bars.append(Bar(name, share.value if known else None, BAR_RATIO))
    return rows, bars
