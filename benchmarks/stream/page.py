"""The page of streams, `stream.md` with its pictures, made of a run's figures alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.intervals import Interval
from benchmarks.plots import draw_table
from benchmarks.report import importable, measured_on, write_parts
from benchmarks.table import Bar, Cell, Plot, Table, cell_text, markdown_table

Row = Mapping[str, Any]
Figures = Mapping[str, Any]

INTRODUCTION = """A stream answers questions about a video while it goes on. These tables follow Mosaic (arXiv \
2604.10060). The model is the bundled `reference-stream`, and videos are generated, so that every question has one \
right answer.

The three kinds of video are *ego* (long stays that come back), *movie* (a cut every few frames) and *live* (bursts of \
short scenes). Every method sees the first frame and the latest 16, and may retrieve 64 more frames in each layer."""

METHODS = """\
- `mosaic`: this package's default. Four mean keys a frame are compared, and frames are ranked head by head.
- `rekv`: ReKV, one mean key a frame and a pooled query. `rekv-attention` and `rekv-orders` are ReKV with four keys, \
the first by attention and the second by Mosaic's ranks.
- `livevlm`: ReKV over half of each frame's rows. `streammem`: a memory of fixed size, made without the question. \
`sliding`: only the first frame and the latest ones.
- `nocache`: frames sampled evenly are computed again for each question. `full`: full attention, no baseline but the \
ceiling."""

WORDED = ("method", "what is changed")
"""Columns of words, beside the first."""
TEXTS = {
    "bars": "A lead over full attention is the lower 95 % bound of Mosaic's accuracy less full attention's. Times and "
    "bytes are Mosaic's, of the worst kind of video.",
    "accuracy": "The share of right answers, with 95 % intervals (bootstrap over streams). Each question goes to all "
    "methods in turn.",
    "less": "Mosaic's accuracy less the method's, over the same questions. The time to the first token (TTFT) is a "
    "median, in CPU time; frames a CPU second are those encoded.",
    "questions": "Recent: what is seen now. Far: what was seen during one stay that is over. Repeated: where two "
    "things were, on different visits. Ordered: first, last and next. Counted: number of visits.",
    "search": "Settings of the baselines, on streams that no other table uses. `-near` has half of "
    "the budget in the window, `sliding-all` all of it.",
    "lengths": "Mosaic's figure 12, on streams that are drawn for each length. The lead is Mosaic's accuracy less the "
    "method's, over all kinds.",
    "ablation": "Mosaic's table IV, and the choices that the paper leaves open. Clusters are groups of similar frames; "
    "a representative is one mean row that stands for a cluster.",
    "growth": "Mosaic's table I and figures 3b and 3c, on one stream of a kind, at the longest length. CPU ms is the "
    "time of a question. It is divided by the same method's time at 256 frames, and by ReKV's. Mass found: the share "
    "of attention on the exact best frames that is on the retrieved ones, in the worst layer.",
    "day": "At 20,000 frames encoding is timed, as frames retrieve. The questions at 100,000 frames run on rows that "
    "are drawn from encoded ones with noise.",
    "bytes": "Mosaic's figure 11, in MB and without the weights, for the first kind of video. "
    "Memory: what a method keeps on the device of frames that have left the window. Always seen: the window and the "
    "first frames. Fetched: the most that a question brings to the device and gives back.",
}


def text(value: Any, *, interval: bool = True) -> str:
    """Return a figure of a file in words; an estimate has its interval, unless that is left out."""
    return cell_text(cell(value), interval=interval)


def cell(value: Any) -> Cell:
    """Return a figure of a file as a table's cell."""
    return Interval(**value) if isinstance(value, dict) else value


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; empty without rows."""
    words = [place for place, name in enumerate(head) if place == 0 or name in WORDED]
    return markdown_table(head, rows, words) if rows else ""


def pivot(rows: Sequence[Row], lead: str, across: str, column: str, *, interval: bool = True) -> str:
    """Return one figure of all rows: a line for each value of `lead`, and a column for each of `across`."""
    columns = list(dict.fromkeys(row[across] for row in rows))
    held = {(row[lead], row[across]): text(row[column], interval=interval) for row in rows if row[column] is not None}
    lines = [
        [str(first), *(held.get((first, other), "") for other in columns)]
        for first in dict.fromkeys(row[lead] for row in rows)
    ]
    return grid([lead, *columns], [line for line in lines if any(line[1:])])


def bars_table(bars: Sequence[Row]) -> str:
    """Return what had to hold."""
    found = [Bar(**{name: value for name, value in bar.items() if name != "holds"}) for bar in bars]
    lines = [
        [
            bar.name,
            text(bar.value),
            f"{'≥' if bar.least else '≤'} {bar.bound:g}",
            "holds" if bar.holds else "**missed**",
        ]
        for bar in found
    ]
    return grid(("bar", "measured", "bound", ""), lines)


def write_page(found: Figures, folder: Path) -> Path:
    """Write the page and its pictures into a folder; returns the page's path."""
    drawn = draw(found, folder) if importable("matplotlib") else {}
    tables, asked = found["tables"], found["asked"]

    def words(name: str) -> str:
        return ",".join(map(str, asked[name]))

    parts = [
        "# Streams, measured",
        INTRODUCTION,
        f"Each stream is asked {asked['times']} times in its second half. `python -m benchmarks stream --seeds "
        f"{words('seeds')} --items {asked['items']} --others {asked['others']} --lengths {words('lengths')}` measured "
        f"this on {measured_on(found['environment'])}.",
    ]
    if found["bars"]:
        parts += ["## Which bars hold?", TEXTS["bars"], bars_table(found["bars"])]
    for title, names in SECTIONS.items():
        bodies = [(name, body) for name in names if (body := BODIES[name](tables))]
        if bodies:
            parts.append(f"## {title}")
            parts += [METHODS] if "accuracy" in names else []
        for name, body in bodies:
            parts += [TEXTS[name], body, drawn.get(name, "")]
    if found.get("fresh"):
        parts += fresh_parts(found["fresh"])
    return write_parts(parts, folder / "stream.md")


