"""The benchmark of streams: what is compared, when it is asked, and what tables, bars and the page are made of."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.figures import read_figures
from benchmarks.recordfile import records_in
from benchmarks.stream.page import write_page
from benchmarks.stream.passes import MemoryAnswer, PassRecord, key_of
from benchmarks.stream.plan import (
    ABLATIONS,
    ARMS,
    BASELINES,
    FITS,
    FULL,
    METHODS,
    OURS,
    AccuracyOptions,
    StreamId,
    StreamPass,
)
from benchmarks.stream.run import StreamOptions, arms_of, numbers_of, run_streams
from benchmarks.stream.running import SystemsOptions
from benchmarks.stream.tables import accuracy_bars, accuracy_tables, best_baseline, claims, paired
from benchmarks.tasks.streams import QUESTION_KINDS
from benchmarks.tests.running import benchmarks, refused
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError
from emblema.stream.settings import AblationSettings, StreamSettings, change_settings

SHARED = StreamSettings()
RESULTS = Path(__file__).parents[2] / "docs" / "results"
SMALL = AccuracyOptions(
    kinds=("live",), seeds=(1,), items=2, frames=20, lengths=(6, 12), budget=3, times=2, each=1,
    settings=StreamSettings(window=4, block=4, ablation=AblationSettings(first=4)),
)  # fmt: skip


def record(wanted: StreamPass, rights: list[bool]) -> PassRecord:
    """A record with so many answers, of the kinds of question in turn."""
    place = wanted.stream
    answers = tuple(
        MemoryAnswer(QUESTION_KINDS[number % len(QUESTION_KINDS)], place.frames, right, 5, 0.25, 0.125, 3)
        for number, right in enumerate(rights)
    )
    about = (place.kind, place.seed, place.item, place.frames, wanted.arm, wanted.arm, wanted.budget)
    return PassRecord("key", "model", *about, 2.0, 1.0, {}, {"index": 8}, {"rows": 9}, answers)


def records(arm: str, rights: dict[tuple[int, int], list[bool]]) -> list[PassRecord]:
    """Records of one arm: seed and item to answers."""
    return [record(StreamPass(StreamId("ego", *key, 512), arm, 64), right) for key, right in rights.items()]


def arm_records(rights: dict[str, list[bool]]) -> dict[str, list[PassRecord]]:
    streams = [(seed, item) for seed in (1, 2, 3) for item in range(4)]
    return {arm: records(arm, dict.fromkeys(streams, right)) for arm, right in rights.items()}


def test_baselines_do_not_depend_on_mosaics_settings_and_full_not_on_the_budget() -> None:
    tuned = change_settings(SHARED, {"tau_large": 0.5, "breadth": 3.0})
    for name in BASELINES:
        arm = ARMS[name]
        assert arm.identity(SHARED, 8) == arm.identity(tuned, 8) != arm.identity(SHARED, 16)
        assert arm.identity(SHARED, 8) != arm.identity(replace(SHARED, window=4), 8)
    assert ARMS[FULL].identity(SHARED, 8) == ARMS[FULL].identity(SHARED, 16)
    assert ARMS[FULL].settings(replace(SHARED, positions="packed"), 8).positions == "native"
    ours = ARMS[OURS].identity(SHARED, 8)
    assert ours != ARMS[OURS].identity(tuned, 8) and all(arm.identity(SHARED, 8) != ours for arm in ABLATIONS)


@given(frames=st.integers(1, 5000), times=st.integers(1, 20))
def test_a_stream_is_asked_in_its_second_half_and_at_its_end(frames: int, times: int) -> None:
    found = AccuracyOptions(times=times).times_of(frames)
    assert list(found) == sorted(set(found)) and found[-1] == frames
    assert 1 <= len(found) <= times and 2 * found[0] >= frames


def test_a_part_gives_every_stream_to_every_arm() -> None:
    options = AccuracyOptions(seeds=(1, 2), items=3, others=2, lengths=(8, 2 * FITS))
    passes = options.passes("accuracy")
    assert len(passes) == len(set(passes)) == 3 * 2 * 3 * len(METHODS)
    by_length = options.passes("lengths")
    assert {found.stream.frames for found in by_length if found.arm == FULL} == {8}
    assert {found.stream.frames for found in by_length if found.arm == OURS} == {8, 2 * FITS}
    rekv = {"rekv", "rekv-attention", "rekv-orders"}
    assert {found.arm for found in options.passes("ablation")} == {OURS, *rekv, *(arm.name for arm in ABLATIONS)}
    assert not {found.stream.seed for found in options.passes("search")} & {1, 2}


def test_a_key_depends_on_all_that_an_answer_depends_on() -> None:
    options, asked = AccuracyOptions(), StreamPass(StreamId("ego", 1, 0, 64), OURS, 8)
    keys = {
        key_of("a", asked, options),
        key_of("b", asked, options),
        key_of("a", replace(asked, budget=4), options),
        key_of("a", replace(asked, stream=StreamId("ego", 1, 1, 64)), options),
        key_of("a", asked, replace(options, times=3)),
        key_of("a", asked, replace(options, settings=change_settings(SHARED, {"tau_large": 0.7}))),
    }
    assert len(keys) == 6
    assert key_of("a", asked, replace(options, items=9, lengths=(8,))) == key_of("a", asked, options)


def test_a_paired_difference_is_of_the_same_streams_and_questions() -> None:
    first = records(OURS, {(1, 0): [True, True], (1, 1): [True, False]})
    second = records("rekv", {(1, 1): [False, False], (1, 0): [True, False], (2, 0): [True]})
    found = paired(first, second)
    assert found is not None and found.value == 0.5 and found.low == found.high == 0.5
    assert paired(first, records("rekv", {(5, 0): [True]})) is None
    with pytest.raises(EmblemaError, match="other questions"):
        paired(first, records("rekv", {(1, 0): [True]}))


def test_bars_are_held_against_the_best_baseline_of_each_kind_and_not_against_full() -> None:
    better = {OURS: [True] * 4, "rekv": [True, True, True, False], "sliding": [False] * 4, FULL: [True] * 4}
    worse = {OURS: [True, False, False, False], "rekv": [False] * 4, "sliding": [True, True, False, False]}
    found = arm_records(better)
    assert best_baseline(found) == "rekv"
    bars = accuracy_bars({"ego": found, "live": arm_records(worse)})
    assert [(bar.value, bar.holds) for bar in bars] == [(1, False), (0.0, True), (0.0, True)]
    assert accuracy_bars({"ego": found, "movie": found, "live": arm_records(worse)})[0].holds
    equal = accuracy_bars({"ego": arm_records({OURS: [True, False], "rekv": [True, False]})})
    assert [(bar.value, bar.holds) for bar in equal] == [(0, False)]


def test_bars_want_all_kinds_and_methods_long_streams_and_three_seeds() -> None:
    options = AccuracyOptions()
    found = {asked: record(asked, [True, False, asked.arm == OURS, True]) for asked in options.passes("accuracy")}
    table = accuracy_tables(found, options)[0]
    assert len(table.bars) == 7 and all(bar.holds for bar in table.bars) and len(table.rows) == 4 * len(METHODS)
    for less in ({"kinds": ("ego",)}, {"seeds": (1, 2)}, {"frames": 511}, {"methods": (OURS, "rekv")}):
        assert not claims(replace(options, **less))  # type: ignore[arg-type]


def test_options() -> None:
    assert arms_of("rekv,mosaic,mosaic-eager") == ((OURS, "rekv"), ("mosaic-eager",)) and arms_of(None)[0] == METHODS
    assert numbers_of("9,4", "--seeds") == (4, 9)
    with pytest.raises(PromptError, match="--lengths '8,x'"):
        numbers_of("8,x", "--lengths")
    with pytest.raises(PromptError, match="unknown kind of stream 'soap'"):
        AccuracyOptions(kinds=("soap",))
    assert "no arm 'moziac'" in refused("stream", "--arms", "moziac")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("reference")


def answers(where: Path) -> dict[tuple[str, int], list[tuple[str, int, bool, int]]]:
    found = list(records_in(where / "stream-records.jsonl", PassRecord).values())
    return {(record.arm, record.item): [(a.kind, a.at, a.right, a.token) for a in record.answers] for record in found}


def test_a_killed_run_goes_on_and_its_page_has_all_parts(engine: Engine, tmp_path: Path) -> None:
    few = replace(SMALL, methods=(OURS, "rekv", FULL), ablations=("mosaic-flat",))
    parts = ("search", "accuracy", "lengths", "ablation")
    options = StreamOptions("reference", few, SystemsOptions.quick(), parts, tmp_path)
    tables = run_streams(engine, options, Console(quiet=True))
    assert [table.name for table in tables] == ["search", "accuracy", "questions", "lengths", "ablation"]
    whole, path = answers(tmp_path), tmp_path / "stream-records.jsonl"
    found = records_in(path, PassRecord).values()
    for item in (0, 1):
        own = [record for record in found if (record.seed, record.item, record.frames) == (1, item, 20)]
        assert len({tuple((a.kind, a.at) for a in record.answers) for record in own}) == 1
        assert {a.at for record in own for a in record.answers} == {10, 20}
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:40])
    run_streams(engine, replace(options, beside=tmp_path / "stream.json"), Console(quiet=True))
    assert answers(tmp_path) == whole and path.read_text().splitlines(keepends=True)[:3] == lines[:3]
    page = (tmp_path / "stream.md").read_text()
    assert "(stream-accuracy.png)" in page and "other seeds" in page and "lead, 12" in page
    with pytest.raises(PromptError, match="--beside"):
        run_streams(engine, replace(options, beside=tmp_path / "nothing.json"), Console(quiet=True))


def test_the_committed_page_is_what_its_figures_make(tmp_path: Path) -> None:
    figures = read_figures(RESULTS / "stream.json")
    assert write_page(figures, tmp_path).read_text() == (RESULTS / "stream.md").read_text()
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(
        path.name for path in RESULTS.glob("stream-*.png")
    )
    missed = [bar["name"] for bar in figures["bars"] if not bar["holds"]]
    assert missed == [f"{kind}, 1,024 frames: lead over full attention" for kind in ("ego", "movie", "live")]


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    options = ("--model", "reference", "--quick", "--kinds", "movie", "--plain")
    done = benchmarks("stream", *options, "--report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    tables = read_figures(tmp_path / "stream.json")["tables"]
    assert set(tables) >= {"accuracy", "growth", "long", "drawn", "still", "bytes"}
    assert (tmp_path / "stream.md").exists()
