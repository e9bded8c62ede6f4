"""Where chunks, patches and exact prefixes live. In memory for now."""

from emblema.store.identity import chunk_id, patch_id
from emblema.store.keys import PatchKey
from emblema.store.memory import MemoryStore, StoreStatistics
from emblema.store.prefixes import ChunkSegment, KeptPrefix, PrefixMatch, PrefixStore, Segment, TextSegment

__all__ = [
    "ChunkSegment",
    "KeptPrefix",
    "MemoryStore",
    "PatchKey",
    "PrefixMatch",
    "PrefixStore",
    "Segment",
    "StoreStatistics",
    "TextSegment",
    "chunk_id",
    "patch_id",
]
