"""Chunks and patches through the format: every family's rows bit for bit, and what the header tells beforehand."""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.errors import LoadError, StoreError
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch, form_patch
from emblema.models.adapter import Adapter
from emblema.store import format
from emblema.store.codec import (
    artifact_record,
    chunk_kind,
    chunk_record,
    layer_bytes,
    make_record,
    read_artifact,
    read_encoded,
    read_layers,
)
from emblema.store.compression import COMPRESSIONS, Compression
from emblema.store.files import write_whole
from emblema.store.format import Reader
from emblema.store.record import Record
from tests.families import CASES, NAMES, loaded, picture, words
from tests.store.corpus import OWNER, chunk, identity, open_bytes, patch

families = pytest.mark.parametrize("name", NAMES)
LAYOUTS = {"qwen2_5_vl": "heads", "kimi_k25": "latent", "qwen3_vl": "deepstack", "gemma3": "groups"}


def through(record: Record) -> Reader:
    return open_bytes(b"".join(format.buffers(record)), record.header.id)


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Equal bit for bit, whatever the numbers; dtype and shape too."""
    return (one.dtype, one.shape) == (two.dtype, two.shape) and one.contiguous().reshape(-1).view(
        torch.uint8
    ).tolist() == two.contiguous().reshape(-1).view(torch.uint8).tolist()


def same_encoded(one: Encoded, two: Encoded) -> bool:
    pairs = [(getattr(one, n), getattr(two, n)) for n in ("token_ids", "embeds", "positions", "visual", "groups")]
    pairs += list(zip(one.deepstack, two.deepstack, strict=True))
    return one.span == two.span and all(same(*pair) for pair in pairs)


def assert_round_trip(made: Chunk) -> Reader:
    reader = through(chunk_record(made, OWNER, created=2.5))
    header = reader.header
    assert (header.id, header.kind, header.owner, header.model) == (made.id, "chunk", OWNER, made.model)
    assert (header.chunks, header.created, chunk_kind(header)) == ((), 2.5, made.kind)
    assert header.meta["tokens"] == made.tokens
    assert layer_bytes(header) == tuple(layer.bytes for layer in made.rows)
    assert same_encoded(read_encoded(reader), made.encoded)
    for rows, layer in zip(read_layers(reader), made.rows, strict=True):
        assert same(rows.keys, layer.keys) and same(rows.values, layer.values)
    return reader


def chunk_of(adapter: Adapter, name: str) -> Chunk:
    """A picture's chunk."""
    encoded = adapter.encode(loaded(name).preparer.image(picture(*CASES[name].sizes[0])))
    return Chunk(identity(7), "image", adapter.fingerprint, encoded, adapter.capture(encoded))


@cache
def captured(name: str) -> Chunk:
    """A picture's chunk of a family's tiny model."""
    return chunk_of(loaded(name).adapter, name)


