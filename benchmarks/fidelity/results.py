"""The page of results: tables of committed figures, also beside what the papers state, and whether they still hold.

The page's text is written by hand; every figure is read from one file. A small sample measured again has to lie where
that file says.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import hypot, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.blocks import filled, write_blocks
from benchmarks.fidelity.arms import BLIND, FULL
from benchmarks.fidelity.measure import FidelityOptions, FidelityRecord, FidelityRun, items_of
from benchmarks.fidelity.papers import Cell, Statement, statements
from benchmarks.fidelity.summary import POOLED, FigureRow, rows_of
from benchmarks.figures import read_figures, write_figures
from benchmarks.recordfile import RecordFile
from benchmarks.table import markdown_table
from benchmarks.tasks.registry import TASKS
from emblema.cli.screen import output_folder
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

NEEDED = ("model", "task", "setting", "strategy", "n", "eta", "intervals")
FIGURES_FILE = "fidelity.json"
COLUMNS = (
    *("model", "task", "setting", "strategy", "n", "items", "accuracy", "single_hop_accuracy", "multi_hop_accuracy"),
    *("kl", "eta", "flip_recovery", "flips", "agreement", "accuracy_lost", "kv_bytes_share", "rows_computed_share"),
)
ASKED = ("tasks", "settings", "items_asked")
INTERVALS = ("accuracy", "multi_hop_accuracy", "agreement", "eta", "flip_recovery", "accuracy_lost")
FIGURES = ("accuracy", "multi_hop_accuracy", "agreement", "eta", "flip_recovery")
BARS = tuple(
    (strategy, figure, least)
    for strategy, least in (("patch-25%", 0.95), ("patch-50%", 0.99))
    for figure in ("eta", "flip_recovery")
)
"""What strategies have to reach, pooled over the tasks that the models were trained on."""
LEAST_FLIPS = 100
"""Changed answers that a flip recovery has to be counted on."""
SHORT = ("patch-25%", "patch@25%")
"""The strategy that is shown for the patch where a task has one line."""
SAMPLED = (FULL, BLIND, "patch-6%", "patch-25%")
MOVED = ("eta", "flip_recovery")
"""Figures of the questions that blind reuse moves; of few such questions they have a tail that no interval knows."""
SAMPLED_FLIPS = 5
"""Changed answers that a sample should have, by the committed count, for those figures to be held to it."""
WIDTHS = 2.0
"""Half-widths of 95 % intervals that a sample may lie off: about four standard errors."""


def read_page_figures(folder: Path) -> dict[str, Any]:
    """Return the figures of the page, `fidelity.json` of a folder.

    Raises:
        EmblemaError: the file is not there, is no JSON, or a row lacks a field.
    """
    path = folder / FIGURES_FILE
    try:
        found = read_figures(path)
        for place, row in enumerate(found["rows"]):
            if not set(NEEDED) <= row.keys():
                raise ValueError(f"row {place} lacks {', '.join(sorted(set(NEEDED) - row.keys()))}")
    except (OSError, ValueError, KeyError) as error:
        raise EmblemaError(f"{path}: it cannot be read ({error!r}); give the folder of the page's figures") from error
    return found


def collect(paths: Sequence[Path], out: Path) -> Path:
    """Write the figures that the page shows, out of runs of `python -m benchmarks fidelity`; returns the file's path.

    A row that several runs have is the first one's.

    Raises:
        EmblemaError: a run cannot be read, or the runs have several seeds.
    """
    try:
        runs = [read_figures(path) for path in paths]
        seeds = {run["seed"] for run in runs}
    except (OSError, ValueError, KeyError) as error:
        raise EmblemaError(f"--runs: a file is no run of `fidelity` ({error!r}); measure again") from error
    if len(seeds) != 1:
        raise EmblemaError(f"--runs: {len(seeds)} seeds; give runs of one seed")
    kept: dict[tuple[str, ...], dict[str, Any]] = {}
    for run in runs:
        trained = all(name in TASKS and TASKS[name].familiar for name in run["tasks"])
        for row in run["rows"]:
            if (trained or row["task"] != POOLED) and _shown(row):
                intervals = {name: part for name, part in row["intervals"].items() if name in INTERVALS}
                place = tuple(row[name] for name in ("model", "task", "setting", "strategy"))
                kept.setdefault(place, {name: row.get(name) for name in COLUMNS} | {"intervals": intervals})
    said = [
        {"model": ", ".join(run["models"]), "made_with": run["environment"], **{name: run[name] for name in ASKED}}
        for run in runs
    ]
    return write_figures({"seed": seeds.pop(), "runs": said, "rows": list(kept.values())}, out)


def _shown(row: FigureRow) -> bool:
    """Return whether the page shows a row or holds a sample to it."""
    if row["setting"] == "visible" and row["task"] == POOLED:
        return row["strategy"] in (FULL, BLIND, *(strategy for strategy, *_ in BARS))
    if row["strategy"] in (*SAMPLED, *SHORT):
        return True
    cells = (cell for statement in statements() for cell in statement.cells)
    quoted = any(row["task"] in cell.tasks and row["strategy"] in cell.strategies for cell in cells)
    return row["setting"] == "slid" and (row["task"] == POOLED or quoted)


def page_blocks(folder: Path) -> dict[str, str]:
    """Return every table of the page by its name.

    Raises:
        EmblemaError: no figures lie in the folder, or the file is broken.
    """
    found = read_page_figures(folder)
    rows: list[FigureRow] = found["rows"]
    made: dict[str, None] = dict.fromkeys(map(_where, found["runs"]))
    models: dict[tuple[str, ...], list[str]] = {}
    for run in found["runs"]:
        models.setdefault(_run(run), []).append(run["model"])
    lines = [(", ".join(names), *asked) for asked, names in models.items()]
    runs = markdown_table(("model", "setting", "tasks", "items a task"), lines)
    return {
        "measured": f"Seed {found['seed']}; {'; '.join(made)}.\n\n{runs}",
        "bars": _bars(rows),
        "methods": _methods(rows),
        "tasks": _tasks(rows),
        "papers": "\n\n".join(_statement(statement, rows) for statement in statements()),
    }


def write_page(folder: Path, out: Path) -> Path:
    """Make the tables of the page."""
    blocks = page_blocks(folder)
    output_folder(out.parent)
    return write_blocks(out, "Results: reuse against re-prefill", blocks)


def _run(run: Mapping[str, Any]) -> tuple[str, ...]:
    return ", ".join(run["settings"]), str(len(run["tasks"])), str(run["items_asked"])


def _where(run: Mapping[str, Any]) -> str:
    made = run["made_with"]
    return f"{made.get('device')}, torch {made.get('torch')}, {made.get('date')}"


def known(value: Any) -> bool:
    """Return whether a figure is there: neither missing nor NaN."""
    return value is not None and not math.isnan(value)


def number(value: Any, digits: int = 3) -> str:
    """Return a figure, or a dash where there is none."""
    if not known(value):
        return "–"
    shown = f"{value:.{digits}f}"
    return shown.lstrip("-") if float(shown) == 0 else shown


def ranged(row: FigureRow, name: str, digits: int = 3) -> str:
    """Return a figure with its interval."""
    if not known(row.get(name)):
        return "–"
    low, high = row["intervals"][name]
    return f"{number(row[name], digits)} [{number(low, digits)}, {number(high, digits)}]"


def _models(rows: Sequence[FigureRow]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _found(rows: Sequence[FigureRow], model: str, task: str, strategy: str, setting: str = "slid") -> FigureRow | None:
    """Return the figures of a strategy on a task, or None."""
    asked = {"model": model, "setting": setting, "task": task, "strategy": strategy}
    return next((row for row in rows if asked.items() <= row.items()), None)


def _bars(rows: Sequence[FigureRow]) -> str:
    """Return a line for each model, setting and strategy, with what it reaches beside what is asked."""
    lines = []
    for model, setting in dict.fromkeys((row["model"], row["setting"]) for row in rows if row["task"] == POOLED):
        for strategy, least in dict.fromkeys((strategy, least) for strategy, _, least in BARS):
            row = _found(rows, model, POOLED, strategy, setting)
            if row is not None:
                count = f"{row['flips']} of {row['n']}"
                reached = (
                    f"{ranged(row, figure)} {verdict(row, figure, least)}" for own, figure, _ in BARS if own == strategy
                )
                lines.append((model, setting, f"`{strategy}`", f"{least:g}", *reached, count))
    return markdown_table(("model", "setting", "strategy", "at least", "eta", "flips restored", "flips"), lines)


def verdict(row: FigureRow, figure: str, least: float) -> str:
    """Return how a row is to a bar: `met` with its whole interval, `met in the mean`, `missed`, or `too few flips`."""
    if figure == "flip_recovery" and row["flips"] < LEAST_FLIPS:
        return "too few flips"
    if not known(row.get(figure)):
        return "not measured"
    if row["intervals"][figure][0] >= least:
        return "met"
    return "met in the mean" if row[figure] >= least else "missed"


def _methods(rows: Sequence[FigureRow]) -> str:
    """Return a line for each strategy on the pooled tasks, with the models side by side; equal lines are one."""
    pooled = [row for row in rows if row["task"] == POOLED and row["setting"] == "slid"]
    models = _models(pooled)
    lines: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(row["strategy"] for row in pooled):
        own = [_found(pooled, model, POOLED, name) for model in models]
        first = next(row for row in own if row is not None)
        right = [number(row and row["accuracy"]) for row in own]
        etas = ["" if name in (FULL, BLIND) else number(row and row["eta"]) for row in own]
        spent = (f"{first['kv_bytes_share']:.0%}", f"{first['rows_computed_share']:.0%}")
        lines.setdefault((*spent, *right, *etas), []).append(f"`{name}`")
    short = [model.removeprefix("reference-") for model in models]
    head = ("strategy", "KV bytes", "rows", *(f"right, {name}" for name in short), *(f"eta, {name}" for name in short))
    return markdown_table(head, ((", ".join(names), *cells) for cells, names in lines.items()))


def _tasks(rows: Sequence[FigureRow]) -> str:
    head = ("task", "n", "re-prefill", "blind", "patch-25%", "eta of the patch", "flips it restored")
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows if row["task"] != POOLED):
        full, blind = (_found(rows, "reference", task, name) for name in (FULL, BLIND))
        patch = next((row for name in SHORT if (row := _found(rows, "reference", task, name))), None)
        if full is None or blind is None or patch is None:
            continue
        held = TASKS.get(task)
        told = () if held is None else (("control", held.control), ("not trained on", not held.familiar))
        marks = [word for word, holds in told if holds]
        label = f"{task} ({', '.join(marks)})" if marks else task
        right = [number(row["accuracy"]) for row in (full, blind, patch)]
        restored = f"{ranged(patch, 'flip_recovery', 2)} of {patch['flips']}" if patch["flips"] else "of none"
        lines.append((label, str(full["n"]), *right, ranged(patch, "eta"), restored))
    return markdown_table(head, lines)


def _statement(statement: Statement, rows: Sequence[FigureRow]) -> str:
    models = _models(rows)
    lines = [(cell.label, *(_cell(cell, rows, model) for model in models)) for cell in statement.cells]
    lines = [line for line in lines if any(figure != "–" for figure in line[1:])]
    kept = [f"### {statement.paper}, {statement.where}", f"> {statement.words}"]
    kept += [markdown_table(("ours", *models), lines), statement.note] if lines else ["Not measured here."]
    return "\n\n".join(part for part in kept if part)


def _cell(cell: Cell, rows: Sequence[FigureRow], model: str) -> str:
    places = ((task, strategy) for task in cell.tasks for strategy in cell.strategies)
    measured = (_found(rows, model, task, strategy) for task, strategy in places)
    row = next((row for row in measured if row is not None and known(row.get(cell.figure))), None)
    if row is None:
        return "–"
    return number(row[cell.figure]) + (f" of {row['flips']}" if cell.figure == "flip_recovery" else "")


def check_page(folder: Path, out: Path) -> None:
    """Hold the page to its figures.

    Raises:
        EmblemaError: it is not what its figures make.
    """
    text, blocks = out.read_text(encoding="utf-8") if out.is_file() else "", page_blocks(folder)
    if filled(text, blocks) != text or any(f"<!-- {name} -->" not in text for name in blocks):
        raise EmblemaError(f"{out} is not what its figures make: run `python -m benchmarks results` and commit it")


def sample(
    folder: Path, items: int, load: Callable[[str], Engine], screen: Console, only: str | None = None
) -> Iterator[str]:
    """Measure the first items of every committed run again, on its own seed, and yield a line for each task that holds.

    Runs on data sets are left out, as their files are not here.

    Args:
        only: the model to measure; every one if None.

    Raises:
        EmblemaError: a figure lies off its committed value by more than `WIDTHS` of both intervals together.
    """
    found = read_page_figures(folder)
    asked: dict[tuple[str, str, str], dict[str, FigureRow]] = {}
    for row in found["rows"]:
        own = row["task"] != POOLED and ":" not in row["task"] and only in (None, row["model"])
        if own and row["strategy"] in SAMPLED:
            asked.setdefault((row["model"], row["task"], row["setting"]), {})[row["strategy"]] = row
    engines: dict[str, Engine] = {}
    for (model, task, setting), committed in asked.items():
        if model not in engines:
            engines[model] = load(model)
        names = tuple(dict.fromkeys((FULL, BLIND, *committed)))
        with TemporaryDirectory() as place, RecordFile(Path(place) / "sample.records.jsonl", FidelityRecord) as records:
            bench = FidelityRun(
                engines[model], model, FidelityOptions(names, (setting,), items, found["seed"]), records
            )
            bench.run(items_of([task]), screen)
            fresh = {row["strategy"]: row for row in rows_of(records.held.values())}
        for name, row in committed.items():
            off = departures(row, fresh[name])
            if off:
                raise EmblemaError(f"{model}, {task}, {setting}, {name}: {'; '.join(off)}; measure again")
        yield f"{model}, {task}, {setting}: {items} items hold"


def departures(committed: Mapping[str, Any], fresh: Mapping[str, Any]) -> list[str]:
    """Return figures of a small sample that lie further from the committed ones than both sizes allow.

    The sample's own spread is the committed one, widened by the root of how many times fewer items it has: a bootstrap
    of a few items, all of them right, would know no spread at all.
    """
    times = sqrt(max(1.0, committed["items"] / fresh["items"]))
    few = committed["flips"] * fresh["items"] / committed["items"] < SAMPLED_FLIPS
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
