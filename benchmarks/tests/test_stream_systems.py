"""What a stream's memory costs: every part on a stream of a few dozen frames, and the figures that they make of it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.intervals import Interval
from benchmarks.stream.run import SYSTEMS, measure_part
from benchmarks.stream.systems.attention import (
    Attention,
    all_seen,
    attention_on_frames,
    attention_through,
    clusters_of,
    watched,
)
from benchmarks.stream.systems.encoding import EncodeJob, run_together
from benchmarks.stream.systems.running import (
    SystemsOptions,
    ask_word,
    feed,
    film_of,
    opened,
    questions,
    settings_for,
)
from benchmarks.stream.systems.structure import draw_questions
from benchmarks.table import Cell, Table
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError, StreamError
from emblema.eval.metrics import Share
from emblema.stream.settings import AblationSettings, StreamSettings
from tests.conftest import reference

__all__ = ["reference"]

NARROW = StreamSettings(
    window=4, block=4, budget=6, ablation=AblationSettings(first=6, largest=4, tau_small=0.02, tau_large=0.05)
)
TINY = SystemsOptions(
    kinds=("live",),
    lengths=(20, 32),
    frames=32,
    looked=32,
    rounds=2,
    long=40,
    drawn=300,
    settings=NARROW,
    workers=(1, 2),
)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def measured(reference: Engine) -> dict[str, Table]:
    """Every part but the processes, measured once."""
    return {name: measure_part(name, reference, TINY, QUIET) for name in SYSTEMS if name != "workers"}


@pytest.fixture
def attended(reference: Engine) -> Iterator[tuple[Any, str]]:
    """A stream under full attention, and something to ask it."""
    film = film_of("live", 12, TINY)
    with ExitStack() as stack:
        stream = all_seen(stack, reference, TINY, 12)
        feed({"full": stream}, film, 0, 12, 4)
        yield stream, questions(film, 12)[0].text


def number(cell: Cell) -> float:
    """A cell as a number."""
    assert isinstance(cell, Interval | Share | float | int)
    return cell.value if isinstance(cell, Interval | Share) else cell


def test_a_part_makes_the_table_of_its_name(measured: dict[str, Table]) -> None:
    assert {name: table.name for name, table in measured.items()} == {name: name for name in measured}
    for table in measured.values():
        drawn = {name for plot in table.plots for name in (plot.x, plot.y, plot.by) if name is not None}
        assert table.rows and drawn <= set(table.columns) and "{" not in table.note and table.seconds > 0


def test_growth_takes_an_answer_apart(measured: dict[str, Table]) -> None:
    rows = measured["growth"].records
    assert {(row["method"], row["frames"]) for row in rows} == {
        (method, frames) for method in ("full", "rekv", "rekv-orders", "mosaic") for frames in TINY.lengths
    }
    for row in rows:
        parts = [number(row[name]) for name in ("memory", "transfers", "attention", "around attention", "rest")]
        assert sum(parts) == pytest.approx(1) and min(parts) >= 0
        assert (parts[1] == 0) == (row["method"] == "full")
        if row["frames"] == TINY.lengths[0]:
            assert row["TTFT over shorter"] == Interval(1.0, 1.0, 1.0)
        if row["method"] == "rekv":
            assert row["TTFT over ReKV"] == Interval(1.0, 1.0, 1.0)
    assert not measured["growth"].bars, "its bar is about lengths that were not measured"


def test_bytes_are_those_of_the_rows_that_are_kept(measured: dict[str, Table], reference: Engine) -> None:
    rows = {str(row["method"]): row for row in measured["bytes"].records}
    adapter = reference.adapter
    frame = 4 * sum(layout.features for layout in adapter.layouts) * adapter.dtype.itemsize
    left = TINY.frames - NARROW.sinks - NARROW.window
    assert rows["full"]["memory bytes"] == left * frame
    assert rows["sliding"]["memory bytes"] == rows["nocache"]["memory bytes"] == 0
    assert rows["streammem"]["memory bytes"] == NARROW.budget * frame  # type: ignore[operator]
    assert rows["rekv"]["memory over ReKV"] == 1.0
    assert rows["rekv"]["fetched for a question"] == NARROW.budget * frame  # type: ignore[operator]
    assert 0 < number(rows["mosaic"]["fetched for a question"]) <= NARROW.budget * frame  # type: ignore[operator]
    assert len({row["always seen bytes"] for name, row in rows.items()}) == 1
    mosaic = rows["mosaic"]
    assert number(mosaic["bytes a cluster"]) * number(mosaic["clusters"]) == pytest.approx(
        number(mosaic["memory bytes"])
    )


def test_attention_that_is_noted_is_the_model_s_own(attended: tuple[Any, str]) -> None:
    stream, text = attended
    begin, tokens, found = len(stream.turn.opening), 4, list[Tensor]()

    def probing(stock: Attention) -> Attention:
        def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **extra: Any) -> Any:
            # What the stock function gives for values that say which frame a row belongs to is that frame's share.
            frames = torch.zeros_like(value[:, :, :, : stream.frames])
            rows = torch.arange(stream.frames * tokens)
            frames[:, :, begin + rows, rows // tokens] = 1
            found.append(stock(module, query, key, frames, mask, **extra)[0][0].transpose(0, 1))
            return stock(module, query, key, value, mask, **extra)

        return attend

    noted = attention_on_frames(stream, text)
    with attention_through(probing), torch.inference_mode():
        stream.prefill(text)
    assert noted.shape[:2] == torch.stack(found).shape[:2] and noted.shape[3:] == (stream.frames, tokens)
    assert torch.allclose(noted.sum(4), torch.stack(found), atol=1e-5)
    assert float(noted.sum((3, 4)).min()) > 0 and float(noted.sum((3, 4)).max()) <= 1 + 1e-5


def test_watching_changes_no_answer_and_leaves_the_model_as_it_was(reference: Engine) -> None:
    film, stock = film_of("live", 24, TINY), ALL_ATTENTION_FUNCTIONS["sdpa"]
    with ExitStack() as stack:
        stream = opened(stack, reference, "mosaic", NARROW)
        feed({"mosaic": stream}, film, 0, 24, 4)
        text = questions(film, 24)[0].text
        before = ask_word(stream, text).text
        with watched(reference, stream) as times:
            assert ask_word(stream, text).text == before
        noted = (times.reading, times.attending, times.layers)
        assert min(noted) > 0 and times.layers > times.reading + times.attending
        ask_word(stream, text)
        assert (times.reading, times.attending, times.layers) == noted
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is stock


def test_clusters_are_those_of_the_frames_that_left(reference: Engine) -> None:
    film = film_of("live", 24, TINY)
    with ExitStack() as stack:
        stream = opened(stack, reference, "mosaic", NARROW, retrieval="clusters")
        other = opened(stack, reference, "rekv", NARROW)
        with pytest.raises(StreamError, match="nothing has been seen"):
            clusters_of(stream)
        feed({"mosaic": stream, "rekv": other}, film, 0, 24, 4)
        clusters = clusters_of(stream)
        assert set(clusters.visual) == set(range(NARROW.sinks, 24 - NARROW.window))
        assert all(set(layer) == set(clusters.visual) for layer in clusters.layers)
        assert len(clusters.layers) == len(reference.adapter.layouts)
        with pytest.raises(StreamError, match="no clusters"):
            clusters_of(other)


def test_sparsity_rises_to_all_of_it(measured: dict[str, Table]) -> None:
    table = measured["sparsity"]
    for setting in {row["setting"] for row in table.records}:
        for layer in {row["layer"] for row in table.records}:
            held = [number(row["mass"]) for row in table.records if (row["setting"], row["layer"]) == (setting, layer)]
            assert held == sorted(held) and held[0] > 0 and held[-1] <= 1 + 1e-9 and len(held) == 6
    counts = [row["frames for 90 %, a layer"] for row in table.records if row["top %"] == 1]
    assert all(1 <= number(count) <= TINY.frames for count in counts)


def test_structure_compares_like_with_like(measured: dict[str, Table], tmp_path: Path) -> None:
    rows = measured["structure"].records
    assert all(0 <= number(row["share"]) <= 1 and number(row["items"]) > 0 for row in rows)
    counts = {(row["setting"], row["set"]): row["items"] for row in rows}
    for setting in ("in one visual cluster", "in one semantic cluster"):
        assert len({counts[setting, name] for name in ("attended most", "random", "random, in a row")}) == 1
    table = measured["questions"]
    names = [name for name in table.columns if name.startswith("with")]
    overlap = torch.tensor([[number(row[name]) for name in names] for row in table.records])
    assert torch.allclose(overlap, overlap.T) and bool((overlap.diagonal() == 1).all())
    shares = torch.tensor([[number(row[name]) for name in table.columns[1 : -len(names)]] for row in table.records])
    assert torch.allclose(shares.sum(1), torch.ones(len(shares)))
    assert [path.stat().st_size > 10_000 for path in draw_questions(table, tmp_path)] == [True]


def test_eager_cuts_put_nothing_off(measured: dict[str, Table]) -> None:
    table = measured["deferral"]
    rows = {(row["kind"], row["splitting"]): row for row in table.records}
    eager, deferred = rows["live", "eager"], rows["live", "deferred"]
    assert eager["put off"] == 0 < number(eager["cuts"]) and number(deferred["put off"]) > 0
    assert number(deferred["of them settled"]) <= number(deferred["put off"])
    assert eager["fetches for upkeep"] == deferred["fetches for upkeep"] == 0, "no cut transfers rows"
    assert rows["all", "eager"]["cuts"] == eager["cuts"] and eager["cuts over eager"] == 1.0
    (bar,) = table.bars
    assert bar.value == number(deferred["cuts"]) / number(eager["cuts"]) and bar.count == eager["cuts"]


def test_batching_and_prefetch_are_told_against_what_they_replace(measured: dict[str, Table]) -> None:
    rows = {(row["block"], row["decoder"]): row for row in measured["batching"].records}
    assert set(rows) == {(block, way) for block in (2, 4, 8, 16) for way in ("one forward", "frame by frame")} | {
        (1, "one forward")
    }
    same = Interval(1.0, 1.0, 1.0)
    assert (
        rows[8, "frame by frame"]["CPU over frame by frame"] == same == rows[1, "one forward"]["CPU over blocks of 1"]
    )
    off, *guesses = measured["prefetch"].records
    assert off["prefetch"] == "off" and off["hit ratio"] is None and off["TTFT over off"] == same
    assert len(guesses) == 2 and all(0 <= number(row["used of what came"]) <= 1 for row in guesses)
    assert number(guesses[0]["hit ratio"]) > 0
    (bar,) = measured["prefetch"].bars
    assert bar.holds and bar.count == TINY.rounds


def test_what_is_skipped_is_told_against_what_is_not(measured: dict[str, Table]) -> None:
    rows = {(row["kind"], row["skip"]): row for row in measured["skipping"].records}
    assert set(rows) == {(kind, skip) for kind in ("live", "all") for skip in ("none", 0.05, 0.1, 0.3)}
    none = rows["live", "none"]
    assert none["kept"] == 1.0 and none["CPU over none"] == Interval(1.0, 1.0, 1.0)
    kept = [number(rows["live", skip]["kept"]) for skip in (0.05, 0.1, 0.3)]
    assert 0 < kept[2] <= kept[1] <= kept[0] < 1
    for row in rows.values():
        assert number(row["right less none"]) == pytest.approx(number(row["right"]) - number(none["right"]))


def test_what_sees_everything_keeps_its_native_positions() -> None:
    packed = StreamSettings(positions="packed", budget=8)
    assert settings_for("full", packed, window=9).positions == "native"
    assert settings_for("rekv", packed) == packed


@pytest.mark.parametrize(
    "wrong", [{"lengths": ()}, {"lengths": (64, 32)}, {"kinds": ("opera",)}, {"rounds": 0}, {"seed": -1}]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PromptError):
        SystemsOptions(**wrong)


@pytest.mark.slow
def test_workers_run_in_processes_of_their_own(reference: Engine) -> None:
    table = SYSTEMS["workers"](reference, TINY, QUIET)
    assert [row["workers"] for row in table.records] == [1, 2]
    first, second = table.records
    assert first["over one"] == 1.0 and number(first["frames/s together"]) > 0
    assert number(second["a worker's share"]) == pytest.approx(number(second["over one"]) / 2)
    assert second["frames"] == 2 * TINY.frames


@pytest.mark.slow
def test_a_worker_that_fails_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(EmblemaError, match="a worker ended before it was done: .*no-model"):
        run_together([EncodeJob(str(tmp_path / "no-model"), "cpu", "live", 8, 0, 0, NARROW.flat())])