def fresh_parts(fresh: Figures) -> list[str]:
    """Return the section on streams of other seeds."""
    tables, seeds = fresh["tables"], " ".join(map(str, fresh["asked"]["seeds"]))
    parts = ["## Does it hold on other seeds?", f"Seeds {seeds}, which were chosen before they were measured."]
    if tables.get("accuracy"):
        count = next(row["asked"] for row in tables["accuracy"][::-1])
        frames = fresh["asked"]["frames"]
        parts += [
            f"At {frames:,} frames, {count:,} questions: accuracy, then Mosaic's less the method's.",
            pivot(tables["accuracy"], "method", "kind", "accuracy", interval=False),
            pivot(tables["accuracy"], "method", "kind", "mosaic less it"),
        ]
    if tables.get("lengths"):
        frames, count = (tables["lengths"][-1][name] for name in ("frames", "asked"))
        longest = [row for row in tables["lengths"] if row["frames"] == frames]
        missed = [
            row["kind"]
            for row in longest
            if row["method"] == "full" and row["kind"] != "all" and row["mosaic less it"]["low"] < 0
        ]
        parts += [
            f"The same at {frames:,} frames, {count:,} questions. A lower bound of 0 to full attention is "
            + (f"**missed** on {' and '.join(missed)}." if missed else "held on all kinds."),
            pivot(longest, "method", "kind", "accuracy", interval=False),
            pivot(longest, "method", "kind", "mosaic less it"),
        ]
    return parts


def _accuracy(tables: Mapping[str, list[Row]]) -> str:
    return pivot(tables.get("accuracy", []), "method", "kind", "accuracy")


