"""Where chunks, patches and exact prefixes live: memory, disk and beyond, each tenant's apart.

Names are imported when they are asked for, so that the disk tier comes without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emblema.kv.keys import ArtifactKey, ArtifactKind
    from emblema.store.identity import SHARED_SALT, artifact_id, chunk_id, owner_digest
    from emblema.store.prefixes import ChunkSegment, PrefixStore, Segment, TextSegment
    from emblema.store.record import SHARED, Terms
    from emblema.store.settings import StoreSettings
    from emblema.store.store import Store, TenantStore

__all__ = [
    "SHARED",
    "SHARED_SALT",
    "ArtifactKind",
    "ChunkSegment",
    "ArtifactKey",
    "PrefixStore",
    "Segment",
    "Store",
    "StoreSettings",
    "Terms",
    "TextSegment",
    "TenantStore",
    "chunk_id",
    "owner_digest",
    "artifact_id",
]

_MODULES = {
    "emblema.kv.keys": ("ArtifactKind", "ArtifactKey"),
    "emblema.store.identity": ("SHARED_SALT", "chunk_id", "owner_digest", "artifact_id"),
    "emblema.store.prefixes": ("ChunkSegment", "PrefixStore", "Segment", "TextSegment"),
    "emblema.store.record": ("SHARED", "Terms"),
    "emblema.store.settings": ("StoreSettings",),
    "emblema.store.store": ("Store", "TenantStore"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
