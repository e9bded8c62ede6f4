"""Making parts of a prompt ready on a server before they are asked about: their rows, and their patches."""

from collections.abc import Sequence
from dataclasses import replace

from emblema.engine.async_engine import AsyncEngine
from emblema.session.prompt_reader import PromptPart
from emblema.session.warm_parts import behind_text, find_warm_parts
from emblema.store.warm_parts import WarmParts

FORMING_SECONDS = 60.0
"""Seconds to wait for patches that are formed beside the model; later ones are formed on its thread."""


async def warm(engine: AsyncEngine, parts: Sequence[PromptPart]) -> WarmParts:
    """Prefill parts in their order, and return when their rows and patches are durable. See `Engine.warm`.

    Args:
        engine: of the tenant.
        parts: text, chunks and clips. A prompt takes the patches wherever the chunks stand in this order.

    Raises:
        PromptError: the parts are longer than the model's context.
        StoreError: a piece is in memory only.
    """
    runtime, store = engine.engine.policy_runtime, engine.store
    kept = await engine.run(
        lambda own: own.prefill(parts, policy=replace(own.policy, forming_seconds=None), keep=True).prompt
    )
    await engine.beside.run(store.owner, runtime.patch_worker.settle, FORMING_SECONDS)
    behind = behind_text(parts, kept, engine.engine.adapter.anchor)
    prompt = await engine.run(lambda own: own.prefill(behind, own.order_strategy).prompt)
    await engine.beside.run(store.owner, store.flush)
    return await engine.beside.run(store.owner, find_warm_parts, store, prompt)