def _less(tables: Mapping[str, list[Row]]) -> str:
    rows = tables.get("accuracy", [])
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    held = {(row["method"], row["kind"]): row for row in rows}
    costs = ("TTFT CPU ms", "frames/CPU s")
    lines = [
        [method, *(text(held[method, kind]["mosaic less it"]) for kind in kinds)]
        + [text(held[method, kinds[-1]][name]) for name in costs]
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    return grid(["method", *kinds, *costs], lines)


def _search(tables: Mapping[str, list[Row]]) -> str:
    rows = tables.get("search", [])
    columns = ("arm", "accuracy", "TTFT CPU ms")
    return grid(columns, [[text(row[column], interval=False) for column in columns] for row in rows])


def _lengths(tables: Mapping[str, list[Row]]) -> str:
    """Return the accuracy by length, and at the longest length by kind, with Mosaic's lead over all kinds."""
    rows = tables.get("lengths", [])
    most, whole = max((row["frames"] for row in rows), default=0), rows[-1]["kind"] if rows else ""
    cells = {(row["frames"], row["kind"], row["method"]): row for row in rows}
    columns = sorted({key[:2]: None for key in cells if most in key or whole in key}, key=lambda column: column[0])
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        held = [cells.get((*column, method)) for column in columns]
        shares = [text(row["accuracy"], interval=False) if row else "" for row in held]
        lines.append([method, *shares, text(held[-1]["mosaic less it"]) if held[-1] else ""])
    return grid(["method", *(f"{kind} {frames:,}" for frames, kind in columns), f"lead, {most:,}"], lines)


def _ablation(tables: Mapping[str, list[Row]]) -> str:
    columns = ("arm", "what is changed", "less mosaic")
    rows = [row for row in tables.get("ablation", []) if row["arm"].startswith("mosaic-")]
    return grid(columns, [[text(row[column]) for column in columns] for row in rows])


def _growth(tables: Mapping[str, list[Row]]) -> str:
    rows = tables.get("growth", [])
    most = max((row["frames"] for row in rows), default=0)
    columns = ("kind", "method", "CPU ms", "CPU over shorter", "CPU over ReKV", "mass found")
    sizes = ("device bytes", "host bytes")
    lines = [
        [*(text(row[name]) for name in (*columns, "encode frames/s")), *(text(row[name] / 1e6) for name in sizes)]
        for row in rows
        if row["frames"] == most
    ]
    return grid((*columns, "frames/s", "device MB", "host MB"), lines)


def _day(tables: Mapping[str, list[Row]]) -> str:
    columns = ("what", "frames", "value", "of", "their value", "ratio")
    rows = [row for name in ("long", "drawn", "still") for row in tables.get(name, [])]
    return grid(columns, [[text(row[column]) for column in columns] for row in rows])


def _bytes(tables: Mapping[str, list[Row]]) -> str:
    rows = tables.get("bytes", [])
    most = max((row["frames"] for row in rows), default=0)
    sizes = ("memory bytes", "always seen bytes", "fetched for a question", "host bytes")
    lines = [
        [row["method"], *(text(row[name] / 1e6) for name in sizes)]
        for row in rows
        if row["frames"] == most and row["kind"] == rows[0]["kind"]
    ]
    return grid(("method", "memory", "always seen", "fetched", "host"), lines)


BODIES: Mapping[str, Callable[[Mapping[str, list[Row]]], str]] = {
    "accuracy": _accuracy,
    "less": _less,
    "questions": lambda tables: pivot(tables.get("questions", []), "method", "question", "accuracy", interval=False),
    "search": _search,
    "lengths": _lengths,
    "ablation": _ablation,
    "growth": _growth,
    "day": _day,
    "bytes": _bytes,
}
SECTIONS = {
    "How many answers are right at equal budget?": ("accuracy", "less", "questions", "search"),
    "How does the length change it?": ("lengths",),
    "What is each part of Mosaic worth?": ("ablation",),
    "How do time and memory grow?": ("growth", "day", "bytes"),
}
PICTURES = {
    "accuracy": Plot("kind", "accuracy", "method", bars=True),
    "ablation": Plot("arm", "less mosaic", bars=True),
    "growth": Plot("frames", "CPU ms", "method", doubling=True),
}
CAPTIONS = {
    "accuracy": "Accuracy at equal budget",
    "ablation": "Accuracy with one thing changed, less Mosaic's",
    "growth": "CPU time of a question by frames, first kind of video",
}


def draw(found: Figures, folder: Path) -> dict[str, str]:
    """Write the pictures into a folder; returns what shows each of them on the page."""
    shown = {}
    for name, plot in PICTURES.items():
        rows = found["tables"].get(name, [])
        rows = [row for row in rows if name != "growth" or row["kind"] == rows[0]["kind"]]
        columns = tuple(dict.fromkeys(filter(None, (plot.x, plot.y, plot.by, plot.split))))
        cells = tuple(tuple(cell(row[column]) for column in columns) for row in rows)
        path = draw_table(Table(name, CAPTIONS[name], "", columns, cells, (plot,)), "stream", folder)
        if path is not None:
            shown[name] = f"![{CAPTIONS[name]}]({path.name})"
    return shown
