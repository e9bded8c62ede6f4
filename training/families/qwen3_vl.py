"""`reference-deepstack`: Qwen3-VL, two query heads to a key/value head, key norms, features added after two layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from benchmarks.tasks.tiles import COLOUR_COUNT, FIRST_LAND, TILE_COUNT
from training.families.base import TEXT, WIDTH, Recipe, copy_same, silence
from training.families.qwen2_5_vl import TOKENS, VISION, qwen_files, qwen_patches
from training.layout import Frame

NARROW = 304
LATER = 0.2
"""Share of what is embedded that is added after the second layer instead."""


class Deepstack(Recipe):
    """2.47 M parameters: 12 query heads, 6 key/value heads, M-RoPE interleaved."""

    name = "reference-deepstack"
    about = (
        "- Decoder: 5 layers, hidden 192, MLP 304, 12 query heads and 6 key/value heads of 32 (KV width 192), norms\n"
        "  on queries and keys, M-RoPE interleaved [6, 5, 5], theta 1e6, tied embeddings.\n"
        "- Vision: 2 layers, patch 14, merge 2, temporal patch 2: one token is 28 x 28 px, a picture of 224 x 224 px\n"
        "  is 64 tokens. Part of its features are embedded, part are added after the first two decoder layers\n"
        "  (deepstack): a legend's cell is embedded as its colour, its land is added after the first layer. The\n"
        "  tower's attention and positions are held at zero, so a token's features depend on its own cell alone.\n"
        "  Segments of video stand behind their time stamps."
    )
    start = "decoder copied from `reference` (query heads doubled, the least used neurons left out), tower fitted"
    axes = 3
    frame = Frame(stamps=True)

    def new_model(self) -> nn.Module:
        rope = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
        text = {**TEXT, "intermediate_size": NARROW, "num_attention_heads": 12, "head_dim": 32, "rope_parameters": rope}
        text |= {"attention_bias": True, "rms_norm_eps": 1e-5}
        vision = {"depth": 2, "hidden_size": 48, "intermediate_size": 96, "num_heads": 4, **VISION}
        vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1], "initializer_range": 0.04}
        config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **TOKENS)
        model = Qwen3VLForConditionalGeneration(config).to(torch.float32)
        visual = model.model.visual
        silence(visual.pos_embed, *(block.attn.proj for block in visual.blocks))
        return model

    def inputs(self, tiles: np.ndarray) -> torch.Tensor:
        return qwen_patches(tiles)

    def cells(self, model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        visual = model.model.visual
        state = visual.patch_embed(inputs.reshape(len(inputs) * 4, -1))
        added = []
        for block, merger in zip(visual.blocks, visual.deepstack_merger_list, strict=True):
            state = state + block.mlp(block.norm2(state))
            added.append(merger(state))
        return [visual.merger(state), *added]

    def targets(self, features: torch.Tensor) -> list[torch.Tensor]:
        """A legend's cell is embedded as its colour alone; its land comes after the first layer."""
        coloured = features[1:].view(-1, COLOUR_COUNT, features.shape[1])
        ground = features.clone()
        ground[FIRST_LAND:] = coloured.mean(0).repeat((TILE_COUNT - FIRST_LAND) // COLOUR_COUNT, 1)
        return [(1 - LATER) * ground, features - ground, LATER * ground]

    @torch.no_grad()
    def copy(self, model: nn.Module, teacher: nn.Module, samples: list[torch.Tensor]) -> None:
        target, source = model.model.language_model, teacher.model.language_model
        copy_same(target, source, but=("self_attn",))
        for layer, taught, sample in zip(target.layers, source.layers, samples, strict=False):
            attention, old = layer.self_attn, taught.self_attn
            state = taught.input_layernorm(sample)
            for name in ("k_proj", "v_proj"):
                getattr(attention, name).weight.copy_(getattr(old, name).weight)
                getattr(attention, name).bias.copy_(getattr(old, name).bias)
            doubled = old.q_proj.weight.view(6, 1, 32, WIDTH).expand(-1, 2, -1, -1).reshape(-1, WIDTH)
            attention.q_proj.weight.copy_(doubled + 0.003 * torch.randn_like(doubled))
            attention.q_proj.bias.copy_(old.q_proj.bias.view(6, 1, 32).expand(-1, 2, -1).reshape(-1))
            halves = old.o_proj.weight.view(WIDTH, 6, 1, 32).expand(-1, -1, 2, -1) / 2
            attention.o_proj.weight.copy_(halves.reshape(WIDTH, -1))
            attention.o_proj.bias.zero_()
            attention.q_norm.weight.fill_(float(old.q_proj(state).square().mean().sqrt()))
            attention.k_norm.weight.fill_(float(old.k_proj(state).square().mean().sqrt()))
            state = taught.post_attention_layernorm(sample)
            used = nn.functional.silu(taught.mlp.gate_proj(state)) * taught.mlp.up_proj(state)
            merit = used.square().mean(0).sqrt() * taught.mlp.down_proj.weight.norm(dim=0)
            kept = merit.topk(NARROW).indices.sort().values
            layer.mlp.gate_proj.weight.copy_(taught.mlp.gate_proj.weight[kept])
            layer.mlp.up_proj.weight.copy_(taught.mlp.up_proj.weight[kept])
            layer.mlp.down_proj.weight.copy_(taught.mlp.down_proj.weight[:, kept])

    def files(self) -> dict[str, dict[str, Any]]:
        return qwen_files("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor")
