"""The bundled model's bars: the machinery on a few episodes, the bars themselves on five hundred."""

import os
import secrets
from io import StringIO

import pytest
from rich.console import Console

from benchmarks.bars import BarsResult, bars_of, measure, report, show
from emblema.engine.engine import Engine
from emblema.eval.figures import plain

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
STRATEGIES = ("full", "blind", "patch-25%")
EPISODES = 500


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(MODEL)


@pytest.fixture(scope="module")
def few(engine: Engine) -> BarsResult:
    return measure(engine, "maps", seed=11, episodes=8, strategies=STRATEGIES)


def test_re_prefill_is_compared_with_itself_and_a_patch_is_closer_to_it_than_blind_reuse(
    engine: Engine, few: BarsResult
) -> None:
    assert {row["n"] for row in few.rows} == {4 * 8} and len(few.rows) == 2 * 2 * len(STRATEGIES)
    for row in (row for row in few.rows if row["strategy"] == "full"):
        assert row["kl"] == row["accuracy_lost"] == row["intervals"]["accuracy_lost"][1] == 0 < row["agreement"] == 1
    assert few.exactness_items == 1 and few.exactness < 1e-3 and len(engine.store) == 0
    patch, blind = (few.row("slid", "multi-hop", name) for name in ("patch-25%", "blind"))
    assert patch["kl"] < 0.1 * blind["kl"] and patch["eta"] > 0.9 and blind["eta"] == 0


def test_other_tasks_are_measured_too_and_the_same_seed_gives_the_same_figures(engine: Engine) -> None:
    one, other = (measure(engine, "clip", 2, 2, strategies=("full", "blind"), kinds=("land",)) for _ in range(2))
    assert {row["kind"] for row in one.rows} == {"multi-hop"} and bars_of(one) == ()
    assert plain(report(one)) == plain(report(other))


@pytest.mark.nightly
def test_the_bundled_model_clears_its_bars(engine: Engine) -> None:
    """The bars of the bundled model, on 500 fresh episodes of any seed and 2,000 multi-hop questions or more."""
    seed = secrets.randbelow(2**31)
    found = measure(engine, "maps", seed, EPISODES, strategies=STRATEGIES)
    console = Console(record=True, width=110, file=StringIO())
    show(console, found)
    print(f"seed {seed}\n{console.export_text()}")
    assert found.row("slid", "multi-hop", "full")["n"] >= 2000
    assert all(bar.holds for bar in bars_of(found) if not bar.aim)
