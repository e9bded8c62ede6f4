"""The store's bench: what it times is what it says, and its page is made. Nothing depends on how long it took."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.cost.subject import CostSubject
from benchmarks.figures import read_figures
from benchmarks.store import overlap, throughput
from benchmarks.store.material import KVShape, cooled, evict, random_chunk, residency
from benchmarks.store.run import throughput_table
from benchmarks.store.throughput import COLD, WARM, Throughput
from benchmarks.tests.running import benchmarks
from emblema.errors import LoadError
from emblema.models.load import load_model
from emblema.store import codec
from emblema.store.disk import DiskTier
from emblema.store.record import SHARED, Terms

SMALL = KVShape(layers=2, heads=2, width=16, hidden=32)


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


def test_the_load_that_is_timed_gives_the_rows_that_were_saved_and_notices_a_flipped_bit(tmp_path: Path) -> None:
    tier, (chunk, again) = DiskTier(tmp_path, 2**26), (random_chunk(64, numbers(), SMALL) for _ in range(2))
    assert chunk.id == again.id, "the same seed makes the same chunk"
    tier.write(codec.chunk_record(chunk, SHARED, created=1.0), Terms())
    path = tier.piece_path(chunk.id)
    for own, rows in zip(throughput.load(tier, chunk.id), again.rows, strict=True):
        assert torch.equal(own.keys, rows.keys) and torch.equal(own.values, rows.values)
    contents = path.read_bytes()
    assert throughput.read_plainly(path, np.empty(len(contents), np.uint8)).tobytes() == contents
    for place in (0.2, 0.5, 0.99):
        damaged = bytearray(contents)
        damaged[int(place * len(contents))] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(LoadError):
            throughput.load(tier, chunk.id)
    path.write_bytes(contents[:-1])
    with pytest.raises(LoadError, match="shorter"):
        throughput.read_plainly(path, np.empty(len(contents), np.uint8))


def test_bars_are_for_large_files_whose_cold_reads_were_cold() -> None:
    found = [Throughput(size, read, 3, 2.0, 1.7, 0.85, 0.8, 0.9, stayed)
             for size in (10**6, 32 * 10**6) for read in (COLD, WARM) for stayed in (0.0, 0.4, math.nan)]  # fmt: skip
    bars = throughput_table(found).bars
    told = [(bar.name.split(", ")[1], bar.bound, bar.holds) for bar in bars]
    assert told == [(COLD, 0.8, True)] + [(WARM, 0.9, False)] * 3


def test_logits_from_disk_are_those_from_memory(tmp_path: Path) -> None:
    subject = CostSubject("reference", load_model("reference")[0], 0)
    found = overlap.measure(tmp_path, subject, 2, 18, 2)
    assert [row.kv for row in found] == list(overlap.LANES) and all(row.rounds == 2 and row.ms > 0 for row in found)
    assert [row.hidden is None for row in found] == [row.kv != overlap.DISK for row in found]
    assert found[0].bytes > 36 * subject.row_bytes and len(subject.engine.store) == 0


def test_loads_are_measured_and_written(tmp_path: Path) -> None:
    pages, disk = tmp_path / "pages", tmp_path / "disk"
    asked = ("--quick", "--plain", "--seed", "5")
    done = benchmarks("store", *asked, "--report", str(pages), "--disk", str(disk))
    assert done.returncode == 0, done.stderr
    found = read_figures(pages / "store.json")
    assert [row["operation"] for row in found["throughput"]] == [COLD, WARM] * 2 and len(found["overlap"]) == 4
    assert (pages / "store-throughput.png").exists() and not list(disk.iterdir())
