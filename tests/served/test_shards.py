"""Shares of pieces without vLLM: ranks use one store and never meet, and a cache is made when all have theirs."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.errors import BusyError, MediaError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Patch
from emblema.serve.faults import ServeError
from emblema.serve.front import warming
from emblema.serve.front.engine import EngineClient
from emblema.serve.front.engine_api import VLLM
from emblema.serve.front.warming import Ask, PartWarmer
from emblema.serve.keys import LOCAL
from emblema.served import stored
from emblema.served.shards import ShardStore, shard_id, shard_ids, shard_key
from emblema.served.stored import StoreMemory
from emblema.store import Store
from emblema.work_pool import PoolSize, WorkPool
from tests.link.pieces import LAYERS, chunk, zero_patch

TOKENS = 5


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def share(name: int, value: float) -> Chunk:
    """A rank's rows of a chunk: all of one value."""
    rows = tuple(LayerRows(torch.full((1, TOKENS, 8), value), torch.full((1, TOKENS, 8), value)) for _ in range(LAYERS))
    return replace(chunk(name, TOKENS), rows=rows)


def test_each_rank_reads_its_own_rows(store: Store) -> None:
    ranks = [ShardStore(store, rank) for rank in range(3)]
    ids = [share(name, 0).id for name in range(2)]
    for number, rank in enumerate(ranks[:2]):
        for name in range(2):
            rank.tenant().put(share(name, 10 * number + name))
    for number, rank in enumerate(ranks[:2]):
        assert rank.tenant().held(ids) == dict.fromkeys(ids, False)
        with rank.tenant().lease(ids) as lease:
            assert lease.missing == () and list(lease.rows) == ids
            for name, id in enumerate(ids):
                assert float(lease.rows[id][0].keys.unique()) == 10 * number + name
        found = rank.tenant().find(ids[1])
        assert found is not None and found.id == ids[1]
    with ranks[2].tenant().lease(ids) as lease:
        assert lease.missing == tuple(ids) and not lease.rows
    assert len(store.tenant()) == 4 and ids[0] in store.tenant(), "rank 0's share has the chunk's own id"


def test_tenants_stay_apart(store: Store) -> None:
    ShardStore(store, 1).tenant(b"one").put(share(0, 1))
    with ShardStore(store, 1).tenant(b"two").lease([share(0, 1).id]) as lease:
        assert lease.missing


def test_a_patch_is_a_rank_s_own_and_goes_with_its_share(store: Store) -> None:
    first, second = share(0, 0).id, share(1, 0).id
    key = ArtifactKey("model", second, (first,))
    for rank in range(2):
        for name in range(2):
            ShardStore(store, rank).tenant().put(share(name, rank))
        assert ShardStore(store, rank).tenant().put_artifact(key, zero_patch(TOKENS, 1 + rank))
    found = [ShardStore(store, rank).tenant().find_patch(key) for rank in range(2)]
    assert [patch.rank for patch in found if isinstance(patch, Patch)] == [1, 2]
    store.tenant().delete(shard_id(first, 1))
    assert ShardStore(store, 1).tenant().find_patch(key) is None
    assert ShardStore(store, 0).tenant().find_patch(key) is not None


def test_ids_are_of_one_rank_alone() -> None:
    names = [id for name in range(8) for id in shard_ids(share(name, 0).id, 4)]
    assert len(set(names)) == len(names) and all(len(id) == 64 for id in names)
    key = ArtifactKey("model", "a" * 64, ("b" * 64,))
    assert shard_key(key, 0) == key and shard_key(key, 1).chunks.isdisjoint(key.chunks)


