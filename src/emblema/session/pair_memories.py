"""The memories of pairs of a store's tenants, one for each model: made once, told of deletions, written at the end."""

import threading
import weakref

from emblema.models.adapter import Adapter
from emblema.session.pair_bases import FOLDER, PairBases
from emblema.session.pair_memory import PairMemory, PairSettings
from emblema.store.record import SHARED
from emblema.store.store import Store, TenantStore


class PairMemories:
    """The memories of a store's tenants, one for each model. Engines of a process share them.

    Args:
        store: the store; not held, so that it can be closed.
    """

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._bases = PairBases(None if store.disk is None else store.disk.path / FOLDER)
        self._lock = threading.Lock()
        self._memories: dict[tuple[str, str], PairMemory] = {}

    @classmethod
    def of_store(cls, store: Store) -> "PairMemories":
        """Return the memories of a store, told of its deletions."""

        def make() -> PairMemories:
            made = cls(store)
            store.tell_deletions(made.forget)
            return made

        return store.companion(FOLDER, make)

    def of(self, store: TenantStore, adapter: Adapter, model: str, settings: PairSettings | None = None) -> PairMemory:
        """Return a tenant's memory on the model of a fingerprint; new weights begin a new one.

        Args:
            settings: of a memory that is begun now.
        """
        with self._lock:
            if (store.owner, model) not in self._memories:
                parent, salt = self._store, store.salt

                def tenant() -> TenantStore | None:
                    held = parent()
                    return None if held is None else held.tenant_of(salt)

                self._memories[store.owner, model] = PairMemory(
                    tenant, model, adapter.layouts, adapter.dtype, adapter.devices, self._bases, store.owner, settings
                )
            return self._memories[store.owner, model]

    def forget(self, owner: str, chunk: str) -> bool:
        """Drop what an owner's chunk left in the memories of those who could read it; returns False."""
        with self._lock:
            memories = [memory for (name, _), memory in self._memories.items() if owner in (name, SHARED)]
        for memory in memories:
            memory.forget(chunk)
        return False

    def close(self) -> None:
        """Write what has changed."""
        with self._lock:
            memories, self._memories = list(self._memories.values()), {}
        for memory in memories:
            memory.flush()
