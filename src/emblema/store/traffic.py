"""How pieces move: out of memory for want of room, to the slower tiers, and back when they are needed.

Methods that the loader's and savers' threads call take the store's lock; all others are called with it held.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from emblema.errors import LoadError
from emblema.kv.arriving import ArrivingRows
from emblema.kv.layout import KVRows
from emblema.store.handles import moved
from emblema.store.pieces import TIERS, Piece
from emblema.store.record import SHARED, Terms
from emblema.store.slower import DISK

if TYPE_CHECKING:
    from emblema.store.keeper import Keeper
    from emblema.store.saver import Saver

UNSAVED_BYTES = 2**30
"""How far saving may take memory beyond its budget, where that is smaller."""


class Traffic:
    """The moves of a keeper's pieces."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper

    def remove(self, piece: Piece, gone: bool = False) -> None:
        """Unlist a piece, deleted or expired if `gone`; under the lock. Rows that nobody holds are let go at once."""
        keeper = self._keeper
        if piece.listed and piece.loading and isinstance(piece.rows, ArrivingRows) and piece.rows.failed is not None:
            keeper.counts.add(piece.owner, "late_loads")
        keeper.memory.remove(piece, gone)
        if piece.leases == 0 and not piece.loading:
            piece.rows = None
        keeper.changed.notify_all()

    def make_room(self, spare: Piece | None = None, owner: str | None = None) -> None:
        """Bring the tiers, and one owner, back within their bounds as far as leases and saves allow; under the lock."""
        keeper = self._keeper
        memory = keeper.memory
        owner = owner if spare is None else spare.owner
        quota = None if owner is None else keeper.quota_of(owner)
        if owner is not None and quota is not None:
            for tier in reversed(TIERS):
                for piece in memory.victims(tier, memory.owned[owner] - quota, spare, owner):
                    self._let_go(piece)
        room = memory.budgets["host"]
        for piece in memory.victims("device", memory.excess("device"), spare):
            if piece.rows is not None and piece.chunk is not None and (room is None or piece.whole <= room):
                self._demote(piece, piece.rows)
            else:
                self._let_go(piece)
        for piece in memory.victims("host", memory.excess("host"), spare):
            self._let_go(piece)

        self._give_up(spare)

    def _give_up(self, spare: Piece | None) -> None:
        """Where saving falls far behind, let the oldest unsaved pieces go, as memory is bounded; `flush` says so."""
        keeper, memory = self._keeper, self._keeper.memory
        budget = memory.budgets["device"]
        if budget is None:
            return
        most = max(budget, UNSAVED_BYTES)
        if memory.excess("device") <= most:
            return
        writing = {saver.writing for saver in keeper.savers.values()}
        for piece in list(memory):
            if memory.excess("device") <= most:
                return
            if piece.pending and not (piece is spare or piece.leases or piece.loading or piece.name in writing):
                keeper.losses[piece.owner] += 1
                keeper.counts.add(piece.owner, "save_failures")
                keeper.counts.add(piece.owner, "evictions")
                self.remove(piece)

    def end(self, piece: Piece) -> None:
        """A piece's time has come: it goes, with every patch made from it; under the lock."""
        keeper = self._keeper
        patches = [] if piece.chunk is None else keeper.memory.patches_of(piece.id)
        for patch in patches:
            if piece.owner in (patch.owner, SHARED):
                self.remove(patch, gone=True)
        keeper.counts.add(piece.owner, "expired")
        self.remove(piece, gone=True)
        keeper.ended(piece.owner, piece.id)

    def _let_go(self, piece: Piece) -> None:
        keeper = self._keeper
        if keeper.savers and not piece.saved and not piece.failed:
            if not piece.pending:
                self.save(piece)
            piece.leaving = True
            return
        if keeper.savers and not piece.saved:
            keeper.losses[piece.owner] += 1
        keeper.counts.add(piece.owner, "evictions")
        self.remove(piece)

    def _demote(self, piece: Piece, rows: KVRows) -> None:
        keeper = self._keeper
        keeper.counts.add(piece.owner, "demotions")
        if not keeper.separate:
            keeper.memory.move(piece, "host")
            return
        piece.loading, piece.moving = True, piece.whole
        keeper.memory.settle(piece)
        keeper.loader.demote(piece, rows)

    def after_demotion(self, piece: Piece, rows: KVRows, copies: KVRows | None) -> None:
        """The copy in host memory is made; it is the piece's unless somebody took the piece up again meanwhile."""
        keeper = self._keeper
        with keeper.changed:
            piece.loading, piece.moving = False, 0
            if copies is not None and piece.listed and piece.leases == 0 and piece.rows is rows:
                piece.rows = copies
                if piece.chunk is not None:
                    encoded = moved(piece.chunk.encoded, torch.device("cpu"))
                    piece.chunk = replace(piece.chunk, encoded=encoded)
                keeper.memory.move(piece, "host")
            self._settled(piece)

    def _settled(self, piece: Piece) -> None:
        keeper = self._keeper
        if not piece.listed and piece.leases == 0:
            piece.rows = None
        keeper.memory.settle(piece)
        self.make_room()
        keeper.changed.notify_all()

    def relist(self, piece: Piece) -> Piece | None:
        """The piece as it is listed now, listed again where it was only evicted; under the lock."""
        keeper = self._keeper
        current = keeper.lookup((piece.owner,), piece.id)
        if current is not None or piece.listed:
            return current
        if piece.name in keeper.memory.tombstones or piece.loading or not piece.saved:
            return None
        keeper.memory.insert(piece)
        return piece

    def activate(self, piece: Piece) -> KVRows:
        """Have a piece's rows in device memory, or on their way there; under the lock."""
        keeper = self._keeper
        rows = piece.rows
        if rows is None or (piece.tier == "host" and keeper.separate and not piece.loading):
            arriving = ArrivingRows(piece.id, piece.sizes, keeper.deadline)
            held, piece.rows, piece.loading = rows, arriving, True
            piece.moving = 0 if held is None else piece.whole
            keeper.memory.move(piece, "device")
            if held is None:
                keeper.loader.load(piece, arriving)
            else:
                keeper.counts.add(piece.owner, "promotions")
                keeper.loader.copy(piece, held, arriving)
            rows = arriving
        elif piece.tier == "host":
            keeper.counts.add(piece.owner, "promotions")
            keeper.memory.move(piece, "device")
        keeper.use(piece)
        self.make_room(piece)
        return rows

    def after_load(self, piece: Piece, rows: ArrivingRows, origin: str | None, error: LoadError | None) -> None:
        """All rows of a piece are here, from `origin` if not from host memory; or they will never be."""
        keeper = self._keeper
        complete = rows.complete
        with keeper.changed:
            if error is None and not complete:
                self.remove(piece)
            piece.loading, piece.moving = False, 0
            if error is not None:
                # Within the lock: whoever sees the failure sees too that it was not for want of time.
                rows.fail(error)
                piece.saved.clear()
                self.remove(piece)
            elif complete and piece.rows is rows:
                piece.rows = rows.wait()
                if origin is not None:
                    keeper.counts.add(piece.owner, "loads")
                    if origin != DISK:
                        # The disk was asked first, and has it no more.
                        piece.saved = {origin}
                    if piece.listed and DISK not in piece.saved:
                        self.save(piece)
            self._settled(piece)

    def save(self, piece: Piece) -> None:
        """Have a piece written to every slower tier that lacks it; under the lock."""
        for label, saver in self._keeper.savers.items():
            if label not in piece.saved:
                saver.queue(piece)

    def after_save(self, saver: "Saver", piece: Piece, terms: Terms, error: Exception | None) -> None:
        """A piece was written to a tier, or was not."""
        keeper = self._keeper
        with keeper.changed:
            piece.pending.discard(saver.label)
            (piece.saved if error is None else piece.failed).add(saver.label)
            repin = error is None and saver.label == DISK and piece.listed and piece.terms.pinned != terms.pinned
        if repin:
            keeper.slower.set_pin(piece.id, piece.terms.pinned)
        with keeper.changed:
            saver.writing = None
            if piece.leaving and not piece.pending:
                piece.leaving = False
            self.make_room(owner=piece.owner)
            keeper.changed.notify_all()
