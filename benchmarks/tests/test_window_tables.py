"""The window's tables on a few items: what they must show, and their shape."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.deficit.answerlog import AnswerLog
from benchmarks.intervals import Interval
from benchmarks.models import model_source
from benchmarks.table import Bar, Cell, SampleSize, Table
from benchmarks.window.kamera import SETS, Orbit, Recall, Survivors, turnovers_of
from benchmarks.window.kamera_appendix import Divergence, Refresh, Superset
from benchmarks.window.probe import eta_gap, measure_probes
from benchmarks.window.run import TABLES, measure_tables
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.metrics import Share

ITEMS = 2
Tables = dict[str, Table]


QUICK = tuple(pages for pages in SETS if len(pages.pages) == 3)
"""Sets of which a few forwards see every ordering; the larger ones are measured by the slow test."""


@pytest.fixture(scope="module")
def tables() -> Tables:
    steps: list[int] = []
    probes = [Orbit(QUICK), Survivors(), Recall(), Divergence(), Superset(), Refresh(pooled=3)]
    found = measure_probes(Engine.load("reference"), SampleSize(ITEMS, 17), probes, lambda: steps.append(1))
    assert len(steps) == ITEMS
    return {table.name: table for table in found}


def values(table: Table, column: str, **wanted: Cell) -> list[float]:
    """The cells of a column in the rows that match."""
    found = []
    for record in table.records:
        if all(record[name.replace("_", " ")] == value for name, value in wanted.items()):
            cell = record[column]
            assert isinstance(cell, Interval | Share)
            found.append(cell.value)
    assert found
    return found


def test_every_table_has_rows_and_is_plain_data(tables: Tables) -> None:
    assert tuple(tables) == tuple(TABLES)
    for table in tables.values():
        assert table.rows and table.seconds > 0
        again = json.loads(json.dumps(table.data(), allow_nan=False))
        assert (again["name"], len(again["rows"])) == (table.name, len(table.rows))
        for plot in table.plots:
            assert {plot.x, plot.y, *([plot.by] if plot.by else [])} <= set(table.columns)
        for record in table.records:
            if record["method"] == "re-prefill":
                assert isinstance(record["KL"], Interval) and record["KL"].value == 0
                assert isinstance(record["same answer"], Interval) and record["same answer"].value == 1


def test_what_has_to_hold_holds(tables: Tables) -> None:
    bars = [bar for table in tables.values() for bar in table.bars]
    assert {"orbit", "survivors", "recall"} == {name for name, table in tables.items() if table.bars}
    assert [bar.name for bar in bars if not bar.holds] == []
    assert all(bar.count > 0 for bar in bars)


def test_blind_reuse_loses_the_answers_and_exact_patches_do_not(tables: Tables) -> None:
    orbit = tables["orbit"]
    assert min(values(orbit, "KL", method="blind reuse", setting="slid", pages="K = 3")) > 1
    assert min(values(orbit, "eta", method="exact", setting="slid")) > 0.95
    # Where order decides the answer, no patch that knows no order can serve.
    decided = values(orbit, "eta", method="orbit", setting="slid", pages="K = 3, order decides")
    assert max(decided) < min(values(orbit, "eta", method="exact", setting="slid"))
    assert {record["pages"] for record in orbit.records} == {pages.name for pages in QUICK}


def test_a_stale_patch_is_fine_until_what_it_knows_has_left(tables: Tables) -> None:
    recall = tables["recall"]
    assert min(values(recall, "eta", method="stale patch", setting="slid", turnover=0.0)) > 0.95
    assert max(values(recall, "eta", method="stale patch", setting="slid", turnover=0.8)) < 0
    assert min(values(recall, "flips restored", method="fresh patch", setting="slid", turnover=0.8)) > 0.95


def test_survivors_keep_what_they_absorbed_until_it_is_removed(tables: Tables) -> None:
    survivors = tables["survivors"]
    lost = "the legend asked for leaves"
    assert min(values(survivors, "KL", method="as they are", what_left=lost)) > 1
    assert min(values(survivors, "gap closed", method="removal patch, rank 64", what_left=lost)) > 0.95
    assert max(values(survivors, "KL", method="as they are", what_left="a map leaves")) < 0.05
    assert all(value < 1 for value in values(survivors, "shallow"))


def test_drift_hurts_where_a_legend_changed(tables: Tables) -> None:
    drift = tables["divergence"]
    for change in ("none", "a map dropped", "a map duplicated", "a map replaced"):
        assert min(values(drift, "eta", method="stored patch", setting="slid", change=change)) > 0.9
    assert max(values(drift, "eta", method="stored patch", setting="slid", change="all replaced")) < 0
    assert min(values(drift, "eta", method="exact patch", setting="slid")) > 0.9
    assert "As a gate" in drift.note


def test_excess_context_hurts_where_it_conflicts(tables: Tables) -> None:
    superset = tables["superset"]
    for way in ("position-matched", "true superset", "conflicting superset"):
        assert min(values(superset, "eta", method=f"rebuilt patch, {way}", setting="slid")) > 0.9
    few, many = (
        values(superset, "eta", method="stored patch, conflicting superset", setting="slid", d=count)
        for count in (0, 3)
    )
    assert max(many) < 0.9 < min(few)


def test_an_update_refreshes_and_a_stored_patch_does_not(tables: Tables) -> None:
    refresh = tables["refresh"]
    assert max(values(refresh, "eta", method="stored patch", setting="slid", d=2)) < 0
    assert min(values(refresh, "eta", method="rank-32 update", setting="slid")) > 0.95
    assert min(values(refresh, "eta", method="re-prefill, deep three quarters", setting="slid")) > 0.9
    weights = {record["method"]: record["bytes"] for record in refresh.records}
    assert weights["stored patch"] == 0
    assert isinstance(weights["update, 25 %"], float) and 0 < weights["update, 25 %"] <= 0.25


def test_orderings_of_a_set_all_have_their_turn() -> None:
    for pages in SETS:
        orders, tested = pages.orders(0)
        assert len(set(orders)) == len(orders)
        assert len(tested) == pages.asked
        if len(pages.pages) <= 4:
            seen = {place for turn in range(len(orders)) for place in pages.orders(turn)[1]}
            assert seen == set(range(len(orders)))
        else:
            assert len(orders) == 25 and 0 not in tested


def test_all_turnovers_have_their_turn() -> None:
    assert {left for index in range(5) for left in turnovers_of(index)} == set(range(6))
    assert all(len(set(turnovers_of(index))) == 3 for index in range(9))


def test_a_gap_is_paired_by_answer() -> None:
    log = AnswerLog()
    full = np.log([0.5, 0.5])
    for episode, near in (("a", 0.5), ("b", 0.4)):
        answers = {"full": full, "blind": np.log([0.1, 0.9]), "best": full, "other": np.log([near, 1 - near])}
        log.answers(episode, "slid", "group", None, answers)
    gap, count = eta_gap(log, "best", "other", "slid", "group")
    assert count == 2
    losses = [noted.losses for noted in log.noted]
    assert gap.value == pytest.approx(sum(loss["other"] for loss in losses) / sum(loss["blind"] for loss in losses))
    assert np.isnan(eta_gap(log, "best", "other", "visible", "group")[0].value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SampleSize(0, 0), "one item or more"),
        (lambda: SampleSize(1, -1), "seed of 0 or more"),
        (lambda: Table("t", "t", "", ("a", "b"), ((1,),)), "1 cells under 2 columns"),
        (lambda: measure_tables(Engine.load("reference"), SampleSize(1), ["orbit", "else"]), "unknown table 'else'"),
        (lambda: measure_tables(Engine.load("reference"), SampleSize(1), []), "choose of orbit"),
    ],
)
def test_what_cannot_be_measured_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        make()


def test_tables_are_measured_by_name() -> None:
    found = measure_tables(Engine.load("reference"), SampleSize(1, 3), ["superset", "survivors", "superset"])
    assert [table.name for table in found] == ["superset", "survivors"]


def test_nothing_measured_holds_no_bar() -> None:
    assert not Bar("b", None, 1.0).holds
    assert not Bar("b", float("nan"), 1.0, least=False).holds
    assert Bar("b", 1.0, 1.0).holds and Bar("b", 1.0, 1.0, least=False).holds


@pytest.mark.slow
@pytest.mark.parametrize("model", ["reference", "reference-mha", "reference-mla", "reference-deepstack"])
def test_what_has_to_hold_holds_at_every_size_on_every_model(model: str) -> None:
    found = measure_tables(Engine.load(model_source(model)), SampleSize(10, 23), ["orbit", "survivors", "recall"])
    assert [bar.name for table in found for bar in table.bars if not bar.holds] == []
