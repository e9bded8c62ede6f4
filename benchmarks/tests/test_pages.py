"""The committed pages are what their figures make, with their plots and no others."""

import json
from collections.abc import Callable
from itertools import groupby
from math import nan
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.page import write_agents_page
from benchmarks.blocks import filled
from benchmarks.cost.page import write_page as write_costs
from benchmarks.fidelity.results import check_page
from benchmarks.figures import read_figures, write_figures
from benchmarks.hybrids.page import write_page as write_hybrids
from benchmarks.load.page import write_load_page
from benchmarks.real.page import write_real_page
from benchmarks.store.run import write_store_page
from benchmarks.stream.page import write_page as write_streams
from benchmarks.variants.page import write_changed_page
from benchmarks.window.page import write_page as write_window
from emblema.errors import EmblemaError

RESULTS = Path(__file__).parents[2] / "docs" / "results"


WRITERS: dict[str, Callable[[dict[str, Any], Path], object]] = {
    "agents": write_agents_page,
    "changed": write_changed_page,
    "cost": lambda figures, folder: write_costs(figures["runs"], folder),
    "load": write_load_page,
    "real": write_real_page,
    "store": write_store_page,
    "stream": write_streams,
    "hybrids": lambda figures, folder: write_hybrids(RESULTS / "hybrids.json", folder / "hybrids.md"),
    "window": lambda figures, folder: write_window(RESULTS / "window.json", folder / "window.md"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_page_is_what_its_figures_make(name: str, tmp_path: Path) -> None:
    page, written = (RESULTS / f"{name}.md").read_text(), tmp_path / f"{name}.md"
    written.write_text(page)
    WRITERS[name](read_figures(RESULTS / f"{name}.json"), tmp_path)
    assert written.read_text() == page
    assert {path.name for path in tmp_path.glob("*.png")} == {path.name for path in RESULTS.glob(f"{name}-*.png")}
    missed = {
        "agents": 0,
        "changed": 0,
        "cost": 13,
        "hybrids": 1,
        "load": 0,
        "real": 0,
        "store": 4,
        "stream": 4,
        "window": 2,
    }
    assert page.count("**missed**") == missed[name], "known to be missed, with the words"


def test_the_page_of_fidelity_is_what_its_figures_make() -> None:
    check_page(RESULTS, RESULTS.with_suffix(".md"))


def test_rows_are_plain_json_a_row_a_line_with_five_digits(tmp_path: Path) -> None:
    rows = [{"a": 1 / 3, "b": nan}, {"a": 2, "b": [0.1234567]}]
    path = write_figures({"asked": {"seed": 3}, "rows": rows}, tmp_path / "f.json")
    found = json.loads(path.read_text())
    assert found["rows"] == [{"a": 0.33333, "b": None}, {"a": 2, "b": [0.12346]}]
    assert '{"a": 2, "b": [0.12346]}' in path.read_text().splitlines()
    assert read_figures(path) == found and found["environment"]["cores"]


def test_a_block_without_figures_is_refused() -> None:
    with pytest.raises(EmblemaError, match="no figures of the block 'other'"):
        filled("<!-- other -->\n<!--/-->\n", {})


def test_the_tables_of_the_deficit_are_its_figures() -> None:
    def line(row: dict[str, Any]) -> str:
        cells = [row["figure"], row["kamera"]]
        for model in ("reference", "reference-mla"):
            value, low, high = (f"{row[model][name]:.3g}" for name in ("value", "low", "high"))
            cells.append(value if value == low == high else f"{value} [{low}, {high}]")
        return f"| {' | '.join(cells)} |"

    rows = read_figures(RESULTS / "deficit.json")["rows"]
    page = (RESULTS / "deficit.md").read_text().splitlines()
    tables = [list(lines)[2:] for is_table, lines in groupby(page, lambda text: text.startswith("|")) if is_table]
    assert tables == [[line(row) for row in part] for _, part in groupby(rows, lambda row: row["part"])]


def papers(model: str) -> dict[str, Any]:
    """The run of the papers' methods on a model."""
    (run,) = (each for each in read_figures(RESULTS / "real.json")["papers"] if each["options"]["model"] == model)
    return run


def test_the_words_on_real_weights_are_its_figures() -> None:
    """What the limitations say of thin patches."""
    run = papers("smollm2-135m")
    found = {(row["anchor"], row["method"]): row for row in run["rows"]}
    page = (RESULTS.parent / "limitations.md").read_text()
    after_nothing, after_head = (round(100 * found[anchor, "patch-6%"]["worse"]) for anchor in ("none", "head"))
    assert f"blind reuse in {after_nothing} % of the questions, and in {after_head} % where" in page
    rows = [row for run in read_figures(RESULTS / "real.json")["bounds"] for row in run["rows"]]
    bounds = {(row["model"], row["method"]): row for row in rows}
    patch, query = (bounds["smollm2-135m", f"{method}-25%"] for method in ("patch", "query"))
    other = bounds["gemma3-270m", "patch-25%"]
    assert (
        f"Of {query['sure']} with a margin of 0.5 or more after the second pass {query['sure_wrong']} differs" in page
    )
    assert (
        f"of {patch['sure']} over patches {patch['sure_wrong']}; on Gemma {other['sure_wrong']} of {other['sure']}."
        in page
    )
    readme = (RESULTS.parents[1] / "README.md").read_text()
    assert f"of {patch['sure']} over patches {patch['sure_wrong']} differ" in readme
    assert patch["sure"] < patch["answers"] / 3 and "less than a third of them" in readme


README_LINES = {
    "full reuse": ("none", "full-reuse"),
    "EPIC (LegoLink), 8 tokens": ("none", "epic-8"),
    "MPIC, 32 tokens": ("none", "mpic-32"),
    "CacheBlend, 15 %": ("none", "cacheblend-15"),
    "VLCache, 15 %": ("none", "vlcache-15"),
    "ours, without correction": ("head", "blind"),
    "ours, second pass (`query-25%`)": ("head", "query-25%"),
    "ours, patch (`patch-25%`)": ("head", "patch-25%"),
}
"""Lines of the README's table, and what they are of."""


def test_the_tables_of_the_readme_are_the_figures_on_real_weights() -> None:
    figures, readme = read_figures(RESULTS / "real.json"), (RESULTS.parents[1] / "README.md").read_text()
    run = papers("smollm2-135m")
    found = {(row["anchor"], row["method"]): row for row in run["rows"]}
    for name, arm in README_LINES.items():
        row = found[arm]
        cells = (f"{row[each]:.2f}" for each in ("rows", "kl", "eta", "agree"))
        assert f"| {name} | {' | '.join(cells)} |" in readme
    assert f"{run['rows'][0]['asked']} questions" in readme
    (speed,) = figures["speeds"]
    shares = {(row["tokens"], row["way"]): row["share"] for row in speed["rows"]}
    length = sorted({tokens for tokens, _ in shares})[1]
    words = (f"{shares[length, way]:.2f} (`{way}`)" for way in ("patch-25%", "query-25%"))
    assert f"prompt of {length:,} tokens" in readme and all(word in readme for word in words)
