"""Plots of tables: who is drawn on several panels looks the same on all of them."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import plots
from benchmarks.plots import draw_table
from benchmarks.table import Plot, Table


def test_a_group_has_its_colour_and_mark_on_every_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []
    monkeypatch.setattr(plots, "write_png", lambda figure, path: saved.append(figure))
    rows = [("ego", method, frames, 1.0) for method in ("full", "rekv", "mosaic") for frames in (1, 2)]
    rows += [("movie", method, frames, 2.0) for method in ("mosaic", "rekv") for frames in (1, 2)]
    shown = (Plot("frames", "ms", by="method", split="kind"),)
    draw_table(Table("t", "T", "", ("kind", "method", "frames", "ms"), tuple(rows), shown), "model", tmp_path)
    looks: dict[str, set[tuple[str, str]]] = {}
    for line in (line for axes in saved[0].axes for line in axes.get_lines()):
        if line.get_label() in ("full", "rekv", "mosaic"):
            looks.setdefault(line.get_label(), set()).add((line.get_color(), line.get_marker()))
    assert {name: len(each) for name, each in looks.items()} == {"full": 1, "rekv": 1, "mosaic": 1}
    assert len(set.union(*looks.values())) == 3
