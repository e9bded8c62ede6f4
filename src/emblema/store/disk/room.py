"""Keeping a disk tier within its budget."""

from collections.abc import Collection

from emblema.errors import StoreError
from emblema.store.disk.folder import Folder
from emblema.store.disk.index import Index


def make_room(
    folder: Folder, index: Index, bytes: int, capacity: int, in_use: Collection[str], keep: str | None = None
) -> tuple[int, int]:
    """Evict until `bytes` more fit the budget, within a change; how many pieces went, and their bytes.

    What is being written and what is in quarantine counts too; the latter goes where evicting is not enough.

    Raises:
        StoreError: they do not fit; nothing was evicted.
    """
    held = index.totals()[1] + folder.under_way()
    if held + bytes <= capacity:
        return 0, 0
    victims, freed = choose(index, held + bytes - capacity, in_use, keep)
    if held + bytes - freed > capacity:
        freed += folder.shrink_quarantine(0)[1]
    if held + bytes - freed > capacity:
        raise StoreError(
            f"{folder.path}: no room for {bytes} bytes: {held} of {capacity} are held by pieces that are pinned, in "
            "use or being written; unpin some, or give the disk tier a larger budget"
        )
    return drop(folder, index, victims)


def choose(
    index: Index, bytes: int, in_use: Collection[str], keep: str | None = None, owner: str | None = None
) -> tuple[list[tuple[str, int]], int]:
    """What to evict for so many bytes, ids with their bytes, and the sum; less where there is no more to evict."""
    chosen: list[tuple[str, int]] = []
    freed = 0
    if bytes > 0:
        for id, size in index.victims(owner):
            if id in in_use or id == keep:
                continue
            chosen.append((id, size))
            freed += size
            if freed >= bytes:
                break
    return chosen, freed


def drop(folder: Folder, index: Index, victims: Collection[tuple[str, int]]) -> tuple[int, int]:
    """Evict these; a power cut may bring some back, which a start finds in its scan."""
    if victims:
        folder.unfinished = True
        folder.remove((id for id, _ in victims), durable=False)
        for id, _ in victims:
            index.remove(id)
    return len(victims), sum(size for _, size in victims)
