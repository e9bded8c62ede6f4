"""The page of results: committed figures as tables, beside what the papers state, and whether they still hold.

Every figure is read from a file. A small sample measured again has to lie where the files say.
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
from benchmarks.fidelity.plots import draw_overview
from benchmarks.fidelity.report import READING
from benchmarks.fidelity.summary import POOLED, rows_of
from benchmarks.fidelity.tables import (
    FigureRow,
    bars_table,
    flips,
    known,
    main_table,
    matched_table,
    number,
    ranged,
    rivals_table,
)
from benchmarks.recordfile import RecordFile
from benchmarks.report import check_written, writable_folder
from benchmarks.rowfile import read_rows
from benchmarks.table import markdown_table
from benchmarks.tasks.registry import TASKS
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

NEEDED = ("model", "task", "setting", "strategy", "n", "eta", "intervals")
PICTURE = "fidelity.png"
BARS_NOTE = (
    "All trained tasks of a run pooled. *met*: with the whole interval; *met in the mean*: the interval reaches below; "
    "at least 100 answers that blind reuse changes are asked of a flip recovery."
)
ORACLE_NOTE = (
    "An oracle is told what no method knows: `oracle-deficit` the true deficit of every row, `oracle-query` which rows "
    "this very question reads, chosen again for every question, and neither choice is charged. These questions read "
    "few rows of a picture, so few recomputed rows serve one; a patch is made once and serves every question. Where an "
    "oracle leads a patch over all layers, the bytes were spread over layers that hardly need them: on the deepest "
    "half alone the same bytes hold more directions. A latent cache is narrow, so a share of its bytes holds fewest."
)
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


def read_run(path: Path) -> dict[str, Any]:
    """Return what a run wrote.

    Raises:
        EmblemaError: the file is not there, is no JSON, or a row lacks a field.
    """
    try:
        found = read_rows(path)
    except json.JSONDecodeError as error:
        raise EmblemaError(f"{path}, line {error.lineno}: this is no JSON ({error.msg}); measure again") from error
    except (OSError, ValueError) as error:
        raise EmblemaError(f"{path}: it cannot be read ({error}); give a file that `bench fidelity` wrote") from error
    rows = found.get("rows")
    if not isinstance(rows, list):
        raise EmblemaError(f"{path}: it has no rows; give a file that `bench fidelity` wrote")
    for place, row in enumerate(rows):
        lacking = [name for name in NEEDED if not isinstance(row, dict) or name not in row]
        if lacking:
            raise EmblemaError(f"{path}, row {place}: the field {lacking[0]!r} is missing; measure again")
    return found


def runs(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return all runs of a folder, `fidelity-*.json`, by name.

    Raises:
        EmblemaError: there is none, or one is broken.
    """
    paths = sorted(folder.glob("fidelity-*.json"))
    if not paths:
        raise EmblemaError(f"{folder}: no fidelity-*.json lies there; write one with `bench fidelity --json`")
    return [(path, read_run(path)) for path in paths]


def page(folder: Path) -> str:
    """Return the page as Markdown.

    Raises:
        EmblemaError: no figures lie in the folder, or a file is broken.
    """
    found = runs(folder)
    rows: list[FigureRow] = [row for _, run in found for row in _kept(run)]
    parts = [
        "# Results: reuse against re-prefill",
        f"`python -m benchmarks results` made this page from the files in `{folder.name}/`; no figure is typed by "
        "hand, and `python -m benchmarks results --check` holds it to them and to a small sample measured again.",
        READING,
        "## What was measured",
        markdown_table(
            ("file", "models", "tasks", "items a task", "seed", "settings", "made with"), [_run(*run) for run in found]
        ),
        *([f"![what each method closes at the same bytes]({folder.name}/{PICTURE})"] if _matched(rows) else []),
        *_bars(rows),
        "## Every method",
    ]
    for model, setting, task in dict.fromkeys((row["model"], row["setting"], row["task"]) for row in rows):
        own = _counted(list({row["strategy"]: row for row in _of(rows, model, setting, task)}.values()))
        if task != POOLED and any(_of(rows, model, setting, POOLED)):
            continue
        parts += [f"### {model}, {setting}, {task}", f"{own[0]['n']} questions of {own[0]['items']} items."]
        plain = [row for row in own if "@" not in row["strategy"]]
        parts.append(main_table(plain))
        matched = matched_table(own)
        if matched:
            parts += ["At the same bytes, with the paired distance to the patch:", matched]
    parts += ["## Task by task", _tasks(rows), "## Beside the papers"]
    parts += [_statement(statement, rows) for statement in STATEMENTS]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_page(folder: Path, out: Path) -> Path:
    """Write the page, and its picture beside the figures."""
    text = page(folder)
    writable_folder(out.parent, "--out")
    out.write_text(text, encoding="utf-8")
    draw_overview([row for _, run in runs(folder) for row in _kept(run)], folder / PICTURE)
    return out


