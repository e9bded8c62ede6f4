"""The committed pages of results are what the code makes of the committed figures, pictures aside."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import benchmarks.report
import benchmarks.store.report
from benchmarks.intervals import Interval
from benchmarks.long.report import check_page as check_long
from benchmarks.recordfile import parsed
from benchmarks.report import ModelTables
from benchmarks.rowfile import read_rows
from benchmarks.serve.soak_report import write_soak_page as write_serve_soak_page
from benchmarks.store.report import write_report as write_store
from benchmarks.store.run import StoreResult
from benchmarks.stream.run import write_report as write_stream
from benchmarks.stream.soak.plan import FixedAnswers, SoakLog, SoakRound
from benchmarks.stream.soak.report import soak_tables, write_soak_page
from benchmarks.table import Bar, Cell, Table
from benchmarks.traffic.report import check_report
from benchmarks.vllm.report import write_report as write_vllm
from benchmarks.window.run import write_report as write_window
from emblema.eval.metrics import Share

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def read(name: str) -> dict[str, Any]:
    return read_rows(RESULTS / name)


def committed(name: str) -> str:
    """A committed page without its pictures."""
    return without_pictures(RESULTS / name)


def without_pictures(page: Path) -> str:
    """The text of a page without its pictures, which have to lie beside it."""
    text = page.read_text(encoding="utf-8")
    for picture in re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE):
        assert (page.parent / picture).is_file(), picture
    return re.sub(r"\n!\[.*\]\(.*\)\n", "", text)


def table_of(data: dict[str, Any]) -> Table:
    """A table as it was written, without its plots."""
    bars = tuple(Bar(**{name: value for name, value in bar.items() if name != "holds"}) for bar in data["bars"])
    rows = tuple(tuple(parsed(Cell, row[column]) for column in data["columns"]) for row in data["rows"])
    return Table(data["name"], data["title"], data["note"], tuple(data["columns"]), rows, (), bars, data["seconds"])


@pytest.fixture
def measured_there(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have pages say that they were measured where the figures were."""

    def there(data: dict[str, Any]) -> dict[str, Any]:
        for module in (benchmarks.report, benchmarks.store.report):
            monkeypatch.setattr(module, "environment", lambda: data["environment"])
        return data

    return there


@pytest.mark.parametrize("folder", ["window", "window-trace", "window-trace-16"])
def test_windows(folder: str, measured_there: Any, tmp_path: Path) -> None:
    data = measured_there(read(f"{folder}/window.json"))
    found = [ModelTables(row["model"], tuple(map(table_of, row["tables"]))) for row in data["rows"]]
    page = write_window(found, {}, data["asked"], tmp_path)
    assert without_pictures(page) == committed(f"{folder}/window.md")


def test_streams(measured_there: Any, tmp_path: Path) -> None:
    data = measured_there(read("stream/stream.json"))
    page = write_stream(ModelTables(data["model"], tuple(map(table_of, data["rows"]))), data["asked"], tmp_path)
    assert without_pictures(page) == committed("stream/stream.md")


def test_soak(measured_there: Any, tmp_path: Path) -> None:
    data = measured_there(read("soak/soak.json"))
    found = ModelTables(str(data["asked"]["model"]), tuple(map(table_of, data["tables"])))
    page = write_soak_page(found, data["asked"], data["seconds"], tmp_path)
    assert without_pictures(page) == committed("soak/soak.md")


def test_the_soak_of_the_service(measured_there: Any, tmp_path: Path) -> None:
    data = measured_there(read("serve-soak/serve-soak.json"))
    found = ModelTables(str(data["model"]), tuple(map(table_of, data["tables"])))
    page = write_serve_soak_page(found, data["options"], tmp_path)
    assert without_pictures(page) == committed("serve-soak/serve-soak.md")


def test_the_soak_s_tables_follow_from_its_rounds() -> None:
    data = read("soak/soak.json")
    half, kept = FixedAnswers(10_000, ((1,),), ((2,),)), [table_of(table) for table in data["tables"]]
    log = SoakLog([parsed(SoakRound, row) for row in data["rows"]], 0, [half], [half], 0, data["seconds"])
    for before, now in zip(kept, soak_tables(log, data["asked"]), strict=True):
        assert now.columns == before.columns
        for old, new in zip(before.rows, now.rows, strict=True):
            if str(new[0]).startswith(("frames that the killed", "megabytes of the saved")):
                continue
            assert list(map(number, new)) == list(map(near, old))
    for old_bar, new_bar in list(zip(kept[0].bars, soak_tables(log, data["asked"])[0].bars, strict=True))[1:]:
        assert new_bar.value == pytest.approx(old_bar.value, rel=1e-4)
        assert (new_bar.bound, new_bar.count, new_bar.holds) == (old_bar.bound, old_bar.count, old_bar.holds)


def number(cell: Cell) -> Any:
    return cell.value if isinstance(cell, Share | Interval) else cell


def near(cell: Cell) -> Any:
    found = number(cell)
    return found if found is None or isinstance(found, str) else pytest.approx(found, rel=1e-4, nan_ok=True)


@pytest.mark.parametrize("folder", sorted(listing.parent for listing in RESULTS.glob("traffic*/traffic.json")))
def test_traffic(folder: Path) -> None:
    check_report(folder)


@pytest.mark.parametrize("name", ["store", "store-quiet/store"])
def test_stores(name: str, measured_there: Any, tmp_path: Path) -> None:
    data = measured_there(read(f"{name}.json"))
    page = write_store(parsed(StoreResult, {field.name: data[field.name] for field in fields(StoreResult)}), tmp_path)
    assert page.read_text(encoding="utf-8") == (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    for picture in tmp_path.glob("*.png"):
        assert (RESULTS / f"{name}.md").with_name(picture.name).is_file()


def test_long() -> None:
    check_long(RESULTS / "long" / "long.json")
    without_pictures(RESULTS / "long" / "long.md")


@pytest.mark.parametrize("name", ["vllm", "vllm-saturation/vllm", "vllm-readings/vllm"])
def test_vllm(name: str, measured_there: Any, tmp_path: Path) -> None:
    data, text = measured_there(read(f"{name}.json")), (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    command = re.search(r"^`(.*?)`:", text, re.MULTILINE)
    assert command is not None
    assert write_vllm(data, tmp_path, command[1]).read_text(encoding="utf-8") == text
    assert all((RESULTS / name).with_name(picture.name).is_file() for picture in tmp_path.glob("*.png"))
