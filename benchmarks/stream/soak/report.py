"""A soak's figures as files, and on a screen."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.fidelity.files import write_rows
from benchmarks.stream.soak.records import Said
from benchmarks.stream.soak.verdict import soak_tables
from benchmarks.table import Bar
from benchmarks.table_plots import draw_table
from benchmarks.table_words import bar_lines, show_bars, show_table, table_lines
from emblema.eval.figures import environment, plain


def report(said: Said, asked: Mapping[str, Any], folder: Path, screen: Console) -> tuple[Bar, ...]:
    """Print a soak and write `soak.json`, `soak.md` and its plots into a folder; returns what had to hold.

    Args:
        asked: what it was run with; its `model` is a name.
    """
    tables, model, where = soak_tables(said), str(asked["model"]), environment()
    bars = tuple(bar for table in tables for bar in table.bars)
    lines = [
        "# A soak of streams",
        f"`python -m benchmarks soak`: {', '.join(f'{name} {value}' for name, value in asked.items())}; "
        f"on {where['device']}, {where['cores']} cores, "
        f"{where['threads']} threads of torch {where['torch']}, {where['date']}; "
        f"{said.seconds / 60:.1f} minutes.",
        "## Bars",
        "\n".join(bar_lines([(model, bars)])),
    ]
    for table in tables:
        show_table(screen, table, table.title)
        lines += [f"## {table.title}", table.note, "\n".join(table_lines(table))]
        drawn = draw_table(table, model, folder)
        if drawn is not None:
            lines.append(f"![{table.title}]({drawn.name})")
    show_bars(screen, bars)
    (folder / "soak.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    found = {
        "environment": where,
        "asked": asked,
        "seconds": said.seconds,
        "bars": [{**asdict(bar), "holds": bar.holds} for bar in bars],
        "tables": [table.data() for table in tables],
        "rows": [asdict(one) for one in said.rounds],
    }
    write_rows(plain(found), folder / "soak.json")
    return bars
