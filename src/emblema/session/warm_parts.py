"""What the store has of a prompt that was made ready."""

from emblema.link.prompt import Prompt
from emblema.store.identity import artifact_id
from emblema.store.keys import ArtifactKey
from emblema.store.store import TenantStore
from emblema.store.warm_parts import WarmParts


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
