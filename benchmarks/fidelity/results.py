"""The page of results: committed figures as tables, beside what the papers state, and whether they still hold.

Every figure is read from one file. A small sample measured again has to lie where the files say.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import hypot, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks.fidelity.arms import BLIND, FULL
from benchmarks.fidelity.measure import FidelityOptions, FidelityRecord, FidelityRun, items_of
from benchmarks.fidelity.papers import STATEMENTS, Cell, Statement
from benchmarks.fidelity.report import READING
from benchmarks.fidelity.summary import POOLED, rows_of
from benchmarks.fidelity.tables import BARS, FigureRow, bars_table, flips, known, number, ranged
from benchmarks.figures import read_figures, write_figures
from benchmarks.recordfile import RecordFile
from benchmarks.report import check_written, writable_folder
from benchmarks.table import markdown_table
from benchmarks.tasks.registry import TASKS
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

NEEDED = ("model", "task", "setting", "strategy", "n", "eta", "intervals")
FIGURES_FILE = "fidelity.json"
BARS_NOTE = (
    "All trained tasks of a run pooled. *met*: with the whole interval; *met in the mean*: the interval reaches below. "
    "At least 100 answers that blind reuse changes are asked of a flip recovery."
)
METHODS_NOTE = (
    "*Slid*, all trained tasks pooled. *right*: share of right answers. `name@6%` is the method at 6 % of the bytes. "
    "Bytes and rows are those of the first model that has the method."
)
ORACLE_NOTE = (
    "An oracle is told what no method knows: `oracle-deficit` the true deficit of every row, `oracle-query` which rows "
    "this very question reads. Neither choice is charged."
)
COLUMNS = (
    *("model", "task", "setting", "strategy", "n", "items", "accuracy", "single_hop_accuracy", "multi_hop_accuracy"),
    *("kl", "eta", "flip_recovery", "flips", "agreement", "accuracy_lost", "kv_bytes_share", "rows_computed_share"),
)
INTERVALS = ("accuracy", "multi_hop_accuracy", "agreement", "eta", "flip_recovery", "accuracy_lost")
SAMPLED = (FULL, BLIND, "patch-6%", "patch-25%", "patch@25%")
QUOTED = {
    (task, strategy) for one in STATEMENTS for cell in one.cells for task in cell.tasks for strategy in cell.strategies
}
"""Tasks and strategies that stand beside the papers' words."""
SHORT = ("patch-25%", "patch@25%")
"""The strategy that is shown for the patch where a task has one line."""
STRATEGIES = (FULL, BLIND, "patch-6%", "patch-25%")
FIGURES = ("accuracy", "multi_hop_accuracy", "agreement", "eta", "flip_recovery")
MOVED = ("eta", "flip_recovery")
"""Figures of the questions that blind reuse moves; of few such questions they have a tail that no interval knows."""
LEAST_FLIPS = 5
"""Changed answers that a sample should have, by the committed count, for those figures to be held to it."""
WIDTHS = 2.0
"""Half-widths of 95 % intervals that a sample may lie off: about four standard errors."""


def read_run(folder: Path) -> dict[str, Any]:
    """Return the figures of the page, `fidelity.json` of a folder.

    Raises:
        EmblemaError: the file is not there, is no JSON, or a row lacks a field.
    """
    path = folder / FIGURES_FILE
    try:
        found = read_figures(path)
    except json.JSONDecodeError as error:
        raise EmblemaError(f"{path}, line {error.lineno}: this is no JSON ({error.msg}); measure again") from error
    except (OSError, ValueError) as error:
        raise EmblemaError(f"{path}: it cannot be read ({error}); give the folder of the page's figures") from error
    rows = found.get("rows")
    if not isinstance(rows, list):
        raise EmblemaError(f"{path}: it has no rows; give the folder of the page's figures")
    for place, row in enumerate(rows):
        lacking = [name for name in NEEDED if not isinstance(row, dict) or name not in row]
        if lacking:
            raise EmblemaError(f"{path}, row {place}: the field {lacking[0]!r} is missing; measure again")
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
        {
            "model": ", ".join(run["models"]),
            **{name: run[name] for name in ("tasks", "settings", "items_asked")},
            "made_with": run["environment"],
        }
        for run in runs
    ]
    return write_figures({"seed": seeds.pop(), "runs": said, "rows": list(kept.values())}, out)


def _shown(row: FigureRow) -> bool:
    """Return whether the page shows a row or holds a sample to it."""
    if row["setting"] == "visible":
        return row["strategy"] in (SAMPLED if row["task"] != POOLED else (FULL, BLIND, *(bar.strategy for bar in BARS)))
    return row["task"] == POOLED or row["strategy"] in SAMPLED or (row["task"], row["strategy"]) in QUOTED


