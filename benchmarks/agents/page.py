"""The tables and the picture of the page of agents, made of its JSON file; its words are written by hand."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.agents.arms import AGAINST, CLIENT, KEEP
from benchmarks.agents.figures import PRICES, Figures, Row
from benchmarks.blocks import write_blocks
from benchmarks.load.stages import FULL, PREFIX
from benchmarks.plots import draw_table
from benchmarks.table import Bar, Cell, Plot, Table, cell_text, grouped, markdown_table

if TYPE_CHECKING:
    from rich.table import Table as ScreenTable

NAME = "agents"
PLAIN = ("full", "stock", "prefix", AGAINST)
"""Arms that others are compared with: no bounds are of them."""
BOUNDS = {"rows": 1.1, "ttft_after": 0.25, "agrees": 0.97}
LEAST = ("agrees",)
COLUMNS = {
    "rows": ("rows", PREFIX, FULL),
    "ttft_after": ("TTFT", *PLAIN),
    "agrees": ("agrees", *PLAIN),
    "remembered": ("told", PREFIX),
    "dollars": ("$", PREFIX, FULL),
}
"""Figures in the table: their name, and the arms that are left out."""
KNOWING = ("agrees", "remembered")
"""Those that say nothing of random parameters, which know nothing."""
LINES = 30
"""Points of a line in the picture, at the most."""


def turn_table(rows: Sequence[Row]) -> "ScreenTable":
    """Return a table for the screen: what a turn under one rule takes by each arm, means of tokens and median times."""
    from emblema.cli.screen import table

    names = ("prompt", "read", "written", "new", "TTFT ms", "after a drop", "agrees", "told", "$ of 1,000")
    shown = table("arm", *names, right=names, title=f"{rows[0]['rule']}: tokens of a turn, times and prices")
    for row in rows:
        tokens = [str(round(row[name] / row["requests"])) for name in ("prompt", "read", "computed", "new")]
        times = ["" if row[name] is None else f"{row[name]:.0f}" for name in ("ttft_ms", "ttft_after_ms")]
        others = ["" if row[name] is None else f"{row[name]:.2f}" for name in ("agrees", "remembered", "dollars")]
        shown.add_row(_arm(row["engine"], row["method"]), *tokens, *times, *others)
    return shown


def untold(rows: Sequence[Row]) -> str | None:
    """Return what is to be said of servers that told no token as read, as those do that do not tell; None for none."""
    silent = [row["method"] for row in rows if row["method"] in (CLIENT, AGAINST) and not row["read"]]
    if not silent:
        return None
    return (
        f"--{' and --'.join(silent)} told no cached tokens, so all of each prompt counts as written: a server has to "
        "tell prompt_tokens_details (vLLM: --enable-prompt-tokens-details)"
    )


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
    """Return a line for each rule, a column for each figure and arm; what missed its bound is in bold."""
    arms = dict.fromkeys((row["engine"], row["method"]) for row in rows)
    random = all(row["model"].startswith("random") for row in rows)
    by = {(row["engine"], row["method"], row["rule"]): row for row in rows}
    columns = [
        (figure, name, engine, method)
        for figure, (name, *left_out) in COLUMNS.items()
        for engine, method in arms
        if method not in left_out and not (random and figure in KNOWING)
    ]
    lines = [
        [rule, *(_cell(figure, by.get((engine, method, rule)), method) for figure, _, engine, method in columns)]
        for rule in grouped(rows, "rule")
    ]
    return markdown_table(("rule", *(f"{name} {_arm(engine, method)}" for _, name, engine, method in columns)), lines)


def _arm(engine: str, method: str) -> str:
    """Return the short name of an arm."""
    return {"stock": "stock", KEEP: f"{engine}-kept", FULL: f"{engine}-full"}.get(method, engine)


def _cell(figure: str, row: Row | None, method: str) -> str:
    """Return a figure in words, in bold where it misses the bound that holds of `auto`."""
    value = None if row is None else row[figure]
    if value is None:
        return ""
    text = cell_text(float(value))
    missed = figure in BOUNDS and not Bar(figure, value, BOUNDS[figure], figure in LEAST).holds
    return f"**{text}**" if missed and method not in PLAIN else text


def _saturation(rows: list[Row]) -> str:
    """Return a line for each model, rule and number of sessions, and a column for each figure and arm."""
    arms = dict.fromkeys((row["engine"], row["method"]) for row in rows)
    by = {(*_asked(row), row["engine"], row["method"]): row for row in rows}
    columns = [("answers/s", "answers_s", arm) for arm in arms]
    columns += [("over plain", "throughput", arm) for arm in arms if arm[1] not in PLAIN]
    lines = [
        [*map(str, asked), *(_told(by.get((*asked, *arm)), figure) for _, figure, arm in columns)]
        for asked in dict.fromkeys(map(_asked, rows))
    ]
    return markdown_table(("model", "rule", "sessions", *(f"{name} {_arm(*arm)}" for name, _, arm in columns)), lines)


def _asked(row: Row) -> tuple[str, str, int]:
    return row["model"], row["rule"], row["sessions"]


def _told(row: Row | None, name: str) -> str:
    return "" if row is None or row[name] is None else cell_text(float(row[name]))


def _runs(found: Figures) -> str:
    lines = dict.fromkeys(f"- `{run['command']}`, {run['date']}, {run['device']}" for run in found["runs"])
    return "\n".join(lines)


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
        engine, method = row["engine"], row["method"]
        arm = engine if engine == method else f"{engine}: {method}"
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
