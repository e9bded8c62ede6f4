"""The file format: what is written is read again, by this program, by plain safetensors, and as the document says."""

import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emblema.errors import LoadError, StoreError
from emblema.store import format
from emblema.store.format import ITEM_BYTES, MAX_HEADER
from emblema.store.record import SHARED, Array, Record, RecordHeader
from tests.store.corpus import OWNER, compact, file_bytes, identity, join, open_bytes, opened, signed, split


def arrays(**tensors: numpy.ndarray) -> dict[str, Array]:
    kinds = {"float32": "F32", "int64": "I64", "uint8": "U8", "bool": "BOOL", "float16": "F16", "float64": "F64"}
    return {name: Array(kinds[str(data.dtype)], data.shape, data.data) for name, data in tensors.items()}


def made(tensors: dict[str, Array], **fields: Any) -> Record:
    header = RecordHeader(identity(1), "chunk", SHARED, "a model", (), 1.5, {"a": [1, None, "é\n\u2028"]})
    return Record(replace(header, **fields), tensors)


def written(piece: Record) -> bytes:
    return b"".join(format.buffers(piece))


numbers = st.sampled_from(sorted(ITEM_BYTES)).flatmap(
    lambda dtype: st.lists(st.integers(0, 5), max_size=4).flatmap(
        lambda shape: st.binary(
            min_size=int(numpy.prod(shape)) * ITEM_BYTES[dtype], max_size=int(numpy.prod(shape)) * ITEM_BYTES[dtype]
        ).map(lambda data: Array(dtype, tuple(shape), memoryview(data)))
    )
)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", fullmatch=True)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(names, numbers, max_size=5),
    st.dictionaries(text, values, max_size=3),
    st.sampled_from([SHARED, OWNER]),
    text.filter(bool),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.integers(0, 9).map(identity), max_size=3),
)
def test_what_is_written_is_read_again(
    tensors: dict[str, Array], meta: dict[str, Any], owner: str, model: str, created: float, chunks: list[str]
) -> None:
    kind = "patch" if chunks else "chunk"
    piece = made(tensors, meta=meta, owner=owner, model=model, created=created, chunks=tuple(chunks), kind=kind)
    reader = open_bytes(written(piece), identity(1))
    assert {name: bytes(reader.read(name).data) for name in tensors} == {
        name: bytes(array.data) for name, array in tensors.items()
    }
    assert all(
        (array.dtype, array.shape) == (reader.read(n).dtype, reader.read(n).shape) for n, array in tensors.items()
    )
    assert replace(reader.header, sizes={}) == piece.header
    assert reader.header.bytes == sum(array.data.nbytes for array in tensors.values())


def test_a_tensor_with_another_byte_is_refused() -> None:
    """Each tensor by itself: the others are read as they are."""
    piece = made(arrays(a=numpy.arange(40.0), b=numpy.arange(7, dtype="u1")))
    data = bytearray(written(piece))
    data[-3] ^= 1
    with open_bytes(bytes(data)) as reader:
        assert bytes(reader.read("a").data) == bytes(piece.arrays["a"].data)
        with pytest.raises(LoadError, match="checksum of b differs"):
            reader.read("b")


def test_another_pieces_file_is_refused(tmp_path: Path) -> None:
    piece = made(arrays(a=numpy.arange(4.0)))
    data, path = written(piece), tmp_path / "piece"
    path.write_bytes(data)

    def fill(offset: int, view: memoryview) -> None:
        view[:] = data[offset : offset + len(view)]

    for open_as in (lambda id: format.open_file(path, id), lambda id: format.open_source(fill, len(data), id)):
        open_as(identity(1)).close()
        with pytest.raises(LoadError, match=f"the file holds {identity(1)[:12]}"):
            open_as(identity(2))


def test_tensors_are_aligned_and_the_first_read_stand_first() -> None:
    few = numpy.arange(3)
    piece = made(
        arrays(
            flags=few > 1,
            first=few.astype(numpy.float32),
            bytes=few.astype(numpy.uint8),
            second=few.astype(numpy.float32),
            ids=few,
        )
    )
    header, _ = split(written(piece))
    places = {name: entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}
    assert sorted(places, key=places.__getitem__) == ["ids", "first", "second", "flags", "bytes"]
    assert all(place % ITEM_BYTES[header[name]["dtype"]] == 0 for name, place in places.items())
    assert (len(written(piece)) - sum(array.data.nbytes for array in piece.arrays.values())) % 64 == 0


def test_large_tensors_are_handed_over_without_a_copy_and_read_into_memory_of_their_own() -> None:
    rows = numpy.arange(5 * 2**18, dtype=numpy.float32)
    piece = made(arrays(rows=rows))
    _, given = format.buffers(piece)
    assert numpy.shares_memory(numpy.frombuffer(given, numpy.float32), rows)
    data = written(piece)
    loaded = numpy.frombuffer(open_bytes(data).read("rows").data, numpy.float32)
    assert loaded.flags.writeable and not numpy.shares_memory(loaded, numpy.frombuffer(data, numpy.uint8))
    assert numpy.array_equal(loaded, rows)


