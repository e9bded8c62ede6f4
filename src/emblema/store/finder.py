"""Chunks brought from the slower tiers into the table, their encoding first."""

from dataclasses import replace
from typing import TYPE_CHECKING

from emblema.errors import StoreError
from emblema.kv.chunk import Chunk
from emblema.store import codec
from emblema.store.disk.entry import terms_of
from emblema.store.handles import moved
from emblema.store.pieces import Piece
from emblema.store.record import SHARED, RecordHeader
from emblema.store.slower import DISK

if TYPE_CHECKING:
    from emblema.store.keeper import Keeper, Owners


class Finder:
    """Looks for a keeper's pieces outside memory. No call is made with the store's lock held."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper

    def fetch(self, owners: "Owners", id: str) -> Piece | None:
        """The first owner's chunk that a slower tier has, listed without its rows."""
        keeper = self._keeper
        for label, reader in keeper.slower.open(id, keeper.open_to(owners, id)):
            header = reader.header
            try:
                if header.kind != "chunk":
                    return None
                kind, sizes, encoded = codec.chunk_kind(header), codec.layer_bytes(header), codec.read_encoded(reader)
                piece = self.found(label, header)
            except (StoreError, OSError, ValueError) as error:
                keeper.slower.distrust(label, id, header.owner, error)
                continue
            finally:
                reader.close()
            whole = Chunk(id, kind, header.model, moved(encoded, keeper.device), ())
            chunk = keeper.handle(whole, header.owner, sizes)
            return self.admit(replace(piece, chunk=chunk))
        return None

    def found(self, label: str, header: RecordHeader) -> Piece:
        """A piece as a slower tier has it, its contents still to come.

        Raises:
            ValueError: the terms in its header are malformed.
        """
        keeper = self._keeper
        entry = keeper.slower.entry(header.id, header.owner) if label == DISK else None
        terms = terms_of(header, keeper.terms) if entry is None else entry.terms
        began, now = keeper.clock.steady(header.created), keeper.clock.now()
        return Piece(header.owner, header.id, terms, header.created, began, now, saved={label})

    def admit(self, piece: Piece) -> Piece | None:
        """List a piece that a slower tier had; None where it was deleted meanwhile or its time has come."""
        keeper = self._keeper
        with keeper.changed:
            known = keeper.memory.get(piece.name)
            if known is not None:
                return known
            chunks = () if piece.key is None else piece.key.chunks
            dead = piece.name in keeper.memory.tombstones or any(
                (owner, chunk) in keeper.memory.tombstones for owner in (piece.owner, SHARED) for chunk in chunks
            )
            if dead or piece.expired(keeper.clock.now()):
                return None
            keeper.memory.insert(piece)
            if piece.artifact is not None:
                keeper.counts.add(piece.owner, "loads")
            keeper.use(piece)
            keeper.traffic.make_room(piece)
            return piece
