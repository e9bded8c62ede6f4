"""Leases: a prompt's chunks held in device memory, all or none, for as long as they are computed with."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from emblema.errors import CapacityError, LoadError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.store.handles import StoredRows
from emblema.store.keeper import Keeper, Owners
from emblema.store.pieces import Piece


class Lease:
    """The rows of a prompt's chunks. Nothing held is evicted; what is deleted meanwhile stays readable here alone.

    Made by `TenantStore.lease`; used by one thread.
    """

    def __init__(self, keeper: Keeper, owners: Owners) -> None:
        self._keeper = keeper
        self._owners = owners
        self._pieces: dict[str, Piece] = {}
        self._rows: dict[str, KVRows] = {}
        self._missing: list[str] = []

    @property
    def rows(self) -> Mapping[str, KVRows]:
        """The rows of each chunk here or under way, by id. Reading what is under way waits, or raises LoadError."""
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
        keeper, owner = self._keeper, self._owners[0]
        budget = keeper.memory.budgets["device"]
        needed = sum(piece.whole for piece in self._pieces.values()) + chunk.bytes + chunk.encoded.bytes
        if budget is not None and needed > budget:
            raise CapacityError(
                f"A prompt's {len(self._pieces) + 1} chunks need {needed} bytes; the store's budget is {budget}."
            )
        rows = tuple(chunk.rows if rows is None else rows)
        with keeper.changed:
            gone = any((one, chunk.id) in keeper.memory.tombstones for one in self._owners)
            if isinstance(chunk.rows, StoredRows):
                foreign = chunk.rows.owner != owner
            else:
                handles = [(one, chunk.id) for one in self._owners if (one, chunk.id) in keeper.handles]
                foreign = bool(handles) and (owner, chunk.id) not in handles
        stays_out = gone or foreign
        if stays_out:
            sizes = [layer.bytes for layer in rows]
            held = replace(chunk, rows=StoredRows(owner, chunk.id, sizes, keeper.rows))
            piece = keeper.piece(owner, chunk.id, keeper.terms, chunk=held, rows=rows)
        else:
            piece = keeper.put(owner, replace(chunk, rows=rows), None)
        with keeper.changed:
            self._hold(chunk.id, piece, rows)
            if chunk.id in self._missing:
                self._missing.remove(chunk.id)
            keeper.traffic.make_room(piece)

    def drop(self, error: LoadError) -> None:
        """Give up the rows that failed: their id is missing from here on, until `fill`.

        Raises:
            LoadError: the error is of no chunk that is held.
        """
        piece = self._pieces.get(error.piece)
        if piece is None:
            raise error
        keeper = self._keeper
        with keeper.changed:
            kept = set() if error.late else set(piece.saved)
            piece.saved -= kept
            keeper.traffic.remove(piece)
            del self._pieces[error.piece], self._rows[error.piece]
            self._missing.append(error.piece)
            self._release([piece])
        for label in kept:
            # It verified, and whoever computes with it found that it is not what it says.
            keeper.slower.distrust(label, piece.id, piece.owner, error)

    def _hold(self, id: str, piece: Piece, rows: KVRows) -> None:
        if id in self._pieces:
            self._release([self._pieces[id]])
        self._pieces[id], self._rows[id] = piece, rows
        self._keeper.memory.lease(piece, 1)

    def _release(self, pieces: Iterable[Piece]) -> None:
        keeper = self._keeper
        for piece in pieces:
            keeper.memory.lease(piece, -1)
            if not piece.listed and not piece.leases and not piece.loading:
                piece.rows = None
        keeper.traffic.make_room()
        keeper.changed.notify_all()

    def begin(self, ids: Sequence[str], timeout: float, queue: deque[object]) -> None:
        """Wait for room for all chunks, then hold them and have their rows come.

        Raises:
            CapacityError: they are larger than the budget together, or no room came free in time.
        """
        keeper = self._keeper
        found = {id: keeper.find(self._owners, id) for id in dict.fromkeys(ids)}
        pieces = {id: piece for id, piece in found.items() if piece is not None}
        self._missing = [id for id, piece in found.items() if piece is None]
        self._wait(pieces, timeout, queue)

    def _wait(self, pieces: dict[str, Piece], timeout: float, queue: deque[object]) -> None:
        keeper, memory = self._keeper, self._keeper.memory
        until, ticket = time.monotonic() + timeout, object()
        budget = memory.budgets["device"]
        with keeper.changed:
            queue.append(ticket)
            try:
                while True:
                    # While this one waited, pieces were evicted (listed again, loaded again), or lost.
                    for id, piece in list(pieces.items()):
                        current = keeper.traffic.relist(piece)
                        if current is None:
                            del pieces[id]
                            self._missing.append(id)
                        else:
                            pieces[id] = current
                    needed = sum(piece.whole for piece in pieces.values())
                    if budget is not None and needed > budget:
                        raise CapacityError(
                            f"A prompt's {len(pieces)} chunks need {needed} bytes; the store's budget is {budget}."
                        )
                    fresh = sum(piece.whole for piece in pieces.values() if not piece.leases)
                    # In order of arrival: small prompts do not starve large ones. Who needs nothing new passes.
                    if fresh == 0 or (queue[0] is ticket and (budget is None or memory.leased + fresh <= budget)):
                        break
                    left = until - time.monotonic()
                    if left <= 0:
                        raise CapacityError(
                            f"No room for {len(pieces)} chunks came free in {timeout:g} s: run fewer prompts at a "
                            "time, or give the store a larger budget."
                        )
                    keeper.changed.wait(left)
                for piece in pieces.values():
                    memory.lease(piece, 1)
                self._pieces = pieces
                self._rows = {id: keeper.traffic.activate(piece) for id, piece in pieces.items()}
            finally:
                queue.remove(ticket)
                keeper.changed.notify_all()

    def end(self) -> None:
        """Let go of everything."""
        with self._keeper.changed:
            pieces, self._pieces = self._pieces, {}
            self._release(pieces.values())
