"""The vector index against plain arithmetic, and its rows against damage."""

import contextlib
import sqlite3
from pathlib import Path

import faiss
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StoreError
from emblema.library.listings import EndedItems, Listings
from emblema.library.saved_vectors import Indexes
from emblema.library.vectors import VectorIndex, combined
from emblema.store.catalogue import Catalogue


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
    vectors = index._vectors
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
            index.remove(identity(number))
            kept.pop(identity(number), None)
        index.search(query, 1, list(kept))
    assert len(index) == len(kept) and all(chunk in index for chunk in kept)
    among = [identity(number) for number in sorted(chosen)]
    known = [chunk for chunk in among if chunk in kept]
    found = index.search(query, count, among)
    scores = {chunk: float((query @ kept[chunk].T).max()) for chunk in known}
    assert [chunk for chunk, _ in found] == sorted(known, key=lambda chunk: -scores[chunk])[:count]
    assert all(abs(score - scores[chunk]) < 1e-4 for chunk, score in found)


def test_many_vectors_are_kept_in_an_inverted_file() -> None:
    index = filled(500, flat_vectors=1000)
    everything = [identity(number) for number in range(500)]
    random = numpy.random.default_rng(6)
    queries = [random.standard_normal((1, 8)).astype(numpy.float32) for _ in range(40)]

    def agreeing(among: list[str]) -> int:
        return sum(index.search(query, 1, among)[0][0] == expected(index, query, among)[0] for query in queries)

    assert agreeing(everything) >= 30 and isinstance(index._index, faiss.IndexIVFFlat)
    for chunk in everything[:100]:
        index.remove(chunk)
    index.add(identity(900), 100 * numpy.ones((1, 8), numpy.float32))
    assert index.search(numpy.ones((1, 8), numpy.float32), 1, [*everything, identity(900)])[0][0] == identity(900)
    assert agreeing(everything[100:]) >= 30
    assert not {chunk for chunk, _ in index.search(queries[0], 5, everything)} & set(everything[:100])


def test_growing_past_the_bound_makes_an_inverted_file() -> None:
    index = filled(100, flat_vectors=300)
    query = numpy.ones((1, 8), numpy.float32)
    for total, kind in ((100, type(None)), (200, faiss.IndexIVFFlat), (250, faiss.IndexIVFFlat)):
        for number in range(len(index), total):
            index.add(identity(number), query)
        among = [identity(number) for number in range(total)]
        assert index.search(query, 1, among)[0][0] == expected(index, query, among)[0]
        assert isinstance(index._index, kind)


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


def opened(folder: Path) -> Indexes:
    return Indexes(Listings(folder).catalogue)


def test_an_index_is_kept_reread_and_made_again(tmp_path: Path) -> None:
    first, second = opened(tmp_path).of("scope", "embedder"), opened(tmp_path).of("scope", "embedder")
    vectors = filled(5)._vectors
    first.add(vectors)
    second.refresh()
    assert second.damaged == 0 and second.index._vectors.keys() == vectors.keys()
    assert all(numpy.array_equal(found, vectors[chunk]) for chunk, found in second.index._vectors.items())
    first.add({identity(7): vectors[identity(1)]})
    second.refresh()
    assert identity(7) in second.index
    other = opened(tmp_path)
    for scope, embedder in (("other", "embedder"), ("scope", "other")):
        other.of(scope, embedder).refresh()
        assert len(other.of(scope, embedder).index) == 0


def test_a_chunk_is_forgotten_under_every_embedder_of_its_scope(tmp_path: Path) -> None:
    listings, vectors = Listings(tmp_path), filled(2)._vectors
    indexes, all_of_it = Indexes(listings.catalogue), [("scope", "one"), ("scope", "two"), ("other", "one")]
    for of in all_of_it:
        indexes.of(*of).add(vectors)
    indexes.forget("scope", identity(0))
    listings.forget("scope", EndedItems(chunks=(identity(0),)), {identity(0)})
    again = opened(tmp_path)
    for each in (indexes, again):
        for scope, embedder in all_of_it:
            each.of(scope, embedder).refresh()
            found = list(each.of(scope, embedder).index._vectors)
            assert found == [identity(0), identity(1)][scope == "scope" :]


@pytest.mark.parametrize(
    "change",
    [
        "vectors = zeroblob(length(vectors))", "vectors = x'00'", "width = 0", "width = width * 2", "width = 'x'",
        "checksum = 'none'", f"chunk = '{identity(9)}'", "scope = 'scope', chunk = chunk || '0'", "vectors = 'text'",
    ],
)  # fmt: skip
def test_every_damaged_row_is_noticed_and_made_again(tmp_path: Path, change: str) -> None:
    vectors = filled(3)._vectors
    opened(tmp_path).of("scope", "embedder").add(vectors)
    with contextlib.closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as rows, rows:
        rows.execute(f"UPDATE vectors SET {change} WHERE chunk = ?", (identity(1),))
    saved = opened(tmp_path).of("scope", "embedder")
    saved.refresh()
    assert saved.damaged == 1 and list(saved.index._vectors) == [identity(0), identity(2)]
    saved.add({identity(1): vectors[identity(1)]})
    again = opened(tmp_path).of("scope", "embedder")
    again.refresh()
    assert identity(1) in again.index and len(again.index) == 3


def test_a_folder_that_cannot_be_written_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = opened(tmp_path)

    def failing(*given: object, **named: object) -> object:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Catalogue, "change", failing)
    saved = indexes.of("scope", "embedder")
    saved.add({identity(number): numpy.ones((1, 4), numpy.float32) for number in range(70)})
    assert len(saved.index) == 70