def page(folder: Path) -> str:
    """Return the page as Markdown.

    Raises:
        EmblemaError: no figures lie in the folder, or the file is broken.
    """
    found = read_run(folder)
    rows: list[FigureRow] = found["rows"]
    parts = [
        "# Results: reuse against re-prefill",
        f"`python -m benchmarks results` made this page from [its figures]({folder.name}/{FIGURES_FILE}). "
        "`python -m benchmarks results --check` holds it to them, and them to a small sample measured again.",
        READING,
        "## What was measured",
        f"Seed {found['seed']}, tasks that the package draws, models of 2 million parameters that it trained on them.",
        markdown_table(("model", "setting", "tasks", "items a task", "made on"), [_run(run) for run in found["runs"]]),
        "## Against the bars",
        BARS_NOTE,
        bars_table(rows),
        "## Every method",
        METHODS_NOTE,
        _methods(rows),
        ORACLE_NOTE,
        "## Task by task",
        "The model `reference`, *slid*. A control is a task whose answers should not change.",
        _tasks(rows),
        "## Beside the papers",
        "Figures of the models, *slid*, where a task was measured on them. Intervals are in the figures' file.",
    ]
    parts += [_statement(statement, rows) for statement in STATEMENTS]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_page(folder: Path, out: Path) -> Path:
    """Write the page."""
    text = page(folder)
    writable_folder(out.parent, "--out")
    out.write_text(text, encoding="utf-8")
    return out


def _run(run: Mapping[str, Any]) -> tuple[str, ...]:
    made = run["made_with"]
    return (
        run["model"],
        ", ".join(run["settings"]),
        str(len(run["tasks"])),
        str(run["items_asked"]),
        f"{made.get('device')}, torch {made.get('torch')}, {made.get('date')}",
    )


def _models(rows: Sequence[FigureRow]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _found(rows: Sequence[FigureRow], model: str, task: str, strategy: str) -> FigureRow | None:
    """Return the figures of a strategy on a task, *slid*, or None."""
    asked = (model, "slid", task, strategy)
    return next(
        (row for row in rows if (row["model"], row["setting"], row["task"], row["strategy"]) == asked), None
    )


def _methods(rows: Sequence[FigureRow]) -> str:
    """Return a line for each strategy on the pooled tasks, with the models side by side."""
    pooled = [row for row in rows if row["task"] == POOLED and row["setting"] == "slid"]
    models = _models(pooled)
    lines = []
    for name in dict.fromkeys(row["strategy"] for row in pooled):
        own = [_found(pooled, model, POOLED, name) for model in models]
        first = next(row for row in own if row is not None)
        lines.append(
            (
                f"`{name}`",
                f"{first['kv_bytes_share']:.0%}",
                f"{first['rows_computed_share']:.0%}",
                *(number(row and row["accuracy"]) for row in own),
                *("" if name in (FULL, BLIND) else number(row and row["eta"]) for row in own),
            )
        )
    short = [model.removeprefix("reference-") for model in models]
    head = ("strategy", "KV bytes", "rows", *(f"right, {name}" for name in short), *(f"eta, {name}" for name in short))
    return markdown_table(head, lines)


def _tasks(rows: Sequence[FigureRow]) -> str:
    head = ("task", "n", "re-prefill", "blind", "patch-25%", "eta of the patch", "flips it restored")
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows if row["task"] != POOLED):
        full, blind = (_found(rows, "reference", task, name) for name in (FULL, BLIND))
        patch = next((row for name in SHORT if (row := _found(rows, "reference", task, name))), None)
        if full is None or blind is None or patch is None:
            continue
        marks = [word for word, holds in _marks(task) if holds]
        lines.append(
            (
                f"{task} ({', '.join(marks)})" if marks else task,
                str(full["n"]),
                *(number(row["accuracy"]) for row in (full, blind, patch)),
                ranged(patch, "eta"),
                flips(patch),
            )
        )
    return markdown_table(head, lines)


def _marks(task: str) -> tuple[tuple[str, bool], ...]:
    held = TASKS.get(task)
    if held is None:
        return ()
    return (("control", held.control), ("not trained on", not held.familiar))


def _statement(statement: Statement, rows: Sequence[FigureRow]) -> str:
    models = _models(rows)
    lines = [(cell.label, *(_cell(cell, rows, model) for model in models)) for cell in statement.cells]
    lines = [line for line in lines if any(figure != "–" for figure in line[1:])]
    kept = [f"### {statement.paper}, {statement.where}", f"> {statement.words}"]
    kept += [markdown_table(("ours", *models), lines), statement.note] if lines else ["Not measured here."]
    return "\n\n".join(part for part in kept if part)


def _cell(cell: Cell, rows: Sequence[FigureRow], model: str) -> str:
    for task in cell.tasks:
        for strategy in cell.strategies:
            row = _found(rows, model, task, strategy)
            if row is not None and known(row.get(cell.figure)):
                count = f" of {row['flips']}" if cell.figure == "flip_recovery" else ""
                return f"{number(row[cell.figure])}{count}"
    return "–"


def check_page(folder: Path, out: Path) -> None:
    """Hold the page to its figures.

    Raises:
        EmblemaError: it is not what its figures make.
    """
    check_written(out, page(folder))


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
    asked: dict[tuple[str, int, str, str], dict[str, Mapping[str, Any]]] = {}
    found = read_run(folder)
    for row in found["rows"]:
        if only not in (None, row["model"]):
            continue
        if row["task"] != POOLED and ":" not in row["task"] and row["strategy"] in STRATEGIES:
            group = asked.setdefault((row["model"], found["seed"], row["task"], row["setting"]), {})
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
    """Return figures of a small sample that lie further from the committed ones than both sizes allow.

    The sample's own spread is the committed one, widened by the root of how many times fewer items it has: a bootstrap
    of a few items, all of them right, would know no spread at all.
    """
    times = sqrt(max(1.0, committed["items"] / fresh["items"]))
    few = committed["flips"] * fresh["items"] / committed["items"] < LEAST_FLIPS
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
