"""What has to be certain when a call returns: that a piece is gone, or that it is durable."""

from collections import Counter
from typing import TYPE_CHECKING

from emblema.errors import StoreError
from emblema.store.record import SHARED

if TYPE_CHECKING:
    from emblema.store.keeper import Keeper


def delete(keeper: "Keeper", owner: str, id: str) -> bool:
    """Delete a piece and every patch made from it, everywhere; whether anything was there.

    A save of any of them that is under way is waited for, and what it wrote is deleted with the rest. Nothing
    happens to what is the shared library's and not the owner's.

    Raises:
        StoreError: a tier could not be reached; the piece is out of use here all the same.
    """
    if owner != SHARED and not keeper.knows(owner, id) and keeper.knows(SHARED, id):
        return False
    with keeper.changed:
        own = keeper.memory.get((owner, id))
        doomed = [piece for piece in keeper.memory.patches_of(id) if owner in (piece.owner, SHARED)]
        doomed += [] if own is None else [own]
        for piece in doomed:
            keeper.traffic.remove(piece, gone=True)
        known = (owner, id) in keeper.memory.tombstones
        keeper.memory.tombstones.add((owner, id))
        names = {(owner, id), *(piece.name for piece in doomed)}
        if not keeper.slower:
            _forget_inventions(keeper, owner, id, bool(doomed) or known)
            return bool(doomed)
        for name in names:
            keeper.deleting[name] = keeper.deleting.get(name, 0) + 1
        keeper.changed.wait_for(lambda: all(saver.writing not in names for saver in keeper.savers.values()))
    found = True
    try:
        # Patches first, so that no crash leaves one without its chunk.
        stored = keeper.slower.delete_all([*(piece.name for piece in doomed if piece is not own), (owner, id)])
        found = stored or bool(doomed)
        return found
    finally:
        with keeper.changed:
            _forget_inventions(keeper, owner, id, found or known)
            for name in names:
                keeper.deleting[name] -= 1
                if not keeper.deleting[name]:
                    del keeper.deleting[name]
            keeper.changed.notify_all()


def _forget_inventions(keeper: "Keeper", owner: str, id: str, was: bool) -> None:
    """What never was needs no tombstone, so that nobody fills the list with inventions; under the lock."""
    if not was and (owner, id) not in keeper.handles:
        keeper.memory.tombstones.discard((owner, id))


def flush(keeper: "Keeper", owner: str | None = None) -> None:
    """Return once everything that an owner (None: anybody) put so far is durable.

    Raises:
        StoreError: a piece could not be written to any tier.
    """
    if not keeper.savers:
        return
    with keeper.changed:
        own = [piece for piece in keeper.memory if owner in (None, piece.owner)]
        for piece in own:
            if not piece.saved:
                keeper.traffic.save(piece)
        keeper.changed.wait_for(lambda: not any(piece.pending for piece in own))
        lost = keeper.losses.total() if owner is None else keeper.losses[owner]
        failed = lost + sum(bool(piece.failed) and not piece.saved for piece in own if piece.listed)
        keeper.losses = Counter() if owner is None else keeper.losses - Counter({owner: lost})
    keeper.tell_uses()
    if failed:
        raise StoreError(
            f"{failed} pieces are on no slower tier, as none took them: the log says why. Make room or mend the "
            "folder, and flush again; what had to leave memory meanwhile is lost."
        )
