"""Leases: a prompt's chunks held in device memory, all or none, while the prompt is linked."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from emblema.errors import LoadError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.store.cache import PieceCache
from emblema.store.lookup import Owners


class Lease:
    """The rows of a prompt's chunks. They are not evicted, and can be read to the end even if a chunk is deleted.

    Made by `TenantStore.lease`; used by one thread.

    Args:
        cache: of the pieces.
        owners: whose chunks may be held.
        ids: of the chunks.
        timeout: seconds to wait for room.

    Raises:
        CapacityError: the chunks are larger than the budget together, or no room came free in time.
    """

    def __init__(self, cache: PieceCache, owners: Owners, ids: Iterable[str], timeout: float) -> None:
        self._cache, self._owners = cache, owners
        wanted = dict.fromkeys(ids)
        self._pieces, self._rows = cache.lease(owners, wanted, timeout)
        self._missing = [id for id in wanted if id not in self._pieces]

    @property
    def rows(self) -> Mapping[str, KVRows]:
        """The rows of each chunk, here or being loaded, by id. Reading a layer waits for it, or raises LoadError."""
        return MappingProxyType(self._rows)

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids whose rows no tier has, or that are not this tenant's."""
        return tuple(self._missing)

    def fill(self, chunk: Chunk, rows: KVRows | None = None) -> None:
        """Take rows that were made again for a missing id, and hold them too.

        They are stored where the chunk was lost or evicted; not where it was deleted or has expired, and not where it
        was the shared library's, which only its administrator writes.

        Raises:
            CapacityError: the chunk and what is held are larger than the budget.
        """
        rows = tuple(chunk.rows if rows is None else rows)
        piece = self._cache.lease_again(self._owners, chunk, rows, self._pieces.values())
        if chunk.id in self._pieces:
            self._cache.release([self._pieces[chunk.id]])
        self._pieces[chunk.id], self._rows[chunk.id] = piece, rows
        if chunk.id in self._missing:
            self._missing.remove(chunk.id)

    def drop(self, error: LoadError) -> None:
        """Give up the rows that failed: their id is missing from here on, until `fill`.

        Raises:
            LoadError: the error is of no chunk that is held.
        """
        piece = self._pieces.pop(error.piece, None)
        if piece is None:
            raise error
        del self._rows[error.piece]
        self._missing.append(error.piece)
        self._cache.reject(piece, error)

    def end(self) -> None:
        """Release all pieces."""
        pieces, self._pieces = self._pieces, {}
        self._cache.release(pieces.values())
