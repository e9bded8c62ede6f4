"""What a library is given of the engine: one tenant's store and model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emblema.library.items import ChunkOrClip
from emblema.models.adapter import Adapter
from emblema.store.identity import owner_id
from emblema.store.store import TenantStore
from emblema.store.warm_parts import WarmParts


@dataclass(frozen=True, slots=True)
class TenantModel:
    """A model for one tenant, as libraries use it.

    Attributes:
        store: the tenant's store; `store.shared` for the administrator.
        adapter: the model's.
        add: makes a chunk or clip of a source and options, and keeps it in the store.
        read: a text to token ids, so that it spells no control token.
        warm: makes patches for chunks and clips in an order, and returns what the store has of them.
    """

    store: TenantStore
    adapter: Adapter
    add: Callable[..., ChunkOrClip]
    read: Callable[[str], Sequence[int]]
    warm: Callable[[Sequence[ChunkOrClip]], WarmParts]

    def scope(self, owner: str | None = None) -> str:
        """Return a digest of what shares a library: one owner (the store's by default), one model in one dtype."""
        return owner_id(
            self.adapter.fingerprint, self.adapter.dtype, (self.store.owner if owner is None else owner).encode()
        )
