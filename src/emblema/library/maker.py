"""What a library is handed: a tenant's view of the store, and how chunks are made of sources."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from emblema.kv.chunk import Chunk
from emblema.library.entry import ChunkOrClip
from emblema.models.adapter import Adapter
from emblema.store.identity import owner_id


class ChunkView(Protocol):
    """The part of a tenant's view of the store that libraries use."""

    @property
    def owner(self) -> str:
        """Digest of the tenant, or `shared`."""

    def find(self, chunk: str) -> Chunk | None: ...

    def delete(self, chunk: str) -> bool: ...

    def pin(self, chunk: str) -> Any: ...

    def unpin(self, chunk: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Maker:
    """One tenant's door to one model.

    Attributes:
        view: the tenant's view of the store; `store.shared` for the administrator.
        adapter: the model's.
        add: a source and options to its chunk or clip, kept in the view; what the view has is not made again.
        read: a text to token ids, so that it spells no control token.
    """

    view: ChunkView
    adapter: Adapter
    add: Callable[..., ChunkOrClip]
    read: Callable[[str], Sequence[int]]

    def scope(self, owner: str | None = None) -> str:
        """Digest of what may share a library: one owner (the view's by default), one model in one dtype."""
        return owner_id(
            self.adapter.fingerprint, self.adapter.dtype, (self.view.owner if owner is None else owner).encode()
        )
