"""The window's experiments and traces on a little of everything, and the page that their figures make."""

import math
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.figures import read_figures
from benchmarks.models import model_source
from benchmarks.table import SampleSize
from benchmarks.tests.running import benchmarks
from benchmarks.window.arms import AUTO, BLIND, FULL, PREFIX, counted_rows
from benchmarks.window.experiment import Measured, measure
from benchmarks.window.kamera import SETS, Recall, Reorder, Slide, turnovers_of
from benchmarks.window.kamera_appendix import ChangedAntecedents, Refresh, Superset
from benchmarks.window.trace import TraceSettings, agent_trace, novelty_trace
from benchmarks.window.trace_run import StepRecord, run_trace, trace_measured
from emblema.engine.engine import Engine
from emblema.link.policy.policy import Policy

SHAPE = TraceSettings(steps=8, window=4, look_back=2)
QUICK = tuple(pages for pages in SETS if len(pages.pages) == 3)
"""Sets of which a few forwards see every ordering; the larger ones are measured by the slow test."""


@pytest.fixture(scope="module")
def measured(engine: Engine) -> dict[str, Measured]:
    experiments = [Reorder(QUICK), Slide(), Recall(), ChangedAntecedents(), Superset(), Refresh(pooled=3)]
    found = measure(engine, "reference", SampleSize(2, 17), experiments)
    return {experiment.name: own for experiment, own in zip(experiments, found, strict=True)}


def etas(found: Measured, method: str, *groups: str) -> list[float]:
    """The eta of a method in some groups, or in all."""
    own = [row for row in found.rows["answers"] if row["method"] == method]
    kept = [row["eta"] for row in own if not groups or row["group"] in groups]
    assert len(kept) >= max(1, len(groups))
    return kept


def test_what_has_to_hold_holds(measured: dict[str, Measured]) -> None:
    assert {name for name, found in measured.items() if found.bars} == {"reorder", "slide", "recall"}
    bars = [bar for found in measured.values() for bar in found.bars]
    assert all(bar.count > 0 and bar.holds for bar in bars)


def test_patches_answer_where_they_know_what_is_there_and_nowhere_else(measured: dict[str, Measured]) -> None:
    reorder = measured["reorder"]
    assert min(etas(reorder, "exact")) > 0.95
    decided = "K = 3, order decides"
    assert etas(reorder, "orbit", decided)[0] < etas(reorder, "exact", decided)[0]
    kept = {row["group"]: row["kl"] for row in measured["slide"].rows["answers"] if row["method"] == BLIND}
    assert kept["the legend asked for leaves"] > 1 and kept["a map leaves"] < 0.05
    assert etas(measured["slide"], "removal patch, rank 64", "the legend asked for leaves")[0] > 0.95
    recall = measured["recall"]
    assert etas(recall, "stale patch", "0")[0] > 0.95 and etas(recall, "stale patch", "0.8")[0] < 0
    assert min(etas(recall, "fresh patch")) > 0.95


def test_drift_hurts_where_a_legend_changed(measured: dict[str, Measured]) -> None:
    drift, superset, refresh = (measured[name] for name in ("drift", "superset", "refresh"))
    assert min(etas(drift, "stored patch", "none", "a map dropped", "a map duplicated", "a map replaced")) > 0.9
    assert etas(drift, "stored patch", "all replaced")[0] < 0 and min(etas(drift, "exact patch")) > 0.9
    assert {row["name"] for row in drift.rows["figures"]} >= {"reused falsely, of the nearer half"}
    assert min(etas(superset, "rebuilt patch")) > 0.9
    few, many = (etas(superset, "stored patch", f"conflicting superset, d = {count}")[0] for count in (0, 3))
    assert many < 0.9 < few
    assert etas(refresh, "stored patch", "d = 2")[0] < 0 and min(etas(refresh, "rank-32 update")) > 0.95
    assert min(etas(refresh, "re-prefill, deep three quarters")) > 0.9