class Shown:
    """Answers as vLLM with two workers: the second keeps its share after the reply, or never."""

    def __init__(self, store: Store, late: bool = True) -> None:
        self.store, self.late, self.asked = store, late, 0
        self.threads: list[threading.Thread] = []

    async def ask(self, tenant: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        made = share(0, 0)
        ShardStore(self.store, 0).tenant().put(made)
        if self.late:
            self.threads.append(threading.Thread(target=self._second, args=(made,)))
            self.threads[-1].start()
        pieces = {"model": "model", "chunks": [made.id], "forming": [], "shards": 2}
        told = {"media_tokens": made.tokens, "stored": False, "pieces": pieces}
        return {"kv_transfer_params": {"emblema": told}}

    def _second(self, made: Chunk) -> None:
        time.sleep(0.2)
        ShardStore(self.store, 1).tenant().put(made)
        self.store.flush()


def part_warmer(store: Store, ask: Ask) -> PartWarmer:
    """A warmer of an engine that is vLLM and has answered."""
    engine = EngineClient("http://localhost", api=VLLM)
    engine.model = "model"
    return PartWarmer(store, engine, ask, WorkPool("tables", PoolSize(2, 2)))


def test_a_part_is_kept_when_all_ranks_have_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "store_salts", lambda tenant: (b"",))
    engine = Shown(store)
    warmer = part_warmer(store, engine.ask)
    made, fresh = asyncio.run(warmer.warm_part(LOCAL, {"type": "image_url"}))
    assert fresh and made.pieces.keys() == set(shard_ids(share(0, 0).id, 2)) and all(made.pieces.values())
    again, fresh = asyncio.run(warmer.warm_part(LOCAL, {"type": "image_url"}))
    assert not fresh and again == made and engine.asked == 1
    store.tenant().delete(shard_id(share(0, 0).id, 1))
    made, fresh = asyncio.run(warmer.warm_part(LOCAL, {"type": "image_url"}))
    assert fresh and len(made.pieces) == 2 and engine.asked == 2, "one rank's share was lost, so it is shown again"
    for thread in engine.threads:
        thread.join()


def test_a_part_whose_second_share_never_comes_is_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "store_salts", lambda tenant: (b"",))
    monkeypatch.setattr(warming, "KEEPING_SECONDS", 0.2)
    monkeypatch.setattr(warming, "SHOWN_AT_MOST", 2)
    warmer = part_warmer(store, Shown(store, late=False).ask)
    with pytest.raises(BusyError):
        asyncio.run(warmer.warm_part(LOCAL, {"type": "image_url"}))


def test_what_a_rank_has_lost_counts_as_missing_until_it_is_made_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans look at the first rank's shares, and are told of the others'."""
    first, second = share(0, 0), share(1, 0)
    key = ArtifactKey("model", second.id, (first.id,))
    tenant, memory = store.tenant(), StoreMemory(store)
    for made in (first, second):
        tenant.put(made)
    tenant.put_artifact(key, zero_patch(TOKENS, 1))
    assert memory.held(tenant, [first.id, second.id]).keys() == {first.id, second.id}
    memory.lose([first.id, key])
    assert memory.held(tenant, [first.id, second.id]).keys() == {second.id}
    assert not memory.held_artifacts(tenant, [key])
    memory.regain([first.id])
    assert memory.held(tenant, [first.id, second.id]).keys() == {first.id, second.id}
    monkeypatch.setattr(stored, "LOST_SECONDS", -1.0)
    memory.lose([first.id, key])
    assert first.id in memory.held(tenant, [first.id]) and memory.held_artifacts(tenant, [key]), "for some time alone"


def test_what_a_file_is_stored_as_is_asked_for_and_nothing_is_kept_of_that(store: Store) -> None:
    asked: list[dict[str, Any]] = []
    answers: list[Any] = [{"chunks": ["a", "b"]}, None, MediaError("no picture"), ServeError(400, "too long")]

    async def ask(tenant: Any, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        pieces = None if answer is None else {"model": "model", "forming": [], "shards": 2, **answer}
        return {"kv_transfer_params": {"emblema": {"media_tokens": 4, "stored": True, "pieces": pieces}}}

    warmer = part_warmer(store, ask)
    assert asyncio.run(warmer.chunks_of(LOCAL, "file-1")) == (*shard_ids("a", 2), *shard_ids("b", 2))
    options = asked[0]["kv_transfer_params"]["emblema"]
    assert options["capture"] is False and options["forget"] is True
    for _ in answers[1:]:
        assert asyncio.run(warmer.chunks_of(LOCAL, "file-1")) == ()
    answers.append(ServeError(503, "it restarts"))
    with pytest.raises(ServeError, match="restarts"):
        asyncio.run(warmer.chunks_of(LOCAL, "file-1"))
