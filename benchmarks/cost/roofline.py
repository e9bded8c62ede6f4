"""The roofline of decoding: operations a second by operations a byte, below what the machine can do (Kamera, 11a)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plots import COLOURS, FAINT, INK, MARKS, draw_legend, make_panels, save_figure, style_panel
from benchmarks.table import Table

RATES, DECODE = "rates", "decode"


def draw_roofline(model: str, tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write the plot from a run's tables and return its path; none where rates or decoding were not measured."""
    named = {table.name: table for table in tables}
    if not {RATES, DECODE} <= named.keys():
        return []
    # The first row of the rates is the copy's, the second the product's.
    copy, product = (float(record["rate"]) for record in named[RATES].records[:2])  # type: ignore[arg-type]
    figure, (axes,) = make_panels(1, f"Roofline of decoding: {model}", width=6.4, height=4.0)
    found = _points(named[DECODE])
    for place, (who, points) in enumerate(found.items()):
        across, up, rows = zip(*points, strict=True)
        mark, colour = MARKS[place % len(MARKS)], COLOURS[place % len(COLOURS)]
        axes.plot(across, up, mark, color=colour, label=who, markersize=6, alpha=0.85)
        if place == 0:
            for x, y, name in zip(across, up, rows, strict=True):
                axes.annotate(f"{name:,}", (x, y), textcoords="offset points", xytext=(6, 4), fontsize=7, color=FAINT)
    ridge = product / copy
    ends = [point[0] for points in found.values() for point in points] + [ridge]
    line = np.geomspace(min(ends) / 2, max(ends) * 4, 200)
    axes.plot(line, np.minimum(line * copy, product), color=INK, linewidth=1.2)
    axes.axvline(ridge, color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    title = f"copies {copy:.1f} GB/s, products {product:.0f} Gflop/s; by a point: rows before"
    style_panel(axes, title, "operations a byte", "Gflop/s", grid="both")
    axes.minorticks_off()
    draw_legend(axes, loc="lower right")
    return [save_figure(figure, folder, f"{model}-roofline")]


def _points(table: Table) -> dict[str, list[tuple[float, float, Any]]]:
    """Return operations a byte, Gflop/s and rows before, by who decodes."""
    found: dict[str, list[tuple[float, float, Any]]] = {}
    for record in table.records:
        rate, size, intensity = (float(record[name]) for name in ("tokens/s", "MB", "flop/byte"))  # type: ignore[arg-type]
        found.setdefault(str(record["who"]), []).append((intensity, rate * size * intensity / 1e3, record["rows"]))
    return found
