"""The forward pass over streams: the decoder's own layers, with the questions' attention apart from the context's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from training.families.base import Recipe
from training.streams.hints import ROLES
from training.streams.rows import Batch

HALF = torch.bfloat16
SPOKEN, TALLIED, HINTED = 2, 2, 3


@dataclass
class Output:
    """hidden: [B, C, width] states of the context after each layer; spoken: those behind layer SPOKEN as the word table
    would read them; asked: [B * S, width] after the last norm; hinted: the same behind layer HINTED; tallied: behind
    layer TALLIED, without it; words: the word table; looks: role -> [rows of that role, C + S] log of what its head
    gives to every row.
    """

    hidden: list[torch.Tensor]
    spoken: torch.Tensor
    asked: torch.Tensor
    hinted: torch.Tensor
    tallied: torch.Tensor
    looks: dict[str, torch.Tensor]
    words: torch.Tensor


@torch.no_grad()
def cell_features(recipe: Recipe, model: nn.Module, pool: np.ndarray) -> torch.Tensor:
    """[variants * TILE_COUNT, width] features of every tile. pool: [variants, TILE_COUNT, 2, 28, 28, 3] uint8."""
    return torch.cat([recipe.cells(model, recipe.inputs(tiles))[0] for tiles in pool])


def turned(state: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """[B, heads, rows, size] queries or keys, rotated in float32."""
    cosine, sine = (each[:, None] for each in turns)
    state = state.float()
    left, right = state.chunk(2, dim=-1)
    return state * cosine + torch.cat([-right, left], dim=-1) * sine


def forward(model: nn.Module, features: torch.Tensor, batch: Batch, half: bool = False) -> Output:
    """The forward pass of a batch. half: matrix products in bfloat16, attention always in float32."""
    decoder = model.model.language_model
    words, count = decoder.embed_tokens.weight, batch.context
    state = nn.functional.embedding(batch.table, torch.cat([words, features]))
    turns = decoder.rotary_emb(state, batch.positions)
    read = None if batch.read is None else decoder.rotary_emb(state, batch.read)
    attend = nn.functional.scaled_dot_product_attention
    kept, hinted, tallied = [], state, state
    looks: dict[str, torch.Tensor] = {}
    for number, layer in enumerate(decoder.layers):
        attention = layer.self_attn
        with torch.autocast("cpu", HALF, enabled=half):
            normed = layer.input_layernorm(state)
            query, key, value = (
                each(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                for each in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
        query, places, value = turned(query, turns), turned(key, turns), value.float()
        seen = places if read is None else torch.cat([turned(key[:, :, :count], read), places[:, :, count:]], dim=2)
        context = attend(
            query[:, :, :count],
            places[:, :, :count],
            value[:, :, :count],
            attn_mask=batch.encoding,
            is_causal=batch.encoding is None,
        )
        asked = _ask(query[:, :, count:], seen, value, batch)
        for role, (name, (_, head)) in enumerate(ROLES.items()):
            stream, row, _ = batch.looked[batch.looked[:, 2] == role].unbind(1)
            if ROLES[name][0] == number and len(stream):
                scores = torch.einsum("ld,lkd->lk", query[stream, head, count + row], seen[stream, head])
                scores = scores * attention.scaling
                looks[name] = torch.log_softmax(scores.masked_fill(~batch.sees[stream, 0, row], -1e9), -1)
        mixed = torch.cat([context, asked], dim=2).transpose(1, 2).flatten(2)
        with torch.autocast("cpu", HALF, enabled=half):
            state = state + attention.o_proj(mixed)
            state = state + layer.mlp(layer.post_attention_layernorm(state))
        kept.append(state[:, :count])
        hinted = state[:, count:] if number == HINTED else hinted
        tallied = state[:, count:] if number == TALLIED else tallied
    asked, hinted = (decoder.norm(each).flatten(0, 1) for each in (state[:, count:], hinted))
    return Output(kept, decoder.norm(kept[SPOKEN]), asked, hinted, tallied.flatten(0, 1), looks, words)


def _ask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Attention of the asked rows; where the context is short, question by question, as none sees another's rows."""
    attend, count, longest = nn.functional.scaled_dot_product_attention, batch.context, batch.longest
    streams, heads, rows, size = query.shape
    if count > rows:
        return attend(query, key, value, attn_mask=batch.sees)
    asked = rows // longest

    def own(state: torch.Tensor) -> torch.Tensor:
        return state.unflatten(2, (asked, longest)).transpose(1, 2).flatten(0, 1)

    def beside(state: torch.Tensor) -> torch.Tensor:
        shared = state[:, None, :, :count].expand(-1, asked, -1, -1, -1).flatten(0, 1)
        return torch.cat([shared, own(state[:, :, count:])], dim=2)

    sees = batch.sees[:, 0].unflatten(1, (asked, longest))
    turn = torch.arange(asked)
    inside = sees[..., count:].unflatten(-1, (asked, longest))[:, turn, :, turn].transpose(0, 1)
    mask = torch.cat([sees[..., :count], inside], dim=-1).flatten(0, 1)[:, None]
    mixed = attend(own(query), beside(key), beside(value), attn_mask=mask)
    return mixed.unflatten(0, (streams, asked)).transpose(1, 2).flatten(2, 3)
