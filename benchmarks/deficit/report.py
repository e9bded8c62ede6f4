"""The report: figures of every model as Markdown with its plots, and as plain data."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.deficit import plots_models, plots_structure, prose
from benchmarks.deficit.answerlog import MULTI, SINGLE, SLID, VISIBLE, AnswerRow
from benchmarks.deficit.findings import correlations, found, setting_of
from benchmarks.deficit.result import DeficitResult
from benchmarks.deficit.tables import SECTIONS, answers, side_by_side


def write(results: Sequence[DeficitResult], folder: Path) -> Path:
    """Write the plots and `deficit.md` into a folder."""
    drawn = draw(results, folder)
    text = ["# The conditioning deficit, measured", "", prose.INTERVALS, ""]
    text += side_by_side(results)
    text += [f"![{path.stem}]({path.name})" for path in drawn if path.stem.count("-") == 1]
    for result in (one for one in results if one.binds):
        setting = setting_of(result)
        text += ["", f"## {result.model.name}", "", described(result), ""]
        for section in SECTIONS:
            text += section(result, setting)
        own = [path for path in drawn if path.stem.endswith(f"-{result.model.name}")]
        text += ["", *(f"![{path.stem}]({path.name})" for path in own)]
        text += ["", "### Every way, every setting", ""]
        for here in (SLID, VISIBLE):
            for hop in (MULTI, SINGLE):
                text += answers(result, here, hop)
    path = folder / "deficit.md"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def described(result: DeficitResult) -> str:
    """A sentence on what was measured."""
    model = result.model
    experts = f"{model.experts} experts" if model.experts else "dense"
    left = f"; {result.left_out} items had no chunk behind another" if result.left_out else ""
    return (
        f"{model.family}, {model.layers} layers, {model.kind} cache of {model.widths[0]} + {model.widths[1]} numbers a "
        f"token and layer, {experts}; rotary: {model.rotary}. {result.wanted.items} items of {result.wanted.task}, "
        f"seed {result.wanted.seed}; basis carried from {result.wanted.carried}{left}."
    )


def draw(results: Sequence[DeficitResult], folder: Path) -> list[Path]:
    """Every plot that there are figures for."""
    binding = [one for one in results if one.binds]
    drawn: list[Path | None] = [
        plots_models.kl_by_rank(results, folder),
        plots_models.across_models(results, folder),
        plots_models.rounding(results, folder),
    ]
    for result in binding:
        drawn += [
            plots_structure.structure(result, folder),
            plots_structure.cheap_signals(result, folder),
            plots_structure.wrong_axes(result, folder),
            plots_structure.planes(result, folder),
            plots_models.attention(result, folder),
            plots_models.moved_tokens(result, folder),
        ]
    return [path for path in drawn if path is not None]


def data(results: Sequence[DeficitResult]) -> dict[str, Any]:
    """Every figure with its interval and number, as plain data."""
    return {"models": [_data(result) for result in results]}


def _data(result: DeficitResult) -> dict[str, Any]:
    log = result.log
    rows: list[AnswerRow | None] = [
        log.row(name, setting, hop)
        for setting in (SLID, VISIBLE)
        for hop in (MULTI, SINGLE)
        for name in log.names(setting, hop)
    ]
    figures = {name: log.estimate(name) for name in log.values}
    return {
        "model": asdict(result.model),
        "binds": result.binds,
        "task": result.wanted.task,
        "carried": result.wanted.carried,
        "seed": result.wanted.seed,
        "items": result.wanted.items,
        "left_out": result.left_out,
        "rows": [asdict(row) for row in rows if row is not None],
        "figures": {name: asdict(one) for name, one in figures.items() if one is not None},
        "found": {setting: [asdict(one) for one in found(result, setting)] for setting in (SLID, VISIBLE)},
        "correlations": {name: {**asdict(one), "n": n} for name, (one, n) in correlations(result).items()},
    }
