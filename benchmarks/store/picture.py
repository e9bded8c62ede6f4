"""The result as pictures, one for each measurement."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store import compression, overlap
from benchmarks.store.run import StoreBench
from benchmarks.store.sharing import BLIND, TABLES
from benchmarks.store.throughput import COLD, LOAD, PLAIN_READ, PLAIN_WRITE, SAVE, WARM

INK, FAINT, GRID = "#2b2b2b", "#6b6b6b", "#e3e3e3"
PLAIN, OWN, DEEP, WARN, LIGHT = "#c9c3b8", "#1d6f8a", "#0d3b4a", "#d1495b", "#9db4c0"
WAYS = {TABLES: WARN, BLIND: LIGHT, "patch-6%": OWN, "patch-25%": DEEP}


def draw(result: StoreBench, folder: Path) -> dict[str, Path]:
    """Write the pictures as PNG, and return their paths by section."""
    drawn: dict[str, tuple[Callable[[Any, StoreBench], None], bool]] = {
        "throughput": (_throughput, bool(result.throughput)),
        "overlap": (_overlap, bool(result.overlap)),
        "index": (_index, bool(result.index)),
        "hits": (_hits, bool(result.hits)),
        "novelty": (_novelty, bool(result.novelty)),
        "sharing": (_sharing, result.sharing is not None),
        "compression": (_compression, result.compression is not None),
    }
    paths = {}
    for name, (drawer, wanted) in drawn.items():
        if wanted:
            paths[name] = _save(drawer, result, folder / f"store-{name}.png")
    return paths


def _save(drawer: Callable[[Any, StoreBench], None], result: StoreBench, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    drawer(figure, result)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _throughput(figure: Any, result: StoreBench) -> None:
    found = result.throughput
    figure.set_size_inches(9.5, 3.4)
    panels = figure.subplots(1, 3)
    sizes = [f"{one.bytes / 1e6:.0f} MB" for one in found]
    writes = [[one.rate(one.writes[name]) for one in found] for name in (PLAIN_WRITE, SAVE)]
    reads = {
        warmth: [[one.rate(one.reads[warmth][name]) for one in found] for name in (PLAIN_READ, LOAD)]
        for warmth in (COLD, WARM)
    }
    titles = ("write, synced", "read, cold", "read, warm")
    for axes, title, (plain, own) in zip(panels, titles, (writes, reads[COLD], reads[WARM]), strict=True):
        places = np.arange(len(sizes))
        axes.bar(places - 0.19, plain, 0.36, color=PLAIN, label="plain")
        axes.bar(places + 0.19, own, 0.36, color=OWN, label="store, verified")
        for place, (one, other) in enumerate(zip(plain, own, strict=True)):
            axes.text(place + 0.19, other, f"{other / one:.2f}", ha="center", va="bottom", fontsize=8, color=OWN)
        axes.set_xticks(places, sizes)
        axes.set_title(title, loc="left", fontsize=10.5, color=INK)
        axes.set_ylim(0, 1.15 * max(*plain, *own))
        _style(axes)
    panels[0].set_ylabel("GB/s", color=FAINT)
    panels[0].legend(frameon=False, fontsize=8.5, loc="upper left")
    _spare_for_legend(panels[0])


def _overlap(figure: Any, result: StoreBench) -> None:
    lanes = {
        overlap.RECOMPUTE: PLAIN,
        overlap.MEMORY: OWN,
        overlap.DISK: DEEP,
        overlap.LOAD: LIGHT,
        overlap.MIXED_MEMORY: OWN,
        overlap.MIXED_DISK: DEEP,
        overlap.MIXED_LOAD: LIGHT,
    }
    count = len(result.overlap)
    figure.set_size_inches(9.5, 0.4 + 2.9 * count)
    for axes, one in zip(figure.subplots(count, 1, squeeze=False)[:, 0], result.overlap, strict=True):
        values = [one.median(lane) * 1e3 for lane in lanes]
        axes.barh(range(len(lanes)), values, height=0.68, color=list(lanes.values()))
        for place, value in enumerate(values):
            axes.text(value + 0.01 * max(values), place, f"{value:,.0f} ms", va="center", fontsize=8.5, color=INK)
        axes.set_yticks(range(len(lanes)), list(lanes))
        axes.set_xlim(0, 1.12 * max(values))
        axes.invert_yaxis()
        axes.set_title(
            f"{one.model}: {one.chunks} chunks, {one.tokens:,} rows, {one.bytes / 1e6:.1f} MB of KV",
            loc="left",
            fontsize=10.5,
            color=INK,
            pad=12,
        )
        _style(axes, along="x")
    axes.set_xlabel("time to first token, milliseconds", color=FAINT)


def _index(figure: Any, result: StoreBench) -> None:
    figure.set_size_inches(6.4, 3.6)
    axes = figure.subplots()
    entries = [one.entries for one in result.index]
    for label, colour, values in (
        ("hit", OWN, [one.hits for one in result.index]),
        ("miss", LIGHT, [one.misses for one in result.index]),
    ):
        p50, p99 = zip(*values, strict=True)
        axes.plot(entries, p50, "o-", color=colour, label=f"{label}, p50")
        axes.plot(entries, p99, "o:", color=colour, label=f"{label}, p99")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xticks(entries, [f"{one:,}" for one in entries])
    axes.minorticks_off()
    axes.set_xlabel("entries", color=FAINT)
    axes.set_ylabel("µs for a look-up", color=FAINT)
    axes.legend(frameon=False, fontsize=8.5, ncols=2)
    _style(axes)
    _spare_for_legend(axes)


def _hits(figure: Any, result: StoreBench) -> None:
    budgets = sorted({one.budget for one in result.hits})
    figure.set_size_inches(9.5, 3.5)
    for place, axes in enumerate(figure.subplots(1, len(budgets), sharey=True)):
        found = [one for one in result.hits if one.budget == budgets[place]]
        places = np.arange(len(found))
        memory, disk = ([getattr(one, name) for one in found] for name in ("memory", "disk"))
        axes.bar(places, memory, 0.5, color=OWN, label="in memory")
        axes.bar(places, disk, 0.5, bottom=memory, color=LIGHT, label="on disk")
        for name, colour in (("best_memory", DEEP), ("best_either", FAINT)):
            label = f"best fixed choice, {'memory' if name == 'best_memory' else 'memory and disk'}"
            heights = [getattr(one, name) for one in found]
            for side in (-0.36, 0.36):
                edges = places + side - 0.09, places + side + 0.09
                axes.hlines(heights, *edges, color=colour, linewidth=2, label=label if side > 0 else None)
        for spot, one in enumerate(found):
            axes.text(spot, one.memory / 2, f"{one.memory:.0%}", ha="center", va="center", fontsize=8.5, color="white")
            middle = one.memory + one.disk / 2
            axes.text(spot, middle, f"{one.disk:.0%}", ha="center", va="center", fontsize=8.5, color=INK)
        axes.set_xticks(places, [f"{one.exponent:g}" for one in found])
        axes.set_title(f"memory holds {budgets[place]:.0%} of all chunks", loc="left", fontsize=10.5, color=INK)
        axes.set_xlabel("exponent of the Zipf law", color=FAINT)
        axes.set_ylim(0, 1.05)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        _style(axes)
    axes.figure.axes[0].set_ylabel("share of requests", color=FAINT)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8.5, ncols=4, loc="outside lower center")


def _novelty(figure: Any, result: StoreBench) -> None:
    figure.set_size_inches(6.4, 3.6)
    axes = figure.subplots()
    names = list(dict.fromkeys(one.policy for one in result.novelty))
    for name, colour in zip(names, (WARN, OWN), strict=False):
        own = [one for one in result.novelty if one.policy == name]
        axes.plot([one.queries for one in own], [one.gain for one in own], "o-", color=colour, label=name)
    axes.axhline(1, color=FAINT, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    marks = sorted({one.queries for one in result.novelty})
    axes.set_xticks(marks, [f"{one:,}" for one in marks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_xlabel("new queries since the pages were used", color=FAINT)
    axes.set_ylabel("faster to first token than from nothing", color=FAINT)
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")
    _style(axes)
    _spare_for_legend(axes)


def _sharing(figure: Any, result: StoreBench) -> None:
    if result.sharing is None:
        return
    figure.set_size_inches(9.5, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    for way in result.sharing.ways:
        kept = np.array([way.canonical, *way.growth]) / 1e6
        left.plot(range(len(kept)), kept, color=WAYS[way.name], label=way.name, linewidth=2)
    left.set_xlim(0)
    left.set_ylim(bottom=0)
    left.set_xlabel("contexts", color=FAINT)
    left.set_ylabel("MB kept", color=FAINT)
    left.legend(frameon=False, fontsize=8.5, loc="upper left")
    _style(left)
    bounded = [way for way in result.sharing.ways if way.per_context]
    values = [way.per_gigabyte for way in bounded]
    right.barh([way.name for way in bounded], values, height=0.6, color=[WAYS[way.name] for way in bounded])
    for place, value in enumerate(values):
        right.text(value + 0.01 * max(values), place, f"{value:,.0f}", va="center", fontsize=8.5, color=INK)
    right.set_xlim(0, 1.2 * max(values))
    right.invert_yaxis()
    right.set_xlabel("contexts per GB", color=FAINT)
    right.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    right.locator_params(axis="x", nbins=4)
    _style(right, along="x")


def _compression(figure: Any, result: StoreBench) -> None:
    found = result.compression
    if found is None:
        return
    figure.set_size_inches(9.5, 3.6)
    colours = {"none": PLAIN, "bf16": LIGHT, "int8": OWN, "fp8": WARN}
    left, right = figure.subplots(1, 2, width_ratios=(1, 2.2))
    shares = [found.rows[name] / found.rows["none"] for name in colours]
    left.barh(list(colours), shares, height=0.6, color=list(colours.values()))
    for place, share in enumerate(shares):
        left.text(share + 0.02, place, f"{share:.2f}", va="center", fontsize=8.5, color=INK)
    left.invert_yaxis()
    left.set_xlim(0, 1.15)
    left.set_xlabel("bytes of rows, share of uncompressed", color=FAINT)
    _style(left, along="x")
    cases = [(setting, strategy) for strategy in compression.STRATEGIES for setting in compression.SETTINGS]
    width = 0.26
    for shift, name in enumerate(("bf16", "int8", "fp8")):
        lines = [found.line(name, strategy, setting).moved for setting, strategy in cases]
        places = np.arange(len(cases)) + (shift - 1) * width
        values = np.array([line.value for line in lines])
        low = values - [max(line.low, 1e-3 * line.value) for line in lines]
        errors = np.array([low, [line.high for line in lines] - values])
        right.bar(places, values, width * 0.92, color=colours[name], label=name)
        right.errorbar(places, values, errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    right.set_yscale("log")
    right.set_xticks(range(len(cases)), [f"{strategy}\n{setting}" for setting, strategy in cases])
    right.set_ylabel("KL from uncompressed rows, nats", color=FAINT)
    right.legend(frameon=False, fontsize=8.5, ncols=3, loc="upper right")
    _style(right)
    low_end, high_end = right.get_ylim()
    right.set_ylim(low_end, high_end * 10)


def _spare_for_legend(axes: Any) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, low + 1.25 * (high - low))


def _style(axes: Any, along: str = "y") -> None:
    axes.tick_params(colors=INK, labelsize=9, length=0)
    axes.grid(True, axis=along, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
