"""The vector index against plain arithmetic, and its file against everything that can happen to a file."""

import os
from pathlib import Path

import faiss
import numpy
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StoreError
from emblema.library.saved_vectors import Indexes, SavedIndex, read_vectors, write_vectors
from emblema.library.vectors import VectorIndex, combined

ABOUT = "scope embedder"


def identity(number: int) -> str:
    return f"{number:064x}"


def filled(chunks: int, width: int = 8, seed: int = 0, **options: int) -> VectorIndex:
    """An index of chunks with one to four vectors each."""
    random = numpy.random.default_rng(seed)
    index = VectorIndex(**options)
    for number in range(chunks):
        index.add(identity(number), random.standard_normal((number % 4 + 1, width)).astype(numpy.float32))
    return index


def expected(index: VectorIndex, query: numpy.ndarray, among: list[str]) -> list[str]:
    """Every chunk compared, the nearest first."""
    vectors = index.snapshot()
    nearest = numpy.stack([(query @ vectors[chunk].T).max(1) for chunk in among], axis=1)
    return [among[place] for place in numpy.argsort(-combined(nearest), kind="stable")]


@given(
    st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 11)), max_size=40),
    st.integers(0, 1000),
    st.integers(1, 4),
    st.sets(st.integers(0, 11), min_size=1),
)
def test_whatever_was_done_the_nearest_are_found(steps: list, seed: int, count: int, chosen: set[int]) -> None:
    random = numpy.random.default_rng(seed)
    index, kept = VectorIndex(), {}
    query = random.standard_normal((1, 4)).astype(numpy.float32)
    for act, number in steps:
        if act == "add":
            kept[identity(number)] = random.standard_normal((number % 3 + 1, 4)).astype(numpy.float32)
            index.add(identity(number), kept[identity(number)])
        else:
            assert index.remove([identity(number)]) == (kept.pop(identity(number), None) is not None)
        index.search(query, 1, list(kept))
    assert len(index) == len(kept) and all(chunk in index for chunk in kept)
    among = [identity(number) for number in sorted(chosen)]
    known = [chunk for chunk in among if chunk in kept]
    found = index.search(query, count, among)
    scores = {chunk: float((query @ kept[chunk].T).max()) for chunk in known}
    assert [chunk for chunk, _ in found] == sorted(known, key=lambda chunk: -scores[chunk])[:count]
    assert all(abs(score - scores[chunk]) < 1e-4 for chunk, score in found)


def test_faiss_is_asked_and_agrees() -> None:
    index = filled(600)
    random = numpy.random.default_rng(5)
    everything = [identity(number) for number in range(600)]
    few = everything[100:400:3]
    for _ in range(10):
        query = random.standard_normal((1, 8)).astype(numpy.float32)
        for among in (everything, few):
            assert [chunk for chunk, _ in index.search(query, 3, among)] == expected(index, query, among)[:3]
    assert isinstance(index._index, faiss.IndexIDMap2)
    index.remove(everything[:300])
    query = random.standard_normal((1, 8)).astype(numpy.float32)
    found = [chunk for chunk, _ in index.search(query, 5, everything)]
    assert found == expected(index, query, everything[300:])[:5]


def test_many_vectors_are_kept_in_an_inverted_file() -> None:
    index = filled(500, flat_vectors=1000)
    everything = [identity(number) for number in range(500)]
    random = numpy.random.default_rng(6)
    queries = [random.standard_normal((1, 8)).astype(numpy.float32) for _ in range(40)]

    def agreeing(among: list[str]) -> int:
        return sum(index.search(query, 1, among)[0][0] == expected(index, query, among)[0] for query in queries)

    assert agreeing(everything) >= 30 and isinstance(index._index, faiss.IndexIVFFlat)
    index.remove(everything[:100])
    index.add(identity(900), 100 * numpy.ones((1, 8), numpy.float32))
    assert index.search(numpy.ones((1, 8), numpy.float32), 1, [*everything, identity(900)])[0][0] == identity(900)
    assert agreeing(everything[100:]) >= 30
    assert not {chunk for chunk, _ in index.search(queries[0], 5, everything)} & set(everything[:100])


def test_growing_past_the_bound_makes_an_inverted_file() -> None:
    index = filled(100, flat_vectors=300)
    query = numpy.ones((1, 8), numpy.float32)
    index.search(query, 1, [identity(number) for number in range(100)])
    assert isinstance(index._index, faiss.IndexIDMap2)
    for number in range(100, 200):
        index.add(identity(number), query)
    index.search(query, 1, [identity(number) for number in range(200)])
    assert isinstance(index._index, faiss.IndexIVFFlat)


def test_words_that_tell_chunks_apart_count_most() -> None:
    nearest = numpy.array([[9.0, 9.1, 9.0], [1.0, 0.0, 5.0]], numpy.float32)
    assert int(combined(nearest).argmax()) == 2
    assert numpy.allclose(combined(numpy.ones((2, 3), numpy.float32)), 1)


