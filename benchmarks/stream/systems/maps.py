"""Heat maps of a few questions: which clusters they look at, and how far what they retrieve overlaps (figure 4)."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.plots import INK, make_panels, save_figure, style_panel
from benchmarks.stream.systems.looking import likeness, things, wordings
from benchmarks.stream.systems.running import film_of
from benchmarks.stream.systems.structure import Pair, pair_of
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.table import Cell, Table
from emblema.engine.engine import Engine
from emblema.eval.progress import steps

THINGS, CLUSTERS = 5, 10
CLUSTER, WITH, REST = "cluster", "with", "other clusters"
NOTE = (
    "Mosaic's figure 4 as maps, of one stream. A row is a question; two behind one another ask about one thing in "
    "other words. Left: the share of full attention to frames (mean over layers, heads and the question's own rows) "
    "that falls on the frames of each visual cluster, with its size; the clusters that are looked at most, in the "
    "order of time. Right: overlap of what Mosaic retrieves for this question and for each of them, frames weighted "
    "by the layers that had them."
)


def measure_questions(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """A question a row: attention by visual cluster, and overlap with every other question."""
    began = time.perf_counter()
    film = film_of(wanted.kinds[0], wanted.looked, wanted)
    texts = [text for thing in things(film, len(film), THINGS) for text in wordings(thing)]
    with ExitStack() as stack, steps(console, "questions", 1) as tick:
        pair = pair_of(stack, engine, wanted, film)
        names, shares = _shares(pair, texts)
        taken = [pair.retrieved(text) for text in texts]
        tick()
    overlap = [[likeness(one, other) for other in taken] for one in taken]
    columns = ("question", *names, *(f"{WITH} {number + 1}" for number in range(len(texts))))
    rows: list[tuple[Cell, ...]] = [
        (f"{number + 1}: {text}", *(float(share) for share in shares[number]), *overlap[number])
        for number, text in enumerate(texts)
    ]
    spent = time.perf_counter() - began
    return Table("questions", "What questions look at, one by one", NOTE, columns, tuple(rows), seconds=spent)


def _shares(pair: Pair, texts: list[str]) -> tuple[list[str], np.ndarray]:
    """Names of clusters, and [questions, clusters] share of attention."""
    weights = np.stack([pair.attended(text).mean(0).double().numpy() for text in texts])
    weights /= weights.sum(1, keepdims=True)
    homes = np.asarray([pair.homes.visual[frame] for frame in pair.frames])
    own = {int(home): weights[:, homes == home].sum(1) for home in np.unique(homes)}
    shown = sorted(own, key=lambda home: -own[home].sum())[:CLUSTERS]
    shown.sort(key=lambda home: float(np.mean(np.flatnonzero(homes == home))))
    names = [f"{CLUSTER} {place + 1} ({int((homes == home).sum())})" for place, home in enumerate(shown)]
    columns = [own[home] for home in shown]
    if len(own) > len(shown):
        names.append(REST)
        columns.append(1 - np.sum(columns, axis=0))
    return names, np.stack(columns, axis=1)


def draw_questions(table: Table, folder: Path) -> list[Path]:
    """Write both maps as one PNG."""
    groups = [[name for name in table.columns if name.startswith(CLUSTER)]]
    groups.append([name for name in table.columns if name.startswith(WITH)])
    titles = ("Attention by visual cluster (frames)", "Overlap of what is retrieved")
    figure, axes = make_panels(2, table.title, width=6.4, height=0.34 * len(table.rows) + 2.2)
    for panel, names, title in zip(axes, groups, titles, strict=True):
        style_panel(panel, title, "", "", grid="")
        _map(figure, panel, table, names)
    axes[0].set_yticks(range(len(table.rows)), [str(row[0]) for row in table.rows])
    axes[1].set_yticks(range(len(table.rows)), [str(number + 1) for number in range(len(table.rows))])
    return [save_figure(figure, folder, f"{table.name}-map")]


def _map(figure: Any, axes: Any, table: Table, names: list[str]) -> None:
    values = np.asarray([[float(row[name]) for name in names] for row in table.records])  # type: ignore[arg-type]
    drawn = axes.imshow(values, cmap="GnBu", vmin=min(values.min(), 0.999), vmax=values.max(), aspect="auto")
    labels = [name.removeprefix(f"{CLUSTER} ").removeprefix(f"{WITH} ") for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=45, ha="right", color=INK)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8, length=0)
