"""A soak's figures as files, and on a screen."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import ModelTables, options_text, show_tables, write_page, write_rows
from benchmarks.stream.soak.records import Said
from benchmarks.stream.soak.verdict import soak_tables
from benchmarks.table import Bar


def report(said: Said, asked: Mapping[str, Any], folder: Path, screen: Console) -> tuple[Bar, ...]:
    """Print a soak and write `soak.json`, `soak.md` and its plots into a folder; returns what had to hold.

    Args:
        asked: what it was run with; its `model` is a name.
    """
    found = ModelTables(str(asked["model"]), tuple(soak_tables(said)))
    show_tables(screen, found)
    command = f"`python -m benchmarks soak`: {options_text(asked)}; {said.seconds / 60:.1f} minutes"
    write_page(folder / "soak.md", "A soak of streams", command, [found])
    figures = {
        "asked": asked,
        "seconds": said.seconds,
        "bars": [bar.data() for bar in found.bars],
        "tables": [table.data() for table in found.tables],
        "rows": [asdict(round) for round in said.rounds],
    }
    write_rows(figures, folder / "soak.json")
    return found.bars
