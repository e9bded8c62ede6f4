"""What the store has of parts in an order."""

from collections.abc import Mapping
from dataclasses import dataclass

from emblema.link.prompt import Prompt
from emblema.store.identity import artifact_id
from emblema.store.keys import ArtifactKey
from emblema.store.store import TenantStore


@dataclass(frozen=True, slots=True)
class WarmParts:
    """What the store has of parts in an order.

    Attributes:
        tokens: rows of their chunks.
        pieces: bytes of their chunks and patches, by the ids that the store pins them by.
    """

    tokens: int
    pieces: Mapping[str, int]


def find_warm_parts(store: TenantStore, prompt: Prompt) -> WarmParts:
    """Return a prompt's chunks, and the patches that a tenant's store has for them in their order."""
    pieces = {}
    for segment, chunk in prompt.chunk_segments:
        pieces[chunk.id] = chunk.bytes + chunk.encoded.bytes
        key = ArtifactKey(chunk.model, chunk.id, prompt.antecedents(segment))
        patch = store.find_patch(key)
        if patch is not None:
            pieces[artifact_id(key, store.owner)] = patch.bytes
    return WarmParts(sum(chunk.tokens for _, chunk in prompt.chunk_segments), pieces)
