"""What the store has of a prompt that was made ready."""

from collections.abc import Sequence

from emblema.kv.keys import ArtifactKey
from emblema.link.prompt import Prompt
from emblema.session.prompt_reader import PromptPart
from emblema.store.identity import artifact_id
from emblema.store.store import TenantStore
from emblema.store.warm_parts import WarmParts

TEXT = "."


def behind_text(parts: Sequence[PromptPart], prompt: Prompt, anchor: Sequence[int]) -> Sequence[PromptPart]:
    """Return parts as they may stand in another prompt, where each of their chunks takes a patch.

    A chunk that leads is exact as it was captured, and gets no patch: behind a text it does.

    Args:
        parts: of the prompt.
        prompt: the parts read, perhaps in a chat template.
        anchor: token ids that chunks are captured after.
    """
    leading = any(prompt.leads(segment, anchor) for segment, _ in prompt.chunk_segments)
    return (TEXT, *parts) if leading else parts


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
