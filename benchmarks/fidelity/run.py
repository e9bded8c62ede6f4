"""`python -m benchmarks fidelity` from options to files: records, and figures as JSON."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.fidelity.arms import names_of
from benchmarks.fidelity.measure import FidelityOptions, FidelityRecord, FidelityRun, items_of
from benchmarks.fidelity.summary import FigureRow, rows_of
from benchmarks.figures import write_figures
from benchmarks.recordfile import RecordFile
from benchmarks.report import labels_of
from benchmarks.table import Table, show_table
from benchmarks.tasks.prompts import SETTINGS
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.figures import plain

SHOWN = {
    "kv_bytes_share": "KV bytes",
    "rows_computed_share": "rows",
    "single_hop_accuracy": "single-hop",
    "multi_hop_accuracy": "multi-hop",
    "kl": "KL",
    "eta": "eta",
    "flip_recovery": "flips restored",
    "flips": "flips",
}


def wanted_of(strategies: Iterable[str], setting: str, items: int, seed: int) -> FidelityOptions:
    """Return what to measure, from options as they are written.

    Raises:
        EmblemaError: one of them is not right.
    """
    if setting not in (*SETTINGS, "both"):
        raise PromptError(f"unknown setting {setting!r}: choose one of {', '.join((*SETTINGS, 'both'))}")
    settings = SETTINGS if setting == "both" else (setting,)
    return FidelityOptions(names_of(strategies), settings, items, seed)


def run(
    models: Sequence[str],
    tasks: Sequence[str],
    wanted: FidelityOptions,
    load: Callable[[str], Engine],
    listing: Path,
    screen: Console,
) -> dict[str, Any]:
    """Measure models on the same items, write the figures' file and print them.

    Records lie beside the file, and a killed run goes on from these.

    Args:
        load: gives an engine on a model by its name.

    Raises:
        EmblemaError: a task, a model or a place to write is not right.
    """
    if not models:
        raise PromptError("no models: give names or folders with commas between them")
    chosen = items_of(tasks)
    kept: list[FidelityRecord] = []
    refused: dict[str, str] = {}
    labels = labels_of(models)
    with RecordFile(listing.with_suffix(".records.jsonl"), FidelityRecord) as records:
        for model, label in zip(models, labels, strict=True):
            with load(model) as engine:
                bench = FidelityRun(engine, label, wanted, records)
                bench.run(chosen, screen)
            kept += [records.held[key] for key in dict.fromkeys(bench.made) if key in records.held]
            refused |= {f"{label}: {name}": reason for name, reason in bench.refused.items()}
    if not kept:
        why = "; ".join(refused.values())
        why = why or "no item of these tasks has anything to slide; ask for --setting visible"
        raise PromptError(f"nothing was measured: {why}")
    rows = rows_of(kept)
    asked = {"seed": wanted.seed, "items_asked": wanted.items, "refused": refused}
    names = [task.name for task in chosen]
    found: dict[str, Any] = plain(
        {"models": labels, "tasks": names, "settings": list(wanted.settings), **asked, "rows": rows}
    )
    write_figures(found, listing)
    _show(screen, rows)
    return found


def _show(screen: Console, rows: Sequence[FigureRow]) -> None:
    """Print a table for each model, task and setting."""
    for place in dict.fromkeys((row["model"], row["task"], row["setting"]) for row in rows):
        own = [row for row in rows if (row["model"], row["task"], row["setting"]) == place]
        cells = tuple((row["strategy"], *(row[name] for name in SHOWN)) for row in own)
        head = ("strategy", *SHOWN.values())
        title = f"{', '.join(place)}: {own[0]['n']} questions of {own[0]['items']} items"
        show_table(screen, Table("fidelity", title, "Shares, and KL in nats, against re-prefill.", head, cells), title)
