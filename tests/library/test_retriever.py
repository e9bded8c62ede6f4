"""Searching in the model's own attention space, and vectors that are lost, damaged or made by another embedder."""

import contextlib
import sqlite3
from pathlib import Path

import numpy
import pytest
import torch

from emblema.errors import LoadError, StoreError
from emblema.kv.chunk import Chunk
from emblema.library.embedders import AttentionEmbedder, Space, answering, choose_space, farthest
from emblema.library.libraries import Libraries
from emblema.library.retriever import SPACE
from emblema.library.static import StaticLibrary
from emblema.models.queries import key_states, queries
from emblema.store.store import Store
from tests.families import loaded
from tests.library.shelves import Landmarks, MeanEmbedder, photo, tenant


def test_the_farthest_keys_are_the_outlying_ones() -> None:
    keys = torch.zeros(2, 50, 3)
    keys[0, 7] = torch.tensor([9.0, 0, 0])
    keys[0, 30] = torch.tensor([0, 5.0, 0])
    keys[1, 4] = torch.tensor([0, 0, -2.0])
    found = farthest(keys, 3)
    assert torch.allclose(found[:, 0], keys.mean(1))
    assert torch.equal(found[0, 1], keys[0, 7]) and torch.equal(found[0, 2], keys[0, 30])
    assert torch.equal(found[1, 1], keys[1, 4])
    assert farthest(keys[:, :2], 8).shape == (2, 3, 3)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3", "kimi_k25"])
def test_every_family_can_be_searched_by_attention(name: str) -> None:
    bench = tenant(Store(), name=name)
    files = StaticLibrary(Libraries(), bench.tenant)
    for seed in range(4):
        files.add(photo(seed), name=f"photo {seed}")
    hits = files.search("word1 word2", 3)
    assert len(hits) == 3 and hits[0].score >= hits[1].score >= hits[2].score
    assert all(numpy.isfinite(hit.score) for hit in hits)
    assert [hit.name for hit in files.search("word1 word2", 3)] == [hit.name for hit in hits]


def test_vectors_are_the_models_own_states() -> None:
    bench = tenant(Store(), name="qwen3_vl")
    adapter = loaded("qwen3_vl").adapter
    chunk = bench.add(photo(1))
    assert isinstance(chunk, Chunk)
    embedder = AttentionEmbedder(adapter, bench.read, Space(1, 3))
    states = queries(adapter, bench.read("word1 word2"))[1]
    keys = key_states(adapter, chunk.encoded, chunk.rows, 1)
    assert (states.shape[0], keys.shape[0]) == (4, 2)
    assert numpy.array_equal(embedder.query("word1 word2"), states[3].numpy())
    vectors = torch.from_numpy(embedder.chunk(chunk))
    assert len(vectors) == min(embedder.summary, chunk.tokens + 1) and torch.allclose(
        vectors[0], keys[1].mean(0), atol=1e-5
    )
    assert all(bool((keys[1] == vector).all(-1).any()) for vector in vectors[1:])


def test_a_head_that_answers_counts_more_than_one_that_does_not() -> None:
    generator = torch.Generator().manual_seed(0)
    states, summaries = torch.zeros(4, 20, 6), torch.zeros(5, 2, 3, 6)
    # Two query heads ask one key head. The first likes one chunk whatever is asked, the second asks for nothing.
    states[0, :, 0] = 1
    summaries[:, 0, :, 0] = torch.randn(5, 3, generator=generator)
    # The third's questions are answered apart, each by a chunk of its own; the fourth's only partly.
    states[2, :, :5] = torch.eye(5).repeat(4, 1)
    states[3, :, :5] = states[2, :, :5]
    states[3, :, 5] = torch.arange(20.0)
    summaries[:, 1, 0, :5] = torch.eye(5)
    summaries[:, 1, :, 5] = 1
    shares = answering(states, summaries)
    assert shares[0] < 1e-6 and shares[1] == 0
    assert shares[2] > 0.99 and 0 < shares[3] < 0.5


def test_the_choice_of_a_space_repeats() -> None:
    bench = tenant(Store(), name="qwen3_vl")
    chunks = [bench.add(photo(seed)) for seed in range(5)]
    adapter = loaded("qwen3_vl").adapter
    space = choose_space(adapter, chunks)
    assert space == choose_space(adapter, chunks) and space.layer < 3 and space.head < 4


