"""A trace under its arms: rows counted whoever runs them, a killed run going on, and what the figures come to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from benchmarks.intervals import Interval
from benchmarks.plots import draw_table
from benchmarks.recordfile import RecordFile, TableRecord, records_in
from benchmarks.report import ModelTables, parts_of
from benchmarks.table import Bar, Plot, Table, cell_text
from benchmarks.window.arms import ARMS, AUTO, BLIND, FULL, PREFIX, PROMPTS, counted_rows
from benchmarks.window.run import PARTS, write_report
from benchmarks.window.trace import TraceSettings, agent_trace, novelty_trace
from benchmarks.window.trace_report import trace_tables
from benchmarks.window.trace_run import StepRecord, run_trace
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError
from emblema.eval.metrics import Share
from emblema.link.policy.policy import Policy

SCREEN = Console(quiet=True)
SHAPE = TraceSettings(steps=8, window=4, look_back=2)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("reference") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def run(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[StepRecord, ...]]:
    path = tmp_path_factory.mktemp("trace") / "window.records.jsonl"
    with RecordFile(path, StepRecord) as records:
        return path, run_trace(engine, "reference", agent_trace(2, SHAPE), records, SCREEN)


def of(records: tuple[StepRecord, ...], arm: str) -> list[StepRecord]:
    return [record for record in records if record.arm == arm]


def settled(record: StepRecord) -> tuple[object, ...]:
    """What of a record is the same every time."""
    return (record.key, record.step, record.arm, record.answer, record.agrees, record.right, record.rows, record.where)


def test_the_counter_sees_every_row_and_leaves_the_model_as_it_was(engine: Engine) -> None:
    with counted_rows(engine.adapter) as counter:
        picture = engine.add(Image.new("RGB", (56, 56), "red"))
        alone = counter.rows
        prefill = engine.prefill([picture, "what land is red ?"], "full")
        assert (alone, counter.rows) == (picture.tokens, picture.tokens + prefill.prompt.tokens)
    engine.prefill([picture, "what land is red ?"], "full")
    assert counter.rows == picture.tokens + prefill.prompt.tokens
    assert not any(layer._forward_pre_hooks for layer in engine.adapter.layers)


def test_every_arm_runs_the_rows_that_it_should(run: tuple[Path, tuple[StepRecord, ...]]) -> None:
    trace, (_, records) = agent_trace(2, SHAPE), run
    assert [(record.step, record.arm) for record in records] == [
        (step, arm) for step in range(8) for arm in ARMS["agent"]
    ]
    looked = {step.index for step in trace.steps if step.entering[0].back}
    assert looked
    for full, auto, prefix in zip(of(records, FULL), of(records, AUTO), of(records, PREFIX), strict=True):
        assert auto.rows == auto.new_rows + auto.back_rows
        assert (auto.back_rows > 0) is (auto.step in looked)
        assert full.kl == 0 and full.agrees and prefix.kl < 1e-6 and prefix.agrees
        assert full.rows >= prefix.rows
        if not full.warm:
            # After the same rows the window computes what prefix caching does.
            assert auto.rows == prefix.rows
            assert auto.kl < 1e-6
    grown = sum(record.new_rows for record in of(records, AUTO)[:4])
    questions = sum(len(step.question.text.split()) + 3 for step in trace.steps[:3])
    assert of(records, FULL)[3].rows == grown - questions
    # A picture is prefilled alone once, and all text again at every step.
    assert of(records, BLIND)[-1].rows < of(records, FULL)[-1].rows


def test_what_the_canary_computes_counts_after_the_answer(engine: Engine, tmp_path: Path) -> None:
    trace = agent_trace(2, SHAPE)
    with RecordFile(tmp_path / "records.jsonl", StepRecord) as kept:
        policy = Policy(canary=1, canary_rows=math.inf)
        records = run_trace(engine, "reference", trace, kept, SCREEN, policy)
    for full, auto in zip(of(records, FULL), of(records, AUTO), strict=True):
        # The first step takes nothing that could differ; every other record is compared with a prefill of the whole.
        assert auto.rows == auto.new_rows + auto.back_rows
        assert auto.later == (full.rows if auto.step else 0)
        assert (auto.checks, auto.skipped) == (auto.step, 0)
    (spent,) = (table for table in trace_tables(records) if table.name == "trace-rows")
    after = next(row for row in spent.rows if row[0] == "after the answer")
    warm = [record for record in of(records, AUTO) if record.warm]
    assert after[1] == pytest.approx(sum(record.later for record in warm) / len(warm))


def test_a_killed_run_goes_on_where_it_was(
    engine: Engine, run: tuple[Path, tuple[StepRecord, ...]], tmp_path: Path
) -> None:
    path, whole = run
    lines = path.read_text().splitlines(keepends=True)
    cut = tmp_path / "window.records.jsonl"
    cut.write_text("".join(lines[:26]) + lines[26][:40])
    with RecordFile(cut, StepRecord) as records:
        assert len(records.held) == 26
        again = run_trace(engine, "reference", agent_trace(2, SHAPE), records, SCREEN)
    assert list(map(settled, again)) == list(map(settled, whole))
    assert again[:24] == whole[:24]
    with counted_rows(engine.adapter) as counter, RecordFile(cut, StepRecord) as records:
        assert run_trace(engine, "reference", agent_trace(2, SHAPE), records, SCREEN) == again
    assert counter.rows == 0


def test_other_settings_are_other_records(engine: Engine, run: tuple[Path, tuple[StepRecord, ...]]) -> None:
    path, whole = run
    with RecordFile(path, StepRecord) as records:
        shorter = run_trace(engine, "reference", agent_trace(2, replace(SHAPE, steps=3)), records, SCREEN)
        assert shorter == whole[: len(shorter)]
        count = len(records.held)
        run_trace(engine, "reference", agent_trace(3, replace(SHAPE, steps=1)), records, SCREEN)
        assert len(records.held) == count + len(ARMS["agent"])


@pytest.mark.parametrize("line", ["x\n", "[]\n", '{"key": "a"}\n'])
def test_a_file_of_something_else_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(line)
    with pytest.raises(EmblemaError, match="line 1"):
        RecordFile(path, StepRecord)
    with pytest.raises(EmblemaError, match="line 1"):
        RecordFile(path, TableRecord)


def test_the_bars_count_look_backs_the_canary_and_no_lost_legends(run: tuple[Path, tuple[StepRecord, ...]]) -> None:
    _, records = run
    made = [
        replace(
            record, rows=100.0, new_rows=100, back_rows=0, later=0.0, agrees=True, where="one", warm=record.step > 1
        )
        for record in records
    ]
    agreed, rows = trace_tables(made)[0].bars
    assert (agreed.value, agreed.count, agreed.holds) == (1.0, 6, True)
    assert (rows.value, rows.holds) == (1.0, True)
    wrong = [replace(record, agrees=record.step != 5) for record in made]
    assert not trace_tables(wrong)[0].bars[0].holds
    lost = [replace(record, where="gone") if record.step == 5 else record for record in wrong]
    assert trace_tables(lost)[0].bars[0].count == 5 and trace_tables(lost)[0].bars[0].holds
    more = [
        replace(record, rows=record.rows + 66, back_rows=66) if record.step in (4, 5, 6) else record for record in made
    ]
    assert trace_tables(more)[0].bars[1].value == pytest.approx(1.33)
    late = [replace(record, later=153.0) if record.step == 7 else record for record in made]
    assert trace_tables(late)[0].bars[1].value == pytest.approx(1.255) and not trace_tables(late)[0].bars[1].holds
    cold = [replace(record, warm=False) for record in made]
    assert not any(bar.holds for bar in trace_tables(cold)[0].bars)


def test_novelty_costs_a_window_what_a_full_prefill_costs(engine: Engine, tmp_path: Path) -> None:
    trace = novelty_trace(4, TraceSettings(steps=1, window=4))
    with RecordFile(tmp_path / "records.jsonl", StepRecord) as kept:
        records = run_trace(engine, "reference", trace, kept, SCREEN)
    for full, auto, brought in zip(of(records, FULL), of(records, AUTO), of(records, PROMPTS), strict=True):
        for arm in (auto, brought):
            assert arm.rows + arm.later <= 1.05 * full.rows
            assert arm.kl < 1e-6
    bars = trace_tables(records)[0].bars
    assert [(bar.holds, bar.count) for bar in bars] == [(True, 1)] * 2
    dear = [replace(record, later=0.1 * record.rows) if record.arm == PROMPTS else record for record in records]
    assert [bar.holds for bar in trace_tables(dear)[0].bars] == [True, False]


def test_tables_come_back_as_they_were_kept(tmp_path: Path) -> None:
    table = made_table()
    path = tmp_path / "tables.jsonl"
    with RecordFile(path, TableRecord) as kept:
        kept.add([TableRecord("a", table)])
    with path.open("a") as file:
        file.write('{"key": "b", "table": {"na')
    with RecordFile(path, TableRecord) as again:
        assert again.held == {"a": TableRecord("a", table)}
        again.add([TableRecord("b", table)])
    assert records_in(path, TableRecord).keys() == {"a", "b"}


def test_the_report_holds_every_table_bar_and_picture(run: tuple[Path, tuple[StepRecord, ...]], tmp_path: Path) -> None:
    _, records = run
    tables = (*trace_tables(records), made_table())
    page = write_report([ModelTables("reference", tables)], {"reference": [records]}, {"seed": 2}, tmp_path)
    text = page.read_text()
    for table in tables:
        assert f"### {table.title}" in text and table.note in text
        assert all(f"| {bar.name} |" in text for bar in table.bars)
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == ["reference-agent-agreement.png", "reference-agent-steps.png", "reference-made.png"]
    for name in pictures:
        assert f"]({name})" in text
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 300
    assert "**missed**" in text and "| -2.500 [-4.000, -1.000] |" in text


def test_a_table_without_plots_has_no_picture(tmp_path: Path) -> None:
    assert draw_table(replace(made_table(), plots=()), "reference", tmp_path) is None
    nothing = replace(made_table(), rows=tuple((*row[:3], None, None) for row in made_table().rows))
    assert draw_table(nothing, "reference", tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_cells_in_words() -> None:
    assert cell_text(Interval(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"
    assert cell_text(Interval(0.5, 0.25, 0.75), interval=False) == "0.500"
    assert cell_text(Interval(1.0, 1.0, 1.0)) == "1.000"
    assert cell_text(Share(0.5, 4)) == "0.500 of 4" and cell_text(Share(float("nan"), 0)) == ""
    assert [cell_text(cell) for cell in (None, 1234, 1234.5, 12.34, 0.00012, 0.0, "x")] == [
        "", "1,234", "1,234", "12.3", "0.00012", "0.000", "x",
    ]  # fmt: skip


def test_parts_by_name() -> None:
    assert parts_of(None, PARTS) == PARTS
    assert parts_of(" orbit,agent ", PARTS) == ("agent", "orbit")
    for wrong in ("speed", "", "agent,speed"):
        with pytest.raises(PromptError, match="choose of agent"):
            parts_of(wrong, PARTS)


def made_table() -> Table:
    """A table with everything that one can hold: harm, nothing, words, intervals, shares."""
    rows = tuple(
        (count, setting, method, Interval(-2.5, -4.0, -1.0) if method == "stale" else eta, Share(0.5, count))
        for setting in ("visible", "slid")
        for method, eta in (("stale", None), ("fresh", Interval(0.9, 0.8, 1.0)), ("re-prefill", None))
        for count in (0, 1, 2)
    )
    return Table(
        "made", "A made-up table", "With a note.", ("d", "setting", "method", "eta", "flips restored"), rows,
        (Plot("d", "eta", "method"), Plot("method", "flips restored", bars=True)), (Bar("a bar", None, 0.9),), 1.5,
    )  # fmt: skip
