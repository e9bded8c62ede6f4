"""The tables and pictures of the page of streams, made of a run's figures; its words are written by hand."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.blocks import write_blocks
from benchmarks.plots import draw_table
from benchmarks.report import measured_on
from benchmarks.table import Plot, Table, cell_of, figure_text, markdown_table

Row = Mapping[str, Any]
Figures = Mapping[str, Any]

WORDED = ("method", "what is changed")
"""Columns of words, beside the first."""
PICTURES = {
    "accuracy": ("Accuracy at equal budget", Plot("kind", "accuracy", "method", bars=True)),
    "ablation": ("Accuracy with one thing changed, less Mosaic's", Plot("arm", "less mosaic", bars=True)),
    "growth": (
        "CPU time of a question by frames, first kind of video",
        Plot("frames", "CPU ms", "method", doubling=True),
    ),
}


def write_page(found: Figures, folder: Path) -> Path:
    """Make the tables of `stream.md` in a folder, and its pictures; returns the page's path."""
    for name, (title, plot) in PICTURES.items():
        rows = found["tables"].get(name, [])
        rows = [row for row in rows if name != "growth" or row["kind"] == rows[0]["kind"]]
        columns = tuple(filter(None, (plot.x, plot.y, plot.by)))
        cells = tuple(tuple(cell_of(row[column]) for column in columns) for row in rows)
        draw_table(Table(name, title, "", columns, cells, (plot,)), "stream", folder)
    return write_blocks(folder / "stream.md", "Streams, measured", blocks(found))


def blocks(found: Figures) -> dict[str, str]:
    """Return the tables of the page by the names of their blocks, empty where nothing was measured."""
    tables: Mapping[str, list[Row]] = defaultdict(list, found["tables"])
    asked, bars = found["asked"], found["bars"]
    command = f"`python -m benchmarks stream --seeds {','.join(map(str, asked['seeds']))} --items {asked['items']} "
    command += f"--others {asked['others']} --lengths {','.join(map(str, asked['lengths']))}`"
    bytes_of = [row for row in longest(tables["bytes"]) if row["kind"] == tables["bytes"][0]["kind"]]
    return {
        "run": f"{command} measured this on {measured_on(found['environment'])}.",
        "bars": grid(("bar", "measured", "bound", ""), list(map(_bar, bars))),
        "accuracy": by_method(tables["accuracy"], "kind", "accuracy"),
        "less": _less(tables["accuracy"]),
        "questions": by_method(tables["questions"], "question", "accuracy", interval=False),
        "search": listed(tables["search"], ("arm", "accuracy", "TTFT CPU ms"), interval=False),
        "lengths": _lengths(tables["lengths"]),
        "ablation": listed(
            [row for row in tables["ablation"] if row["arm"].startswith("mosaic-")],
            ("arm", "what is changed", "less mosaic"),
        ),
        "growth": listed(
            longest(tables["growth"]),
            ("kind", "method", "CPU ms", "CPU over shorter", "CPU over ReKV", "mass found", "encode frames/s"),
            {"device bytes": "device MB", "host bytes": "host MB"},
        ),
        "day": listed(
            [row for name in ("long", "drawn", "still") for row in tables[name]],
            ("what", "frames", "value", "of", "their value", "ratio"),
        ),
        "bytes": listed(
            bytes_of,
            ("method",),
            {
                "memory bytes": "memory",
                "always seen bytes": "always seen",
                "fetched for a question": "fetched",
                "host bytes": "host",
            },
        ),
        "other seeds": _fresh(found["fresh"]) if found.get("fresh") else "",
    }


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; empty without rows."""
    words = [place for place, name in enumerate(head) if place == 0 or name in WORDED]
    return markdown_table(head, rows, words) if rows else ""


def listed(
    rows: Sequence[Row],
    columns: Sequence[str],
    sizes: Mapping[str, str] = MappingProxyType({}),
    *,
    interval: bool = True,
) -> str:
    """Return some columns of all rows, and columns of bytes in MB, which are given with their heads."""
    lines = [
        [
            *(figure_text(row[name], interval=interval) for name in columns),
            *(figure_text(row[name] / 1e6) for name in sizes),
        ]
        for row in rows
    ]
    return grid([*(name.removeprefix("encode ") for name in columns), *sizes.values()], lines)


def longest(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the most frames."""
    most = max((row["frames"] for row in rows), default=0)
    return [row for row in rows if row["frames"] == most]


def by_method(rows: Sequence[Row], across: str, column: str, *, interval: bool = True) -> str:
    """Return one figure of all rows: a line for each method, and a column for each of `across`."""
    held = {(row["method"], row[across]): row[column] for row in rows if row[column] is not None}
    columns = list(dict.fromkeys(row[across] for row in rows))
    lines = [
        [method, *(figure_text(held.get((method, other)), interval=interval) for other in columns)]
        for method in dict.fromkeys(method for method, _ in held)
    ]
    return grid(["method", *columns], lines)


def _bar(bar: Row) -> list[str]:
    bound = f"{'≥' if bar['least'] else '≤'} {bar['bound']:g}"
    return [bar["name"], figure_text(bar["value"]), bound, "holds" if bar["holds"] else "**missed**"]


def _fresh(fresh: Figures) -> str:
    """Return accuracy on streams of other seeds, and Mosaic's less the methods'."""
    tables, seeds = fresh["tables"], " ".join(map(str, fresh["asked"]["seeds"]))
    parts = [f"Seeds {seeds}, which were chosen before they were measured."]
    for rows in (tables.get("accuracy"), longest(tables.get("lengths", []))):
        if rows:
            frames = rows[0].get("frames", fresh["asked"]["frames"])
            words = f"At {frames:,} frames, {rows[-1]['asked']:,} questions: accuracy, then Mosaic's less the method's."
            parts += [words, by_method(rows, "kind", "accuracy", interval=False)]
            parts.append(by_method(rows, "kind", "mosaic less it"))
    return "\n\n".join(parts)


def _less(rows: Sequence[Row]) -> str:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    held = {(row["method"], row["kind"]): row for row in rows}
    costs = ("TTFT CPU ms", "frames/CPU s")
    lines = [
        [method, *(figure_text(held[method, kind]["mosaic less it"]) for kind in kinds)]
        + [figure_text(held[method, kinds[-1]][name]) for name in costs]
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    return grid(["method", *kinds, *costs], lines)


def _lengths(rows: Sequence[Row]) -> str:
    """Return the accuracy by length, and at the longest length by kind, with Mosaic's lead over all kinds."""
    most, whole = max((row["frames"] for row in rows), default=0), rows[-1]["kind"] if rows else ""
    cells = {(row["frames"], row["kind"], row["method"]): row for row in rows}
    columns = sorted({key[:2]: None for key in cells if most in key or whole in key}, key=lambda column: column[0])
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        held = [cells.get((*column, method)) for column in columns]
        shares = [figure_text(row["accuracy"], interval=False) if row else "" for row in held]
        lines.append([method, *shares, figure_text(held[-1]["mosaic less it"]) if held[-1] else ""])
    return grid(["method", *(f"{kind} {frames:,}" for frames, kind in columns), f"lead, {most:,}"], lines)
