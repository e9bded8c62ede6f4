"""The forward pass in training: the vision tower once for each distinct cell, the decoder on rows laid out before."""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

from reference.batches import Batch


def cell_features(visual: nn.Module, patches: torch.Tensor) -> torch.Tensor:
    """[n, 4, 1176] patches of n cells -> [n, hidden] features, what the stock tower gives for each cell of a picture.

    The tower's windows are one cell large, so a token's features depend on its own cell alone.
    """
    cells = patches.shape[0]
    state = visual.patch_embed(patches.reshape(cells * 4, -1)).view(cells, 4, -1)
    place = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], device=patches.device)
    cosine, sine = visual.rotary_pos_emb(state, place)
    for block in visual.blocks:
        attention = block.attn
        query, key, value = attention.qkv(block.norm1(state)).view(cells, 4, 3, attention.num_heads, -1).unbind(2)
        query, key = apply_rotary_pos_emb_vision(query, key, cosine, sine)
        mixed = nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale=attention.scaling
        )
        state = state + attention.proj(mixed.transpose(1, 2).reshape(cells, 4, -1))
        state = state + block.mlp(block.norm2(state))
    return visual.merger(state.reshape(cells * 4, -1))


def decode(model: nn.Module, patches: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decoder output [B * L, width] of a batch, the word table [vocabulary, width], and the features of the cells."""
    language = model.model.language_model
    cells = cell_features(model.model.visual, patches.reshape(-1, 4, patches.shape[-1]))
    table = torch.cat([language.embed_tokens.weight, cells])
    hidden = language(
        inputs_embeds=nn.functional.embedding(batch.table, table),
        position_ids=batch.positions,
        attention_mask=batch.mask,
        use_cache=False,
    ).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]), language.embed_tokens.weight, cells
