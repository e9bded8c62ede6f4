"""Every table by name, and all of them in one go over the same items."""

from collections.abc import Callable, Iterable

from benchmarks.table import SampleSize, Table
from benchmarks.window.divergence import Divergence
from benchmarks.window.orbit import Orbit
from benchmarks.window.probe import Probe, measured
from benchmarks.window.recall import Recall
from benchmarks.window.refresh import Refresh
from benchmarks.window.superset import Superset
from benchmarks.window.survivors import Survivors
from emblema.engine.engine import Engine
from emblema.errors import PromptError

TABLES: dict[str, Callable[[], Probe]] = {
    "orbit": Orbit,
    "survivors": Survivors,
    "recall": Recall,
    "divergence": Divergence,
    "superset": Superset,
    "refresh": Refresh,
}


def measure_tables(
    engine: Engine,
    wanted: SampleSize,
    names: Iterable[str] = tuple(TABLES),
    advance: Callable[[], object] = lambda: None,
) -> list[Table]:
    """Tables by name, item by item, so that each item's pages are encoded once for all of them.

    Args:
        advance: called after each item.

    Raises:
        PromptError: a table is unknown, or none is asked for.
    """
    chosen = list(dict.fromkeys(names))
    unknown = [name for name in chosen if name not in TABLES]
    if unknown or not chosen:
        raise PromptError(f"unknown table {', '.join(unknown)!r}: choose of {', '.join(TABLES)}")
    return measured(engine, wanted, [TABLES[name]() for name in chosen], advance)
