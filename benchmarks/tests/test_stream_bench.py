"""The bench of streams: what is compared, when it is asked, and what figures and bars are made of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.recordfile import RecordFile, TableRecord, records_in
from benchmarks.stream import run
from benchmarks.stream.passes import MemoryAnswer, PassRecord, key_of
from benchmarks.stream.plan import (
    ABLATIONS,
    ACCURACY_PARTS,
    ARMS,
    BASELINES,
    FITS,
    FULL,
    METHODS,
    OURS,
    SEARCHED,
    AccuracyOptions,
    StreamArm,
    StreamId,
    StreamPass,
    arms_named,
)
from benchmarks.stream.tables import (
    ablation_table,
    accuracy,
    accuracy_bars,
    accuracy_tables,
    best_baseline,
    budget_table,
    claims,
    counted,
    length_table,
    median_ms,
    paired,
    questions,
    search_table,
)
from benchmarks.tasks.streams import QUESTION_KINDS
from emblema.errors import EmblemaError, PromptError, StreamError
from emblema.stream.settings import StreamSettings, change_settings

SHARED = StreamSettings()


def record(wanted: StreamPass, rights: list[bool]) -> PassRecord:
    """A record with so many answers, of the kinds of question in turn."""
    place = wanted.stream
    answers = tuple(
        MemoryAnswer(QUESTION_KINDS[number % len(QUESTION_KINDS)], place.frames, right, 5, 0.25, 0.125, 3)
        for number, right in enumerate(rights)
    )
    about = (place.kind, place.seed, place.item, place.frames, wanted.arm, wanted.arm, wanted.budget)
    counts = {"semantic_cuts": 3.0, "visual_cuts": 1.0, "clusters": 20.0} if wanted.arm.startswith(OURS) else {}
    return PassRecord("key", "model", *about, 2.0, 1.0, counts, {"index": 8}, {"rows": 9}, answers)


def records(arm: str, rights: dict[tuple[int, int], list[bool]], kind: str = "ego") -> list[PassRecord]:
    """Records of one arm: seed and item to answers."""
    return [
        record(StreamPass(StreamId(kind, seed, item, 512), arm, 64), right) for (seed, item), right in rights.items()
    ]


def test_an_arm_that_is_a_default_is_the_same_and_shares_its_records() -> None:
    ours = ARMS[OURS].identity(SHARED, 8)
    assert StreamArm("spelled-out", OURS, {"parts": SHARED.ablation.parts}).identity(SHARED, 8) == ours
    assert all(arm.identity(SHARED, 8) != ours for arm in ABLATIONS)


def test_baselines_do_not_depend_on_mosaics_settings_and_full_not_on_the_budget() -> None:
    tuned = change_settings(SHARED, {"tau_large": 0.5, "breadth": 3.0})
    for name in BASELINES:
        arm = ARMS[name]
        assert arm.identity(SHARED, 8) == arm.identity(tuned, 8)
        assert arm.identity(SHARED, 8) != arm.identity(SHARED, 16)
        assert arm.identity(SHARED, 8) != arm.identity(replace(SHARED, window=4), 8)
    assert ARMS[OURS].identity(SHARED, 8) != ARMS[OURS].identity(tuned, 8)
    full = ARMS[FULL]
    assert full.identity(SHARED, 8) == full.identity(SHARED, 16)
    assert full.settings(replace(SHARED, positions="packed"), 8).positions == "native"


def test_every_ablation_changes_what_it_says() -> None:
    for arm in ABLATIONS:
        settings = arm.settings(SHARED, 8)
        assert arm.changes and arm.changes.items() <= settings.flat().items()
    assert ARMS["mosaic-flat"].settings(SHARED, 8).ablation.threshold(2) < 1e-6
    with pytest.raises(PromptError, match="no arm 'moziac'"):
        arms_named((OURS, "moziac"))


@given(frames=st.integers(1, 5000), times=st.integers(1, 20))
def test_a_stream_is_asked_in_its_second_half_and_at_its_end(frames: int, times: int) -> None:
    found = AccuracyOptions(times=times).times_of(frames)
    assert list(found) == sorted(set(found)) and found[-1] == frames
    assert 1 <= len(found) <= times
    assert 2 * found[0] >= frames


def test_a_part_gives_every_stream_to_every_arm() -> None:
    options = AccuracyOptions(seeds=(1, 2), items=3, others=2, lengths=(8, 2 * FITS), budgets=(4, 8))
    passes = options.passes("accuracy")
    assert len(passes) == len(set(passes)) == 3 * 2 * 3 * len(METHODS)
    assert len(options.passes("budgets")) == 3 * 2 * 2 * 2 * 2
    by_length = options.passes("lengths")
    assert {found.stream.frames for found in by_length if found.arm == FULL} == {8}
    assert {found.stream.frames for found in by_length if found.arm == OURS} == {8, 2 * FITS}
    assert {found.arm for found in options.passes("ablation")} == {
        *(OURS, "rekv", "rekv-attention", "rekv-orders"),
        *(arm.name for arm in ABLATIONS),
    }


def test_a_key_depends_on_all_that_an_answer_depends_on() -> None:
    options, asked = AccuracyOptions(), StreamPass(StreamId("ego", 1, 0, 64), OURS, 8)
    keys = {
        key_of("a", asked, options),
        key_of("b", asked, options),
        key_of("a", replace(asked, budget=4), options),
        key_of("a", replace(asked, stream=StreamId("ego", 1, 1, 64)), options),
        key_of("a", asked, replace(options, times=3)),
        key_of("a", asked, replace(options, each=1)),
        key_of("a", asked, replace(options, settings=change_settings(SHARED, {"tau_large": 0.7}))),
    }
    assert len(keys) == 7
    assert key_of("a", asked, replace(options, items=9, lengths=(8,))) == key_of("a", asked, options)


def test_a_paired_difference_is_of_the_same_streams_and_questions() -> None:
    first = records(OURS, {(1, 0): [True, True], (1, 1): [True, False]})
    second = records("rekv", {(1, 1): [False, False], (1, 0): [True, False], (2, 0): [True]})
    found = paired(first, second)
    assert found is not None and found.value == 0.5 and found.low == found.high == 0.5
    assert paired(first, records("rekv", {(5, 0): [True]})) is None
    with pytest.raises(EmblemaError, match="other questions"):
        paired(first, records("rekv", {(1, 0): [True]}))


def test_figures_are_those_of_the_records() -> None:
    found = records(OURS, {(1, 0): [True, True], (1, 1): [True, False]})
    whole = accuracy(found)
    assert whole is not None and whole.value == 0.75 and whole.low < 0.75 < whole.high
    assert accuracy(found, "recent").value == 1.0 and accuracy(found, "far").value == 0.5  # type: ignore[union-attr]
    assert accuracy(found, "counted") is None and questions(found, "far") == 2
    assert median_ms(found) == 250 and median_ms(found, cpu=True) == 125
    assert counted(found, "semantic_cuts", "visual_cuts") == 4
    assert counted(records("rekv", {(1, 0): [True]}), "clusters") is None


STREAMS = [(seed, item) for seed in (1, 2, 3) for item in range(4)]


def arm_records(rights: dict[str, list[bool]]) -> dict[str, list[PassRecord]]:
    return {arm: records(arm, dict.fromkeys(STREAMS, right)) for arm, right in rights.items()}


def test_bars_are_held_against_the_best_baseline_of_each_kind_and_not_against_full() -> None:
    better = {OURS: [True] * 4, "rekv": [True, True, True, False], "sliding": [False] * 4, FULL: [True] * 4}
    worse = {OURS: [True, False, False, False], "rekv": [False] * 4, "sliding": [True, True, False, False]}
    found = arm_records(better)
    assert best_baseline(found) == "rekv"
    bars = accuracy_bars({"ego": found, "live": arm_records(worse)})
    assert [(bar.value, bar.holds) for bar in bars] == [(1, False), (0.0, True), (0.0, True)]
    assert bars[2].count < bars[1].count
    assert "over rekv" in bars[0].name and "over sliding" in bars[0].name
    assert accuracy_bars({"ego": found, "movie": found, "live": arm_records(worse)})[0].holds


def test_as_good_as_the_best_baseline_everywhere_is_not_above_it() -> None:
    bars = accuracy_bars({"ego": arm_records({OURS: [True, False], "rekv": [True, False]})})
    assert [(bar.value, bar.holds) for bar in bars] == [(0, False)]


def test_bars_want_all_kinds_and_methods_long_streams_and_three_seeds() -> None:
    assert claims(AccuracyOptions())
    for less in ({"kinds": ("ego",)}, {"seeds": (1, 2)}, {"frames": 511}, {"methods": (OURS, "rekv")}):
        assert not claims(replace(AccuracyOptions(), **less))  # type: ignore[arg-type]


def results(options: AccuracyOptions, part: str) -> dict[StreamPass, PassRecord]:
    return {asked: record(asked, [True, False, True, asked.arm == OURS, True]) for asked in options.passes(part)}


def test_tables_have_a_row_for_every_arm_and_their_plots_their_columns() -> None:
    options = AccuracyOptions(others=1)
    tables = [
        search_table(results(options, "search"), options),
        *accuracy_tables(results(options, "accuracy"), options),
        budget_table(results(options, "budgets"), options),
        length_table(results(options, "lengths"), options),
        ablation_table(results(options, "ablation"), options),
    ]
    rows = {table.name: len(table.rows) for table in tables}
    assert rows["accuracy"] == 4 * len(METHODS) and rows["question-kinds"] == len(QUESTION_KINDS) * len(METHODS)
    assert rows["table-three"] == 4 and rows["live"] == len(METHODS)
    assert rows["budgets"] == 4 * len(options.budgets) * 2
    assert rows["lengths"] == 4 * len(options.lengths) * len(METHODS)
    assert rows["ablation"] == 4 + len(ABLATIONS) and rows["search"] == len(SEARCHED)
    for table in tables:
        for plot in table.plots:
            named = {plot.x, plot.y, plot.by or plot.x, plot.split or plot.x, plot.only[0] if plot.only else plot.x}
            assert named <= set(table.columns)
    bars = tables[1].bars
    assert len(bars) == 7 and all(bar.holds for bar in bars)
    assert not accuracy_tables(results(options, "accuracy"), replace(options, seeds=(1,)))[0].bars


def test_a_run_of_few_arms_and_one_kind_has_its_tables() -> None:
    options = AccuracyOptions(kinds=("live",), methods=("rekv",), ablations=("mosaic-eager",), seeds=(1,))
    for part in ACCURACY_PARTS:
        found = results(options, part)
        assert {ARMS[asked.arm].method for asked in found} <= {"rekv", "mosaic"}
    names = [table.name for table in accuracy_tables(results(options, "accuracy"), options)]
    assert names == ["accuracy", "question-kinds"]
    assert len(ablation_table(results(options, "ablation"), options).rows) == 2


def test_a_table_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    options = AccuracyOptions(others=1)
    table = length_table(results(options, "lengths"), options)
    with RecordFile(tmp_path / "tables.jsonl", TableRecord) as kept:
        kept.add([TableRecord("key", table)])
    assert records_in(tmp_path / "tables.jsonl", TableRecord) == {"key": TableRecord("key", table)}
    assert any(plot.only and plot.doubling for plot in table.plots)


def test_options() -> None:
    assert run.seeds_of("2") == (201, 202) and run.seeds_of("9,4") == (4, 9)
    assert run.arms_of("rekv,mosaic,mosaic-eager") == ((OURS, "rekv"), ("mosaic-eager",))
    assert run.arms_of(None)[0] == METHODS
    settings = run.settings_of(4, None, "packed", ["tau_large=0.5", "splitting=eager", "prefetch=None"])
    assert (settings.window, settings.positions, settings.ablation.splitting) == (4, "packed", "eager")
    assert settings.ablation.tau_large == 0.5 and settings.ablation.prefetch is None and settings.block == SHARED.block
    with pytest.raises(PromptError, match="--lengths '8,x'"):
        run.numbers_of("8,x", "--lengths")
    with pytest.raises(PromptError, match="name=value"):
        run.settings_of(None, None, None, ["window"])
    with pytest.raises(StreamError, match="no setting 'widow'"):
        run.settings_of(None, None, None, ["widow=4"])
    with pytest.raises(PromptError, match="unknown kind of stream 'soap'"):
        AccuracyOptions(kinds=("soap",))
    with pytest.raises(PromptError, match="1 or more"):
        AccuracyOptions(lengths=(0,))
