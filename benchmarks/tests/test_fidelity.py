"""A fidelity run: rows whose figures can be worked out, runs that go on, and refusals."""

import math
import wave
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.fidelity.measure import FidelityRecord, FidelityRun, items_of
from benchmarks.fidelity.run import run, wanted_of
from benchmarks.fidelity.summary import POOLED, rows_of
from benchmarks.models import model_source
from benchmarks.recordfile import RecordFile
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem
from benchmarks.tasks.registry import TASKS, GeneratedTask
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError

QUIET = Console(quiet=True)
NAMES = ("full", "blind", "patch-25%", "basis-8", "patch@25%", "mpic@25%")
DONE = ("two-page", "album-binding")
WANTED = wanted_of(NAMES, "both", 2, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fidelity")


@pytest.fixture(scope="module")
def found(engine: Engine, folder: Path) -> dict[str, Any]:
    return run(["reference"], list(DONE), WANTED, lambda name: engine, folder / "f.json", QUIET)


def row(found: dict[str, Any], *key: str) -> dict[str, Any]:
    return next(one for one in found["rows"] if (one["task"], one["setting"], one["strategy"]) == key)


def record(strategy: str, item: str, answers: list[int], losses: list[float]) -> FidelityRecord:
    count = len(answers)
    return FidelityRecord(
        f"{strategy} {item}", "m", "t", "slid", strategy, item, item, (False,) * (count - 1) + (True,),
        tuple((one,) for one in answers), tuple(one == 1 for one in answers), tuple(losses), 0.25, 0.5,
    )  # fmt: skip


def test_every_task_setting_and_strategy_has_a_row_and_patches_restore_what_blind_reuse_loses(
    found: dict[str, Any],
) -> None:
    expected = set(product((*DONE, POOLED), ("visible", "slid"), NAMES))
    assert {(one["task"], one["setting"], one["strategy"]) for one in found["rows"]} == expected
    assert row(found, POOLED, "slid", "blind")["n"] == sum(row(found, task, "slid", "blind")["n"] for task in DONE)
    full, blind, patch = (row(found, "two-page", "slid", name) for name in NAMES[:3])
    assert (full["kl"], full["agreement"], blind["eta"]) == (0, 1, 0)
    assert blind["multi_hop_accuracy"] < full["multi_hop_accuracy"] - 0.3
    assert blind["single_hop_accuracy"] == full["single_hop_accuracy"]
    assert patch["eta"] > 0.9 and patch["flip_recovery"] > 0.9 and patch["flips"] > 0
    assert row(found, "two-page", "slid", "patch@25%")["eta"] == patch["eta"]


def test_rows_by_hand() -> None:
    records = [
        record("full", "a", [1, 1], [0, 0]), record("blind", "a", [1, 2], [0, 4]), record("m", "a", [1, 1], [0, 1]),
        record("full", "b", [1, 3], [0, 0]), record("blind", "b", [2, 2], [2, 2]), record("m", "b", [2, 3], [1, 1]),
        record("full", "c", [1, 1], [0, 0]),
    ]  # fmt: skip
    found = {one["strategy"]: one for one in rows_of(records)}
    own = found["m"]
    assert {name: own[name] for name in ("n", "items", "flips")} == {"n": 4, "items": 2, "flips": 3}
    assert [own[name] for name in ("eta", "flip_recovery", "agreement")] == pytest.approx([5 / 8, 2 / 3, 3 / 4])
    assert (own["single_hop_accuracy"], own["multi_hop_accuracy"]) == (0.5, 0.5)
    assert (own["kv_bytes_share"], own["rows_computed_share"], found["full"]["agreement"]) == (0.25, 0.5, 1)


@pytest.mark.nightly
def test_a_killed_run_goes_on_and_what_is_on_record_is_not_done_again(
    engine: Engine, found: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    whole = (folder / "f.records.jsonl").read_text().splitlines(keepends=True)
    kept = 2 * len(whole) // 3
    (tmp_path / "f.jsonl").write_text("".join(whole[:kept]) + whole[kept][:40])
    with RecordFile(tmp_path / "f.jsonl", FidelityRecord) as records:
        bench = FidelityRun(engine, "reference", WANTED, records)
        bench.run(items_of(DONE), QUIET)
        again = rows_of([records.held[key] for key in bench.made])
        assert bench.done == len(whole) - kept
        for one, other in zip(found["rows"], again, strict=True):
            assert one["strategy"] == other["strategy"]
            assert one["kl"] == pytest.approx(other["kl"], abs=1e-6)
            recovery = other["flip_recovery"]
            assert one["flip_recovery"] == (None if math.isnan(recovery) else pytest.approx(recovery))
        for items, seed, made in ((2, 4, 0), (1, 5, 4)):
            bench = FidelityRun(engine, "reference", wanted_of(NAMES[:4], "slid", items, seed), records)
            bench.run(items_of(["two-page"]), QUIET)
            assert bench.done == made and len(bench.made) == 4 * items


@pytest.mark.parametrize("line", ["something else", "[]", '{"key": 1}', '{"key": "a", "answers": [[1]]}'])
def test_a_records_file_that_holds_something_else_is_refused_by_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "taken").write_text(f"{line}\n")
    with pytest.raises(EmblemaError, match="taken, line 1"):
        RecordFile(tmp_path / "taken", FidelityRecord)
    with pytest.raises(EmblemaError, match="cannot be written"):
        RecordFile(tmp_path / "taken" / "records", FidelityRecord)


def test_bundled_names_are_folders_and_others_stay() -> None:
    assert Path(model_source("reference")).is_dir()
    assert [model_source(name) for name in ("owner/name", "/some/folder")] == ["owner/name", "/some/folder"]
    with pytest.raises(EmblemaError, match="make reference MODEL=reference-mha"):
        model_source("reference-mha")


def test_a_task_of_media_that_the_model_does_not_take_is_left_out_and_said(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = wanted_of(["patch-25%"], "slid", 1, 1)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(32_000))
    sound = Media("audio", tmp_path / "a.wav", 1.0)
    heard = TaskItem("i", "heard", "emblema", (sound,), (ItemQuestion("q", ("what ?",), "tent"),))
    monkeypatch.setitem(TASKS, "heard", GeneratedTask("heard", "emblema", lambda draw: heard))

    given = (wanted, lambda name: engine, tmp_path / "f.json", QUIET)
    found = run(["reference"], ["two-page", "heard"], *given)
    assert {row["task"] for row in found["rows"]} == {"two-page"}
    assert found["refused"] == {
        "reference: heard": "Qwen2.5-VL takes no audio: `emblema models` lists the families that do."
    }
    with pytest.raises(PromptError, match="nothing was measured: Qwen2.5-VL takes no audio"):
        run(["reference"], ["heard"], *given)