def test_the_space_is_settled_once_there_are_chunks_to_tell_by() -> None:
    bench, libraries = tenant(Store()), Libraries()
    files = StaticLibrary(libraries, bench.tenant)
    scope = bench.tenant.scope()
    for seed in range(7):
        files.add(photo(seed), name=f"photo {seed}")
    files.search("word1", 1)
    assert libraries.listings.setting(scope, SPACE) is None
    files.add(photo(7), name="photo 7")
    files.search("word1", 1)
    chosen = choose_space(loaded("llava").adapter, [files[name] for name in files])
    assert libraries.listings.setting(scope, SPACE) == f"{chosen.layer}.{chosen.head}"
    libraries.listings.set(scope, SPACE, "999.1 or so")
    assert len(files.search("word1", 9)) == 8


def test_the_plain_embedder_finds_a_text_by_its_words() -> None:
    bench = tenant(Store())
    files = StaticLibrary(Libraries(), bench.tenant, MeanEmbedder(loaded("llava").adapter, bench.read))
    for start in (0, 10, 20):
        files.add(name=f"text {start}", text=" ".join(f"word{start + step}" for step in range(6)))
    files.add(photo(1), name="photo")
    for start in (0, 10, 20):
        assert files.search(f"word{start + 1} word{start + 4}", 1)[0].name == f"text {start}"


@pytest.mark.parametrize("how", ["lost", "damaged", "swapped"])
def test_vectors_that_are_gone_are_made_again(tmp_path: Path, how: str) -> None:
    store = Store()
    bench = tenant(store)
    other = tenant(store, b"other")
    with Libraries(tmp_path) as libraries:
        for each in (bench, other):
            files = StaticLibrary(libraries, each.tenant, Landmarks())
            for seed in range(5):
                files.add(photo(seed + 5 * (each is other)), name=f"photo {seed}")
    with contextlib.closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as rows, rows:
        match how:
            case "lost":
                rows.execute("DELETE FROM vectors")
            case "damaged":
                rows.execute("UPDATE vectors SET vectors = substr(vectors, 1, length(vectors) - 3)")
            case "swapped":
                one, two = (scope for (scope,) in rows.execute("SELECT DISTINCT scope FROM vectors"))
                swapped = "CASE scope WHEN ? THEN ? ELSE ? END"
                rows.execute(f"UPDATE vectors SET scope = {swapped}", (one, two, one))
    with Libraries(tmp_path) as libraries:
        landmarks = Landmarks()
        files = StaticLibrary(libraries, bench.tenant, landmarks)
        assert files.search("word3", 1)[0].name == "photo 3" and len(landmarks.embedded) == 5
        assert libraries.indexes.damaged == (0 if how == "lost" else 5)
        assert files.search("word2", 1)[0].name == "photo 2" and len(landmarks.embedded) == 5


def test_vectors_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    bench = tenant(Store())
    landmarks = Landmarks()
    for _ in range(2):
        with Libraries(tmp_path) as libraries:
            files = StaticLibrary(libraries, bench.tenant, landmarks)
            for seed in range(5):
                if f"photo {seed}" not in files:
                    files.add(photo(seed), name=f"photo {seed}")
            assert files.search("word3", 1)[0].name == "photo 3"
    assert len(landmarks.embedded) == 5


def test_a_chunk_whose_rows_cannot_be_read_is_left_out_and_counted() -> None:
    class Unreadable(Landmarks):
        def chunk(self, chunk: Chunk) -> object:
            if chunk.id == bad:
                raise LoadError(chunk.id, "gone")
            return super().chunk(chunk)

    bench, libraries = tenant(Store()), Libraries()
    bad = bench.add(photo(1)).id
    files = StaticLibrary(libraries, bench.tenant, Unreadable())
    for seed in range(3):
        files.add(photo(seed), name=f"photo {seed}")
    assert {hit.name for hit in files.search("word1", 3)} == {"photo 0", "photo 2"}
    assert libraries.statistics.unread_chunks >= 1


def test_an_embedder_that_gives_nonsense_is_named() -> None:
    class Nonsense(Landmarks):
        def query(self, text: str) -> object:
            return [[float("nan")] * 16]

    files = StaticLibrary(Libraries(), tenant(Store()).tenant, Nonsense())
    files.add(photo(1), name="one")
    with pytest.raises(StoreError, match="embedder gave a query vectors that are not finite"):
        files.search("word1", 1)
