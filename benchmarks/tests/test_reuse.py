"""Reuse in any combination: bars from rows that can be worked out, a run of one item, its page, and older records."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.fidelity.arms import AtRows, arm_of
from benchmarks.fidelity.measure import FidelityRecord, items_of
from benchmarks.fidelity.reuse import ARMS, QUERY, ReusePlan, bars, check_page, page, read, run, write_page
from benchmarks.fidelity.summary import rows_of
from benchmarks.recordfile import RecordFile
from benchmarks.tests.test_fidelity import record
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError, StrategyError

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reuse") / "reuse.json"
    plan = ReusePlan(5, 1, ("two-page", "album-binding"), ("blind", QUERY, "query@12%", f"mpic@2x-{QUERY}"), most=3)
    run(["reference"], plan, lambda name: Engine.load("reference"), place, QUIET)
    return place


def row(found: dict[str, Any], setting: str, strategy: str) -> dict[str, Any]:
    asked = ("pooled", setting, strategy)
    return next(each for each in found["rows"] if (each["task"], each["setting"], each["strategy"]) == asked)


def test_kinds_of_questions_have_rows_of_their_own(listing: Path) -> None:
    found = [row for row in read(listing)["rows"] if (row["setting"], row["strategy"]) == ("slid", QUERY)]
    kinds = [row for row in found if row["task"].startswith("*")]
    assert {row["task"] for row in kinds} >= {"*land* questions"}
    assert sum(row["n"] for row in kinds) == row_of_all(found)["n"] == 6


def row_of_all(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["task"] == "pooled")


@pytest.mark.parametrize("setting", ["visible", "slid"])
def test_a_run_has_margins_rows_and_rivals(listing: Path, setting: str) -> None:
    found = read(listing)
    query, rival, full = (row(found, setting, name) for name in (QUERY, f"mpic@2x-{QUERY}", "full"))
    assert query["n"] == 6
    assert rival["rows_computed_share"] >= 2 * query["rows_computed_share"] - 1e-6
    assert query["rows_with_fallbacks"] == pytest.approx(query["rows_computed_share"] + query["unsure"], abs=1e-4)
    assert full["agreement_with_fallbacks"] == 1 and full["wrong_accepted"] == 0
    assert rival["eta_below_like"] == pytest.approx(query["eta"] - rival["eta"], abs=1e-4)


def test_a_share_is_the_strategy_of_that_share_rounded_down(listing: Path) -> None:
    found = read(listing)
    share, own = row(found, "slid", "query@12%"), row(found, "slid", QUERY)
    assert 0.1 < share["kv_bytes_share"] <= 0.12 <= own["kv_bytes_share"] < 0.14


def test_a_page_is_what_its_figures_make(listing: Path) -> None:
    place = write_page(listing)
    check_page(listing)
    text = place.read_text(encoding="utf-8")
    assert "Seed 5." in text and "reference, slid" in text and (listing.parent / "rows.png").is_file()
    place.write_text(text.replace("Seed 5.", "Seed 6."), encoding="utf-8")
    with pytest.raises(EmblemaError, match=r"reuse\.md"):
        check_page(listing)


def test_a_page_before_the_run_is_its_protocol() -> None:
    text = page({"asked": ReusePlan(7, 20).data(), "rows": [], "environment": {}})
    assert "Seed 7." in text and "## Bars" not in text


def test_bars_are_of_the_strategies_that_were_measured() -> None:
    """Four answers: blind changes two; the method restores one of them, and is sure of the wrong one."""
    sure = {"margins": (0.9, 0.9, 0.9, 0.1)}
    kept = [
        record("full", "i", [1, 1, 1, 1], [0.0] * 4, **sure),
        record("blind", "i", [1, 1, 2, 2], [0.0, 0.0, 4.0, 4.0], **sure),
        record(QUERY, "i", [1, 1, 1, 2], [0.0, 0.0, 0.0, 1.0], **sure),
    ]
    rows = [{**each, "task": "pooled"} for each in rows_of(kept)]
    held = {bar.name.partition(", ")[2]: bar for bar in bars(rows, "m", "slid")}
    assert (held["eta"].value, held["eta"].holds) == (0.875, False)
    assert held["flips restored"].value is None and held["flips restored"].count == 2
    assert held["wrong among accepted"].value == 0.0
    assert (held["fallbacks"].value, held["fallbacks above re-prefill's unsure share"].value) == (0.25, 0.0)
    assert held["rows with fallbacks"].value == pytest.approx(0.75)
    assert not bars(rows, "m", "visible")


def test_older_records_load_and_have_no_certificate(tmp_path: Path) -> None:
    place = tmp_path / "old.records.jsonl"
    for name in ("full", "blind"):
        told = asdict(record(name, "i", [1], [0.5]))
        del told["margins"]
        with place.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
    with RecordFile(place, FidelityRecord) as records:
        kept = list(records.held.values())
    assert [each.margins for each in kept] == [(), ()]
    assert all("unsure" not in each for each in rows_of(kept))


def test_a_record_s_margins_are_as_many_as_its_questions() -> None:
    made = record("full", "i", [1, 1], [0.0, 0.0], margins=(0.2, 0.3))
    assert made.only([1]).margins == (0.3,)
    with pytest.raises(ValueError, match="missing"):
        replace(made, margins=(0.2,))


def test_questions_are_drawn_by_the_item_s_name() -> None:
    (source,) = items_of(["maps"])
    whole, few = (list(each.first(3, 2)) for each in (source, replace(source, most=4)))
    for all_of_it, drawn in zip(whole, few, strict=True):
        assert len(drawn.questions) == 4
        assert [each for each in all_of_it.questions if each in drawn.questions] == list(drawn.questions)
    assert list(replace(source, most=4).first(3, 2))[1].questions == few[1].questions


def test_a_rival_s_name_says_whose_rows_it_has() -> None:
    arm = arm_of("cacheblend@1.5x-query-6%")
    assert isinstance(arm, AtRows) and (arm.times, arm.like.name) == (1.5, "query-6%")
    assert all(arm_of(name).name == name for name in ARMS)
    for name in ("patch@2x-query-6%", "mpic@2x-nothing"):
        with pytest.raises(StrategyError):
            arm_of(name)


def test_broken_figures_and_plans_are_told(tmp_path: Path) -> None:
    broken = tmp_path / "reuse.json"
    broken.write_text("[]", encoding="utf-8")
    with pytest.raises(EmblemaError, match=r"reuse\.json"):
        read(broken)
    with pytest.raises(PromptError):
        ReusePlan(1, 0)
