"""The page of results: committed figures as tables, beside what the papers state. Every figure is read from a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fidelity.arms import BLIND
from benchmarks.fidelity.files import runs
from benchmarks.fidelity.overview import draw_overview
from benchmarks.fidelity.report import READING
from benchmarks.fidelity.stated import STATEMENTS, Cell, Statement
from benchmarks.fidelity.summary import POOLED
from benchmarks.fidelity.tables import flips, known, main_table, matched_table, number, ranged, table
from benchmarks.fidelity.verdicts import bars_table, rivals_table
from benchmarks.report import writable_folder
from benchmarks.tasks.registry import TASKS

Row = Mapping[str, Any]
PICTURE = "fidelity.png"
MET = (
    "All trained tasks of a run pooled. *met*: with the whole interval; *met in the mean*: the interval reaches below; "
    "at least 100 answers that blind reuse changes are asked of a flip recovery."
)
ORACLES = (
    "An oracle is told what no method knows: `oracle-deficit` the true deficit of every row, `oracle-query` which rows "
    "this very question reads, chosen anew for every question, and neither choice is charged. These questions read few "
    "rows of a picture, so few recomputed rows serve one; a patch is made once and serves every question. Where an "
    "oracle leads a patch over all layers, the bytes were spread over layers that hardly need them: on the deepest "
    "half alone the same bytes hold more directions. A latent cache is narrow, so a share of its bytes holds fewest."
)
SHORT = ("patch-25%", "patch@25%")
"""The strategy that stands for the patch where a task has one line."""


def page(folder: Path) -> str:
    """The page as Markdown.

    Raises:
        EmblemaError: no figures lie in the folder, or a file is broken.
    """
    found = runs(folder)
    rows: list[Row] = [row for _, run in found for row in _kept(run)]
    parts = [
        "# Results: reuse against re-prefill",
        f"`python -m benchmarks results` made this page from the files in `{folder.name}/`; no figure is typed by "
        "hand, and `python -m benchmarks results --check` holds it to them and to a small sample measured anew.",
        READING,
        "## What was measured",
        table(
            ("file", "models", "tasks", "items a task", "seed", "settings", "made with"), [_run(*one) for one in found]
        ),
        *([f"![what each method closes at the same bytes]({folder.name}/{PICTURE})"] if _matched(rows) else []),
        *_bars(rows),
        "## Every method",
    ]
    for model, setting, task in dict.fromkeys((row["model"], row["setting"], row["task"]) for row in rows):
        own = [row for row in rows if (row["model"], row["setting"], row["task"]) == (model, setting, task)]
        own = _counted(list({row["strategy"]: row for row in own}.values()))
        if task != POOLED and any(_of(rows, model, setting, POOLED)):
            continue
        parts += [f"### {model}, {setting}, {task}", f"{own[0]['n']} questions of {own[0]['items']} items."]
        plain = [row for row in own if "@" not in row["strategy"]]
        parts.append(main_table(plain))
        matched = matched_table(own)
        if matched:
            parts += ["At the same bytes, with the paired distance to the patch:", matched]
    parts += ["## Task by task", _tasks(rows), "## Beside the papers"]
    parts += [_statement(one, rows) for one in STATEMENTS]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_page(folder: Path, out: Path) -> Path:
    """Write the page, and its picture beside the figures."""
    text = page(folder)
    writable_folder(out.parent, "--out")
    out.write_text(text, encoding="utf-8")
    draw_overview([row for _, run in runs(folder) for row in _kept(run)], folder / PICTURE)
    return out


def _kept(run: Mapping[str, Any]) -> list[Row]:
    """A run's rows; pooled only where the models were trained on all its tasks, which is what *pooled* says here."""
    trained = all(name in TASKS and TASKS[name].familiar for name in run["tasks"])
    return [row for row in run["rows"] if trained or row["task"] != POOLED]


def _counted(rows: Sequence[Row]) -> list[Row]:
    """Rows of one table, the largest group of one run first; those on other questions say on how many."""
    most = max(row["n"] for row in rows)
    first = [row for row in rows if row["n"] == most]
    others = []
    for row in rows:
        if row["n"] != most:
            method, at, share = row["strategy"].partition("@")
            others.append({**row, "strategy": f"{method} ({row['n']} questions){at}{share}"})
    return [*first, *others]


def _matched(rows: Sequence[Row]) -> bool:
    return any(row["task"] == POOLED and row["setting"] == "slid" and "@" in row["strategy"] for row in rows)


def _bars(rows: Sequence[Row]) -> list[str]:
    bars, rivals = bars_table(rows), rivals_table(rows)
    said: list[str] = []
    if bars:
        said += ["## Against the bars", MET, bars]
    if rivals:
        said += ["At equal bytes, the best method that recomputes tokens, without and with an oracle:", rivals, ORACLES]
    return said


def _of(rows: Sequence[Row], model: str, setting: str, task: str) -> list[Row]:
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


def _tasks(rows: Sequence[Row]) -> str:
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
    return table(head, lines)


def _marks(task: str) -> tuple[tuple[str, bool], ...]:
    held = TASKS.get(task)
    if held is None:
        return ()
    return (("control", held.control), ("not trained on", not held.familiar), ("exploratory", held.exploratory))


def _statement(statement: Statement, rows: Sequence[Row]) -> str:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row['model']}, {row['setting']}", []).append(row)
    lines = [(cell.label, *(_cell(cell, own) for own in groups.values())) for cell in statement.cells]
    lines = [line for line in lines if any(figure != "–" for figure in line[1:])]
    kept = [f"### {statement.paper}, {statement.where}", f"> {statement.words}"]
    kept += [table(("ours", *groups), lines), statement.note] if lines else ["Not measured here."]
    return "\n\n".join(part for part in kept if part)


def _cell(cell: Cell, rows: Sequence[Row]) -> str:
    for task in cell.tasks:
        for strategy in cell.strategies:
            for row in rows:
                if (row["task"], row["strategy"]) == (task, strategy) and known(row.get(cell.figure)):
                    count = f" of {row['flips']}" if cell.figure == "flip_recovery" else ""
                    return f"{ranged(row, cell.figure)}{count}"
    return "–"
