"""What a stream's memory costs: the parts on a stream of a few dozen frames, and the bars that times and bytes make."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.intervals import Interval
from benchmarks.stream.costs import StreamBytes, bytes_bars, growth_bars, lengths_to, memory_bytes, shorter
from benchmarks.stream.run import measure_part
from benchmarks.stream.running import AskCost, SystemsOptions, film_of, questions, ratio, settings_for, turned
from benchmarks.table import Table
from emblema.engine.engine import Engine
from emblema.stream.method import MemoryBytes
from emblema.stream.settings import AblationSettings, StreamSettings
from tests.conftest import reference

__all__ = ["reference"]

NARROW = StreamSettings(
    window=4, block=4, budget=6, ablation=AblationSettings(first=6, largest=4, tau_small=0.02, tau_large=0.05)
)
TINY = SystemsOptions(kinds=("live",), lengths=(20, 32), frames=32, rounds=2, settings=NARROW)


@pytest.fixture(scope="module")
def measured(reference: Engine) -> dict[str, Table]:
    return {name: measure_part(name, reference, TINY, Console(quiet=True)) for name in ("growth", "bytes")}


def test_growth_is_told_against_shorter_streams_and_rekv(measured: dict[str, Table]) -> None:
    rows = measured["growth"].records
    assert {(row["method"], row["frames"]) for row in rows} == {
        (method, frames) for method in ("full", "rekv", "rekv-orders", "mosaic") for frames in TINY.lengths
    }
    same = Interval(1.0, 1.0, 1.0)
    assert all(row["CPU over shorter"] == same for row in rows if row["frames"] == TINY.lengths[0])
    assert all(row["CPU over ReKV"] == same for row in rows if row["method"] == "rekv")
    assert not measured["growth"].bars, "its bars are about lengths that were not measured"


def test_bytes_are_those_of_the_rows_that_are_kept(measured: dict[str, Table], reference: Engine) -> None:
    rows = {str(row["method"]): row for row in measured["bytes"].records}
    adapter = reference.adapter
    frame = 4 * sum(layout.features for layout in adapter.layouts) * adapter.dtype.itemsize
    assert rows["full"]["memory bytes"] == (TINY.frames - NARROW.sinks - NARROW.window) * frame
    assert rows["sliding"]["memory bytes"] == rows["nocache"]["memory bytes"] == 0
    assert rows["streammem"]["memory bytes"] == rows["rekv"]["fetched for a question"] == 6 * frame
    assert rows["rekv"]["memory over ReKV"] == 1.0
    assert len({row["always seen bytes"] for row in rows.values()}) == 1


def test_what_sees_everything_keeps_its_native_positions() -> None:
    packed = StreamSettings(positions="packed", budget=8)
    assert settings_for("full", packed, window=9).positions == "native"
    assert settings_for("rekv", packed) == packed


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=9), st.floats(0.1, 10))
def test_a_ratio_knows_what_one_costs_more(below: list[float], factor: float) -> None:
    found = ratio([factor * time for time in below], below)
    assert found.value == pytest.approx(factor) and found.low == pytest.approx(factor) == found.high


def test_a_ratio_goes_pair_by_pair() -> None:
    # One slow pair moves neither the middle nor both ends.
    found = ratio([2.0, 4.0, 200.0, 2.0, 4.0], [1.0, 2.0, 1.0, 1.0, 2.0])
    assert found.value == 2.0 and found.low == 2.0 and found.high > 2.0
    assert [turned("abc", turn) for turn in (-1, 0, 1)] == [list("cab"), list("abc"), list("bca")]


def test_the_bars_on_bytes_go_by_the_worst_kind() -> None:
    def held(kind: str, memory: int, host: int) -> StreamBytes:
        device = {"local": 7, "index": memory, "fetched": 99}
        return StreamBytes(kind, "mosaic", 1024, MemoryBytes(device, {"rows": 10, "other": host}), 0, 16_000)

    half, host = bytes_bars([held("ego", 4000, 2)])
    assert (half.value, half.holds, host.value, host.holds) == (0.25, True, 1.2, True)
    half, host = bytes_bars([held("ego", 4000, 2), held("live", 9000, 4)])
    assert (half.value, half.holds, host.value, host.holds) == (9 / 16, False, 1.4, False)
    assert bytes_bars([]) == () and memory_bytes(held("ego", 1000, 2).bytes) == 1000


def test_the_bars_on_time_go_by_the_worst_kind() -> None:
    def asks(long: float, cpu: float) -> dict[tuple[str, int], list[AskCost]]:
        short = [AskCost(0.1, 0.1, {}), AskCost(0.2, 0.2, {})]
        return {("mosaic", 256): short, ("mosaic", 4096): [AskCost(long * a.ttft, cpu * a.cpu, {}) for a in short]}

    wall, cpu = growth_bars({"ego": asks(1.1, 1.0), "live": asks(1.25, 1.4)})
    assert wall.value == pytest.approx(1.25) and wall.holds and wall.count == 4
    assert cpu.value == pytest.approx(1.4) and not cpu.holds
    assert growth_bars({"ego": {("mosaic", 256): []}}) == ()
    assert shorter((64, 256, 1024)) == 256 and shorter((24, 40)) == 24 and lengths_to(300) == (64, 128, 256, 300)


def test_questions_are_of_every_kind_first() -> None:
    asked = questions(film_of("ego", 128, SystemsOptions()), 128)
    assert len({question.kind for question in asked[:5]}) == 5 and all(question.at == 128 for question in asked)
