"""The store's figures as tables with their bars, on a screen, as Markdown with pictures, and as plain data."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.report import ModelTables, show_tables, write_page
from benchmarks.store.compression import compression_table
from benchmarks.store.hits import hits_table
from benchmarks.store.index import index_table
from benchmarks.store.novelty import novelty_table
from benchmarks.store.overlap import overlap_table
from benchmarks.store.run import StoreResult
from benchmarks.store.sharing import draw_growth, sharing_table
from benchmarks.store.throughput import throughput_table
from benchmarks.table import Table
from emblema.eval.figures import environment


def store_tables(result: StoreResult) -> ModelTables:
    """Return a table for each measurement that was made."""
    return ModelTables("store", tuple(_tables(result)))


def _tables(result: StoreResult) -> Iterator[Table]:
    if result.throughput:
        yield throughput_table(result.throughput)
    yield from (overlap_table(found, number) for number, found in enumerate(result.overlap))
    if result.index:
        yield index_table(result.index)
    if result.hits:
        yield hits_table(result.hits)
    if result.novelty:
        yield novelty_table(result.novelty)
    if result.sharing is not None:
        yield sharing_table(result.sharing)
    if result.compression is not None:
        yield compression_table(result.compression)


def remarks_of(result: StoreResult) -> list[str]:
    """Return what else the bars rest on."""
    remarks = []
    for found in result.throughput:
        if not found.cold:
            kept = "cannot be seen" if math.isnan(found.residency) else f"kept {found.residency:.0%} of it"
            remarks.append(f"{found.megabytes}: the cold reads may not be cold, the page cache {kept}.")
    for linked in result.overlap:
        if not linked.residency < 0.01:
            remarks.append(f"{linked.model}: files may have been in the page cache before the cold lanes.")
    cores = environment()["cores"] or 1
    if max(result.load) > cores:
        remarks.append(
            f"The machine's load average was {result.load[0]:.1f} before and {result.load[1]:.1f} after, on {cores} "
            "cores: other processes ran too, so trust ratios within a round more than times."
        )
    return remarks


def show(screen: Console, result: StoreResult) -> None:
    """Print the result."""
    found = store_tables(result)
    show_tables(screen, found)
    for remark in remarks_of(result):
        screen.print(Text(remark, "yellow"))
    missed = [bar.name for bar in found.bars if not bar.holds]
    if found.bars:
        words = f"missed: {'; '.join(missed)}" if missed else "every bar holds"
        screen.print(Text(words, "bold red" if missed else "bold green"))


def report(result: StoreResult) -> dict[str, Any]:
    """Return the result as plain data: every figure as measured, those worked out from them, and the bars."""
    data = store_tables(result).data()
    return {**asdict(result), "bars": data["bars"], "remarks": remarks_of(result), "tables": data["tables"]}


def write_report(result: StoreResult, folder: Path) -> Path:
    """Write `store.md` and its pictures into a folder; returns the page's path."""

    def pictures(model: str, table: Table, folder: Path) -> list[Path]:
        return [draw_growth(result.sharing, folder)] if table.name == "sharing" and result.sharing else []

    larger = " and on a larger random one" if len(result.overlap) > 1 else ""
    command = (
        f"`python -m benchmarks store`: seed {result.seed}, {result.file_system} file system, one thread of torch, the "
        f"store's own threads beside it; prompts ran on the model `{result.model}`{larger}"
    )
    page = folder / "store.md"
    return write_page(page, "The store, measured", command, [store_tables(result)], pictures, remarks_of(result))
