"""`python -m benchmarks fidelity` from options to files: records, figures as JSON, a Markdown page with plots."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.fidelity.arms import BLIND, KNOBS, SHARES, names_of
from benchmarks.fidelity.measure import FidelityOptions, FidelityRecord, items_of, measure_models
from benchmarks.fidelity.plots import draw_budgets, draw_ranks, draw_residuals
from benchmarks.fidelity.summary import POOLED, rows_of
from benchmarks.fidelity.tables import FigureRow, main_table, matched_table
from benchmarks.figures import write_figures
from benchmarks.report import labels_of, writable_folder, write_parts
from benchmarks.tasks.judge import Judge
from benchmarks.tasks.prompts import SETTINGS, Style
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.figures import plain

READING = (
    "Every figure is against re-prefill in the same setting. *slid*: the antecedents conditioned the chunks and are "
    "absent for the question. *visible*: they are still attended. KL is taken at the answer's first token, in nats. "
    "*eta* is 1 − mean KL / mean KL of blind reuse. *Flips restored*: of the answers that blind reuse changes, the "
    "share where the method gives re-prefill's. *KV bytes*: patches and rows that are computed again, over the KV of "
    "the chunks. *Rows*: rows computed, in layers, over the prompt's. Intervals: 95 %, paired bootstrap by episode."
)


def write_report(found: Mapping[str, Any], records: Iterable[FidelityRecord], folder: Path) -> Path:
    """Write `report.md` and its plots.

    Args:
        found: what the JSON file holds.
        records: of the same run, for the plots of residuals.
    """
    rows: Sequence[FigureRow] = found["rows"]
    held = list(records)
    parts = ["# Fidelity", _head(found), READING]
    main = [row for row in rows if row["task"] == _main_task(rows, row)]
    ranks = draw_ranks(main, folder / "kl-by-rank.png")
    if ranks is not None:
        parts += ["## KL by rank", f"![KL by rank]({ranks.name})"]
    for model, setting, task in dict.fromkeys((row["model"], row["setting"], row["task"]) for row in rows):
        own = [row for row in rows if (row["model"], row["setting"], row["task"]) == (model, setting, task)]
        parts += [f"## {model}, {task}, {setting}", _counted(own[0])]
        parts.append(main_table([row for row in own if "@" not in row["strategy"]]))
        matched = matched_table(own)
        if matched:
            parts += ["The same bytes for every method, and how far it is below the patch, paired:", matched]
        if task == _main_task(rows, own[0]):
            stem = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{model}-{setting}")
            title, residuals = f"{model}, {task}, {setting}", _residuals(held, model, setting)
            plots = {
                "recovery by budget": draw_budgets(own, title, folder / f"budgets-{stem}.png"),
                "residuals": draw_residuals(residuals, title, folder / f"residuals-{stem}.png"),
            }
            parts += [f"![{name}]({path.name})" for name, path in plots.items() if path is not None]
    if any("@" in row["strategy"] for row in rows):
        lines = [f"- `{method}`: {words}" for method, words in KNOBS.items()]
        parts += [
            "## Knobs at a share s of the bytes",
            "n: rows of the chunks in the window; w: width of a slot. The largest knob that fits; where none does, the "
            "method has nothing to spend and is `blind`.",
            "\n".join(lines),
        ]
    if found.get("refused"):
        parts += ["## Left out", "\n".join(f"- {reason}" for reason in found["refused"].values())]
    return write_parts(parts, folder / "report.md")


def _main_task(rows: Sequence[FigureRow], like: FigureRow) -> str:
    """Return the task whose plots are drawn: all together where there are several."""
    tasks = [row["task"] for row in rows if (row["model"], row["setting"]) == (like["model"], like["setting"])]
    return POOLED if POOLED in tasks else str(tasks[0])


def _head(found: Mapping[str, Any]) -> str:
    from_seed = f"seed {found['seed']}, {found['items_asked']} items a task asked for"
    return f"Models: {', '.join(found['models'])}. Tasks: {', '.join(found['tasks'])}. {from_seed}."


def _counted(row: FigureRow) -> str:
    return f"{row['n']} questions of {row['items']} items."


def _residuals(records: Sequence[FidelityRecord], model: str, setting: str) -> dict[str, np.ndarray]:
    found: dict[str, list[float]] = {}
    for record in records:
        if (record.model, record.setting) == (model, setting):
            found.setdefault(record.strategy, []).extend(record.divergences)
    largest = max(SHARES)
    shown = [name for name in found if name.endswith(f"@{largest}%")]
    shown = [BLIND, *shown] if shown else [name for name in found if re.fullmatch(r"patch-[0-9]+", name) is None]
    return {name: np.array(found[name]) for name in shown if name in found}


def wanted_of(
    strategies: Iterable[str],
    setting: str,
    items: int,
    seed: int,
    style: str = "words",
    answer_tokens: int | None = None,
    judge: str | None = None,
) -> FidelityOptions:
    """Return what to measure, from options as they are written.

    Raises:
        EmblemaError: one of them is not right.
    """
    if setting not in (*SETTINGS, "both"):
        raise PromptError(f"unknown setting {setting!r}: choose one of {', '.join((*SETTINGS, 'both'))}")
    styles: dict[str, Style] = {"words": "words", "letters": "letters"}
    if style not in styles:
        raise PromptError(f"unknown style {style!r}: choose one of {', '.join(styles)}")
    asked = None if judge is None else Judge(judge).named()
    return FidelityOptions(
        names_of(strategies), SETTINGS if setting == "both" else (setting,), items, seed, styles[style], answer_tokens,
        asked,
    )  # fmt: skip


def run(
    models: Sequence[str],
    tasks: Sequence[str],
    wanted: FidelityOptions,
    load: Callable[[str], Engine],
    json_path: Path,
    report: Path,
    screen: Console,
) -> dict[str, Any]:
    """Measure, and write the JSON file and the report; records lie beside the JSON file and are gone on from.

    Raises:
        EmblemaError: a task, a model or a place to write is not right.
    """
    if not models:
        raise PromptError("no models: give names or folders with commas between them")
    chosen = items_of(tasks)
    writable_folder(report, "--report")
    writable_folder(json_path.parent, "--json")
    for task in chosen:
        # A broken data set is told before a model is loaded.
        for _ in () if task.path is None else task.first(wanted.seed, wanted.items):
            pass
    kept, refused = measure_models(models, load, wanted, chosen, json_path, screen)
    if not kept:
        why = "; ".join(refused.values())
        why = why or "no item of these tasks has anything to slide; ask for --setting visible"
        raise PromptError(f"nothing was measured: {why}")
    found = plain(
        {
            "models": labels_of(models),
            "tasks": [task.name for task in chosen],
            "settings": list(wanted.settings),
            "seed": wanted.seed,
            "items_asked": wanted.items,
            "style": wanted.style,
            "refused": refused,
            "rows": rows_of(kept),
        }
    )
    write_figures(found, json_path)
    write_report(found, kept, report)
    return dict(found)