def test_orderings_and_turnovers_all_have_their_turn() -> None:
    for pages in SETS:
        orders, tested = pages.orders(0)
        assert len(set(orders)) == len(orders) and len(tested) == pages.asked
        turns = {at for turn in range(len(orders)) for at in pages.orders(turn)[1]}
        assert turns == set(range(len(orders))) or len(pages.pages) > 4
    assert {left for index in range(5) for left in turnovers_of(index)} == set(range(6))


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["reference", "reference-mla", "reference-deepstack"])
def test_what_has_to_hold_holds_at_every_size_on_every_model(model: str) -> None:
    with Engine.load(model_source(model)) as engine:
        found = measure(engine, model, SampleSize(10, 23), [Reorder(), Slide(), Recall()])
    assert [bar.name for own in found for bar in own.bars if not bar.holds] == []


def of(records: tuple[StepRecord, ...], arm: str) -> list[StepRecord]:
    return [record for record in records if record.arm == arm]


def test_the_counter_sees_every_row_and_leaves_the_model_as_it_was(engine: Engine) -> None:
    with counted_rows(engine.adapter) as counter:
        picture = engine.add(Image.new("RGB", (56, 56), "red"))
        alone = counter.rows
        prefill = engine.prefill([picture, "what land is red ?"], "full")
        # Alone it is prefilled after what the chat template begins a prompt with.
        assert alone == picture.tokens + len(engine.adapter.anchor)
        assert counter.rows == alone + prefill.prompt.tokens
    engine.prefill("what land is red ?")
    assert counter.rows == alone + prefill.prompt.tokens


def test_auto_computes_new_rows_and_those_looked_back_at(engine: Engine) -> None:
    trace = agent_trace(2, SHAPE)
    records = run_trace(engine, trace)
    arms = [of(records, arm) for arm in (FULL, AUTO, PREFIX, BLIND)]
    for full, auto, prefix, blind in zip(*arms, strict=True):
        assert auto.rows == auto.new_rows + auto.back_rows
        assert full.agrees and prefix.agrees and prefix.rows <= full.rows and blind.step == full.step
        if not full.warm:
            # After the same rows the window computes what prefix caching does.
            assert auto.rows == prefix.rows and auto.agrees
    assert any(record.back_rows for record in of(records, AUTO))
    found = trace_measured("reference", trace, records)
    warm = [record for record in of(records, AUTO) if record.warm]
    over = sum(record.rows for record in warm) / sum(record.new_rows for record in warm)
    assert found.bars[1].value == pytest.approx(over)
    inside = [record.agrees for record in warm if record.where != "gone"]
    assert (found.bars[0].value, found.bars[0].count) == (sum(inside) / len(inside), len(inside))


def test_rows_after_an_answer_count(engine: Engine) -> None:
    # From the second step on, every answer is compared with a prefill of the whole window.
    trace = agent_trace(2, TraceSettings(steps=3, window=4))
    records = run_trace(engine, trace, policy=Policy(canary=1, canary_rows=math.inf))
    for full, auto in zip(of(records, FULL), of(records, AUTO), strict=True):
        assert auto.rows == auto.new_rows + auto.back_rows + (full.rows if auto.step else 0)


def test_novelty_costs_what_a_full_prefill_costs(engine: Engine) -> None:
    trace = novelty_trace(4, TraceSettings(steps=1, window=4))
    records = run_trace(engine, trace)
    (bar,) = trace_measured("reference", trace, records).bars
    assert bar.holds and all(record.agrees for record in records)


def test_a_run_writes_a_page_and_goes_on_from_its_records(tmp_path: Path) -> None:
    asked = ("--steps", "5", "--pictures", "4", "--items", "1", "--seed", "5", "--only", "trace,slide", "--plain")
    done = benchmarks("window", *asked, "--report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    first = read_figures(tmp_path / "window.json")
    assert first["asked"] == {"items": 1, "seed": 5, "steps": 5, "windows": [4]}
    assert {row["trace"] for row in first["trace"]} == {"agent, 4", "novelty, 4"}
    assert (tmp_path / "window-slide.png").is_file() and "<!-- slide -->" in (tmp_path / "window.md").read_text()
    assert benchmarks("window", *asked, "--report", str(tmp_path)).returncode == 0
    # Times too are those of the first run.
    assert read_figures(tmp_path / "window.json") == first
