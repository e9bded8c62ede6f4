"""How much may be pinned: what is pinned is never evicted, so pins are bounded when they are set."""

from typing import TYPE_CHECKING

from emblema.errors import CapacityError

if TYPE_CHECKING:
    from emblema.store.keeper import Keeper


def check_pins(keeper: "Keeper", owner: str, id: str, size: int = 0) -> None:
    """Look whether one more piece may be pinned.

    Args:
        id: of the piece.
        size: its bytes, where it is not in memory yet.

    Raises:
        CapacityError: the owner's pins would exceed its quota, or all pins the memory that nothing stands behind.
    """
    quota, budget = keeper.quota_of(owner), keeper.memory.budgets["device"]
    disk = keeper.slower.disk
    with keeper.changed:
        pinned = {piece.name: piece.whole for piece in keeper.memory if piece.terms.pinned or piece.id == id}
    in_memory = sum(pinned.values()) + (size if (owner, id) not in pinned else 0)
    if not keeper.slower and budget is not None and in_memory > budget:
        raise CapacityError(f"{id[:12]} cannot be pinned: pinned pieces would take {in_memory} bytes of {budget}.")
    if quota is None:
        return
    own = {name[1]: held for name, held in pinned.items() if name[0] == owner}
    for entry in () if disk is None else disk.entries(owner=owner):
        if entry.terms.pinned or entry.id == id:
            own[entry.id] = max(own.get(entry.id, 0), entry.bytes)
    total = sum(own.values()) + (size if id not in own else 0)
    if total > quota:
        raise CapacityError(f"{id[:12]} cannot be pinned: its owner's pins would take {total} bytes of {quota}.")
