"""The page of long answers: protocol, what fades where, tables and curves, all from the figures of a JSON file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.intervals import Interval, bootstrap, bootstrap_ratio
from benchmarks.long.measure import BLIND, FULL, SURVIVORS, LongOptions, LongRecord
from benchmarks.plots import COLOURS, FAINT, draw_legend, make_panels, save_figure, style_panel
from benchmarks.report import check_written, measured_on, read_run, write_parts
from benchmarks.rowfile import write_rows
from benchmarks.table import markdown_table, show_grid
from benchmarks.tasks.list_tasks import LISTED
from benchmarks.tasks.prompts import SETTINGS
from emblema.link.policy.margins import DEFAULT as LEAST_MARGIN

PLOT = "long"
LANDS = next(iter(LISTED))
"""The lists that need several pages."""
SPANS = ((1, 4), (5, 8), (9, 12), (13, 16), (17, 24))
"""Entries of an answer that are taken together, the first counted as 1; an entry is two tokens."""
EARLY, LATE = SPANS[0], SPANS[3]
TITLE = "# Long answers"
FREE = ("same_all", "same_late", "whole")
PROTOCOL = """## Protocol

Written before the run; the seed was drawn once at random, nothing was measured on it before, and nothing was changed
after it.

- **Model and task.** `reference-lists`: `reference` with low-rank factors that were trained to fill in lists. Three
  maps with 16 to 24 icons after one or two legends; the answer is every icon in alphabetical order, each with its land
  (*lands*: the legends are needed) or with its colour (*colours*: the map is enough): 32 to 48 tokens, two an entry.
  The icons are dictated, as by a grammar that answers are held to; the word after each is the model's own, and
  compared.
- **Items.** The lands of {items} fresh items, seed {seed}, and the colours of the first {controls}, in both settings.
  *slid*: the legends conditioned the maps and are hidden from the question and the answer; *visible*: nothing is
  hidden.
- **Against.** Re-prefill in the same setting, and its own greedy answer. *Teacher-forced*: every method is given that
  answer token by token; it agrees at an entry where its likeliest word is the answer's, and KL is taken there.
  *Free-running*: each method goes on from its own words; it agrees at an entry where the word is re-prefill's.
- **Methods.** None falls back to a full prefill, whatever its margin; *unsure* is the share of answers whose first own
  word has a margin below {margin}. `, again every 16`: the prompt with the answer so far is linked again after each 16
  tokens, so that the rows to compute are chosen by what the question and the answer's tokens attend. `pair`: a memory
  that was shown each page after each single page before it and no other combination, its basis made from other items.
  `survivors`: the request before showed the same pages after one more legend, which gave half of the colours other
  lands and has left; the rows from that request are taken, as `survivors="keep"` asks for.
- **Rows computed.** Of the prompt, text and question in both passes, over the prompt's rows; rows of the answer are not
  counted, but those of later readings of the prompt are.
