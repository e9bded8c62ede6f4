"""The benchmark of streams: what is compared, when it is asked, and what tables, bars and the page are made of."""

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.figures import read_figures
from benchmarks.recordfile import RecordFile
from benchmarks.stream.passes import MemoryAnswer, PassRecord, key_of
from benchmarks.stream.plan import (
    ABLATIONS,
    ARMS,
    FITS,
    FULL,
    OURS,
    SEARCHED,
    AccuracyOptions,
    StreamId,
    StreamPass,
)
from benchmarks.stream.run import StreamRunOptions, run_streams
from benchmarks.stream.running import SystemsOptions
from benchmarks.stream.tables import accuracy_bars, accuracy_tables, best_baseline, claims, paired
from benchmarks.tasks.streams import QUESTION_KINDS
from benchmarks.tests.running import benchmarks
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.stream.settings import StreamSettings, change_settings

SHARED = StreamSettings()
SMALL = AccuracyOptions(
    kinds=("live",), seeds=(1,), items=2, frames=20, lengths=(6, 12), times=2, each=1,
    settings=StreamSettings(budget=3, window=4, block=4),
)  # fmt: skip


def record(wanted: StreamPass, rights: list[bool]) -> PassRecord:
    """A record with so many answers, of the kinds of question in turn."""
    kinds = zip(cycle(QUESTION_KINDS), rights, strict=False)
    answers = tuple(MemoryAnswer(kind, wanted.stream.frames, right, 0.125) for kind, right in kinds)
    return PassRecord("key", wanted.stream, wanted.arm, 1.0, answers)


def records(arm: str, rights: dict[tuple[int, int], list[bool]]) -> list[PassRecord]:
    """Records of one arm: seed and item to answers."""
    return [record(StreamPass(StreamId("ego", *key, 512), arm), right) for key, right in rights.items()]


def arm_records(rights: dict[str, list[bool]]) -> dict[str, list[PassRecord]]:
    streams = [(seed, item) for seed in (1, 2, 3) for item in range(4)]
    return {arm: records(arm, dict.fromkeys(streams, right)) for arm, right in rights.items()}


def test_arms_are_different_memories_and_full_has_no_end() -> None:
    memories = [(arm.method, repr(arm.settings(SHARED))) for arm in (ARMS[OURS], *ABLATIONS, *SEARCHED)]
    assert len(set(memories)) == len(memories)
    assert ARMS[FULL].settings(replace(SHARED, positions="packed")).positions == "native"


@given(frames=st.integers(1, 5000), times=st.integers(1, 20))
def test_a_stream_is_asked_in_its_second_half_and_at_its_end(frames: int, times: int) -> None:
    found = AccuracyOptions(times=times).times_of(frames)
    assert list(found) == sorted(set(found)) and found[-1] == frames
    assert 1 <= len(found) <= times and 2 * found[0] >= frames


def test_a_part_gives_every_stream_to_every_arm() -> None:
    options = AccuracyOptions(seeds=(1, 2), items=3, others=2, lengths=(8, 2 * FITS))
    passes = options.passes("accuracy")
    assert len(passes) == len(set(passes)) == 3 * 2 * 3 * len(options.methods)
    by_length = options.passes("lengths")
    assert {found.stream.frames for found in by_length if found.arm == FULL} == {8}
    assert {found.stream.frames for found in by_length if found.arm == OURS} == {8, 2 * FITS}
    assert {found.arm for found in options.passes("ablation")} == {OURS, "rekv", *(arm.name for arm in ABLATIONS)}
    assert not {found.stream.seed for found in options.passes("search")} & {1, 2}


def test_a_key_depends_on_all_that_an_answer_depends_on() -> None:
    options, asked = AccuracyOptions(), StreamPass(StreamId("ego", 1, 0, 64), OURS)
    first = key_of("a", asked, options)
    others = [replace(asked, arm="mosaic-paper"), replace(asked, stream=StreamId("ego", 1, 1, 64))]
    changed = {"times": 3}, {"settings": change_settings(SHARED, {"window": 5})}
    keys = {first, key_of("b", asked, options), *(key_of("a", other, options) for other in others)}
    keys |= {key_of("a", asked, replace(options, **change)) for change in changed}  # type: ignore[arg-type]
    assert len(keys) == 6
    assert key_of("a", asked, replace(options, items=9, lengths=(8,))) == first


