"""The notebook prints what it shows, and shows what it is for."""

import matplotlib
import pytest

from tests.docs.notebook import NOTEBOOK, cells, run, shown
from tests.docs.shown import VARIES


@pytest.mark.slow
def test_its_cells_print_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("agg")
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, object] = {}
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    for cell in code:
        assert VARIES.sub("# ", run(cell, names)) == VARIES.sub("# ", shown(cell))
    assert "figure" in names and any("image/png" in output.get("data", {}) for output in code[-1]["outputs"])
    table = [line.split() for line in shown(code[1]).splitlines()]
    assert all(full == auto for _, full, _, auto in table) and any(full != blind for _, full, blind, _ in table)
