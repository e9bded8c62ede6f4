"""Pictures that differ a little from stored ones: what is drawn, and that the bars that are counted hold."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.variants import run
from benchmarks.variants.pictures import PLACES, draw_maps
from emblema import Engine


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_as_many_cells_differ_as_were_asked_for(place: str, share: float) -> None:
    for drawn in draw_maps(3, 2, 16, share, place):
        differs = drawn.base.tile_numbers() != drawn.changed.tile_numbers()
        assert int(differs.sum()) == max(1, round(share * 256))
        assert {changed for _, _, changed in drawn.questions} >= {True}


def test_bars_hold_on_a_few_maps(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SHARES", (0.1, 1.0))
    monkeypatch.setattr(run, "ROUNDS", 1)
    model, listing = engine.adapter.model, tmp_path / "variants.json"
    found = run.measure(model, engine.processor, 5, 1, 16, listing, Console(quiet=True))
    counted = run.bars_of(found)[:3]
    assert listing.is_file() and all(bar.holds for bar in counted), counted
    new = [row for row in found["rows"] if row["share"] == 1.0]
    assert all(row["rows"] == row["encoded"] == 1.0 for row in new)
    assert np.isfinite(found["compared"])
