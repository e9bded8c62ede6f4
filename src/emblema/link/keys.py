"""A chunk's own keys as low-rank factors (ShadowKV), kept in the store beside its patches."""

from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.kv.patch import Factors, LayerPatch, Patch, factor
from emblema.kv.rotation import PhaseBook, unplace
from emblema.models.adapter import Adapter
from emblema.store.keys import PatchKey


def keys_key(model: str, chunk: str) -> PatchKey:
    """What the factors of a chunk's keys are found by."""
    return PatchKey.of("keys", model, chunk)


def form_keys(adapter: Adapter, chunk: Chunk, rows: KVRows, rank: int) -> Patch:
    """Factors of the position-free keys (MLA: the latent) of every layer, the values left alone. No forward runs."""
    source = PhaseBook(adapter.tables, chunk.encoded.positions.to(adapter.device))
    layers = []
    for index, layout in enumerate(adapter.layouts):
        keys = unplace(rows[index].to(adapter.device), layout, source).keys
        nothing = Factors(keys.new_empty(chunk.tokens, 0), keys.new_empty(0, 0))
        layers.append(LayerPatch(factor(keys, rank, adapter.dtype), nothing))
    return Patch(tuple(layers))
