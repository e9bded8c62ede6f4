"""Shares of pieces, where a model's heads are split over workers: each keeps its own rows under ids of its own.

All ranks use one folder. How many they are is part of the model's fingerprint, and so of every id; which one a share
belongs to follows from its id. So no server reads rows of another size, and no rank those of another.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from blake3 import blake3

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows
from emblema.kv.patch import Patch
from emblema.store import Store
from emblema.store.store import TenantStore

_SHARD = "emblema 2026-11 vllm shard identity 1"


@lru_cache(maxsize=4096)
def shard_id(chunk: str, rank: int) -> str:
    """Return the id of one rank's share of a chunk, 64 hexadecimal digits; rank 0's is the chunk's own."""
    if rank == 0:
        return chunk
    return blake3(f"{rank} {chunk}".encode(), derive_key_context=_SHARD).hexdigest()


def shard_ids(chunk: str, size: int) -> tuple[str, ...]:
    """Return the ids of all ranks' shares of a chunk, by rank."""
    return tuple(shard_id(chunk, rank) for rank in range(size))


def shard_key(key: ArtifactKey, rank: int) -> ArtifactKey:
    """Return the key of one rank's share of an artifact; rank 0's is the key itself."""
    if rank == 0:
        return key
    before = tuple(shard_id(chunk, rank) for chunk in key.antecedents)
    return replace(key, chunk=shard_id(key.chunk, rank), antecedents=before)


@dataclass(frozen=True, slots=True)
class ShardLease:
    """One rank's rows of some chunks, held as by a `Lease`.

    Attributes:
        rows: of each chunk that is here, by the chunk's id.
        missing: ids of the chunks whose share is lost.
    """

    rows: Mapping[str, KVRows]
    missing: tuple[str, ...]


class ShardStore:
    """A store as one rank uses it. Closing it closes the store.

    Args:
        store: the store, on a folder that all ranks share.
        rank: the tensor-parallel rank, 0 where there is one worker.
    """

    def __init__(self, store: Store, rank: int = 0) -> None:
        self._store, self.rank = store, rank

    @property
    def whole(self) -> Store:
        """The store with all ranks' shares."""
        return self._store

    def tenant(self, salt: bytes = b"") -> "TenantShards":
        """Return the rank's shares of a tenant's pieces; errors as `Store.tenant`."""
        return TenantShards(self._store.tenant(salt), self.rank)

    def close(self) -> None:
        """Flush and close the store."""
        self._store.close()


class TenantShards:
    """One rank's shares of a tenant's pieces, by the ids and keys of the whole pieces.

    Args:
        store: the tenant's.
        rank: whose shares.
    """

    def __init__(self, store: TenantStore, rank: int) -> None:
        self._store, self._rank = store, rank

    @contextmanager
    def lease(self, ids: Iterable[str], timeout: float = 60.0) -> Iterator[ShardLease]:
        """Hold the shares of chunks; as `TenantStore.lease`."""
        names = {shard_id(id, self._rank): id for id in ids}
        with self._store.lease(names, timeout) as lease:
            yield ShardLease(
                {names[name]: rows for name, rows in lease.rows.items()}, tuple(names[name] for name in lease.missing)
            )

    def find(self, chunk: str) -> Chunk | None:
        """Return the share of a chunk under the chunk's own id; None where it is not stored."""
        found = self._store.find(shard_id(chunk, self._rank))
        return None if found is None else replace(found, id=chunk)

    def put(self, chunk: Chunk) -> None:
        """Keep a share of a chunk; errors as `TenantStore.put`."""
        self._store.put(replace(chunk, id=shard_id(chunk.id, self._rank)))

    def delete(self, chunk: str) -> None:
        """Delete the share of a chunk; as `TenantStore.delete`."""
        self._store.delete(shard_id(chunk, self._rank))

    def held(self, chunks: Iterable[str]) -> dict[str, bool]:
        """As `TenantStore.held`, of the rank's shares."""
        names = {shard_id(id, self._rank): id for id in chunks}
        return {names[name]: made for name, made in self._store.held(names).items()}

    def find_patch(self, key: ArtifactKey) -> Patch | None:
        """As `TenantStore.find_patch`, of the rank's share."""
        return self._store.find_patch(shard_key(key, self._rank))

    def put_artifact(self, key: ArtifactKey, artifact: Patch) -> bool:
        """As `TenantStore.put_artifact`, of the rank's share."""
        return self._store.put_artifact(shard_key(key, self._rank), artifact)
