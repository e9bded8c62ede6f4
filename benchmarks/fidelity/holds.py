"""Whether committed figures still hold: the page is what the files make, and a small sample lies where they say."""

from collections.abc import Callable, Iterator, Mapping
from math import hypot, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.fidelity.arms import BLIND, FULL
from benchmarks.fidelity.files import runs
from benchmarks.fidelity.measure import FidelityOptions, FidelityRun
from benchmarks.fidelity.records import FidelityRecord
from benchmarks.fidelity.results import page
from benchmarks.fidelity.sources import items_of
from benchmarks.fidelity.summary import POOLED, rows_of
from benchmarks.fidelity.tables import known
from benchmarks.recordfile import RecordFile
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

STRATEGIES = (FULL, BLIND, "patch-6%", "patch-25%")
FIGURES = ("accuracy", "multi_hop_accuracy", "agreement", "eta", "flip_recovery")
MOVED = ("eta", "flip_recovery")
"""Figures of the questions that blind reuse moves; of few such questions they have a tail that no interval knows."""
FLIPS = 5
"""Changed answers that a sample should have, by the committed count, for those figures to be held to it."""
WIDTHS = 2.0
"""Half-widths of 95 % intervals that a sample may lie off: about four standard errors."""


def check_page(folder: Path, out: Path) -> None:
    """Hold the page to its files.

    Raises:
        EmblemaError: it is not what the files make.
    """
    text = out.read_text(encoding="utf-8") if out.is_file() else ""
    if text != page(folder):
        raise EmblemaError(f"{out} is not what {folder} makes: run `python -m benchmarks results` and commit it")


def sample(folder: Path, items: int, load: Callable[[str], Engine], screen: Console) -> Iterator[str]:
    """Measure the first items of every committed run again, on its own seed, and yield a line for each task that holds.

    Runs on data sets are left out, as their files are not here.

    Raises:
        EmblemaError: a figure lies off its committed value by more than `WIDTHS` of both intervals together.
    """
    asked: dict[tuple[str, int, str, str], dict[str, Mapping[str, Any]]] = {}
    for _, run in runs(folder):
        for row in run["rows"]:
            if row["task"] != POOLED and ":" not in row["task"] and row["strategy"] in STRATEGIES:
                group = asked.setdefault((row["model"], run["seed"], row["task"], row["setting"]), {})
                group[row["strategy"]] = row
    engines: dict[str, Engine] = {}
    for (model, seed, task, setting), committed in asked.items():
        if model not in engines:
            engines[model] = load(model)
        names = tuple(dict.fromkeys((FULL, BLIND, *committed)))
        with TemporaryDirectory() as place, RecordFile(Path(place) / "sample.records.jsonl", FidelityRecord) as records:
            bench = FidelityRun(engines[model], model, FidelityOptions(names, (setting,), items, seed), records)
            bench.run(items_of([task]), screen)
            fresh = {row["strategy"]: row for row in rows_of(records.held.values())}
        for name, row in committed.items():
            off = departures(row, fresh[name])
            if off:
                raise EmblemaError(f"{model}, {task}, {setting}, {name}: {'; '.join(off)}; measure again")
        yield f"{model}, {task}, {setting}: {items} items hold"


def departures(committed: Mapping[str, Any], fresh: Mapping[str, Any]) -> list[str]:
    """Figures of a small sample that lie further from the committed ones than both sizes allow.

    The sample's own spread is the committed one, widened by the root of how many times fewer items it has: a bootstrap
    of a few items, all of them right, would know no spread at all.
    """
    times = sqrt(max(1.0, committed["items"] / fresh["items"]))
    few = committed["flips"] * fresh["items"] / committed["items"] < FLIPS
    found = []
    for name in FIGURES:
        if few and name in MOVED:
            continue
        before, now = committed.get(name), fresh.get(name)
        if before is None or now is None or not (known(before) and known(now)):
            continue
        low, high = committed["intervals"][name]
        half = max((high - low) / 2, 1 / committed["n"])
        if abs(now - before) > WIDTHS * hypot(half, half * times):
            found.append(f"{name} is {now:.3f} on {fresh['n']} questions, committed {before:.3f} on {committed['n']}")
    return found
