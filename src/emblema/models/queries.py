"""Position-free states of the attention itself: what a text asks for, and what a chunk's rows answer to."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from emblema.errors import PromptError
from emblema.kv.chunk import Encoded
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, Phases, rotate, unplace
from emblema.models.adapter import Adapter
from emblema.models.attention import attending_by, row_attend


def queries(adapter: Adapter, token_ids: Sequence[int] | Tensor) -> tuple[Tensor, ...]:
    """Query states of a text's tokens, prefilled alone from position 0.

    The decoder runs once, under an attention function that notes the queries it is called with. Latent (MLA) queries
    are carried into the latent space by the layer's own `kv_b_proj`, so that they meet the rows as they are cached: one
    key head, the latent and the rotary key side by side.

    Returns:
        Of each layer [query heads, tokens, width] float32, position-free and times the model's own attention scale, so
        that a product with `key_states` is an attention logit but for the distance; all on the model's device. The
        text's own keys stand in for queries that do not fit the layer's rows, and where it is longer than a block.

    Raises:
        PromptError: there is no token, or one outside the vocabulary.
    """
    ids = torch.as_tensor(token_ids, dtype=torch.int64)
    if ids.numel() == 0:
        raise PromptError("the query is empty: give it at least one token")
    encoded = adapter.encode_text(ids)
    book = adapter.phases(encoded.positions)
    found: dict[int, Tensor | None] = {}

    def note(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        scaling, layer = extra.get("scaling"), int(module.layer_idx)
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        if layer < len(adapter.layouts) and query.shape[2] == encoded.tokens:
            own = slice(0, encoded.tokens)
            found[layer] = position_free(query[0].float() * scale, module, adapter.layouts[layer], book, own)
        return row_attend(module, query, key, value, mask, **extra)

    with torch.inference_mode():
        with attending_by(adapter.config, note):
            rows, _ = adapter.prefill(encoded)
        layers = []
        for index, layout in enumerate(adapter.layouts):
            states = found.get(index)
            layers.append((_keys(rows[index], layout, book) if states is None else states).to(adapter.device))
        return tuple(layers)


def key_states(adapter: Adapter, encoded: Encoded, rows: Sequence[LayerRows], layer: int) -> Tensor:
    """Return a chunk's keys in a layer, [key heads, tokens, width] float32, position-free, to match `queries` with.

    Key heads divide query heads; query head h asks key head h // (query heads / key heads).
    """
    book = adapter.phases(encoded.positions)
    with torch.inference_mode():
        return _keys(rows[layer].to(adapter.device), adapter.layouts[layer], book)


def position_free(states: Tensor, module: Any, layout: LayerLayout, book: PhaseBook, tokens: slice) -> Tensor | None:
    """Queries [heads, tokens, width] float32 of one layer with their position taken out.

    Args:
        states: as the layer's attention is called with them.
        module: the layer's attention; latent (MLA) queries are carried into the latent space by its `kv_b_proj`.
        layout: of the rows that they are to meet.
        book: phases of the positions of a run of tokens.
        tokens: which of the run these are.

    Returns:
        What meets the layer's rows as they are cached; None where the queries do not fit them.
    """
    band = layout.rotary
    turn = None if band is None else book.on(states.device)(band).slice(tokens.start, tokens.stop).inverse()
    if layout.kind == "latent":
        return _latent(states, module, layout, turn)
    if states.shape[-1] != layout.keys[1] or states.shape[0] % layout.keys[0]:
        return None
    return states if band is None or turn is None else rotate(states, band, turn)


def _latent(states: Tensor, module: Any, layout: LayerLayout, turn: Phases | None) -> Tensor | None:
    band, rank, turned = layout.rotary, layout.keys[1], layout.values[1]
    weight = getattr(getattr(module, "kv_b_proj", None), "weight", None)
    heads, plain = states.shape[0], states.shape[-1] - turned
    if band is None or turn is None or weight is None or not weight.is_floating_point() or weight.shape[-1] != rank:
        return None
    if plain < 0 or weight.shape[0] % heads or weight.shape[0] // heads < plain:
        return None
    up = weight.float().reshape(heads, -1, rank)[:, :plain]
    return torch.cat((states[..., :plain] @ up, rotate(states[..., plain:], band, turn)), dim=-1)


def _keys(rows: LayerRows, layout: LayerLayout, book: PhaseBook) -> Tensor:
    return matched(unplace(rows, layout, book), layout)


def matched(free: LayerRows, layout: LayerLayout) -> Tensor:
    """Return what queries match of position-free rows, [key heads, tokens, width]: keys, or latent and rotary key."""
    return torch.cat((free.keys, free.values), dim=-1) if layout.kind == "latent" else free.keys