@pytest.mark.slow
def test_tensors_of_one_group_share_memory_and_never_overlap() -> None:
    sizes = [5, 64, 2**20 + 1, 3 * 2**20, 18 * 2**20, 7, 9 * 2**20]
    tensors = {f"layers.{index}": numpy.full(size, index, numpy.uint8) for index, size in enumerate(sizes)}
    piece = made(arrays(embeds=numpy.full(9, 99, numpy.uint8), **tensors))
    reader = open_bytes(written(piece))
    # Twice over, as a reader may be asked again, and by several threads.
    with ThreadPoolExecutor(4) as pool:
        order = [*piece.arrays, *reversed(piece.arrays)]
        loaded = list(zip(order, pool.map(reader.read, order), strict=True))
    for name, array in loaded:
        assert bytes(array.data) == bytes(piece.arrays[name].data)
        array.data[:] = bytes(array.data.nbytes)
    assert not any(any(array.data) for _, array in loaded)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "ab"},
        {"id": "AB" * 32},
        {"id": "../" + "a" * 61},
        {"id": None},
        {"kind": "clip"},
        {"owner": "me"},
        {"model": ""},
        {"model": "m" * 257},
        {"chunks": (identity(2),)},
        {"chunks": ("x",), "kind": "patch"},
        {"kind": "patch"},
        {"created": float("nan")},
        {"created": float("inf")},
        {"created": None},
        {"meta": {"a": float("nan")}},
        {"meta": {"a": object()}},
        {"meta": {1: 0, "1": 0}},
        {"meta": {"a": "\ud800"}},
        {"meta": {"a": "x" * MAX_HEADER}},
    ],
)
def test_a_record_that_could_not_be_read_again_is_not_written(fields: dict[str, Any]) -> None:
    piece = made(arrays(a=numpy.arange(3)), **fields)
    with pytest.raises(StoreError, match="cannot be stored"):
        next(format.buffers(piece))


def test_circular_and_endless_meta_is_not_written() -> None:
    circular: dict[str, Any] = {}
    circular["self"] = circular
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for meta in (circular, {"deep": deep}):
        with pytest.raises(StoreError):
            next(format.buffers(made({}, meta=meta)))


@pytest.mark.parametrize(
    "array",
    [
        Array("U8", (4,), memoryview(bytes(5))),
        Array("U8", (-1,), memoryview(b"")),
        Array("U9", (4,), memoryview(bytes(4))),
        Array("U8", (2,), memoryview(bytes(4))[::2]),
        Array("U8", (1,) * 9, memoryview(bytes(1))),
    ],
)
def test_a_tensor_that_is_not_what_it_says_is_not_written(array: Array) -> None:
    with pytest.raises(StoreError):
        next(format.buffers(made({"a": array})))
    with pytest.raises(StoreError):
        next(format.buffers(made({"a b": Array("U8", (0,), memoryview(b""))})))


def test_a_later_version_is_refused_by_name() -> None:
    description, entries, tensors = opened(file_bytes(6))
    later = {**description, "version": 2, "what version 2 adds": True}
    with pytest.raises(LoadError, match="format version is 2"):
        open_bytes(signed(later, entries, tensors))
    for version in (0, -1, "1", 1.0, True, None, [1]):
        with pytest.raises(LoadError, match="version"):
            open_bytes(signed({**description, "version": version}, entries, tensors))


def test_padding_is_spaces_of_any_number() -> None:
    header, tensors = split(file_bytes(6))
    for spaces in (0, 1, 1000):
        format.verify(open_bytes(join(compact(header) + " " * spaces, tensors), identity(6)))


def test_sources_are_read_range_by_range() -> None:
    data, asked = file_bytes(6), []

    def fill(offset: int, view: memoryview) -> None:
        asked.append((offset, view.nbytes))
        view[:] = data[offset : offset + view.nbytes]

    closed = []
    with format.open_source(fill, len(data), identity(6), lambda: closed.append(True)) as reader:
        start = sum(asked[-1])
        assert asked == [(0, 8), (8, start - 8)]
        name = list(reader.header.sizes)[1]
        reader.read(name)
        assert asked[2:] == [(start + list(reader.header.sizes.values())[0], reader.header.sizes[name])]
    assert closed


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("size", [1_100_000, 2_093_056, 2_500_000, 7_000_000, 16_744_448])
def test_what_is_read_takes_an_eighth_more_memory_at_most(size: int) -> None:
    """Pages of 2 MiB are taken only where they are used: budgets count bytes of tensors."""
    data, count = written(made(arrays(a=numpy.ones(size, "u1")))), 8
    held = [open_bytes(data).read("a")]
    before = resident_bytes()
    held += [open_bytes(data).read("a") for _ in range(count)]
    assert resident_bytes() - before <= count * size * 9 / 8 + 2**20
    assert all(array.data[-1] == 1 for array in held)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_the_format_does_not_need_torch() -> None:
    source = "import sys, emblema.store.format, emblema.store.record; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", source], check=False, env=environment).returncode == 0
