"""`reference`: Qwen2.5-VL, trained from nothing; the teacher of the other bundled models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

from training.families.base import MEAN, SPREAD, TEXT, WIDTH, Recipe
from training.pictures import normalise
from training.words import INDEX

TOKENS = {
    "image_token_id": INDEX["<|image_pad|>"],
    "video_token_id": INDEX["<|video_pad|>"],
    "vision_start_token_id": INDEX["<|vision_start|>"],
    "vision_end_token_id": INDEX["<|vision_end|>"],
}
VISION = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": WIDTH}
PROCESSOR = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": MEAN,
    "image_std": SPREAD,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": 3,
    "rescale_factor": 1 / 255,
}


def qwen_patches(tiles: np.ndarray) -> torch.Tensor:
    """[n, 2, 28, 28, 3] uint8 frame pairs -> [n, 4, 1176] patches as the stock image processor lays them out."""
    cut = normalise(tiles, MEAN, SPREAD).reshape(-1, 2, 2, 14, 2, 14, 3).transpose(0, 2, 4, 6, 1, 3, 5)
    return torch.from_numpy(np.ascontiguousarray(cut).reshape(len(tiles), 4, 1176))


def qwen_files(processor: str, image: str, video: str) -> dict[str, dict[str, Any]]:
    """Processor files of a family of the Qwen kind."""
    pictures = {**PROCESSOR, "image_processor_type": image, "processor_class": processor}
    clips = {**PROCESSOR, "video_processor_type": video, "processor_class": processor}
    clips |= {"fps": 1, "min_frames": 2, "max_frames": 768, "do_sample_frames": False}
    return {"preprocessor_config.json": pictures, "video_preprocessor_config.json": clips}


class Reference(Recipe):
    """2.27 M parameters: KV width 192, 28 x 28 px a token, vision windows of one token."""

    name = "reference"
    about = (
        "- Decoder: 5 layers, hidden 192, 6 query heads and 6 key/value heads of 32 (KV width 192), M-RoPE in blocks\n"
        "  [4, 6, 6], theta 1e6, tied embeddings.\n"
        "- Vision: 2 layers, patch 14, merge 2, temporal patch 2, attention windows of one cell: one token is\n"
        "  28 x 28 px, a picture of 224 x 224 px is 64 tokens, and a token's features depend on its own cell alone."
    )
    start = "trained from nothing"
    axes = 3

    def new_model(self) -> nn.Module:
        rope = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [4, 6, 6]}
        vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "window_size": 28}
        vision |= {"fullatt_block_indexes": [], "initializer_range": 0.04, "tokens_per_second": 1, **VISION}
        config = Qwen2_5_VLConfig(
            text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, tie_word_embeddings=True, **TOKENS
        )
        return Qwen2_5_VLForConditionalGeneration(config).to(torch.float32)

    def inputs(self, tiles: np.ndarray) -> torch.Tensor:
        return qwen_patches(tiles)

    def cells(self, model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        visual, cells = model.model.visual, len(inputs)
        state = visual.patch_embed(inputs.reshape(cells * 4, -1)).view(cells, 4, -1)
        place = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], device=inputs.device)
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
        return [visual.merger(state.reshape(cells * 4, -1))]

    def files(self) -> dict[str, dict[str, Any]]:
        return qwen_files("Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor")