- **Fades** means: agreement, teacher-forced, is lower at entries 13 to 16 than at entries 1 to 4. The difference is
  paired by item; intervals are 95 %, bootstrap by item."""

LEAST_KL = 1e-7
"""Nats from which on a divergence is drawn."""
Rows = list[dict[str, Any]]


def _span(span: tuple[int, int]) -> str:
    return f"{span[0]}–{span[1]}"


FADING = ("setting", "list", "method", "rows computed", f"entries {_span(EARLY)}", f"entries {_span(LATE)}", "fall", "")


def figures(records: Sequence[LongRecord]) -> Rows:
    """Return a row of figures for each setting, kind of list and method; lists of lands have curves too."""
    groups: dict[tuple[str, str, str], list[LongRecord]] = {}
    for record in records:
        groups.setdefault((record.setting, record.kind, record.method), []).append(record)
    return [
        {"setting": setting, "kind": kind, "method": method, **_figures(own, curves=kind == LANDS)}
        for (setting, kind, method), own in groups.items()
    ]


def _figures(records: Sequence[LongRecord], *, curves: bool) -> dict[str, Any]:
    items = [record.item for record in records]
    answers = [record.answer for record in records]
    longest = max(len(answer.agrees) for answer in answers)
    agrees, divergences, same, right = (np.full((len(answers), longest), np.nan) for _ in range(4))
    for place, record in enumerate(records):
        count = len(record.right)
        agrees[place, :count] = record.answer.agrees
        divergences[place, :count] = record.answer.divergences
        same[place, :count] = record.answer.same
        right[place, :count] = record.right
    whole = [float(all(answer.same)) for answer in answers]
    early, late = (agrees[:, first - 1 : last].mean(axis=1) for first, last in (EARLY, LATE))
    return {
        "lists": len(records),
        "items": len(set(items)),
        "computed": float(np.mean([answer.computed for answer in answers])),
        "unsure": float(np.mean([answer.margin < LEAST_MARGIN for answer in answers])),
        "agrees": {_span(span): _within(agrees, span, items) for span in SPANS},
        "kl": {_span(span): _within(divergences, span, items) for span in SPANS},
        "agrees_all": _within(agrees, (1, longest), items),
        "fades": _plain(bootstrap(early - late, items)),
        "same_all": _within(same, (1, longest), items),
        "same_late": _within(same, LATE, items),
        "whole": _plain(bootstrap(whole, items)),
        "right": _within(right, (1, longest), items),
        "curves": {
            "answers": np.isfinite(agrees).sum(axis=0).tolist(),
            "agrees": _curve(agrees),
            "kl": _curve(divergences),
            "same": _curve(same),
        }
        if curves
        else None,
    }


def _within(values: NDArray[np.float64], span: tuple[int, int], items: Sequence[str]) -> list[float]:
    part = values[:, span[0] - 1 : span[1]]
    return _plain(bootstrap_ratio(np.nansum(part, axis=1), np.isfinite(part).sum(axis=1), items))


def _curve(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.3g}") for value in np.nanmean(values, axis=0)]


def _plain(interval: Interval) -> list[float]:
    return [float(f"{value:.4g}") for value in (interval.value, interval.low, interval.high)]


def write_run(options: LongOptions, records: Sequence[LongRecord], listing: Path) -> Path:
    """Write the figures of a run, its page and its plot; returns the page. Without records it is the protocol."""
    asked = {
        "seed": options.seed,
        "items": options.items,
        "controls": options.controls,
        "methods": list(options.methods),
    }
    write_rows({"asked": asked, "rows": figures(records)}, listing)
    return write_page(listing)


def show(screen: Console, listing: Path) -> None:
    """Print what fades."""
    show_grid(screen, "lists, teacher-forced", FADING, _fading(read(listing)["rows"]), (0, 1, 2, 7))


def read(listing: Path) -> dict[str, Any]:
    """Return what a run wrote.

    Raises:
        EmblemaError: the file is not there, or is none of a run's.
    """
    return read_run(listing, "bench long", "methods")


def write_page(listing: Path) -> Path:
    """Write the page of a run beside its figures, and its plot."""
    found = read(listing)
    if found["rows"]:
        draw(found["rows"], listing.parent)
    return write_parts([page(found).rstrip("\n")], listing.with_suffix(".md"))


def check_page(listing: Path) -> None:
    """Hold the page to its figures.

    Raises:
        EmblemaError: it is not what they make.
    """
    check_written(listing.with_suffix(".md"), page(read(listing)))


def page(found: Mapping[str, Any]) -> str:
    """Return the page of a run as Markdown."""
    asked, rows = found["asked"], found["rows"]
    parts = [
        TITLE,
        PROTOCOL.format(margin=LEAST_MARGIN, **asked),
    ]
    if rows:
        parts += [
            "## What fades",
            f"Measured with emblema {found['environment']['emblema']} on {measured_on(found['environment'])}; "
            "the machine was not idle. Lists of lands; those of colours are below.",
            _finding(rows),
            markdown_table(FADING, _fading(rows), (0, 1, 2, 7)),
            f"![Agreement and KL by entry, teacher-forced, and agreement free-running]({PLOT}.png)",
        ]
        for kind in LISTED:
            for setting in SETTINGS:
                own = [row for row in rows if (row["setting"], row["kind"]) == (setting, kind)]
                if own:
                    parts += [f"## {kind}, {setting}", *_tables(own)]
    return "\n\n".join(parts) + "\n"


def _finding(rows: Rows) -> str:
    """Return in words which methods fade, and how many answers are re-prefill's as a whole."""
    lands = [row for row in rows if row["kind"] == LANDS and row["method"] != FULL]
    fading = [f"`{row['method']}` ({row['setting']})" for row in lands if _verdict(row["fades"]) == "fades"]
    whole = [
        f"{_number(row['whole'])} ({row['setting']}) by `{row['method']}`"
        for row in lands
        if row["method"] in ("query-12%", "pair+query-3%")
    ]
    return (
        f"Fading: {', '.join(fading) or 'none'}, of {len(lands)} pairs of method and setting. An answer that does not "
        f"fade still has many words to differ in: as a whole, free-running, it is re-prefill's in {', '.join(whole)}."
    )


