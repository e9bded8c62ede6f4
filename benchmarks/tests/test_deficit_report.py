"""The command from items to report: a few items of the bundled model, every plot, and bad input."""

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.deficit.answerlog import BLIND, MULTI, SLID
from benchmarks.deficit.measure import DeficitOptions, DeficitResult, measure, measure_untrained
from benchmarks.deficit.report import data, write
from benchmarks.report import labels_of, models_of, report_places
from benchmarks.rowfile import read_rows, write_rows
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError

ITEMS = 4
PLOTS = {"kamera-3-tiny", "kamera-4-tiny", "kamera-5", "kamera-6-tiny", "kamera-8-tiny", "kamera-9", "kamera-12"}
PLOTS |= {"mpic-4-tiny", "mpic-8-tiny"}


@pytest.fixture(scope="module")
def results() -> list[DeficitResult]:
    engine = Engine.load("reference")
    wanted = DeficitOptions(items=ITEMS, seed=5, questions=1)
    found = [measure(engine, "tiny", wanted), measure_untrained(engine, "tiny", wanted)]
    assert len(engine.store) == 0, "every chunk is let go of"
    return found


def test_every_item_is_asked_and_half_are_held_out(results: list[DeficitResult]) -> None:
    log = results[0].log
    rows = {name: log.row(name, SLID, MULTI) for name in ("full", BLIND, "rank/full", "pooled basis/4", "sink")}
    counts = {name: row.n for name, row in rows.items() if row is not None}
    assert counts == {"full": ITEMS, BLIND: ITEMS, "rank/full": ITEMS, "pooled basis/4": ITEMS // 2, "sink": ITEMS}
    assert rows["rank/full"] is not None and rows[BLIND] is not None
    assert rows["rank/full"].kl.value < 1e-6 < rows[BLIND].kl.value
    assert results[0].left_out == 0


def test_a_model_before_training_does_not_bind(results: list[DeficitResult]) -> None:
    trained, before = (one.log.row(BLIND, SLID, MULTI) for one in results)
    assert trained is not None and before is not None
    assert before.kl.value < 0.1 * trained.kl.value
    assert not results[1].binds
    assert results[1].log.row("sink", SLID, MULTI) is None, "only isolation and rank"


def test_the_report_has_every_plot_and_every_figure_its_interval(results: list[DeficitResult], tmp_path: Path) -> None:
    text = write(results, tmp_path).read_text()
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert drawn == PLOTS
    for name in PLOTS:
        assert f"({name}.png)" in text
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.width > 500 and len(set(picture.convert("L").resize((64, 64)).tobytes())) > 10
    found = read_rows(write_rows(data(results), tmp_path / "deficit.json"))
    assert [one["model"]["name"] for one in found["models"]] == ["tiny", "tiny-untrained"]
    for model in found["models"]:
        assert model["rows"] and model["figures"] and model["found"][SLID]
        for row in model["rows"]:
            assert row["n"] >= 2
            assert row["kl"]["low"] <= row["kl"]["value"] <= row["kl"]["high"]
        for figure in model["figures"].values():
            assert figure["n"] >= 2
            assert figure["low"] <= figure["value"] <= figure["high"]
    sections = ("Isolation by the mask", "Rank", "Depth", "Tokens, heads and slots", "Shared directions")
    sections += ("Cheap estimates", "MPIC's insights", "Errors in bf16 ULP", "The link from antecedents")
    assert all(f"### {name}" in text for name in sections)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"items": 0}, "--items 0"),
        ({"items": 3}, "give 4 or more"),
        ({"questions": 0}, "questions an item"),
        ({"task": "chess"}, "unknown task 'chess'"),
        ({"carried": "chess"}, "unknown task 'chess'"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(EmblemaError, match=said) as error:
        DeficitOptions(**options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_a_task_that_binds_nothing_is_refused() -> None:
    with pytest.raises(EmblemaError, match="task album: no item asks a multi-hop question"):
        measure(Engine.load("reference"), "tiny", DeficitOptions(task="album", items=4), brief=True)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(PromptError, match="seed"):
        DeficitOptions(seed=-1)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(EmblemaError, match="--report .*file"):
        report_places(file, None, "deficit.json")
    with pytest.raises(EmblemaError, match="--json .*report"):
        report_places(tmp_path / "report", tmp_path / "report", "deficit.json")
    folder, figures = report_places(tmp_path / "report", None, "deficit.json")
    assert figures == folder / "deficit.json"
    assert list(folder.iterdir()) == [], "nothing is left of the trial"
    report_places(tmp_path / "report", file, "deficit.json")
    assert file.read_text() == "kept"


def test_models_are_listed_with_commas_and_named_apart() -> None:
    assert models_of(" reference, a/b ,") == ["reference", "a/b"]
    assert labels_of(["a/mine", "b/mine", "other"]) == ["mine", "mine.2", "other"]
    assert labels_of(["."]) == ["model"]
    with pytest.raises(EmblemaError, match="--model"):
        models_of(" , ")
