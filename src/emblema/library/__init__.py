"""Libraries: a user's uploads, the administrator's reference collections, and finding chunks of them for a query."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emblema.library.attention import AttentionEmbedder, Space, choose_space
    from emblema.library.dynamic import DynamicLibrary, Snapshot
    from emblema.library.embedder import Embedder, MeanEmbedder
    from emblema.library.entry import Hit, LibraryItem, Listing
    from emblema.library.maker import ChunkView, Maker
    from emblema.library.shelf import Shelf, ShelfStatistics
    from emblema.library.static import StaticLibrary

__all__ = [
    "AttentionEmbedder",
    "ChunkView",
    "DynamicLibrary",
    "Embedder",
    "Hit",
    "LibraryItem",
    "Listing",
    "Maker",
    "MeanEmbedder",
    "Shelf",
    "ShelfStatistics",
    "Snapshot",
    "Space",
    "StaticLibrary",
    "choose_space",
]

_MODULES = {
    "attention": ("AttentionEmbedder", "Space", "choose_space"),
    "dynamic": ("DynamicLibrary", "Snapshot"),
    "embedder": ("Embedder", "MeanEmbedder"),
    "entry": ("Hit", "LibraryItem", "Listing"),
    "maker": ("ChunkView", "Maker"),
    "shelf": ("Shelf", "ShelfStatistics"),
    "static": ("StaticLibrary",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
