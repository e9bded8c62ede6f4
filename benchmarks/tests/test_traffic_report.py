"""The page of traffic: ratios to re-prefill, stretches, bars, and a page that its JSON file gives again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.traffic.report import (
    TrafficResult,
    bars_of,
    check_report,
    page,
    part_of,
    read_result,
    stretch_parts,
    stretches,
    tables_of,
    write_report,
)
from benchmarks.traffic.requests import GONE, SHOWN
from benchmarks.traffic.run import write_json
from benchmarks.traffic.stages import MethodRun, Stage, stages_of
from emblema.errors import EmblemaError
from emblema.eval.figures import environment


def record(stage: Stage, method: str, rows: list[float], seconds: float = 0.1, agrees: int = 1) -> MethodRun:
    """A method that computes some share of the rows of each request."""
    count, full = len(rows), method == "full"
    margins = (0.2, *(0.9,) * (count - 1)) if method == "auto" else (None,) * count
    return MethodRun(
        key="", stage=stage, method=method, load=(1.0, 2.0), added=0,
        group=tuple(range(count)) if full else (),
        where=tuple(GONE if index % 4 == 3 and stage.name == "agent" else SHOWN for index in range(count)) if full
        else (),
        prompt=(500,) * count if full else (), computed=tuple(int(500 * share) for share in rows),
        ran=tuple(500 * share for share in rows), ttft=(seconds,) * count, wall=(2 * seconds,) * count,
        processor=(seconds,) * count, kept=tuple(1_000_000 * index for index in range(count)), margin=margins,
        fell_back=tuple(int(margin is not None and margin < 0.5) for margin in margins),
        agrees=(agrees, *(1,) * (count - 1)), right=(1,) * count,
        lane=("auto:query",) * count if method == "auto" else (),
    )  # fmt: skip


def result_of(name: str, late: float = 0.1) -> TrafficResult:
    """A stage in which `auto` computes 30 % of the rows, and less at the end."""
    (stage,) = stages_of([name])
    count = stage.shape.requests
    auto = [0.3] * (count - 40) + [late] * 40
    runs = (
        record(stage, "full", [1.0] * count),
        record(stage, "epic-8", [0.1] * count, 0.05, 0),
        record(stage, "auto", auto, 0.02),
    )
    return TrafficResult(
        "reference", "python -m benchmarks traffic", {"commit": "c", "digest": "d"}, environment(), runs
    )


def test_stretches_cover_all_requests_and_the_rest_joins_the_last() -> None:
    assert stretches(200) == [(0, 10), (10, 20), (20, 40), (40, 80), (80, 120), (120, 160), (160, 200)]
    assert stretches(200, ()) == [(0, 40), (40, 80), (80, 120), (120, 160), (160, 200)]
    assert stretches(130)[-1] == (80, 130)
    assert stretches(16) == [(0, 16)] and stretches(3) == [(0, 3)]


def test_figures_are_ratios_to_re_prefill() -> None:
    found = result_of("rag")
    full, epic, auto = found.runs
    part = part_of(auto, full)
    assert part.rows() == pytest.approx(0.26) and part.wait() == pytest.approx(0.2)
    assert 1 / part.total("wall") == pytest.approx(5)
    assert part.wrong().count == 199 and part.wrong().value == 0
    assert part_of(epic, full).wrong().value == pytest.approx(1 / 200)
    assert [part.rows() for part in stretch_parts(auto, full, ())][-1] == pytest.approx(0.1)


def test_bars_of_rag_are_held_on_the_worst_the_first_and_the_last_stretch() -> None:
    found = result_of("rag")
    bars = bars_of(found.stages[0], found.of(found.stages[0]))
    assert [bar.bound for bar in bars] == [0.35, 0.15, 0.4, 0.2, 0.99, 0.95]
    assert [bar.holds for bar in bars] == [True] * 6 and [bar.aim for bar in bars] == [False] * 5 + [True]
    late = result_of("rag", 0.4)
    assert [bar.holds for bar in bars_of(late.stages[0], late.of(late.stages[0]))][:2] == [False, False]
    other = replace(found.stages[0], shape=replace(found.stages[0].shape, shown=4))
    assert [bar.aim for bar in bars_of(other, found.of(found.stages[0]))] == [True]


@pytest.mark.parametrize(
    ("name", "bounds"),
    [("agent", [0.36, 1.05, 0.97, 0.97]), ("novelty", [1.05]), ("talks", []), ("rag-slid", [0.36, 0.97, 0.01])],
)
def test_other_stages_have_their_own_bars(name: str, bounds: list[float]) -> None:
    found = result_of(name)
    bars = bars_of(found.stages[0], found.of(found.stages[0]))
    assert [bar.bound for bar in bars if not bar.aim] == bounds


def test_questions_are_apart_where_they_are_of_several_kinds() -> None:
    found = result_of("agent")
    tables = {table.name: table for table in tables_of(found, found.stages[0])}
    assert set(tables) == {"agent", "agent-learning", "agent-questions"}
    assert [row[:3] for row in tables["agent-questions"].rows][3] == (GONE, "full", 50)
    plain = result_of("rag")
    assert {table.name for table in tables_of(plain, plain.stages[0])} == {"rag", "rag-learning"}


def test_a_page_is_what_its_file_gives(tmp_path: Path) -> None:
    found = result_of("agent")
    write_json(found, tmp_path / "traffic.json")
    write_report(found, tmp_path)
    again = read_result(tmp_path / "traffic.json")
    assert page(again) == (tmp_path / "traffic.md").read_text(encoding="utf-8")
    check_report(tmp_path)
    (tmp_path / "reference-agent.png").unlink()
    with pytest.raises(EmblemaError, match=r"reference-agent\.png: not there"):
        check_report(tmp_path)
    (tmp_path / "traffic.md").write_text("# Other", encoding="utf-8")
    with pytest.raises(EmblemaError, match=r"traffic\.md is not what"):
        check_report(tmp_path)
    (tmp_path / "traffic.json").write_text("{}", encoding="utf-8")
    with pytest.raises(EmblemaError, match="no file of `benchmarks traffic`"):
        read_result(tmp_path / "traffic.json")


def test_growth_is_held_by_its_bytes_and_by_what_is_taken_of_it() -> None:
    (stage,) = stages_of(["growth-24"])
    count = stage.shape.requests
    learnt = {"added": 10_000_000, "learnt": tuple(range(0, 20_000 * count, 20_000)), "pieces": (8, 6)}
    runs = {
        "full": record(stage, "full", [1.0] * count),
        "auto": replace(record(stage, "auto", [0.2] * count), **learnt),
    }
    assert stage.methods(("full", "mpic-32")) == ("full", "auto")
    bars = bars_of(stage, runs)
    assert [round(float(bar.value or 0), 3) for bar in bars[:2]] == [0.398, 0.75] and all(bar.holds for bar in bars)
    result = TrafficResult("reference", "", {"commit": "c", "digest": "d"}, environment(), tuple(runs.values()))
    curve = tables_of(result, stage)[1]
    assert curve.columns[-3:-1] == ("MB learnt", "over the pages'") and curve.rows[-1][-3] == pytest.approx(3.98)


def test_learning_is_charged_where_the_other_has_stopped() -> None:
    (stage,) = stages_of(["learning"])
    count = stage.shape.requests
    still = record(stage, "auto-still", [0.2] * count)
    runs = {name: replace(still, method=name) for name in stage.methods(())}
    slow = replace(still, wall=(0.2,) * (count // 2) + (0.25,) * (count - count // 2))
    (bar,) = bars_of(stage, runs | {"auto": slow})
    assert bar.value == pytest.approx(0.8) and not bar.holds
