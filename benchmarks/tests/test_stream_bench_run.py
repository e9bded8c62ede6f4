"""The bench of streams as it runs: records, going on, joining runs, the page and the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.recordfile import records_in
from benchmarks.report import parts_of
from benchmarks.rowfile import read_rows
from benchmarks.stream.passes import PassRecord
from benchmarks.stream.plan import ACCURACY_PARTS, METHODS, AccuracyOptions
from benchmarks.stream.run import PARTS, SYSTEMS, StreamOptions, run_streams
from benchmarks.stream.systems.running import SystemsOptions
from benchmarks.table import Table
from benchmarks.tests.running import benchmarks, refused
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError
from emblema.stream.settings import AblationSettings, StreamSettings

SMALL = {
    "kinds": ("live",),
    "seeds": (1,),
    "items": 2,
    "frames": 20,
    "lengths": (6, 12),
    "budget": 3,
    "budgets": (2, 3),
    "times": 2,
    "each": 1,
    "settings": StreamSettings(window=4, block=4, ablation=AblationSettings(first=4)),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("reference")


def measured(engine: Engine, where: Path, parts: tuple[str, ...] = ("accuracy",), **changes: object) -> list[Table]:
    files = (where / "stream.json", where, changes.pop("others", ()))
    accuracy = AccuracyOptions(**{**SMALL, **changes})  # type: ignore[arg-type]
    where.mkdir(exist_ok=True)
    options = StreamOptions("reference", accuracy, SystemsOptions.quick(), parts, *files)  # type: ignore[arg-type]
    return list(run_streams(engine, options, Console(quiet=True)))


def answers(where: Path) -> dict[tuple[str, int], list[tuple[str, int, bool, int]]]:
    found = list(records_in(where / "stream.records.jsonl", PassRecord).values())
    return {(record.arm, record.item): [(a.kind, a.at, a.right, a.token) for a in record.answers] for record in found}


def test_every_arm_is_asked_the_same_and_what_is_on_record_is_not_asked_again(engine: Engine, tmp_path: Path) -> None:
    tables = measured(engine, tmp_path)
    found = list(records_in(tmp_path / "stream.records.jsonl", PassRecord).values())
    asked = {tuple((a.kind, a.at) for a in record.answers) for record in found if record.item == 0}
    assert len(found) == 2 * len(METHODS) and len(asked) == 1
    assert {at for _, at in asked.pop()} == {10, 20}
    for record in found:
        assert record.encode_cpu > 0 and all(answer.ttft > 0 and answer.cpu > 0 for answer in record.answers)
        assert record.method != "rekv" or all(
            0 < answer.retrieved <= record.budget * len(engine.adapter.layouts) for answer in record.answers
        )
        assert record.method != "sliding" or not any(answer.retrieved for answer in record.answers)
    before = (tmp_path / "stream.records.jsonl").read_bytes()
    again = measured(engine, tmp_path)
    assert (tmp_path / "stream.records.jsonl").read_bytes() == before
    assert [table.rows for table in again] == [table.rows for table in tables]


def test_a_run_that_was_killed_goes_on_and_gives_the_same_answers(engine: Engine, tmp_path: Path) -> None:
    measured(engine, tmp_path)
    whole, path = answers(tmp_path), tmp_path / "stream.records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:40])
    measured(engine, tmp_path)
    assert answers(tmp_path) == whole
    assert path.read_text().splitlines(keepends=True)[:3] == lines[:3]


def test_runs_of_parts_of_the_arms_are_joined(engine: Engine, tmp_path: Path) -> None:
    whole, left, right = (tmp_path / name for name in ("whole", "one", "two"))
    arms = ("mosaic", "rekv", "sliding")
    measured(engine, whole, methods=arms)
    measured(engine, left, methods=("mosaic",))
    measured(engine, right, methods=("sliding", "rekv"))
    joined = tmp_path / "joined"
    tables = measured(engine, joined, methods=arms, others=(left / "stream.json", right / "stream.json"))
    assert (joined / "stream.records.jsonl").read_text() == ""
    assert answers(left) | answers(right) == answers(whole)
    assert {row[1] for row in tables[0].rows} == set(arms)
    with pytest.raises(PromptError, match="no nowhere.records.jsonl"):
        measured(engine, joined, others=(tmp_path / "nowhere.json",))
    (left / "stream.records.jsonl").write_text("nonsense\n")
    with pytest.raises(EmblemaError, match="line 1"):
        measured(engine, joined, others=(left / "stream.json",))


def test_all_parts_of_accuracy_make_a_page_with_their_plots(engine: Engine, tmp_path: Path) -> None:
    few = ("mosaic", "rekv", "full")
    tables = measured(
        engine, tmp_path, ACCURACY_PARTS, items=1, methods=few, ablations=("mosaic-flat", "mosaic-window-only")
    )
    names = [table.name for table in tables]
    assert names == ["search", "accuracy", "question-kinds", "live", "budgets", "lengths", "ablation"]
    page, held = (tmp_path / "stream.md").read_text(), read_rows(tmp_path / "stream.json")
    assert [row["name"] for row in held["rows"]] == names and held["bars"] == []
    assert f"## {tables[0].title}" in page
    for table in tables[1:]:
        picture = tmp_path / f"reference-{table.name}.png"
        assert picture.stat().st_size > 2000 and f"({picture.name})" in page and f"## {table.title}" in page


def test_parts_are_named() -> None:
    assert parts_of(None, PARTS) == (*ACCURACY_PARTS, *SYSTEMS)
    assert parts_of("ablation, accuracy", PARTS) == ("accuracy", "ablation")
    with pytest.raises(PromptError, match="--only 'accuracy,latenci'"):
        parts_of("accuracy,latenci", PARTS)


def test_the_command(tmp_path: Path) -> None:
    options = ["--model", "reference", "--quick", "--only", "accuracy", "--kinds", "movie", "--arms", "mosaic,sliding"]
    done = benchmarks("stream", *options, "--plain", "--report", str(tmp_path / "deep"))
    assert done.returncode == 0, done.stderr
    assert "Accuracy at equal budget" in done.stdout and "report:" in done.stdout
    held = read_rows(tmp_path / "deep" / "stream.json")
    assert {row["method"] for row in held["rows"][0]["rows"]} == {"mosaic", "sliding"}
    assert (tmp_path / "deep" / "stream.md").exists()


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    assert "no arm 'moziac'" in refused("stream", "--arms", "moziac", "--report", str(tmp_path))