def _kept(run: Mapping[str, Any]) -> list[FigureRow]:
    """Return a run's rows; pooled ones only where the models were trained on all its tasks."""
    trained = all(name in TASKS and TASKS[name].familiar for name in run["tasks"])
    return [row for row in run["rows"] if trained or row["task"] != POOLED]


def _counted(rows: Sequence[FigureRow]) -> list[FigureRow]:
    """Return rows of one table, the largest group of one run first; those on other questions say on how many."""
    most = max(row["n"] for row in rows)
    first = [row for row in rows if row["n"] == most]
    others = []
    for row in rows:
        if row["n"] != most:
            method, at, share = row["strategy"].partition("@")
            others.append({**row, "strategy": f"{method} ({row['n']} questions){at}{share}"})
    return [*first, *others]


def _matched(rows: Sequence[FigureRow]) -> bool:
    return any(row["task"] == POOLED and row["setting"] == "slid" and "@" in row["strategy"] for row in rows)


def _bars(rows: Sequence[FigureRow]) -> list[str]:
    bars, rivals = bars_table(rows), rivals_table(rows)
    said: list[str] = []
    if bars:
        said += ["## Against the bars", BARS_NOTE, bars]
    if rivals:
        said += [
            "At equal bytes, the best method that recomputes tokens, without and with an oracle:",
            rivals,
            ORACLE_NOTE,
        ]
    return said


def _of(rows: Sequence[FigureRow], model: str, setting: str, task: str) -> list[FigureRow]:
    return [row for row in rows if (row["model"], row["setting"], row["task"]) == (model, setting, task)]


def _run(path: Path, run: Mapping[str, Any]) -> tuple[str, ...]:
    made = run.get("environment", {})
    with_what = f"emblema {made.get('emblema')}, torch {made.get('torch')}, {made.get('device')}, {made.get('date')}"
    return (
        f"`{path.name}`",
        ", ".join(run["models"]),
        ", ".join(run["tasks"]),
        str(run["items_asked"]),
        str(run["seed"]),
        ", ".join(run["settings"]),
        with_what,
    )


def _tasks(rows: Sequence[FigureRow]) -> str:
    head = ("model", "setting", "task", "n", "re-prefill", "blind", "patch-25%", "lost by blind", "eta of the patch",
            "flips it restored")  # fmt: skip
    lines = []
    for model, setting, task in dict.fromkeys((row["model"], row["setting"], row["task"]) for row in rows):
        own = {row["strategy"]: row for row in _of(rows, model, setting, task)}
        patch = next((own[name] for name in SHORT if name in own), None)
        blind, full = own.get(BLIND), own.get("full")
        if task == POOLED or blind is None or full is None:
            continue
        marks = [word for word, holds in _marks(task) if holds]
        shown = f"{task} ({', '.join(marks)})" if marks else task
        lines.append(
            (
                model, setting, shown, str(full["n"]), number(full["accuracy"]), number(blind["accuracy"]),
                number(patch["accuracy"]) if patch else "–", ranged(blind, "accuracy_lost"),
                ranged(patch, "eta") if patch else "–", flips(patch) if patch else "–",
            )
        )  # fmt: skip
    return markdown_table(head, lines)


def _marks(task: str) -> tuple[tuple[str, bool], ...]:
    held = TASKS.get(task)
    if held is None:
        return ()
    return (("control", held.control), ("not trained on", not held.familiar))


def _statement(statement: Statement, rows: Sequence[FigureRow]) -> str:
    groups: dict[str, list[FigureRow]] = {}
    for row in rows:
        groups.setdefault(f"{row['model']}, {row['setting']}", []).append(row)
    lines = [(cell.label, *(_cell(cell, own) for own in groups.values())) for cell in statement.cells]
    lines = [line for line in lines if any(figure != "–" for figure in line[1:])]
    kept = [f"### {statement.paper}, {statement.where}", f"> {statement.words}"]
    kept += [markdown_table(("ours", *groups), lines), statement.note] if lines else ["Not measured here."]
    return "\n\n".join(part for part in kept if part)


def _cell(cell: Cell, rows: Sequence[FigureRow]) -> str:
    for task in cell.tasks:
        for strategy in cell.strategies:
            for row in rows:
                if (row["task"], row["strategy"]) == (task, strategy) and known(row.get(cell.figure)):
                    count = f" of {row['flips']}" if cell.figure == "flip_recovery" else ""
                    return f"{ranged(row, cell.figure)}{count}"
    return "–"


def check_page(folder: Path, out: Path) -> None:
    """Hold the page to its files.

    Raises:
        EmblemaError: it is not what the files make.
    """
    check_written(out, page(folder))


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
