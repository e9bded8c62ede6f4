"""Rows on their way: who reads a layer waits for it, and for nothing else."""

import threading
import time

import pytest
import torch

from emblema.errors import LoadError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows, kv_bytes
from emblema.store.arriving import ArrivingRows
from tests.link.pieces import chunk as piece


def layer(value: float) -> LayerRows:
    return LayerRows(torch.full((1, 2, 3), value), torch.full((1, 2, 3), -value))


def test_a_layer_is_read_as_soon_as_it_is_here() -> None:
    rows = ArrivingRows("c" * 64, [48, 48])
    rows.arrive(0, layer(1.0))
    assert torch.equal(rows[0].keys, layer(1.0).keys)
    assert not rows.complete
    threading.Timer(0.05, rows.arrive, (1, layer(2.0))).start()
    assert torch.equal(rows[1].values, layer(2.0).values)
    assert rows.complete and len(rows[:]) == len(rows) == 2


def test_bytes_are_known_before_anything_is_here() -> None:
    rows = ArrivingRows("c" * 64, [48, 24], deadline=0.0)
    made = piece(1, 3)
    assert kv_bytes(rows) == rows.bytes == 72
    assert Chunk(made.id, made.kind, made.model, made.encoded, rows).bytes == 72


def test_a_failed_load_fails_every_reader_of_what_is_missing_and_no_other() -> None:
    rows = ArrivingRows("c" * 64, [48, 48, 48])
    rows.arrive(0, layer(1.0))
    threading.Timer(0.05, rows.fail, (LoadError("c" * 64, "its checksum differs"),)).start()
    with pytest.raises(LoadError, match="checksum differs"):
        rows[:]
    rows.fail(LoadError("c" * 64, "another"))
    with pytest.raises(LoadError, match="checksum differs"):
        rows[2]
    assert torch.equal(rows[0].keys, layer(1.0).keys)
    assert rows.failed is not None and not rows.complete


def test_a_late_layer_is_a_failed_one_and_stays_so() -> None:
    rows = ArrivingRows("c" * 64, [48], deadline=0.05)
    began = time.monotonic()
    with pytest.raises(LoadError, match=r"layer 0 was not here after 0\.05 s"):
        rows[0]
    assert time.monotonic() - began >= 0.05
    assert rows.failed is not None and rows.failed.piece == "c" * 64


def test_indices_are_those_of_a_sequence() -> None:
    rows = ArrivingRows("c" * 64, [48, 48, 48])
    for index in range(3):
        rows.arrive(index, layer(float(index)))
    assert [float(one.keys[0, 0, 0]) for one in rows] == [0.0, 1.0, 2.0]
    assert [float(one.keys[0, 0, 0]) for one in rows[1:]] == [1.0, 2.0]
    assert float(rows[-1].keys[0, 0, 0]) == 2.0
    with pytest.raises(IndexError):
        rows[3]
