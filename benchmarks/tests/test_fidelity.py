"""A fidelity run: rows whose figures can be worked out, runs that go on, files for people, and refusals."""

import math
import wave
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from benchmarks.fidelity.measure import FidelityRecord, FidelityRun, items_of
from benchmarks.fidelity.plots import draw_budgets, draw_ranks, draw_residuals
from benchmarks.fidelity.report import run, wanted_of
from benchmarks.fidelity.results import FIGURES_FILE, read_run
from benchmarks.fidelity.summary import POOLED, rows_of
from benchmarks.figures import read_figures
from benchmarks.models import model_source
from benchmarks.recordfile import RecordFile
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem
from benchmarks.tasks.judge import Judge
from benchmarks.tasks.registry import TASKS, GeneratedTask
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError, StrategyError

QUIET = Console(quiet=True)
NAMES = (
    "full",
    "blind",
    "patch-25%",
    "patch-2",
    "patch-8",
    "basis-8",
    "patch@25%",
    "mpic@25%",
    "patch@6%",
    "patch@50%",
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("reference")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fidelity")


@pytest.fixture(scope="module")
def found(engine: Engine, folder: Path) -> dict[str, Any]:
    wanted = wanted_of(NAMES, "both", 3, 4)
    return run(
        ["reference"], ["two-page", "album-binding"], wanted, lambda name: engine, folder / "f.json", folder, QUIET
    )


def row(found: dict[str, Any], task: str, setting: str, strategy: str) -> dict[str, Any]:
    return next(
        one for one in found["rows"] if (one["task"], one["setting"], one["strategy"]) == (task, setting, strategy)
    )


def record(strategy: str, item: str, answers: list[int], losses: list[float], **more: Any) -> FidelityRecord:
    count = len(answers)
    made = FidelityRecord(
        f"{strategy} {item}", "m", "t", "slid", strategy, item, item, (False,) * (count - 1) + (True,),
        tuple((one,) for one in answers), tuple(one == 1 for one in answers), tuple(losses), 0.25, 0.5,
    )  # fmt: skip
    return replace(made, **more)


def test_every_task_setting_and_strategy_has_a_row_and_so_have_all_tasks_together(found: dict[str, Any]) -> None:
    expected = {(task, setting, name) for task in ("two-page", "album-binding", POOLED) for setting in
                ("visible", "slid") for name in NAMES}  # fmt: skip
    assert {(one["task"], one["setting"], one["strategy"]) for one in found["rows"]} == expected
    both = row(found, POOLED, "slid", "blind")["n"]
    assert both == sum(row(found, task, "slid", "blind")["n"] for task in ("two-page", "album-binding"))


def test_figures_have_the_fields_that_are_promised(found: dict[str, Any]) -> None:
    names = {"model", "task", "setting", "strategy", "n", "single_hop_accuracy", "multi_hop_accuracy", "kl", "eta",
             "eta_median", "flip_recovery", "flips", "agreement", "kv_bytes_share", "rows_computed_share"}  # fmt: skip
    for one in found["rows"]:
        assert names <= one.keys()
        for name, (low, high) in one["intervals"].items():
            if one[name] is not None:
                assert low <= one[name] + 1e-12 and one[name] <= high + 1e-12, (one["strategy"], name)


def test_a_patch_restores_what_blind_reuse_loses(found: dict[str, Any]) -> None:
    full, blind, patch = (row(found, "two-page", "slid", name) for name in ("full", "blind", "patch-25%"))
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
    by_name = {one["strategy"]: one for one in rows_of(records)}
    own = by_name["m"]
    assert (own["n"], own["items"], own["flips"]) == (4, 2, 3)
    assert own["eta"] == pytest.approx(1 - 3 / 8)
    assert own["eta_median"] == pytest.approx(np.median([0.75, 0.5, 0.5]))
    assert own["flip_recovery"] == pytest.approx(2 / 3)
    assert own["agreement"] == pytest.approx(3 / 4)
    assert (own["single_hop_accuracy"], own["multi_hop_accuracy"]) == (0.5, 0.5)
    assert (own["kv_bytes_share"], own["rows_computed_share"]) == (0.25, 0.5)
    assert by_name["full"]["agreement"] == 1


def test_the_distance_to_the_patch_is_paired() -> None:
    records = [
        record(name, item, [1, 1], losses)
        for item, factor in (("a", 1.0), ("b", 10.0))
        for name, losses in (
            ("full", [0.0, 0.0]), ("blind", [factor, factor]), ("patch@6%", [0.1 * factor] * 2),
            ("mpic@6%", [0.4 * factor] * 2),
        )
    ]  # fmt: skip
    own = next(one for one in rows_of(records) if one["strategy"] == "mpic@6%")
    assert own["eta_below_patch"] == pytest.approx(0.3)
    assert own["intervals"]["eta_below_patch"] == pytest.approx([0.3, 0.3])


def test_a_killed_run_goes_on_and_ends_as_a_whole_one(engine: Engine, found: dict[str, Any], folder: Path) -> None:
    whole = (folder / "f.records.jsonl").read_text().splitlines(keepends=True)
    killed = folder / "killed"
    killed.mkdir()
    kept = 2 * len(whole) // 3
    (killed / "f.records.jsonl").write_text("".join(whole[:kept]) + whole[kept][:40])
    wanted = wanted_of(NAMES, "both", 3, 4)
    with RecordFile(killed / "f.records.jsonl", FidelityRecord) as records:
        bench = FidelityRun(engine, "reference", wanted, records)
        bench.run(items_of(["two-page", "album-binding"]), QUIET)
        again = rows_of([records.held[key] for key in bench.made])
    assert bench.done == len(whole) - kept
    for one, other in zip(found["rows"], again, strict=True):
        assert one["strategy"] == other["strategy"]
        assert one["kl"] == pytest.approx(other["kl"], abs=1e-6)
        assert one["flip_recovery"] == other["flip_recovery"] or math.isnan(other["flip_recovery"])


def test_what_is_on_record_is_not_done_again(engine: Engine, folder: Path, found: dict[str, Any]) -> None:
    wanted = wanted_of(NAMES[:4], "slid", 2, 4)
    with RecordFile(folder / "f.records.jsonl", FidelityRecord) as records:
        bench = FidelityRun(engine, "reference", wanted, records)
        bench.run(items_of(["two-page"]), QUIET)
        assert bench.done == 0 and len(bench.made) == 8
        other = FidelityRun(engine, "reference", wanted_of(NAMES[:4], "slid", 1, 5), records)
        other.run(items_of(["two-page"]), QUIET)
        assert other.done == 4


def test_longer_answers_are_decoded_and_judged(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "score", lambda *asked: 7)
    wanted = replace(wanted_of(["patch-25%"], "slid", 1, 0, answer_tokens=2), judge=Judge("http://127.0.0.1:1/v1", "m"))
    with RecordFile(tmp_path / "r.jsonl", FidelityRecord) as records:
        bench = FidelityRun(engine, "reference", wanted, records)
        bench.run(items_of(["dialogue-word"]), QUIET)
        made = list(records.held.values())
    assert {one.judged for one in made} == {(7,) * len(made[0].answers)}
    assert all(1 <= len(answer) <= 2 for one in made for answer in one.answers)
    assert max(one.divergences[0] for one in made if one.strategy == "full") == 0
    assert rows_of(made)[0]["judged"] == 7


def test_the_report_has_its_tables_and_plots(folder: Path, found: dict[str, Any]) -> None:
    text = (folder / "report.md").read_text()
    for name in ("kl-by-rank.png", "budgets-reference-slid.png", "residuals-reference-visible.png"):
        assert f"({name})" in text
        with Image.open(folder / name) as drawn:
            assert np.asarray(drawn.convert("L")).std() > 5
    assert "| `mpic` |" in text and "| `patch-25%` |" in text
    written = read_figures(folder / "f.json")["rows"]
    assert [(row["strategy"], row["accuracy"]) for row in written] == [
        (row["strategy"], pytest.approx(row["accuracy"], rel=1e-4)) for row in found["rows"]
    ]


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert draw_ranks([], tmp_path / "a.png") is None
    assert draw_budgets([], "", tmp_path / "a.png") is None
    assert draw_residuals({"full": np.zeros(3)}, "", tmp_path / "a.png") is None


def test_a_data_set_is_measured_by_form_and_path(engine: Engine, tmp_path: Path) -> None:
    from benchmarks.tasks import task_of
    from benchmarks.tests.data_writers import write_items

    path = write_items(task_of("two-page").items(0, 3), "emblema", tmp_path / "set")
    out = tmp_path / "out"
    wanted = wanted_of(["patch-6%", "basis-4"], "slid", 2, 0)
    found = run(["reference"], [f"emblema:{path}"], wanted, lambda name: engine, out / "f.json", out, QUIET)
    assert {one["task"] for one in found["rows"]} == {f"emblema:{path.name}"}
    assert found["rows"][0]["items"] == 2
    with pytest.raises(StrategyError, match="has no items beside those measured"):
        more = replace(wanted, items=3)
        run(["reference"], [f"emblema:{path}"], more, lambda name: engine, out / "g.json", out, QUIET)


REFUSED = (
    (dict(tasks=["zebra"]), "unknown task 'zebra'"),
    (dict(tasks=[" "]), "no tasks"),
    (dict(strategies=["zebra"]), "unknown strategy 'zebra'"),
    (dict(strategies=["mpic@0%"]), "above 0"),
    (dict(items=0), "0 items"),
    (dict(setting="hidden"), "unknown setting"),
    (dict(style="verse"), "unknown style"),
    (dict(seed=-1), "seed"),
    (dict(models=[]), "no models"),
    (dict(judge="ftp://x"), "no http or https address"),
    (dict(tasks=["mm-niah:/nowhere/x.jsonl"]), "/nowhere/x.jsonl"),
)


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_cannot_be_measured_is_refused_before_a_model_is_loaded(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given = {"tasks": ["two-page"], "strategies": ["blind"], "items": 1, "setting": "slid", "style": "words", "seed": 0,
             "models": ["reference"], "judge": None, **change}  # fmt: skip

    def load(name: str) -> Engine:
        raise AssertionError("a model was loaded")

    with pytest.raises(EmblemaError, match=said):
        wanted = wanted_of(
            given["strategies"], given["setting"], given["items"], given["seed"], given["style"], judge=given["judge"]
        )
        run(given["models"], given["tasks"], wanted, load, tmp_path / "f.json", tmp_path / "r", QUIET)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "taken"
    path.write_text("something else\n")
    yield path


def test_places_that_cannot_be_written_are_told(file: Path) -> None:
    def load(name: str) -> Engine:
        raise AssertionError("a model was loaded")

    wanted = wanted_of(["blind"], "slid", 1, 0)
    with pytest.raises(EmblemaError, match="--report .*taken"):
        run(["reference"], ["two-page"], wanted, load, file.parent / "f.json", file, QUIET)
    with pytest.raises(EmblemaError, match="--json .*taken"):
        run(["reference"], ["two-page"], wanted, load, file / "f.json", file.parent / "r", QUIET)


@pytest.mark.parametrize("line", ["something else", "[]", '{"key": 1}', '{"key": "a", "answers": [[1]]}'])
def test_a_records_file_that_holds_something_else_is_refused_by_line(file: Path, line: str) -> None:
    file.write_text(f"{line}\n")
    with pytest.raises(EmblemaError, match="taken, line 1"):
        RecordFile(file, FidelityRecord)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1"),
        ("[]", "no object"),
        ("{}", "no rows"),
        ('{"rows": [{"model": "m"}]}', "row 0: the field 'task'"),
    ],
)
def test_broken_figures_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / FIGURES_FILE
    path.write_text(text)
    with pytest.raises(EmblemaError, match=said):
        read_run(tmp_path)
    with pytest.raises(EmblemaError, match="cannot be read"):
        read_run(tmp_path / "empty")


