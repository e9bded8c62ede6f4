"""What a stream's memory costs: the parts on a stream of a few dozen frames, and the bars that times and bytes make."""

import pytest
from rich.console import Console

from benchmarks.intervals import Interval
from benchmarks.stream.costs import bytes_bars, growth_bars
from benchmarks.stream.run import SYSTEMS
from benchmarks.stream.running import AskCost, SystemsOptions, ratio
from benchmarks.table import Table
from emblema.engine.engine import Engine
from emblema.stream.method import MemoryBytes
from emblema.stream.settings import StreamSettings

NARROW = StreamSettings(window=4, block=4, budget=6)
TINY = SystemsOptions(kinds=("live",), lengths=(20, 32), frames=32, rounds=2, settings=NARROW)


@pytest.fixture(scope="module")
def measured(engine: Engine) -> dict[str, Table]:
    return {name: SYSTEMS[name](engine, TINY, Console(quiet=True)) for name in ("growth", "bytes")}


@pytest.mark.nightly
def test_growth_is_told_against_shorter_streams_and_rekv(measured: dict[str, Table]) -> None:
    rows = measured["growth"].records
    assert {(row["method"], row["frames"]) for row in rows} == {
        (method, frames) for method in ("full", "rekv", "rekv-orders", "mosaic") for frames in TINY.lengths
    }
    same = Interval(1.0, 1.0, 1.0)
    assert all(row["CPU over shorter"] == same for row in rows if row["frames"] == TINY.lengths[0])
    assert all(row["CPU over ReKV"] == same for row in rows if row["method"] == "rekv")
    assert not measured["growth"].bars, "its bars are about lengths that were not measured"


def test_bytes_are_those_of_the_rows_that_are_kept(measured: dict[str, Table], engine: Engine) -> None:
    rows = {str(row["method"]): row for row in measured["bytes"].records}
    adapter = engine.adapter
    frame = 4 * sum(layout.features for layout in adapter.layouts) * adapter.dtype.itemsize
    assert rows["full"]["memory bytes"] == (TINY.frames - NARROW.sinks - NARROW.window) * frame
    assert rows["sliding"]["memory bytes"] == rows["nocache"]["memory bytes"] == 0
    assert rows["streammem"]["memory bytes"] == rows["rekv"]["fetched for a question"] == 6 * frame
    assert len({row["always seen bytes"] for row in rows.values()}) == 1


def test_a_ratio_goes_pair_by_pair() -> None:
    # One slow pair moves neither the middle nor both ends.
    found = ratio([2.0, 4.0, 200.0, 2.0, 4.0], [1.0, 2.0, 1.0, 1.0, 2.0])
    assert found.value == 2.0 and found.low == 2.0 and found.high > 2.0


def test_the_bars_on_bytes_go_by_the_worst_kind() -> None:
    def held(memory: int, host: int) -> dict[str, MemoryBytes]:
        ours = MemoryBytes({"local": 7, "index": memory, "fetched": 99}, {"rows": 10, "other": host})
        return {"mosaic": ours, "rekv": MemoryBytes({"local": 7, "index": 16_000}, {})}

    bars = bytes_bars([held(4000, 2), held(9000, 4)])
    assert [(bar.value, bar.holds) for bar in bars] == [(9 / 16, False), (1.4, False)]


def test_the_bars_on_time_go_by_the_worst_kind() -> None:
    def asks(long: float, cpu: float) -> dict[tuple[str, int], list[AskCost]]:
        short = [AskCost(0.1, 0.1, {}), AskCost(0.2, 0.2, {})]
        return {("mosaic", 256): short, ("mosaic", 4096): [AskCost(long * a.ttft, cpu * a.cpu, {}) for a in short]}

    wall, cpu = growth_bars({"ego": asks(1.1, 1.0), "live": asks(1.25, 1.4)})
    assert [wall.value, cpu.value] == pytest.approx([1.25, 1.4])
    assert (wall.holds, wall.count, cpu.holds) == (True, 4, False)
