"""What was deleted or has expired, remembered so that nothing under way by then brings it back."""

from collections import OrderedDict

from emblema.store.record import Name

EACH = 2**16
"""Names remembered of each owner: one tenant's deletions do not push out another's."""


class Tombstones:
    """Names by owner, the oldest forgotten first. Guarded by the store's lock.

    Attributes:
        added: how many names were ever added.
    """

    def __init__(self, each: int = EACH) -> None:
        self._each = each
        self._of: dict[str, OrderedDict[str, None]] = {}
        self.added = 0

    def __contains__(self, name: Name) -> bool:
        owner, id = name
        return id in self._of.get(owner, ())

    def add(self, name: Name) -> None:
        owner, id = name
        known = self._of.setdefault(owner, OrderedDict())
        self.added += 1
        known[id] = None
        known.move_to_end(id)
        if len(known) > self._each:
            known.popitem(last=False)

    def discard(self, name: Name) -> None:
        owner, id = name
        known = self._of.get(owner)
        if known is not None:
            known.pop(id, None)
            if not known:
                del self._of[owner]
