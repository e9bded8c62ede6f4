"""The store's bench: what it times is what it says, and its page is made. Nothing depends on how long it took."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.blocks import filled
from benchmarks.figures import read_figures
from benchmarks.store import material, overlap, throughput
from benchmarks.store.material import SMALL, cooled, evict, random_chunk, residency
from benchmarks.store.run import throughput_table, write_store_page
from benchmarks.store.throughput import COLD, WARM, Throughput
from benchmarks.tests.running import benchmarks, refused
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, LoadError, StoreError
from emblema.store import codec
from emblema.store.disk import DiskTier
from emblema.store.record import SHARED, Terms
from emblema.store.store import Store

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def numbers() -> np.random.Generator:
    return np.random.default_rng(5)


def test_the_page_cache_is_emptied_and_seen_to_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2**20))
    assert residency(path) == 1
    evict(path)
    if residency(path) == 1:
        pytest.skip("files here are never anywhere but in memory")
    assert residency(path) == 0
    path.read_bytes()
    assert residency(path) == 1 and cooled([path]) == 0 and math.isnan(cooled([]))


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
    path.write_bytes(contents[:-1])
    with pytest.raises(LoadError, match="shorter"):
        throughput.read_plainly(path, np.empty(len(contents), np.uint8))


@pytest.mark.parametrize("place", [0.2, 0.5, 0.99])
def test_the_load_that_is_timed_notices_a_single_flipped_bit(kept: tuple[DiskTier, str, Path], place: float) -> None:
    tier, id, path = kept
    contents = bytearray(path.read_bytes())
    contents[int(place * len(contents))] ^= 4
    path.write_bytes(contents)
    with pytest.raises(LoadError):
        throughput.load(tier, id)


def test_bars_are_for_large_files_whose_cold_reads_were_cold() -> None:
    found = [Throughput(size, read, 3, 2.0, 1.7, 0.85, 0.8, 0.9, stayed)
             for size in (10**6, 32 * 10**6) for read in (COLD, WARM) for stayed in (0.0, 0.4, math.nan)]  # fmt: skip
    bars = throughput_table(found).bars
    told = [(bar.name.split(", ")[1], bar.bound, bar.holds) for bar in bars]
    assert told == [(COLD, 0.8, True)] + [(WARM, 0.9, False)] * 3


def test_logits_from_disk_are_those_from_memory_and_chunks_that_are_gone_are_not_timed(tmp_path: Path) -> None:
    with Engine.load("reference") as engine:
        model: tuple[Any, Any] = engine.adapter.model, engine.processor
    found = overlap.measure(tmp_path, "reference", *model, [56, 84], 2, 1)
    assert [row.kv for row in found] == list(overlap.LANES) and all(row.rounds == 2 and row.ms > 0 for row in found)
    assert [row.hidden is None for row in found] == [row.kv != overlap.DISK for row in found]
    assert found[0].bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    bench = overlap.OverlapBench(tmp_path / "other", *model, [56], 1)
    with Store(bench.folder) as store:
        view = store.tenant()
        view.get(bench.chunks[0].id)
        view.delete(bench.chunks[0].id)
        with pytest.raises(StoreError):
            bench.bring(view)


def test_the_larger_model_is_one_that_the_engine_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LAYERS": 2, "HEADS": 4, "HIDDEN": 128, "INTERMEDIATE": 64}.items():
        monkeypatch.setattr(material, name, value)
    model, processor = material.larger_model(3)
    engine = Engine(model, processor)
    chunk = engine.add(material.random_picture(84, numbers()))
    assert engine.prefill([chunk, material.QUESTION], "blind").logits.isfinite().all()  # type: ignore[list-item]


def test_loads_are_measured_and_written(tmp_path: Path) -> None:
    pages, disk = tmp_path / "pages", tmp_path / "disk"
    asked = ("--quick", "--only", "throughput", "--plain", "--seed", "5")
    done = benchmarks("store", *asked, "--report", str(pages), "--disk", str(disk))
    assert done.returncode == 0, done.stderr
    found = read_figures(pages / "store.json")
    assert [row["operation"] for row in found["throughput"]] == [COLD, WARM] * 2 and found["overlap"] == []
    assert (pages / "store-throughput.png").exists() and not list(disk.iterdir())
    assert "--only 'speed'" in refused("store", "--only", "speed", "--report", str(pages))


def test_the_page_holds_its_figures(tmp_path: Path) -> None:
    """The committed page is what the committed figures make of its words."""
    page = RESULTS / "store.md"
    (tmp_path / "store.md").write_text(page.read_text())
    written, bars = write_store_page(read_figures(RESULTS / "store.json"), tmp_path)
    assert written.read_text() == page.read_text() and len(page.read_text().split()) <= 600
    assert page.read_text().count("**missed**") == 1 + sum(not bar.holds for bar in bars)
    with pytest.raises(EmblemaError, match="no figures of the block 'other'"):
        filled("<!-- other -->\n<!--/-->\n", {})
