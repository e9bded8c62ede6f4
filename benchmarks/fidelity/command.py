"""What `python -m benchmarks fidelity` does, from options to files."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.fidelity.arms import names_of
from benchmarks.fidelity.measure import FidelityOptions, FidelityRun
from benchmarks.fidelity.records import FidelityRecord
from benchmarks.fidelity.report import write_report
from benchmarks.fidelity.sources import items_of
from benchmarks.fidelity.summary import rows_of
from benchmarks.recordfile import RecordFile
from benchmarks.report import writable_folder, write_rows
from benchmarks.tasks.judge import Judge
from benchmarks.tasks.prompts import SETTINGS, Style
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.figures import environment, plain


def wanted_of(
    strategies: Iterable[str],
    setting: str,
    items: int,
    seed: int,
    style: str = "words",
    answer_tokens: int | None = None,
    judge: str | None = None,
) -> FidelityOptions:
    """What to measure, from options as they are written.

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
    kept: list[FidelityRecord] = []
    refused: dict[str, str] = {}
    with RecordFile(json_path.with_suffix(".records.jsonl"), FidelityRecord) as records:
        for model in models:
            with load(model) as engine:
                bench = FidelityRun(engine, Path(model).name or model, wanted, records)
                bench.run(chosen, screen)
            kept += [records.held[key] for key in dict.fromkeys(bench.made) if key in records.held]
            refused |= {f"{bench.name}: {name}": reason for name, reason in bench.refused.items()}
    if not kept and refused:
        raise PromptError(f"nothing was measured: {'; '.join(refused.values())}")
    if not kept:
        raise PromptError(
            "nothing was measured: no item of these tasks has anything to slide; ask for --setting visible"
        )
    found = plain(
        {
            "environment": environment(),
            "models": [Path(model).name or model for model in models],
            "tasks": [task.name for task in chosen],
            "settings": list(wanted.settings),
            "seed": wanted.seed,
            "items_asked": wanted.items,
            "style": wanted.style,
            "refused": refused,
            "rows": rows_of(kept),
        }
    )
    write_rows(found, json_path)
    write_report(found, kept, report)
    return dict(found)
