"""Pictures that differ a little from stored ones: what is drawn, and that the bars that are counted hold."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.variants import run
from benchmarks.variants.page import write_changed_page
from benchmarks.variants.pictures import PLACES, draw_maps


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_as_many_cells_differ_as_were_asked_for(place: str, share: float) -> None:
    for drawn in draw_maps(3, 2, 16, share, place):
        differs = drawn.base.tile_numbers() != drawn.changed.tile_numbers()
        assert int(differs.sum()) == max(1, round(share * 256))
        assert {changed for _, _, changed in drawn.questions} >= {True}


def test_bars_hold_on_a_few_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ROUNDS", 1)
    subject = replace(run.SUBJECTS[run.WINDOWS], shares=(0.1, 1.0))
    found = run.measure(subject, 5, 1, Console(quiet=True))
    counted = run.bars_of(found)[:3]
    assert all(bar.holds for bar in counted), counted
    new = [row for row in found["rows"] if row["share"] == 1.0]
    assert all(row["rows"] == row["encoded"] == 1.0 and row["moved"] is None for row in new)
    assert np.isfinite(found["runs"][0]["compared"])
    page = write_changed_page(found, tmp_path)
    assert "| reference | region |" in page.read_text() and (tmp_path / "changed-shares.png").is_file()


def test_measured_again_takes_the_place_of_the_same_model() -> None:
    found = {"runs": [{"model": "a"}], "rows": [{"model": "a", "share": 1}, {"model": "b", "share": 2}]}
    run.put(found, {"runs": [{"model": "a"}], "rows": [{"model": "a", "share": 3}]})
    assert found == {"runs": [{"model": "a"}], "rows": [{"model": "b", "share": 2}, {"model": "a", "share": 3}]}


@pytest.mark.parametrize(("gain", "taken"), [(10.0, True), (300.0, False)])
def test_a_picture_whose_other_rows_move_far_is_new(gain: float, taken: bool) -> None:
    subject = run.Subject(f"reference-deepstack, {gain:g}", gain=gain, shares=(0.1,), questions=1, methods=("auto",))
    found = run.measure(subject, 5, 1, Console(quiet=True))
    for row in found["rows"]:
        assert (row["encoded"] <= 0.3) == taken and (row["moved"] is not None) == taken
        assert not taken or row["moved"] < 0.05
