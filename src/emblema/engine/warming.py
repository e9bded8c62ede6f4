"""Making parts of a prompt ready before they are asked about: their rows, and the patches of their order."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from emblema.engine.async_engine import AsyncEngine
from emblema.link.prompt import Prompt
from emblema.session.prompt_reader import PromptPart
from emblema.store.identity import artifact_id
from emblema.store.keys import ArtifactKey
from emblema.store.store import TenantStore

FORMING_SECONDS = 60.0
"""Seconds to wait for patches that are formed beside the model; later ones are formed on its thread."""


@dataclass(frozen=True, slots=True)
class WarmParts:
    """What the store has of parts in an order.

    Attributes:
        tokens: rows of their chunks.
        pieces: bytes of their chunks and patches, by the ids that the store pins them by.
    """

    tokens: int
    pieces: Mapping[str, int]


async def warm(engine: AsyncEngine, parts: Sequence[PromptPart]) -> WarmParts:
    """Prefill parts in their order, and return when their rows and patches are durable.

    Args:
        engine: of the tenant.
        parts: text, chunks and clips. A prompt takes the patches wherever the chunks stand in this order.

    Raises:
        PromptError: the parts are longer than the model's context.
        StoreError: a piece is in memory only.
    """
    runtime, store = engine.engine.policy_runtime, engine.store
    await engine.run(lambda own: own.prefill(parts, policy=replace(own.policy, forming_seconds=None), keep=True).usage)
    await asyncio.to_thread(runtime.patch_worker.settle, FORMING_SECONDS)
    # Where an earlier prompt was taken as a prefix nothing was computed, and nothing formed.
    strategy = f"patch-{100 * engine.engine.policy.share:g}%"
    prompt = await engine.run(lambda own: own.prefill(parts, strategy).prompt)
    await asyncio.to_thread(store.flush)
    return await asyncio.to_thread(_warm_parts, store, prompt)


def _warm_parts(store: TenantStore, prompt: Prompt) -> WarmParts:
    pieces = {}
    for segment, chunk in prompt.chunk_segments:
        pieces[chunk.id] = chunk.bytes + chunk.encoded.bytes
        key = ArtifactKey(chunk.model, chunk.id, prompt.antecedents(segment))
        patch = store.find_patch(key)
        if patch is not None:
            pieces[artifact_id(key, store.owner)] = patch.bytes
    return WarmParts(sum(chunk.tokens for _, chunk in prompt.chunk_segments), pieces)
