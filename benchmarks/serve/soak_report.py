"""What has to hold of a soaked server, its tables, and its files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy
from rich.console import Console

from benchmarks.report import ModelTables, options_text, show_tables, write_page
from benchmarks.rowfile import write_rows
from benchmarks.serve.soak import ProcessSample, ServeSoak
from benchmarks.table import Bar, Plot, Table

MEGA = 1e6
WARM = 1 / 3
"""Share of the soak before growth is counted: caches fill, pools start their threads, combinations are learnt."""
MEMORY = 0.05
"""Growth over the rest of memory that the store does not count, as a share of it. A leak of a few kilobytes a request
passes it in half an hour; what the allocator gives back late does not."""
HANDLES, THREADS = 4.0, 2.0
"""Growth of handles and threads over the rest. A leak of one in a hundred requests passes both; the clients' own
connections come and go around their mean."""
WARNING = (
    "Growth is that of the straight line through all samples after the first third that fits best, from its beginning "
    "to its end: one reading says nothing, as requests under way hold memory, connections and threads of their own."
)


def settled(samples: Sequence[ProcessSample]) -> list[ProcessSample]:
    """Return the samples after the first third of the time."""
    return [sample for sample in samples if sample.seconds >= WARM * samples[-1].seconds]


def growth(samples: Sequence[ProcessSample], figure: Callable[[ProcessSample], float]) -> float:
    """Return by how much the line through samples rises from the first to the last."""
    times = [sample.seconds for sample in samples]
    if len(set(times)) < 3:
        return float("nan")
    slope = float(numpy.polyfit(times, [figure(sample) for sample in samples], 1)[0])
    return slope * (times[-1] - times[0])


def uncounted(sample: ProcessSample) -> float:
    """Return bytes of the process that the store does not count: program, model, requests under way, what leaks."""
    return sample.resident - sample.counted


def soak_bars(found: ServeSoak) -> tuple[Bar, ...]:
    """Return everything that has to hold."""
    rest = settled(found.samples)
    memory = growth(rest, uncounted) / median(map(uncounted, rest))
    failed = sum(count for (_, end), count in found.outcomes.items() if "50" in end.replace("503", ""))
    requests = sum(found.outcomes.values())

    def held(name: str, value: float, bound: float) -> Bar:
        return Bar(name, value, bound, least=False, count=len(rest))

    return (
        held("growth of memory that the store does not count, share of it", memory, MEMORY),
        held("growth of open handles", growth(rest, lambda sample: sample.handles), HANDLES),
        held("growth of threads", growth(rest, lambda sample: sample.threads), THREADS),
        Bar("requests that failed within the server", failed, 0, least=False, count=requests),
    )


def soak_tables(found: ServeSoak) -> tuple[Table, Table]:
    """Return the samples, with the bars, and how every kind of request ended."""
    rows = tuple(
        (
            sample.seconds / 60,
            sample.requests,
            sample.resident / MEGA,
            uncounted(sample) / MEGA,
            sample.handles,
            sample.threads,
        )
        for sample in found.samples
    )
    columns = ("minutes", "requests", "memory MB", "uncounted MB", "handles", "threads")
    plots = tuple(Plot("minutes", column) for column in columns[2:])
    note = f"The server's process as the system tells it. {WARNING}"
    process = Table("process", "What the process held", note, columns, rows, plots, soak_bars(found), found.seconds)
    ends = tuple((kind, end, count) for (kind, end), count in sorted(found.outcomes.items()))
    words = "The status that a request ended with, or that its client left."
    return process, Table("requests", "How requests ended", words, ("kind", "end", "requests"), ends)


def write_serve_soak(found: ServeSoak, options: dict[str, Any], folder: Path, screen: Console) -> tuple[Bar, ...]:
    """Write `serve-soak.md`, `serve-soak.json` and the plots, show them, and return the bars."""
    tables = ModelTables("reference", soak_tables(found))
    show_tables(screen, tables)
    write_rows({"options": options, **tables.data()}, folder / "serve-soak.json")
    write_soak_page(tables, options, folder)
    return tables.bars


def write_soak_page(tables: ModelTables, options: dict[str, Any], folder: Path) -> Path:
    """Write `serve-soak.md` and its plots into a folder; returns the page's path."""
    words = f"`python -m benchmarks soak-serve`: {options_text(options)}; figures in [serve-soak.json](serve-soak.json)"
    return write_page(folder / "serve-soak.md", "A soak of the service", words, [tables])
