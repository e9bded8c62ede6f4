"""Leases: a prompt's chunks held in device memory, all or none, while the prompt is linked."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.store.cache import Owners, PieceCache
from emblema.store.handles import StoredRows
from emblema.store.pieces import CachedPiece


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
        found = {id: cache.find(owners, id) for id in wanted}
        with cache.changed:
            known = {id: piece for id, piece in found.items() if piece is not None}
            self._pieces = self._wait(known, timeout)
            for piece in self._pieces.values():
                cache.table.lease(piece, 1)
            try:
                self._rows = {id: cache.load(piece) for id, piece in self._pieces.items()}
            except StoreError:
                self.end()
                raise
        self._missing = [id for id in wanted if id not in self._pieces]

    def _wait(self, pieces: Mapping[str, CachedPiece], timeout: float) -> dict[str, CachedPiece]:
        """Return those of some pieces that are not lost, once there is room for all of them; with the lock held.

        Leases get room in order of arrival, so that small ones do not starve large ones.
        """
        cache, table = self._cache, self._cache.table
        until, ticket, budget = time.monotonic() + timeout, object(), table.budgets["device"]
        cache.waiting.append(ticket)
        try:
            while True:
                current = {id: cache.relist(piece) for id, piece in pieces.items()}
                found = {id: piece for id, piece in current.items() if piece is not None}
                self._check_fits(sum(piece.full_bytes for piece in found.values()), len(found))
                new = sum(piece.full_bytes for piece in found.values() if not piece.leases)
                fits = budget is None or table.leased_bytes + new <= budget
                # A lease that needs nothing new passes those that wait.
                if new == 0 or (fits and cache.waiting[0] is ticket):
                    return found
                left = until - time.monotonic()
                if left <= 0:
                    raise CapacityError(
                        f"No room for {len(found)} chunks came free in {timeout:g} s: run fewer prompts at a "
                        "time, or give the store a larger budget."
                    )
                cache.changed.wait(left)
                pieces = found
        finally:
            cache.waiting.remove(ticket)
            cache.changed.notify_all()

    def _check_fits(self, size: int, chunks: int) -> None:
        budget = self._cache.table.budgets["device"]
        if budget is not None and size > budget:
            raise CapacityError(f"A prompt's {chunks} chunks need {size} bytes; the store's budget is {budget}.")

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
        held = self._pieces.values()
        size = chunk.bytes + chunk.encoded.bytes + sum(piece.full_bytes for piece in held)
        self._check_fits(size, len(held) + 1)
        piece = self._take(chunk, rows)
        if chunk.id in self._pieces:
            self._cache.release([self._pieces[chunk.id]])
        self._pieces[chunk.id], self._rows[chunk.id] = piece, rows
        if chunk.id in self._missing:
            self._missing.remove(chunk.id)

    def _take(self, chunk: Chunk, rows: KVRows) -> CachedPiece:
        """Hold a chunk whose rows were made again, stored where it may be."""
        cache, owner = self._cache, self._owners[0]
        with cache.changed:
            deleted = bool(cache.deleted(self._owners, [chunk.id]))
            if isinstance(chunk.rows, StoredRows):
                foreign = chunk.rows.owner != owner
            else:
                holders = [holder for holder in self._owners if (holder, chunk.id) in cache.handles]
                foreign = bool(holders) and owner not in holders
        if deleted or foreign:
            piece = cache.new_piece(owner, chunk.id, cache.settings.terms)
            sizes = [layer.bytes for layer in rows]
            piece.chunk, piece.rows = replace(chunk, rows=StoredRows(owner, chunk.id, sizes, cache.rows)), rows
        else:
            piece = cache.put(owner, replace(chunk, rows=rows), None)
        with cache.changed:
            cache.table.lease(piece, 1)
            cache.make_room(piece)
        return piece

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
        cache = self._cache
        with cache.changed:
            # A checksum that held says nothing where the computation found wrong contents; a late load says nothing.
            labels = set() if error.late else set(piece.saved)
            piece.saved -= labels
            cache.remove(piece)
        for label in labels:
            cache.tiers.distrust(label, piece.id, piece.owner, error)
        cache.release([piece])

    def end(self) -> None:
        """Release all pieces."""
        pieces, self._pieces = self._pieces, {}
        self._cache.release(pieces.values())