@pytest.mark.parametrize(
    "vectors",
    [
        numpy.zeros(4),
        numpy.zeros((0, 4)),
        numpy.zeros((1, 0)),
        [[float("inf")]],
        [[float("nan")]],
        numpy.zeros((1, 2, 3)),
    ],
)
def test_bad_vectors_are_refused(vectors: object) -> None:
    index = filled(3, width=4)
    for act in (lambda: index.add(identity(9), vectors), lambda: index.search(vectors, 1, [identity(0)])):
        with pytest.raises(StoreError, match="embedder gave"):
            act()
    assert len(index) == 3


def test_another_width_is_refused() -> None:
    index = filled(3, width=4)
    with pytest.raises(StoreError, match="wide"):
        index.add(identity(9), numpy.zeros((1, 5)))
    with pytest.raises(StoreError, match="wide"):
        index.search(numpy.zeros((1, 5)), 1, [identity(0)])
    assert VectorIndex().search(numpy.zeros((1, 5)), 1, [identity(0)]) == []


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path, vectors = tmp_path / "deep" / "vectors.safetensors", filled(20).snapshot()
    write_vectors(path, ABOUT, vectors)
    back = read_vectors(path, ABOUT)
    assert list(back) == list(vectors) and all(numpy.array_equal(back[chunk], vectors[chunk]) for chunk in vectors)
    assert path.stat().st_mode & 0o077 == 0 and os.listdir(path.parent) == [path.name]
    write_vectors(path, ABOUT, {})
    assert read_vectors(path, ABOUT) == {}
    with pytest.raises(StoreError, match="what it is about"):
        read_vectors(path, "another")
    with pytest.raises(FileNotFoundError):
        read_vectors(tmp_path / "none", ABOUT)


def damaged(data: bytes, random: numpy.random.Generator) -> bytes:
    """The file flipped, cut, zeroed, swapped about or emptied somewhere."""
    changed = bytearray(data)
    start = int(random.integers(len(data)))
    stop = min(len(data), start + int(random.integers(1, 64)))
    match int(random.integers(6)):
        case 0:
            changed[start] ^= 1 << int(random.integers(8))
        case 1:
            del changed[start:]
        case 2:
            changed[start:stop] = bytes(stop - start)
        case 3:
            changed[start:stop] = random.bytes(stop - start)
        case 4:
            changed = changed[start:] + changed[:start]
        case _:
            changed += random.bytes(stop - start)
    return bytes(changed)


def test_every_damaged_file_is_noticed(tmp_path: Path) -> None:
    path, vectors = tmp_path / "vectors.safetensors", filled(20).snapshot()
    write_vectors(path, ABOUT, vectors)
    data = path.read_bytes()
    random = numpy.random.default_rng(0)
    noticed = 0
    for _ in range(500):
        path.write_bytes(damaged(data, random))
        try:
            found = read_vectors(path, ABOUT)
        except StoreError:
            noticed += 1
        else:
            # A byte of zeros was zeroed, or a space in the header turned into another: what is read is the same.
            assert list(found) == list(vectors)
            assert all(numpy.array_equal(found[chunk], vectors[chunk]) for chunk in vectors)
    assert noticed > 450


def test_files_that_are_none_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "vectors.safetensors"
    write_vectors(path, ABOUT, filled(3).snapshot())
    with pytest.raises(StoreError, match="at most 10 bytes"):
        read_vectors(path, ABOUT, limit=10)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(StoreError):
            read_vectors(tmp_path / name, ABOUT)
    safetensors.numpy.save_file({"ids": numpy.zeros(3)}, path)
    with pytest.raises(StoreError, match="damaged"):
        read_vectors(path, ABOUT)


def test_an_index_is_kept_reread_and_made_again(tmp_path: Path) -> None:
    first = Indexes(tmp_path).of("scope", "embedder")
    vectors = filled(5).snapshot()
    for chunk, one in vectors.items():
        first.add(chunk, one)
    assert list(tmp_path.iterdir()) == []
    first.flush()
    (path,) = tmp_path.iterdir()
    second = Indexes(tmp_path).of("scope", "embedder")
    second.refresh()
    assert len(second.index) == 5 and second.damaged == 0
    first.remove([identity(0)])
    first.add(identity(7), vectors[identity(1)])
    first.flush()
    second.refresh()
    assert identity(7) in second.index
    path.write_bytes(b"\x00" * 100)
    third = SavedIndex(path, "scope embedder")
    third.refresh()
    third.refresh()
    assert len(third.index) == 0 and third.damaged == 1
    third.add(identity(1), vectors[identity(1)])
    third.flush()
    assert len(read_vectors(path, "scope embedder")) == 1
    assert Indexes(tmp_path).of("other", "embedder").path != path


def test_many_changes_are_written_without_being_asked(tmp_path: Path) -> None:
    saved = SavedIndex(tmp_path / "vectors", ABOUT)
    for number in range(64):
        saved.add(identity(number), numpy.ones((1, 4), numpy.float32))
    assert len(read_vectors(tmp_path / "vectors", ABOUT)) == 64


def test_a_folder_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file, no folder")
    saved = SavedIndex(tmp_path / "taken" / "vectors", ABOUT)
    for number in range(70):
        saved.add(identity(number), numpy.ones((1, 4), numpy.float32))
    assert len(saved.index) == 70
    with pytest.raises(StoreError, match="could not be written"):
        saved.flush()
