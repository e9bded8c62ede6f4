"""The store that is in memory alone."""

from emblema.store.store import PREFIX_BYTES, Store
from emblema.store.view import Door


class MemoryStore(Store, Door):
    """A store without slower tiers, which also answers itself what the view of the tenant without a salt does.

    Args:
        capacity_bytes: the budget of canonical rows, kept embeddings and patches; None for no bound.
        prefix_bytes: the budget of each owner's exact prefixes, apart from the first.
    """

    def __init__(self, capacity_bytes: int | None = None, prefix_bytes: int = PREFIX_BYTES) -> None:
        super().__init__(device_bytes=capacity_bytes, host_bytes=0, prefix_bytes=prefix_bytes)
        self._open(self, b"")