def _fading(rows: Rows) -> list[tuple[str, ...]]:
    """Return how much agreement falls from the first entries to late ones, a line for each method and setting."""
    lines: list[tuple[str, ...]] = [
        (
            row["setting"], row["kind"], f"`{row['method']}`", f"{row['computed']:.2f}",
            _number(row["agrees"][_span(EARLY)]), _number(row["agrees"][_span(LATE)]), _ranged(row["fades"]),
            _verdict(row["fades"]),
        )
        for row in rows
        if row["kind"] == LANDS and row["method"] != FULL
    ]  # fmt: skip
    lines.sort(key=lambda line: SETTINGS.index(line[0]))
    return lines


def _tables(rows: Rows) -> list[str]:
    spans = [_span(span) for span in SPANS]
    full = next(row for row in rows if row["method"] == FULL)
    forced = [
        (f"`{row['method']}`", f"{row['computed']:.2f}", f"{row['unsure']:.2f}", _ranged(row["agrees_all"]),
         *(_number(row["agrees"][span]) for span in spans), *(_number(row["kl"][span]) for span in spans))
        for row in rows if row["method"] != FULL
    ]  # fmt: skip
    free = [
        (f"`{row['method']}`", *(_ranged(row[name]) if row["method"] != FULL else "" for name in FREE),
         _ranged(row["right"]))
        for row in rows
    ]  # fmt: skip
    shown = [
        f"{full['lists']} lists of {full['items']} items. Teacher-forced: agreement with re-prefill's answer over all "
        "entries and by entry, then KL in nats:",
        markdown_table(("method", "rows computed", "unsure", "agreement", *spans, *(f"KL {span}" for span in spans)),
                       forced),
    ]  # fmt: skip
    if full["kind"] != LANDS:
        return shown
    return [
        *shown,
        "Free-running: entries that are re-prefill's, of all and of the late ones, answers that are re-prefill's as a "
        "whole, and entries that are right:",
        markdown_table(("method", "agreement", f"entries {_span(LATE)}", "whole answers", "right"), free),
    ]  # fmt: skip


def _verdict(fades: Sequence[float]) -> str:
    return "fades" if fades[1] > 0 else "rises" if fades[2] < 0 else "does not fade"


def _number(value: Sequence[float]) -> str:
    return _digits(value[0])


def _ranged(value: Sequence[float]) -> str:
    return f"{_digits(value[0])} [{_digits(value[1])}, {_digits(value[2])}]"


def _digits(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:.1g}"


def draw(rows: Rows, folder: Path) -> Path:
    """Draw curves over the entries of lists of lands: agreement and KL teacher-forced, and agreement free-running."""
    kind = LANDS
    settings = [setting for setting in SETTINGS if any(row["setting"] == setting for row in rows)]
    names = list(dict.fromkeys(row["method"] for row in rows if row["method"] != FULL))
    figure, panels = make_panels(
        3 * len(settings), f"Lists of {kind}, entry by entry", width=3.1, height=2.3, across=3, margin=1.7
    )
    drawn: tuple[tuple[str, str, Callable[[Any], None]], ...] = (
        ("agrees", "agreement, teacher-forced", lambda axes: axes.set_ylim(-0.02, 1.03)),
        ("kl", "KL from re-prefill, nats", lambda axes: axes.set_yscale("log")),
        ("same", "agreement, free-running", lambda axes: axes.set_ylim(-0.02, 1.03)),
    )
    for place, axes in enumerate(panels):
        setting, (figure_name, title, scale) = settings[place // 3], drawn[place % 3]
        for number, name in enumerate(names):
            row = next(
                (row for row in rows if (row["setting"], row["kind"], row["method"]) == (setting, kind, name)), None
            )
            if row is None:
                continue
            # Up to where at least half of the answers have an entry.
            known = sum(count >= row["lists"] / 2 for count in row["curves"]["answers"])
            values = np.array(row["curves"][figure_name][:known])
            values = np.maximum(values, LEAST_KL) if figure_name == "kl" else values
            axes.plot(
                np.arange(1, known + 1), values, "-" if number < len(COLOURS) else "--",
                color=FAINT if name == BLIND else COLOURS[number % len(COLOURS)], label=name, linewidth=1.4,
                alpha=0.6 if name in (BLIND, SURVIVORS) else 1.0,
            )  # fmt: skip
        style_panel(axes, f"{setting}: {title}", "entry of the answer", "")
        scale(axes)
        axes.minorticks_off()
        axes.set_xticks([first for first, _ in SPANS] + [SPANS[-1][0] + 4])
    draw_legend(panels[2], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save_figure(figure, folder, PLOT)
