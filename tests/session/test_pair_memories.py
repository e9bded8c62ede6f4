"""The memories of a store's tenants: one for each model, gone with what is deleted, written when they are closed."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.session.pair_bases import FOLDER
from emblema.session.pair_memories import PairMemories
from emblema.session.pair_memory import PairMemory
from emblema.store import Store
from tests.session.test_pair_sharing import SETTINGS, chunks, learn, met, sighting
from tests.vllm.requests import SPEC, put, request


class ModelGeometry:
    """What memories ask of an adapter."""

    layouts, dtype, devices = SPEC.layouts, SPEC.dtype, [torch.device("cpu")] * len(SPEC.layouts)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        put(store, request(*"abcd"))
        yield store


def memory_of(store: Store, salt: bytes = b"", model: str = "m") -> PairMemory:
    adapter: Any = ModelGeometry()
    return PairMemories.of_store(store).of(store.tenant(salt), adapter, model, SETTINGS)


def test_all_engines_on_a_store_share_one_memory_of_a_tenant_and_model(store: Store) -> None:
    own = memory_of(store)
    assert memory_of(store) is own
    learn(own, sighting(0, seed=1), sighting(0, seed=2))
    others = [memory_of(store, b"another"), memory_of(store, model="other weights")]
    assert own.statistics.entries and not any(other is own or other.statistics.entries for other in others)


def test_what_is_deleted_goes_from_the_memories_of_those_who_could_read_it(store: Store) -> None:
    own, other = memory_of(store), memory_of(store, b"another")
    for memory in (own, other):
        memory.add(sighting(0, seed=1))
        memory.add(sighting(0, seed=2))
    PairMemories.of_store(store).forget(store.tenant(b"another").owner, chunks()[0].id)
    assert own.waiting and not other.waiting
    PairMemories.of_store(store).forget(store.shared.owner, chunks()[0].id)
    assert not own.waiting


def test_a_deletion_in_the_store_is_told(store: Store) -> None:
    own = memory_of(store)
    own.add(sighting(0, seed=1))
    store.tenant().delete(chunks()[0].id)
    assert not own.waiting


def test_closing_writes_what_was_learnt(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        put(store, request(*"abcd"))
        own = memory_of(store)
        own.add(sighting(0, seed=1))
        own.add(sighting(0, seed=2))
    assert (tmp_path / FOLDER).is_dir()
    with Store(tmp_path) as again:
        assert again.disk is not None and again.disk.report.skipped == ()
        assert met(again) == {0: 2}


def test_memories_do_not_hold_the_store() -> None:
    store = Store()
    memories, watched = PairMemories.of_store(store), weakref.ref(store)
    adapter: Any = ModelGeometry()
    memories.of(store.tenant(), adapter, "m", SETTINGS)
    del store
    gc.collect()
    assert watched() is None