def test_no_item_that_slides_is_one_clear_error(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.fidelity.measure.slides", lambda item: False)
    with pytest.raises(PromptError, match="nothing was measured"):
        wanted = wanted_of(["blind"], "slid", 1, 0)
        run(["reference"], ["two-page"], wanted, lambda name: engine, tmp_path / "f.json", tmp_path, QUIET)


def test_bundled_names_are_folders_and_others_stay() -> None:
    assert Path(model_source("reference")).is_dir()
    assert model_source("owner/name") == "owner/name"
    with pytest.raises(EmblemaError, match="make reference MODEL=reference-mha"):
        model_source("reference-mha")
    assert model_source("/some/folder") == "/some/folder"


def test_a_task_of_media_that_the_model_does_not_take_is_left_out_and_said(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = wanted_of(["patch-25%"], "slid", 1, 1)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(32_000))
    sound = Media("audio", tmp_path / "a.wav", 1.0)
    heard = TaskItem("i", "heard", "emblema", (sound,), (ItemQuestion("q", ("what ?",), "tent"),))
    monkeypatch.setitem(TASKS, "heard", GeneratedTask("heard", "emblema", lambda seed, item, form: heard))

    def measured(tasks: list[str]) -> dict[str, Any]:
        return run(["reference"], tasks, wanted, lambda name: engine, tmp_path / "f.json", tmp_path / "r", QUIET)

    found = measured(["two-page", "heard"])
    assert {row["task"] for row in found["rows"]} == {"two-page"}
    assert found["refused"] == {"reference: heard": "Qwen2.5-VL takes no audio."}
    assert "takes no audio" in (tmp_path / "r" / "report.md").read_text()
    with pytest.raises(PromptError, match="nothing was measured: Qwen2.5-VL takes no audio"):
        measured(["heard"])
