"""A fidelity run for people: a Markdown page with tables and plots."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fidelity.arms import BLIND, SHARES
from benchmarks.fidelity.budgets import KNOBS
from benchmarks.fidelity.plots import draw_budgets, draw_ranks, draw_residuals
from benchmarks.fidelity.records import FidelityRecord
from benchmarks.fidelity.summary import POOLED
from benchmarks.fidelity.tables import main_table, matched_table

Row = Mapping[str, Any]
READING = (
    "Every figure is against re-prefill in the same setting. *slid*: the antecedents conditioned the chunks and are "
    "absent for the question; *visible*: they are still attended. KL: at the answer's first token, nats. eta: 1 − mean "
    "KL / mean KL of blind reuse, unclipped; median eta: over the questions that blind reuse moves. Flips restored: of "
    "the answers that blind reuse changes, the share where the method gives re-prefill's. KV bytes: patches, kept "
    "residual streams and recomputed rows, over the KV of the chunks in the window. Rows computed: in layers, over the "
    "prompt's; chunks that have left the window are computed too where a method recomputes in context. Intervals: 95 "
    "%, paired bootstrap by episode."
)


def write_report(found: Mapping[str, Any], records: Iterable[FidelityRecord], folder: Path) -> Path:
    """Write `report.md` and its plots.

    Args:
        found: what the JSON file holds.
        records: of the same run, for the plots of residuals.
    """
    rows: Sequence[Row] = found["rows"]
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
            parts += ["The same bytes for every method, and how far it stays behind the patch, paired:", matched]
        if task == _main_task(rows, own[0]):
            stem = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{model}-{setting}")
            residuals = _residuals(held, model, setting)
            plots = (
                (
                    "recovery by budget",
                    draw_budgets(own, f"{model}, {task}, {setting}", folder / f"budgets-{stem}.png"),
                ),
                (
                    "residuals",
                    draw_residuals(residuals, f"{model}, {task}, {setting}", folder / f"residuals-{stem}.png"),
                ),
            )
            parts += [f"![{name}]({path.name})" for name, path in plots if path is not None]
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
    path = folder / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _main_task(rows: Sequence[Row], like: Row) -> str:
    """The task whose plots are drawn: all together where there are several."""
    tasks = [row["task"] for row in rows if (row["model"], row["setting"]) == (like["model"], like["setting"])]
    return POOLED if POOLED in tasks else str(tasks[0])


def _head(found: Mapping[str, Any]) -> str:
    from_seed = f"seed {found['seed']}, {found['items_asked']} items a task asked for"
    return f"Models: {', '.join(found['models'])}. Tasks: {', '.join(found['tasks'])}. {from_seed}."


def _counted(row: Row) -> str:
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