def test_a_paired_difference_is_of_the_same_streams_and_questions() -> None:
    first = records(OURS, {(1, 0): [True, True], (1, 1): [True, False]})
    second = records("rekv", {(1, 1): [False, False], (1, 0): [True, False], (2, 0): [True]})
    found = paired(first, second)
    assert found is not None and found.value == 0.5 and found.low == found.high == 0.5
    assert paired(first, records("rekv", {(5, 0): [True]})) is None
    with pytest.raises(EmblemaError, match="other questions"):
        paired(first, records("rekv", {(1, 0): [True]}))


def test_bars_are_held_against_the_best_baseline_of_each_kind_and_not_against_full() -> None:
    better = arm_records({OURS: [True] * 4, "rekv": [True] * 3 + [False], "sliding": [False] * 4, FULL: [True] * 4})
    worse = arm_records({OURS: [True] + [False] * 3, "rekv": [False] * 4, "sliding": [True, True, False, False]})
    assert best_baseline(better) == "rekv"
    bars = accuracy_bars({"ego": better, "live": worse})
    assert [(bar.value, bar.holds) for bar in bars] == [(1, False), (0.0, True), (0.0, True)]
    assert accuracy_bars({"ego": better, "movie": better, "live": worse})[0].holds
    equal = accuracy_bars({"ego": arm_records({OURS: [True, False], "rekv": [True, False]})})
    assert [(bar.value, bar.holds) for bar in equal] == [(0, False)]


def test_bars_want_all_kinds_and_methods_long_streams_and_three_seeds() -> None:
    options = AccuracyOptions()
    found = {asked: record(asked, [True, False, asked.arm == OURS, True]) for asked in options.passes("accuracy")}
    table = accuracy_tables(found, options)[0]
    assert len(table.bars) == 7 and all(bar.holds for bar in table.bars) and len(table.rows) == 4 * len(options.methods)
    for less in ({"kinds": ("ego",)}, {"seeds": (1, 2)}, {"frames": 511}, {"methods": (OURS, "rekv")}):
        assert not claims(replace(options, **less))  # type: ignore[arg-type]


@pytest.mark.nightly
def test_a_killed_run_goes_on_and_its_page_has_all_parts(engine: Engine, tmp_path: Path) -> None:
    few = replace(SMALL, methods=(OURS, "rekv", FULL), ablations=("mosaic-paper",))
    parts = ("accuracy", "lengths", "ablation")
    options = StreamRunOptions("reference", few, SystemsOptions.quick(), parts, tmp_path)
    tables = run_streams(engine, options, Console(quiet=True))
    assert [table.name for table in tables] == ["accuracy", "questions", "lengths", "ablation"]
    path = tmp_path / "stream-records.jsonl"
    whole = RecordFile(path, PassRecord).held
    for item in (0, 1):
        own = [record for record in whole.values() if record.stream == StreamId("live", 1, item, 20)]
        assert len({tuple((a.kind, a.at) for a in record.answers) for record in own}) == 1
        assert {a.at for record in own for a in record.answers} == {10, 20}
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:40])
    run_streams(engine, replace(options, beside=tmp_path / "stream.json"), Console(quiet=True))
    assert path.read_text().splitlines(keepends=True)[:-1] == lines[:-1]
    first, again = ({key: [a.right for a in found.answers] for key, found in held.items()}
                    for held in (whole, RecordFile(path, PassRecord).held))  # fmt: skip
    assert first == again
    page = (tmp_path / "stream.md").read_text()
    assert (tmp_path / "stream-accuracy.png").is_file() and "other seeds" in page and "lead, 12" in page
    with pytest.raises(EmblemaError, match="nothing.json: it cannot be read"):
        run_streams(engine, replace(options, beside=tmp_path / "nothing.json"), Console(quiet=True))


@pytest.mark.nightly
def test_the_command(tmp_path: Path) -> None:
    options = ("--model", "reference", "--quick", "--kinds", "movie", "--plain")
    done = benchmarks("stream", *options, "--report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    tables = read_figures(tmp_path / "stream.json")["tables"]
    assert set(tables) >= {"accuracy", "growth", "long", "bytes"}
    assert (tmp_path / "stream.md").exists()
