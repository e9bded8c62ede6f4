"""`reference-hybrid`: Qwen3.5, where three layers of four keep a state and the fourth attends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from training.families.base import TEXT, Recipe, silence
from training.families.qwen2_5_vl import TOKENS, VISION, qwen_files, qwen_patches
from training.layout import Frame

SHORTEST, LONGEST = 1e-3, 0.1
"""First time steps of a state's heads, as flash-linear-attention draws them."""


class Hybrid(Recipe):
    """2.47 M parameters: 8 layers, a state in 6 of them, rows of 256 numbers in layers 3 and 7."""

    name = "reference-hybrid"
    about = (
        "- Decoder: 8 layers, hidden 192, MLP 184. Layers 3 and 7 are gated attention: 4 query heads and 2 key/value\n"
        "  heads of 64, of which 16 channels are rotated, M-RoPE interleaved [4, 2, 2], theta 1e6. The others are\n"
        "  Gated DeltaNet: 3 key heads and 6 value heads of 32, convolutions of 4 taps. Tied embeddings.\n"
        "- Vision: 2 layers, patch 14, merge 2, temporal patch 2: one token is 28 x 28 px, a picture of 224 x 224 px\n"
        "  is 64 tokens. The tower's attention and positions are held at zero, so a token's features depend on its\n"
        "  own cell alone. Segments of video stand behind their time stamps."
    )
    start = "words copied from `reference`, tower fitted to its tower's, decoder trained from nothing"
    axes = 3
    frame = Frame(stamps=True)

    def new_model(self) -> nn.Module:
        rope = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
        text = {**TEXT, "intermediate_size": 184, "num_hidden_layers": 8, "num_attention_heads": 4, "head_dim": 64}
        text |= {"num_key_value_heads": 2, "rope_parameters": {**rope, "partial_rotary_factor": 0.25}}
        text |= {"linear_num_key_heads": 3, "linear_num_value_heads": 6}
        text |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
        vision = {"depth": 2, "hidden_size": 48, "intermediate_size": 96, "num_heads": 4, **VISION}
        vision |= {"num_position_embeddings": 16, "initializer_range": 0.04}
        config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True, **TOKENS)
        model = Qwen3_5ForConditionalGeneration(config).to(torch.float32)
        visual = model.model.visual
        silence(visual.pos_embed, *(block.attn.proj for block in visual.blocks))
        for layer in model.model.language_model.layers:
            if layer.block_type == "linear_attention":
                bias = layer.linear_attn.dt_bias
                step = SHORTEST * torch.exp(torch.rand_like(bias) * math.log(LONGEST / SHORTEST))
                bias.data.copy_(step + torch.log(-torch.expm1(-step)))
        return model

    def inputs(self, tiles: np.ndarray) -> torch.Tensor:
        return qwen_patches(tiles)

    def cells(self, model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        visual = model.model.visual
        state = visual.patch_embed(inputs.reshape(len(inputs) * 4, -1))
        for block in visual.blocks:
            state = state + block.mlp(block.norm2(state))
        return [visual.merger(state)]

    @torch.no_grad()
    def copy(self, model: nn.Module, teacher: nn.Module, samples: list[torch.Tensor]) -> None:
        own, taught = (each.model.language_model.embed_tokens.weight for each in (model, teacher))
        own.copy_(taught)

    def files(self) -> dict[str, dict[str, Any]]:
        return qwen_files("Qwen3VLProcessor", "Qwen2VLImageProcessor", "Qwen3VLVideoProcessor")