@families
def test_every_familys_picture_makes_the_round_trip_bit_for_bit(name: str) -> None:
    assert_round_trip(captured(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_makes_the_round_trip_in_half_precision(name: str, tmp_path: Path) -> None:
    loaded(name).model.save_pretrained(tmp_path)
    model = type(loaded(name).model).from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    made = chunk_of(Adapter(model), name)
    assert made.rows[0].keys.dtype == torch.bfloat16
    reader = assert_round_trip(made)
    assert reader.read("layers.0.keys").dtype == "BF16"


def test_the_layouts_above_are_what_they_are_called() -> None:
    keys, values = (captured("kimi_k25").rows[0].keys, captured("kimi_k25").rows[0].values)
    assert keys.shape[0] == values.shape[0] == 1 and keys.shape[2] != values.shape[2]
    assert captured("qwen3_vl").encoded.deepstack
    assert captured("qwen2_5_vl").encoded.positions.shape[0] == 3
    assert bool((captured("gemma3").encoded.groups >= 0).any())


def test_a_passage_of_text_makes_the_round_trip() -> None:
    adapter = loaded("qwen3_vl").adapter
    encoded = adapter.encode_text(words(9))
    made = Chunk(identity(8), "text", adapter.fingerprint, encoded, adapter.capture(encoded))
    reader = assert_round_trip(made)
    assert reader.read("visual").shape == (0,)


def test_strided_and_shared_memory_is_stored_as_it_reads() -> None:
    base = torch.randn(6, 2, 8)
    turned = base.transpose(0, 1)
    repeated = base[0, 0].expand(2, 6, 8)
    rows = (LayerRows(turned, turned[:, :, ::2]), LayerRows(turned.flip(0)[:, :, 1:], repeated))
    assert_round_trip(replace(chunk(1), rows=rows))


def test_odd_bits_survive() -> None:
    bits = torch.tensor([0x7FC00001, -0x400001, -0x80000000, 1, 0x7F800000, -0x800000], dtype=torch.int32)
    rows = bits.view(torch.float32).reshape(1, 6, 1)
    made = replace(chunk(1), rows=(LayerRows(rows, rows.clone()),))
    assert_round_trip(made)


def test_tensors_are_not_copied_on_their_way_out() -> None:
    made = chunk(1)
    record = chunk_record(made, OWNER, created=0.0)
    stored = torch.frombuffer(record.arrays["layers.1.values"].data, dtype=torch.float32)
    assert stored.data_ptr() == made.rows[1].values.data_ptr()
    assert list(record.arrays)[:5] == ["token_ids", "positions", "visual", "groups", "embeds"]
    assert list(record.arrays)[6:] == ["layers.0.keys", "layers.0.values", "layers.1.keys", "layers.1.values"]
    assert record.header.sizes == {name: array.data.nbytes for name, array in record.arrays.items()}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compressed_chunks_come_back_in_their_dtype_and_shape(compression: Compression, dtype: torch.dtype) -> None:
    made = chunk(1, length=40, dtype=dtype, width=5)
    reader = through(chunk_record(made, OWNER, compression=compression, created=0.0))
    assert reader.header.meta["compression"] == compression
    assert layer_bytes(reader.header) == tuple(layer.bytes for layer in made.rows)
    assert same_encoded(read_encoded(reader), made.encoded), "only rows are compressed"
    for rows, layer in zip(read_layers(reader), made.rows, strict=True):
        for stored, exact in ((rows.keys, layer.keys), (rows.values, layer.values)):
            assert (stored.dtype, stored.shape) == (exact.dtype, exact.shape)
            error = float((stored.double() - exact.double()).norm() / exact.double().norm())
            assert error <= {"none": 0.0, "bf16": 0.004, "fp8": 0.04, "int8": 0.015}[compression]
            assert (error == 0) == (compression == "none" or (compression == "bf16" and dtype.itemsize == 2))


def test_compression_makes_a_file_smaller() -> None:
    made = chunk(1, length=200, width=16)
    records = [chunk_record(made, OWNER, compression=name, created=0.0) for name in COMPRESSIONS]
    sizes = [sum(map(len, format.buffers(each))) for each in records]
    rows = sum(layer.bytes for layer in made.rows)
    assert abs((sizes[0] - sizes[1]) - rows / 2) < 500
    assert rows * 0.7 < sizes[0] - sizes[2] <= rows * 0.75
    assert abs(sizes[2] - sizes[3]) < 200


def test_a_slot_with_an_infinity_is_kept_whole_beside_compressed_ones() -> None:
    made = chunk(1)
    broken = made.rows[0].keys.clone()
    broken[0, 0, 0] = float("inf")
    made = replace(made, rows=(LayerRows(broken, made.rows[0].values), made.rows[1]))
    reader = through(chunk_record(made, OWNER, compression="fp8", created=0.0))
    assert same(next(read_layers(reader)).keys, broken)
    assert reader.read("layers.0.values").dtype == "F8_E4M3"


def test_a_dtype_without_a_place_is_refused() -> None:
    made = chunk(1)
    made = replace(made, rows=(LayerRows(made.rows[0].keys.to(torch.complex64), made.rows[0].values),))
    with pytest.raises(StoreError, match="complex64"):
        chunk_record(made, OWNER, created=0.0)


def test_what_is_read_may_be_written_to_and_outlives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "piece"
    made = chunk(1)
    write_whole(path, format.buffers(chunk_record(made, OWNER, created=0.0)))
    with format.open_file(path, made.id) as reader:
        first, again = next(read_layers(reader)), next(read_layers(reader))
    path.unlink()
    first.keys.zero_()
    assert same(again.keys, made.rows[0].keys)


def same_patch(one: Patch, two: Patch) -> bool:
    def factors(layer: LayerPatch) -> list[torch.Tensor]:
        return [layer.keys.left, layer.keys.right, layer.values.left, layer.values.right]

    return len(one.layers) == len(two.layers) and all(
        (a is None) == (b is None) and (a is None or b is None or all(map(same, factors(a), factors(b))))
        for a, b in zip(one.layers, two.layers, strict=True)
    )


@pytest.mark.parametrize("kind", [ArtifactKind.PATCH, ArtifactKind.ORBIT])
@pytest.mark.parametrize("antecedents", [(), (3,), (5, 3, 5), (1, 2)])
def test_a_patch_and_its_key_make_the_round_trip(kind: ArtifactKind, antecedents: tuple[int, ...]) -> None:
    made = patch(1)[1]
    key = ArtifactKey("a model", identity(1), tuple(map(identity, antecedents)), kind)
    reader = through(artifact_record(key, identity(9), made, OWNER, created=3.0))
    found, read = read_artifact(reader)
    assert found == key
    assert set(reader.header.chunks) == key.chunks and len(reader.header.chunks) == len(key.chunks)
    assert same_patch(read, made)


def test_formed_patches_of_every_layout_make_the_round_trip() -> None:
    for name in LAYOUTS:
        rows = captured(name).rows
        made = form_patch([None, *rows[1:]], 3, torch.bfloat16)
        key = ArtifactKey("a model", identity(1), ())
        assert same_patch(read_artifact(through(artifact_record(key, identity(9), made, OWNER, created=0.0)))[1], made)
    sliced = form_patch(captured("llava").rows, 6, torch.float32).slice(2)
    assert same_patch(read_artifact(through(artifact_record(key, identity(9), sliced, OWNER, created=0.0)))[1], sliced)


@pytest.mark.parametrize("former", ["basis-4", "keys", "residual-1"])
def test_a_record_of_a_former_strategy_is_refused_by_name(former: str) -> None:
    """Older versions wrote it behind the model's name."""
    _, made = patch(1)
    key = ArtifactKey(f"a model/{former}", identity(1))
    with pytest.raises(LoadError, match=f"'{former}', for a strategy that is no longer offered"):
        read_artifact(through(artifact_record(key, identity(9), made, OWNER, created=0.0)))


def test_a_patch_is_no_chunk_and_a_chunk_no_patch() -> None:
    key, made = patch(1)
    of_patch = through(artifact_record(key, identity(9), made, OWNER, created=0.0))
    of_chunk = through(chunk_record(chunk(1), OWNER, created=0.0))
    for wrong in (
        lambda: read_artifact(of_chunk),
        lambda: read_encoded(of_patch),
        lambda: next(read_layers(of_patch)),
        lambda: layer_bytes(of_patch.header),
        lambda: chunk_kind(of_patch.header),
    ):
        with pytest.raises(LoadError):
            wrong()


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": torch.arange(5)},
        {"token_ids": torch.arange(6, dtype=torch.int32)},
        {"positions": torch.arange(6)},
        {"visual": torch.tensor([2, 1])},
        {"visual": torch.tensor([1, 1, 2, 4])},
        {"visual": torch.tensor([-1, 1, 2, 4])},
        {"visual": torch.tensor([1, 2, 4, 6])},
        {"groups": torch.zeros(6)},
        {"embeds": torch.zeros(6, 8, dtype=torch.int64)},
        {"embeds": torch.zeros(6)},
        {"deepstack.0": torch.zeros(3, 8)},
        {"layers.0.keys": torch.zeros(2, 6, 5)},
        {"layers.0.keys": torch.zeros(2, 24)},
        {"layers.0.keys": torch.zeros(2, 6, 4, dtype=torch.int8)},
        {"layers.0.keys.scales": torch.ones(2, 4)},
        {"layers.1.values": torch.zeros(2, 6, 4, dtype=torch.float16)},
        {"layers.2.keys": torch.zeros(2, 6, 4)},
        {"more": torch.zeros(1)},
    ],
    ids=lambda change: " ".join(f"{name} {list(value.shape)} {value.dtype}" for name, value in change.items()),
)
def test_tensors_that_do_not_fit_the_header_are_refused(change: dict[str, torch.Tensor]) -> None:
    """Sound files of another program that got the format wrong."""
    record = chunk_record(chunk(1), OWNER, created=0.0)
    put: dict[str, Any] = dict(record.arrays)
    put |= make_record(record.header, change).arrays
    with pytest.raises(LoadError):
        reader = through(Record(record.header, put))
        read_encoded(reader)
        list(read_layers(reader))


def test_random_chunks_of_every_shape_make_the_round_trip() -> None:
    rng = random.Random(0)
    for seed in range(40):
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16, torch.float64])
        size = {"length": rng.randint(1, 30), "layers": rng.randint(0, 4), "width": rng.randint(1, 9)}
        assert_round_trip(chunk(seed, dtype=dtype, deepstack=rng.randint(0, 3), **size))


def test_factors_that_do_not_meet_are_refused() -> None:
    key = ArtifactKey("a model", identity(1), ())
    wrong = LayerPatch(Factors(torch.zeros(4, 2), torch.zeros(3, 8)), Factors(torch.zeros(4, 2), torch.zeros(2, 8)))
    with pytest.raises(LoadError, match="layers.0.keys.right has shape"):
        read_artifact(through(artifact_record(key, identity(9), Patch((wrong,)), OWNER, created=0.0)))
