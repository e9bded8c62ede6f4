"""The measurements of the store one after another, in a folder that is left as it was found, and their page."""

import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.blocks import write_blocks
from benchmarks.cost.shapes import make_model
from benchmarks.cost.subject import CostSubject
from benchmarks.figures import rounded
from benchmarks.intervals import Interval
from benchmarks.plots import draw_table
from benchmarks.report import measured_on
from benchmarks.store.overlap import Overlap
from benchmarks.store.overlap import measure as measure_overlap
from benchmarks.store.throughput import BAR_BYTES, BOUNDS, COLD, Throughput
from benchmarks.store.throughput import measure as measure_throughput
from benchmarks.table import Bar, Cell, Plot, Table, table_markdown
from emblema.models.load import load_model

PARTS = ("throughput", "overlap")
MIB = 2**20
COLD_SHARE = 0.01
"""Of a file in the page cache, from which on a read is not called cold."""


@dataclass(frozen=True, slots=True)
class StoreExtent:
    """How much is measured: bytes of KV in files, rounds, and chunks of linked prompts with their tokens."""

    sizes: tuple[int, ...] = (16 * MIB, 64 * MIB, 256 * MIB)
    rounds: int = 9
    pictures: tuple[int, int] = (6, 66)
    larger: tuple[int, int] = (4, 258)


FULL = StoreExtent()
QUICK = StoreExtent((MIB, 4 * MIB), 3, (3, 18), (0, 0))
"""A little of everything."""


def measure_store(
    extent: StoreExtent, seed: int, model: str, parts: Collection[str], folder: Path | None = None
) -> dict[str, Any]:
    """Return the figures of files in a folder, and of linked prompts on a model and on a larger random one."""
    before, found = os.getloadavg()[0], {name: list[Any]() for name in PARTS}
    with tempfile.TemporaryDirectory(prefix="emblema-bench-", dir=folder) as name:
        place, random = Path(name), np.random.default_rng([seed, 1])
        for size in extent.sizes if "throughput" in parts else ():
            found["throughput"] += measure_throughput(place, size, extent.rounds, random)
        if "overlap" in parts:
            own = CostSubject(Path(model).name, load_model(model)[0], seed)
            found["overlap"] += measure_overlap(place, own, *extent.pictures, extent.rounds)
            if any(extent.larger):
                made = make_model("137m", torch.device("cpu"), torch.float32, seed)
                found["overlap"] += measure_overlap(
                    place, CostSubject("random", made, seed), *extent.larger, extent.rounds
                )
    rows = {name: rounded([asdict(row) for row in own]) for name, own in found.items()}
    return {"seed": seed, "load": [before, os.getloadavg()[0]], **rows}


def write_store_page(figures: Mapping[str, Any], folder: Path) -> tuple[Path, tuple[Bar, ...]]:
    """Make the tables of `store.md` in a folder, and its pictures; returns the page's path, and the bars."""
    saved = [Throughput(**row) for row in figures["throughput"]]
    linked = [Overlap(**row) for row in figures["overlap"]]
    tables = {"throughput": throughput_table(saved), "overlap": overlap_table(linked)}
    for table in tables.values():
        draw_table(table, "store", folder)
    blocks = {name: table_markdown(table) for name, table in tables.items()}
    first, last = figures["load"]
    on = measured_on(figures["environment"])
    command = f"`python -m benchmarks store --seed {figures['seed']}`"
    blocks["run"] = f"{command} on {on}; load average {first:.1f} to {last:.1f}."
    return write_blocks(folder / "store.md", "The store, measured", blocks), tables["throughput"].bars


def throughput_table(found: Collection[Throughput]) -> Table:
    """Return rates and ratios by file and operation, with the bars of large files."""
    rows: list[tuple[Cell, ...]] = []
    bars = []
    for row in found:
        size, bound = f"{row.bytes / 1e6:.0f} MB", BOUNDS.get(row.operation)
        known = row.operation != COLD or row.cold < COLD_SHARE
        held = None
        if bound is not None and known and row.bytes >= BAR_BYTES:
            bars.append(Bar(f"verified load over plain read, {row.operation}, {size}", row.ratio, bound))
            held = f"≥ {bound:g}" + ("" if bars[-1].holds else " **missed**")
        rows.append((size, row.operation, row.plain, row.store, Interval(row.ratio, row.low, row.high), held))
    columns = ("file", "read", "plain GB/s", "store GB/s", "ratio", "bound")
    plots = (Plot("file", "ratio", "read", bars=True),)
    return Table("throughput", "Verified loads over plain reads", "", columns, tuple(rows), plots, tuple(bars))


def overlap_table(found: Collection[Overlap]) -> Table:
    """Return the time to first token by where the KV is."""
    rows: list[tuple[Cell, ...]] = []
    for row in found:
        hidden = None if row.hidden is None else Interval(row.hidden, row.low or 0.0, row.high or 0.0)
        rows.append((f"{row.model}, {row.parameters / 1e6:.1f} M", row.kv, row.ms, row.ratio, hidden))
    columns = ("model", "KV", "TTFT ms", "over memory", "hidden share of the load")
    plots = (Plot("KV", "over memory", bars=True, split="model"),)
    return Table("overlap", "First tokens by where the KV is", "", columns, tuple(rows), plots)
