"""The roofline of decoding: operations a second by operations a byte, below what the machine can do (Kamera, 11a)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plots import COLOURS, FAINT, INK, MARKS, make_panels, save_figure, style_panel

Rows = Sequence[Mapping[str, Any]]


def draw_roofline(rates: Rows, decode: Rows, folder: Path) -> Path:
    """Write the plot of a run's rates, whose first is the copy's and second the product's, and of its decoding."""
    copy, product = (float(row["rate"]) for row in rates[:2])
    figure, (axes,) = make_panels(1, "Roofline of decoding: cost", width=6.4, height=4.0)
    for place, who in enumerate(dict.fromkeys(row["who"] for row in decode)):
        own = [row for row in decode if row["who"] == who]
        across = [row["flop/byte"] for row in own]
        up = [row["tokens/s"] * row["MB"] * row["flop/byte"] / 1e3 for row in own]
        axes.plot(across, up, MARKS[place], color=COLOURS[place], label=who, markersize=6, alpha=0.85)
        for x, y, row in zip(across, up, own if place == 0 else (), strict=False):
            name = f"{row['rows']:,}"
            axes.annotate(name, (x, y), textcoords="offset points", xytext=(6, 4), fontsize=7, color=FAINT)
    ridge = product / copy
    ends = [row["flop/byte"] for row in decode] + [ridge]
    line = np.geomspace(min(ends) / 2, max(ends) * 4, 200)
    axes.plot(line, np.minimum(line * copy, product), color=INK, linewidth=1.2)
    axes.axvline(ridge, color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    title = f"copies {copy:.1f} GB/s, products {product:.0f} Gflop/s; by a point: rows before"
    style_panel(axes, title, "operations a byte", "Gflop/s", grid="both")
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=7.5, handlelength=2.6, loc="lower right")
    return save_figure(figure, folder, "cost-roofline")
