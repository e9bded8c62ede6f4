"""The systems parts by name."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.stream.systems.costs import measure_bytes, measure_growth
from benchmarks.stream.systems.encoding import measure_batching, measure_workers
from benchmarks.stream.systems.running import SystemsOptions
from benchmarks.stream.systems.structure import (
    draw_questions,
    measure_questions,
    measure_sparsity,
    measure_structure,
)
from benchmarks.stream.systems.transfers import measure_deferral, measure_prefetch
from benchmarks.table import Table
from emblema.engine.engine import Engine

PARTS: dict[str, Callable[[Engine, SystemsOptions, Console], Table]] = {
    "growth": measure_growth,
    "bytes": measure_bytes,
    "sparsity": measure_sparsity,
    "structure": measure_structure,
    "questions": measure_questions,
    "deferral": measure_deferral,
    "batching": measure_batching,
    "prefetch": measure_prefetch,
    "workers": measure_workers,
}
"""Name to what measures it; the table has that name."""

PICTURES: dict[str, Callable[[Table, Path], list[Path]]] = {"questions": draw_questions}
"""Name to what draws more of a table than its plots, into a folder."""


def measure_part(part: str, engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure one of `PARTS`, and how long that took."""
    began = time.perf_counter()
    return replace(PARTS[part](engine, options, console), seconds=time.perf_counter() - began)
