"""The bundled model's bars: the machinery on a few episodes, the bars themselves on five hundred."""

import json
import os
import secrets
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.bars import BarsResult, bars_of, bars_table, measure, report, show
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.eval.figures import plain, write_figures

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
STRATEGIES = ("full", "blind", "patch-25%")
EPISODES = 500


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(MODEL)


@pytest.fixture(scope="module")
def few(engine: Engine) -> BarsResult:
    return measure(engine, "maps", seed=11, episodes=8, strategies=STRATEGIES)


def test_every_item_is_counted_in_both_settings(few: BarsResult) -> None:
    assert len(few.rows) == 2 * 2 * len(STRATEGIES)
    for setting in ("visible", "slid"):
        for strategy in STRATEGIES:
            assert few.row(setting, "single-hop", strategy)["n"] == 4 * 8
            assert few.row(setting, "multi-hop", strategy)["n"] == 4 * 8


def test_re_prefill_is_compared_with_itself(few: BarsResult) -> None:
    for row in (row for row in few.rows if row["strategy"] == "full"):
        assert row["kl"] == 0
        assert row["accuracy_lost"] == row["intervals"]["accuracy_lost"][1] == 0
        assert row["agreement"] == 1


def test_a_patch_is_closer_to_re_prefill_than_blind_reuse(few: BarsResult) -> None:
    patch, blind = (few.row("slid", "multi-hop", name) for name in ("patch-25%", "blind"))
    assert patch["kl"] < 0.1 * blind["kl"]
    assert patch["eta"] > 0.9
    assert blind["eta"] == 0
    low, high = patch["intervals"]["accuracy"]
    assert low <= patch["accuracy"] <= high


def test_prefix_is_exact(few: BarsResult) -> None:
    assert few.exactness_items == 1
    assert few.exactness < 1e-3


def test_the_store_is_empty_afterwards(engine: Engine, few: BarsResult) -> None:
    assert few.episodes == 8
    assert len(engine.store) == 0


def test_the_same_seed_gives_the_same_figures(engine: Engine) -> None:
    one, other = (measure(engine, "maps", seed=3, episodes=2, strategies=("full", "blind")) for _ in range(2))
    assert plain(report(one)) == plain(report(other))


@pytest.mark.parametrize("task", ["clip", "atlas"])
def test_other_tasks_are_measured_too(engine: Engine, task: str) -> None:
    found = measure(engine, task, seed=2, episodes=2, strategies=("full", "blind"), kinds=("land",))
    assert {row["kind"] for row in found.rows} == {"multi-hop"}
    assert bars_of(found) == ()


def test_an_unknown_task_is_refused(engine: Engine) -> None:
    with pytest.raises(EmblemaError, match="unknown task 'chess'"):
        measure(engine, "chess", seed=0, episodes=2)


def test_the_result_is_shown_and_written(few: BarsResult, tmp_path: Path) -> None:
    assert len(bars_table(few).rows) == len(few.rows)
    found = json.loads(write_figures(report(few), tmp_path / "bars.json").read_text())
    assert len(found["bars"]) == len(bars_of(few))
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=110, file=nowhere)
        show(console, few)
    assert "patch-25% loses, multi-hop, slid, upper bound" in console.export_text()


@pytest.mark.nightly
def test_the_bundled_model_clears_its_bars(engine: Engine) -> None:
    """The bars of the bundled model, on 500 fresh episodes of any seed and 2,000 multi-hop questions or more."""
    seed = secrets.randbelow(2**31)
    found = measure(engine, "maps", seed, EPISODES, strategies=STRATEGIES)
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=110, file=nowhere)
        show(console, found)
    print(f"seed {seed}\n{console.export_text()}")
    for setting in ("visible", "slid"):
        single, multi = (found.row(setting, kind, "full") for kind in ("single-hop", "multi-hop"))
        assert multi["n"] >= 2000
        assert single["accuracy"] >= 0.97
        assert multi["accuracy"] >= 0.95
        assert abs(found.row(setting, "single-hop", "blind")["accuracy_lost"]) <= 0.01
    assert found.row("slid", "multi-hop", "blind")["accuracy"] <= 0.5
    for kind in ("single-hop", "multi-hop"):
        assert found.row("slid", kind, "patch-25%")["intervals"]["accuracy_lost"][1] <= 0.01
    assert found.exactness <= 1e-3
    assert all(bar.holds for bar in bars_of(found) if not bar.aim)
