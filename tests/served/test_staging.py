"""Rows that are read ahead: whole or not at all, held until they are let go, and never another order's."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import form_patch
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource
from emblema.served import staging
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.shards import ShardStore, shard_id
from emblema.served.staging import RowStager, StagingOrder
from emblema.store import Store
from emblema.store.store import TenantStore
from tests.link.pieces import LAYOUTS
from tests.vllm.requests import SPEC, TOKENS, planned, planner_of, put, request, with_encoding, zeros

pytestmark = pytest.mark.usefixtures("planners_end")


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


@pytest.fixture
def stager(store: Store) -> Iterator[RowStager]:
    stager = RowStager(ShardStore(store))
    yield stager
    stager.close()


def order(store: Store, name: str, *pictures: str, number: int = 0, strategy: str = "blind") -> StagingOrder:
    """What the scheduler's side orders for a request."""
    planner = planner_of(store, strategy)
    planned(planner, name, request(*pictures))
    planner.admit(name, 0)
    (made,) = planner.step_metadata({}, lambda name: (), True, True).stagings
    return StagingOrder(number, name, made.salt, made.prompt, made.plan, made.encodings)


def settled(stager: RowStager) -> tuple[list[int], list[int]]:
    stager.wait(30.0)
    return stager.take_reports()


def test_rows_and_encodings_are_held_until_they_are_let_go(stager: RowStager, store: Store) -> None:
    with_encoding(store, request("a", "b"))
    first = order(store, "1", "a", "b")
    stager.stage([first])
    assert settled(stager) == ([0], []) and stager.take_reports() == ([], [])
    staged = stager.get("1")
    assert staged is not None and len(staged.rows) == 2
    assert all(len(rows) == len(LAYOUTS) and rows[0].tokens == TOKENS for rows in staged.rows.values())
    assert {name: float(output.mean()) for name, output in staged.encodings.items()} == {"a": 1.0, "b": 2.0}
    # A deletion does not take them away.
    for _, chunk in first.prompt.chunk_segments:
        store.tenant().delete(chunk.id)
    assert stager.get("1") is staged
    stager.drop("1")
    assert stager.get("1") is None
    stager.drop("1")


def test_an_order_of_nothing_is_staged_at_once(stager: RowStager, store: Store) -> None:
    with_encoding(store, request("a"))
    plain = order(store, "1", "a", strategy="full")
    assert plain.encodings
    stager.stage([replace(plain, encodings=())])
    staged = stager.get("1")
    assert staged is not None and not staged.encodings and stager.take_reports() == ([0], [])


def test_what_is_being_staged_is_awaited(stager: RowStager, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with_encoding(store, request("a"))
    found = TenantStore.find

    def late(own: TenantStore, *asked: Any) -> Any:
        time.sleep(0.1)
        return found(own, *asked)

    plain = order(store, "1", "a", strategy="full")
    monkeypatch.setattr(TenantStore, "find", late)
    stager.stage([plain])
    assert stager.get("1") is None and stager.get("1", 0.001) is None and stager.get("another", 30.0) is None
    staged = stager.get("1", 30.0)
    assert staged is not None and staged.encodings.keys() == {"a"}


def test_what_is_not_there_is_reported(stager: RowStager, store: Store) -> None:
    put(store, request("a", "b"))
    lost, whole = order(store, "1", "a", "b"), order(store, "2", "a", number=1)
    store.tenant().delete([chunk.id for _, chunk in lost.prompt.chunk_segments][1])
    stager.stage([lost, whole])
    assert settled(stager) == ([1], [0])
    assert stager.get("1") is None and stager.get("2") is not None


def test_a_patch_that_is_gone_is_reported(stager: RowStager, store: Store) -> None:
    shown = request("a", "b")
    put(store, shown)
    prompt = build_prompt(shown, ChunkStubs(SPEC))
    keys = [
        ArtifactKey(SPEC.fingerprint, chunk.id, prompt.antecedents(segment)) for segment, chunk in prompt.chunk_segments
    ]
    for key in keys:
        patch = form_patch([zeros(layout, TOKENS) for layout in LAYOUTS], 4, SPEC.dtype)
        assert store.tenant().put_artifact(key, patch)
    patched = order(store, "1", "a", "b", strategy="patch-4")
    stager.stage([patched])
    assert settled(stager) == ([0], [])
    staged = stager.get("1")
    assert staged is not None and set(staged.patches) == set(keys)
    store.tenant().delete(keys[1].chunk)
    put(store, request("b"))
    stager.stage([StagingOrder(1, "1", patched.salt, patched.prompt, patched.plan)])
    assert settled(stager) == ([], [1]) and stager.get("1") is None


def test_an_order_that_was_replaced_or_dropped_is_not_reported(
    stager: RowStager, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, request("a", "b"))
    first, second = order(store, "1", "a"), order(store, "1", "a", "b", number=1)
    free, lease = threading.Event(), TenantStore.lease

    def slow(own: TenantStore, *given: Any) -> Any:
        assert free.wait(60)
        return lease(own, *given)

    monkeypatch.setattr(TenantStore, "lease", slow)
    stager.stage([first])
    stager.stage([second, StagingOrder(2, "2", first.salt, first.prompt, first.plan)])
    stager.drop("2")
    began = time.monotonic()
    stager.wait(0.05)
    assert time.monotonic() - began < 30 and stager.get("1") is None
    free.set()
    assert settled(stager) == ([1], [])
    staged = stager.get("1")
    assert staged is not None and staged.order is second and stager.get("2") is None


def test_rows_that_find_no_room_are_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ROOM_SECONDS", 0.05)
    put(store, request("a", "b"))
    one = sum(rows.bytes for rows in store.tenant().get(store.tenant().ids()[0]).rows)
    small = Store(device_bytes=one + one // 2)
    stager = RowStager(ShardStore(small))
    put(small, request("a"))
    first = order(small, "1", "a")
    stager.stage([first])
    assert settled(stager) == ([0], [])
    other = build_prompt(request("b"), ChunkStubs(SPEC))
    ((segment, chunk),) = other.chunk_segments
    part = RowRange(segment.start, segment.stop, RowSource.TAKEN, (0, len(LAYOUTS)), ChunkOrigin(chunk.id))
    put(small, request("b"))
    stager.stage([StagingOrder(5, "2", b"", other, LinkPlan("blind", other.tokens, len(LAYOUTS), (part,)))])
    assert settled(stager) == ([], [5]), "the first one holds the room"
    assert stager.get("1") is not None
    stager.close()


def test_what_a_rank_lacks_is_named_as_the_whole_piece(store: Store) -> None:
    """The first rank has the chunk, on which plans are made; the second has not."""
    put(store, request("a"))
    second = RowStager(ShardStore(store, 1))
    try:
        ordered = order(store, "1", "a")
        ((_, chunk),) = ordered.prompt.chunk_segments
        second.stage([ordered])
        assert settled(second) == ([], [0])
        assert second.take_lost() == [chunk.id] and second.take_lost() == []
        assert shard_id(chunk.id, 1) not in store.tenant()
    finally:
        second.close()
