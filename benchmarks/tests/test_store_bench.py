"""The store's bench: its shapes, and that what it times is what it says. Nothing here depends on how long it took."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.intervals import Interval
from benchmarks.store import compression, hits, index, material, novelty, overlap, sharing, throughput
from benchmarks.store.material import SMALL, cooled, evict, random_chunk, residency
from benchmarks.store.report import remarks_of, report, show, store_tables, write_report
from benchmarks.store.run import PARTS, QUICK, StoreResult, file_system, run
from benchmarks.store.throughput import COLD, LOAD, PLAIN_READ, REUSED, WARM, Throughput
from benchmarks.tasks import generate
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, LoadError, StoreError
from emblema.eval.figures import write_figures
from emblema.models.load import load_model
from emblema.store import codec
from emblema.store.disk import DiskTier
from emblema.store.disk.index import Index
from emblema.store.record import SHARED, Terms
from emblema.store.store import Store

QUIET = Console(quiet=True)
TINY = replace(
    QUICK, sizes=(2**18,), rounds=2, entries=(100,), lookups=50, catalogue=10, requests=30, marks=(1,), contexts=2
)


@pytest.fixture(scope="module")
def bundled() -> tuple[Any, Any]:
    return load_model("reference")


def numbers() -> np.random.Generator:
    return np.random.default_rng(5)


# Cold and warm


def test_the_page_cache_is_emptied_and_seen_to_be(tmp_path: Path) -> None:
    if file_system(tmp_path) in ("tmpfs", "ramfs", "unknown"):
        pytest.skip("files here are never anywhere but in memory")
    path = tmp_path / "file"
    path.write_bytes(bytes(2**20))
    assert residency(path) == 1
    evict(path)
    assert residency(path) == 0
    path.read_bytes()
    assert residency(path) == 1
    other = tmp_path / "other"
    other.write_bytes(bytes(2**16))
    assert cooled([path, other]) == 0


def test_what_cannot_be_seen_is_not_called_cold() -> None:
    assert math.isnan(cooled([]))
    assert not measured(residency=float("nan")).cold
    assert not measured(residency=0.5).cold
    assert measured(residency=0.0).cold


# Throughput


@pytest.fixture
def kept(tmp_path: Path) -> tuple[DiskTier, str, Path]:
    tier = DiskTier(tmp_path / "tier", 2**26)
    chunk = random_chunk(64, numbers(), SMALL)
    tier.write(codec.chunk_record(chunk, SHARED, created=1.0), Terms())
    return tier, chunk.id, tier.piece_path(chunk.id)


def test_the_load_that_is_timed_gives_the_rows_that_were_saved(kept: tuple[DiskTier, str, Path]) -> None:
    tier, id, path = kept
    chunk = random_chunk(64, numbers(), SMALL)
    assert chunk.id == id, "the same seed makes the same chunk"
    for own, rows in zip(throughput.load(tier, id), chunk.rows, strict=True):
        assert torch.equal(own.keys, rows.keys) and torch.equal(own.values, rows.values)
    contents = path.read_bytes()
    assert throughput.read_plainly(path, np.empty(len(contents), np.uint8)).tobytes() == contents


@pytest.mark.parametrize("place", [0.2, 0.5, 0.99])
def test_the_load_that_is_timed_notices_a_single_flipped_bit(kept: tuple[DiskTier, str, Path], place: float) -> None:
    tier, id, path = kept
    contents = bytearray(path.read_bytes())
    contents[int(place * len(contents))] ^= 4
    path.write_bytes(contents)
    with pytest.raises(LoadError):
        throughput.load(tier, id)


def test_reading_plainly_notices_only_a_short_file(kept: tuple[DiskTier, str, Path]) -> None:
    _, _, path = kept
    contents = path.read_bytes()
    path.write_bytes(contents[:-1])
    with pytest.raises(LoadError, match="shorter"):
        throughput.read_plainly(path, np.empty(len(contents), np.uint8))


def test_every_operation_is_timed_in_every_round(tmp_path: Path) -> None:
    sizes = (2**18, 2**20)
    found = throughput.measure(tmp_path, sizes, 3, 1, QUIET)
    for timed, size in zip(found, sizes, strict=True):
        assert size < timed.bytes < 1.3 * size + 2**16
        assert {len(seconds) for seconds in timed.writes.values()} == {3}
        for warmth in (COLD, WARM):
            assert set(timed.reads[warmth]) == {PLAIN_READ, LOAD, REUSED}
            assert {len(seconds) for seconds in timed.reads[warmth].values()} == {3}
            spread = timed.spread(warmth)
            assert 0 < spread.low <= spread.high
        assert timed.cold or file_system(tmp_path) in ("tmpfs", "ramfs", "unknown", "overlay")
    assert not list(tmp_path.rglob("*.safetensors")), "the pieces are deleted again"


def measured(residency: float = 0.0, load: float = 0.02) -> Throughput:
    reads = {PLAIN_READ: (0.01, 0.02, 0.5), LOAD: (load, load, load), REUSED: (0.01, 0.01, 0.01)}
    return Throughput(
        32 * 10**6, {"plain write": (0.1,) * 3, "save": (0.2,) * 3}, {COLD: reads, WARM: reads}, residency
    )


def test_ratios_are_of_medians() -> None:
    timed = measured()
    assert timed.ratio(COLD) == 1
    assert timed.ratio(WARM, REUSED) == 0.5
    assert timed.save_ratio == 0.5
    assert timed.rate(timed.reads[COLD][LOAD]) == pytest.approx(1.6)
    assert timed.spread(COLD) == Interval(1.0, 0.75, 13.0)


# Index


def test_the_index_is_measured_as_it_grows(tmp_path: Path) -> None:
    found = index.measure(tmp_path, (50, 200), 40, 1, QUIET)
    assert [size.entries for size in found] == [50, 200]
    for size in found:
        assert 0 < size.hits[0] <= size.hits[1] and 0 < size.misses[0] <= size.misses[1]
        assert size.touch > 0 and size.put > 0 and size.bytes > 0
    held = Index(tmp_path / "index.sqlite")
    assert held.totals()[0] == 200
    held.close()


def test_look_ups_that_find_something_else_are_not_timed(tmp_path: Path) -> None:
    empty = Index(tmp_path / "index.sqlite")
    with pytest.raises(StoreError, match="answered None"):
        index._times(empty, ["ab" * 32], True)
    empty.close()


# Hit ratio


def test_where_a_chunk_was_is_told_rightly(tmp_path: Path) -> None:
    random = numbers()
    first, second, third = (random_chunk(hits.TOKENS, random) for _ in range(3))
    with Store(tmp_path, device_bytes=2 * hits.size_of(first)) as store:
        view = store.tenant()
        asked = [hits.ask(view, chunk) for chunk in (first, first, second, first, third, first, second)]
    assert asked == ["nowhere", "memory", "nowhere", "memory", "nowhere", "memory", "disk"]


def test_a_store_that_holds_everything_misses_each_chunk_once(tmp_path: Path) -> None:
    random = numbers()
    chunks = [random_chunk(hits.TOKENS, random) for _ in range(6)]
    trace = hits.zipf(1.0, 6, 60, random)
    found = hits._measure(tmp_path, 1.0, 1.0, chunks, trace)
    assert found.disk == 0
    assert found.memory == pytest.approx(1 - len(set(trace)) / 60)
    assert found.best_memory == found.best_either == 1


def test_the_same_seed_gives_the_same_hit_ratios(tmp_path: Path) -> None:
    first, other = (hits.measure(tmp_path / name, 10, 60, 3, QUIET) for name in ("one", "other"))
    assert first == other
    assert len(first) == len(hits.EXPONENTS) * len(hits.SHARES)
    assert all(min(ratio.memory, ratio.disk) >= 0 and ratio.either < 1 for ratio in first)


def test_popularity_falls_as_the_law_says() -> None:
    counts = np.bincount(hits.zipf(1.0, 100, 50_000, numbers()), minlength=100)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.2)


# Linked prompts


def test_every_lane_of_a_linked_prompt_is_what_it_says(bundled: tuple[Any, Any], tmp_path: Path) -> None:
    found = overlap.measure(tmp_path, "reference", *bundled, [56, 84, 56, 84], 2, 1, QUIET)
    assert set(found.seconds) == set(overlap.LANES)
    assert {len(seconds) for seconds in found.seconds.values()} == {2}
    assert found.chunks == 4 and found.tokens > 4 * 4
    assert found.gap == 0, "KV from disk is KV from memory, bit by bit"
    assert found.bytes == sum(path.stat().st_size for path in (tmp_path / "reference-all").rglob("*.safetensors"))
    assert len(list((tmp_path / "reference-rest").rglob("*.safetensors"))) == 2, "nothing else was left on disk"


def test_a_load_of_chunks_that_are_gone_is_not_timed(bundled: tuple[Any, Any], tmp_path: Path) -> None:
    bench = overlap.OverlapBench(tmp_path, "reference", *bundled, [56, 56], 1)
    with Store(bench.all) as store:
        view = store.tenant()
        bench.bring(view, [bench.chunks[0].id])
        view.delete(bench.chunks[1].id)
        with pytest.raises(StoreError):
            bench.bring(view, [bench.chunks[1].id])


@pytest.mark.parametrize(("disk", "hidden"), [(1.0, 1.0), (1.5, 0.5), (2.0, 0.0), (3.0, -1.0)])
def test_the_hidden_share_is_what_was_not_waited_for(disk: float, hidden: float) -> None:
    seconds = {overlap.MEMORY: (1.0, 1.0), overlap.DISK: (disk, disk), overlap.LOAD: (1.0, 1.0)}
    linked = overlap.Overlap("model", 1, 1, 1, 1, seconds, 0.0, 0.0)
    assert linked.hidden.value == pytest.approx(hidden)


def test_the_larger_model_is_one_that_the_engine_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LAYERS": 2, "HEADS": 4, "HIDDEN": 128, "INTERMEDIATE": 64}.items():
        monkeypatch.setattr(material, name, value)
    state = torch.get_rng_state()
    model, processor = material.larger_model(3)
    assert torch.equal(torch.get_rng_state(), state)
    engine = Engine(model, processor)
    chunk = engine.add(material.random_picture(84, numbers()))
    assert len(engine.adapter.layouts) == 2
    assert engine.prefill([chunk, material.QUESTION], "blind").logits.isfinite().all()  # type: ignore[list-item]


def test_pages_are_found_again_unless_new_pieces_took_their_room(
    bundled: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(novelty, "DISK", 24)
    found = novelty.measure(tmp_path, *bundled, (1, novelty.DISK + 2), 1, QUIET)
    by = {(case.policy, case.queries): case for case in found}
    plain, dear = novelty.POLICIES
    assert by[plain, 1].in_memory == 1
    assert by[plain, novelty.DISK + 2].found == 0
    assert by[dear, novelty.DISK + 2].found == by[dear, novelty.DISK + 2].in_memory == 1
    assert all(case.seconds > 0 and case.scratch > 0 for case in found)


# Sharing and compression


def test_contexts_over_shared_chunks_add_patches_alone(bundled: tuple[Any, Any]) -> None:
    found = sharing.measure(*bundled, 3, 1, QUIET)
    tables, blind, thin, wide = (found.way(name) for name in (sharing.TABLES, sharing.BLIND, *sharing.PATCHED))
    assert tables.divergence == Interval(0, 0, 0) and tables.canonical == 0
    assert blind.per_context == 0 and math.isinf(blind.per_gigabyte)
    assert blind.canonical == thin.canonical == wide.canonical > 0
    assert 0 < thin.per_context < wide.per_context < tables.per_context
    assert thin.per_gigabyte == pytest.approx((1e9 - thin.canonical) / thin.per_context)
    for way in found.ways:
        assert list(way.growth) == sorted(way.growth) and len(way.growth) == 3


def test_a_context_holds_the_pages_that_its_question_needs() -> None:
    episode = next(generate("atlas", 4, 1))
    needs = {question.text: set(question.pages) for question in episode.questions}
    for seed in range(20):
        places, text = sharing.context_of(episode, np.random.default_rng(seed))
        assert needs[text] <= set(places)
        assert len(set(places)) == sharing.PAGES


def test_each_compression_is_measured_against_the_rows_as_they_were(bundled: tuple[Any, Any]) -> None:
    found = compression.measure(*bundled, 1, 7, QUIET)
    assert len(found.lines) == 4 * 2 * 2
    for setting in compression.SETTINGS:
        for strategy in compression.STRATEGIES:
            whole, narrow = (found.line(name, strategy, setting) for name in ("none", "fp8"))
            assert whole.moved == Interval(0, 0, 0) and whole.same == 1 and whole.lost.high == 0
            assert narrow.moved.value > 0
            assert narrow.items == whole.items > 0
            assert narrow.divergence.value - whole.divergence.value == pytest.approx(narrow.further.value, abs=1e-9)
    assert found.rows["none"] == 2 * found.rows["bf16"]
    assert found.rows["bf16"] > found.rows["fp8"] == found.rows["int8"]
    assert all(found.files[name] > found.rows[name] for name in found.files)


def test_a_format_that_loses_something_is_not_called_lossless(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = random_chunk(8, numbers())
    restored, whole, own = compression.through(chunk, "none")
    assert whole > own == chunk.bytes
    assert not compression.same_rows(compression.through(chunk, "int8")[0].rows[0], chunk.rows[0])
    monkeypatch.setattr(codec, "read_layers", lambda reader: iter([restored.rows[0]] * len(restored.rows)))
    with pytest.raises(StoreError, match="did not come back"):
        compression.through(chunk, "none")


# The whole


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> StoreResult:
    folder = tmp_path_factory.mktemp("disk")
    found = run(TINY, 11, QUIET, parts=("throughput", "index", "hits", "sharing"), folder=folder)
    assert not list(folder.iterdir()), "the folder is left as it was found"
    return found


def test_what_is_left_out_is_not_reported(little: StoreResult, tmp_path: Path) -> None:
    assert little.overlap == little.novelty == () and little.compression is None
    assert [table.name for table in store_tables(little).tables] == ["throughput", "index", "hits", "sharing"]
    page = write_report(little, tmp_path)
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == [f"store-{name}.png" for name in ("growth", "hits", "index", "sharing", "throughput")]
    text = page.read_text(encoding="utf-8")
    assert all(f"]({name})" in text for name in pictures)
    assert f"seed {little.seed}" in text


def test_the_figures_are_json_that_others_read(little: StoreResult, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = write_figures(report(little), tmp_path / "store.json").read_text()
    found = json.loads(text, parse_constant=refuse)
    assert found["seed"] == 11 and found["environment"]["threads"] >= 1
    assert len(found["throughput"][0]["reads"]["cold"]["verified load"]) == TINY.rounds
    assert len(found["tables"]) == 4


def test_bars_are_for_files_and_indexes_of_the_size_that_they_speak_of(little: StoreResult) -> None:
    assert store_tables(little).bars == ()
    large = replace(
        little, throughput=(measured(),), index=(replace(little.index[0], entries=10**6, hits=(80.0, 90.0)),)
    )
    cold, warm, look = store_tables(large).bars
    assert (cold.bound, warm.bound, look.bound) == (0.8, 0.9, 50)
    assert cold.holds and warm.holds and not look.holds
    slow = store_tables(replace(large, throughput=(measured(load=0.0235),)))
    assert [bar.holds for bar in slow.bars] == [True, False, False]


def test_reads_that_were_not_cold_count_for_no_bar(little: StoreResult) -> None:
    warmed = replace(little, throughput=(measured(residency=0.4),), index=())
    assert [bar.name.split(", ")[1] for bar in store_tables(warmed).bars] == [WARM]
    assert any("may not be cold" in remark and "40%" in remark for remark in remarks_of(warmed))


def test_a_busy_machine_is_said_to_be_one(little: StoreResult) -> None:
    assert any("load average" in remark for remark in remarks_of(replace(little, load=(1e4, 1.0))))
    assert not any("load average" in remark for remark in remarks_of(replace(little, load=(0.0, 0.0))))


def test_a_missed_bar_is_shown_and_written(little: StoreResult, tmp_path: Path) -> None:
    missed = replace(little, throughput=(measured(load=1.0),))
    screen = Console(record=True, width=120, file=io.StringIO())
    show(screen, missed)
    assert "missed: verified load over plain read, cold" in screen.export_text()
    assert "**missed**" in write_report(missed, tmp_path).read_text(encoding="utf-8")


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(EmblemaError, match="unknown part 'speed'"):
        run(TINY, 0, QUIET, parts=("speed",))
    assert len(PARTS) == len(set(PARTS))
