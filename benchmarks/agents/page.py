"""The tables and the picture of the page of agents, made of its JSON file; its words are written by hand."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.agents.arms import KEEP
from benchmarks.agents.figures import PRICES, Figures, Row
from benchmarks.blocks import write_blocks
from benchmarks.plots import draw_table
from benchmarks.table import Bar, Cell, Plot, Table, cell_text, grouped, markdown_table, table_markdown

NAME = "agents"
LINES_OF = {
    "rows": ("rows, over new", False, 1.1),
    "ttft_after": ("TTFT after a drop, over plain", False, 0.25),
    "agrees": ("agrees", True, 0.97),
    "remembered": ("dropped facts told", False, None),
    "dollars": ("dollars", False, None),
}
"""Figures in the table: their names, whether their bound is the least, and their bound."""
PLAIN = ("full", "stock", "prefix", "against")
"""Arms that others are compared with: no bounds are of them."""
LEFT_OUT = {
    "rows": ("full",),
    "ttft_after": PLAIN,
    "agrees": PLAIN,
    "remembered": ("prefix",),
    "dollars": ("full", KEEP),
}
"""Arms that have no line of a figure."""
LINES = 30
"""Points of a line in the picture, at the most."""


def write_agents_page(found: Figures, folder: Path) -> Path:
    """Make the tables of `agents.md` in a folder, and its picture; returns the page's path."""
    for table in pictures(found):
        draw_table(table, NAME, folder)
    return write_blocks(folder / f"{NAME}.md", "Agents", blocks(found))


def blocks(found: Figures) -> dict[str, str]:
    """Return the tables of the page by the names of their blocks."""
    made = {"prices": f"{PRICES.name}, {PRICES.date}: ${PRICES.written:g} written, ${PRICES.read:g} read."}
    for (model, world), rows in _by_model(found["rules"]).items():
        made[f"{model} {world}".replace(",", "")] = _rules(rows)
    if found["saturation"]:
        made["saturation"] = _saturation(found["saturation"])
    made["runs"] = _runs(found)
    return made


def _by_model(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    return {
        (model, world): own
        for model, shown in grouped(rows, "model").items()
        for world, own in grouped(shown, "world").items()
    }


def _rules(rows: Sequence[Row]) -> str:
    """Return a line for each figure and arm, a column for each rule; what missed its bound is in bold."""
    rules, arms = grouped(rows, "rule"), dict.fromkeys((row["engine"], row["method"]) for row in rows)
    by = {(row["engine"], row["method"], row["rule"]): row for row in rows}
    lines = list[list[str]]()
    for figure, (name, least, bound) in LINES_OF.items():
        told = name if bound is None else f"{name} {'≥' if least else '≤'} {bound:g}"
        for engine, method in arms:
            if method in LEFT_OUT[figure]:
                continue
            cells = [by.get((engine, method, rule), {}).get(figure) for rule in rules]
            lines.append([told, f"{engine}: {method}", *(_cell(figure, value, method) for value in cells)])
    return markdown_table(("figure", "arm", *rules), lines, words=(0, 1)) if lines else ""


def _cell(figure: str, value: float | None, method: str) -> str:
    """Return a figure in words, in bold where it misses the bound that holds of `auto`."""
    _, least, bound = LINES_OF[figure]
    text = "" if value is None else cell_text(float(value))
    missed = bound is not None and value is not None and not Bar(figure, value, bound, least).holds
    return f"**{text}**" if missed and method not in PLAIN else text


def _saturation(rows: list[Row]) -> str:
    columns = ("model", "rule", "engine", "method", "sessions", "answers_s", "throughput")
    names = (*columns[:5], "answers/s", "over plain")
    return table_markdown(
        Table("saturation", "", "", names, tuple(tuple(row[name] for name in columns) for row in rows))
    )


def _runs(found: Figures) -> str:
    lines: dict[tuple[Cell, ...], None] = {}
    for run in found["runs"]:
        lines.setdefault((f"`{run['command']}`", run["date"], run["device"]))
    return table_markdown(Table("runs", "", "", ("command", "date", "machine"), tuple(lines)))


def pictures(found: Figures) -> Iterator[Table]:
    """Yield the table whose plot is the page's picture: rows computed by turn, of the first model and world."""
    if not found["rules"]:
        return
    (_, rows), *_ = _by_model(found["rules"]).items()
    names = ("turn", "rows computed", "arm", "rule")
    points: list[tuple[Cell, ...]] = []
    for row in rows:
        if row["method"] == "full":
            continue
        arm = f"{row['engine']}: {row['method']}"
        points += [(turn, count, arm, row["rule"]) for turn, count in _thinned(row["turns_computed"])]
    for rule, own in grouped(rows, "rule").items():
        points += [(turn, count, "new", rule) for turn, count in _thinned(own[0]["turns_new"])]
    plots = (Plot("turn", "rows computed", "arm", split="rule"),)
    yield Table("turns", "Rows computed by turn", "", names, tuple(points), plots)


def _thinned(values: list[int]) -> list[tuple[int, int]]:
    """Return turns and values, means of as many as make a line of few points."""
    width = -(-len(values) // LINES)
    parts = [values[start : start + width] for start in range(0, len(values), width)]
    return [(place * width + 1, round(sum(part) / len(part))) for place, part in enumerate(parts)]
