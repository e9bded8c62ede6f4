"""Patches of a prompt that an engine computed plainly, formed of its chunks' rows beside the model."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from emblema.errors import LoadError
from emblema.kv.patch import form_patch
from emblema.link.forming import deficits_of
from emblema.link.prompt import Prompt, Segment
from emblema.plugin.copied_rows import CopiedRows
from emblema.plugin.model_spec import ModelSpec
from emblema.plugin.request_plan import PatchNeed
from emblema.plugin.shards import TenantShards
from emblema.store.store import TenantStore


def form_prompt_patches(
    spec: ModelSpec,
    prompt: Prompt,
    needs: Iterable[PatchNeed],
    copied: Mapping[int, CopiedRows],
    store: TenantStore | TenantShards,
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Form patches of a prompt's chunks and keep them; a need that no chunk of the prompt has is left out.

    Args:
        spec: of the model, where the rows are.
        prompt: it.
        needs: the patches.
        copied: rows of the chunks in the prompt, by where they start.
        store: has the chunks' own rows, and keeps the patches.
        turn: each patch is formed within what it returns.

    Raises:
        LoadError: the store has a chunk no more; patches before it are kept.
    """
    places: dict[tuple[str, tuple[str, ...]], Segment] = {}
    for segment, chunk in prompt.chunk_segments:
        places.setdefault((chunk.id, prompt.antecedents(segment)), segment)
    for key, rank, layers in needs:
        place = places.get((key.chunk, key.antecedents))
        if place is None:
            continue
        with turn(), store.lease([key.chunk]) as lease:
            if lease.missing:
                raise LoadError(key.chunk, "it is not in the store any more")
            deficits = deficits_of(spec, copied[place.start], prompt, place, lease.rows[key.chunk], set(layers))
            store.put_artifact(key, form_patch(deficits, rank, spec.dtype))
