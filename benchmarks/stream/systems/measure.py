"""The systems parts by name."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.stream.systems.batching import measure_batching
from benchmarks.stream.systems.deferral import measure_deferral
from benchmarks.stream.systems.growth import measure_growth
from benchmarks.stream.systems.held import measure_bytes
from benchmarks.stream.systems.maps import draw_questions, measure_questions
from benchmarks.stream.systems.prefetch import measure_prefetch
from benchmarks.stream.systems.sparsity import measure_sparsity
from benchmarks.stream.systems.structure import measure_structure
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.stream.systems.workers import measure_workers
from benchmarks.table import Table
from emblema.engine.engine import Engine

Part = Callable[[Engine, SystemsWanted, Console], Table]

PARTS: dict[str, Part] = {
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
