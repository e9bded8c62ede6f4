"""Kimi K2.5: latent attention and experts."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.parts import VOCAB, Bundle, sharpen, token, tokenizer

MLA = {
    "model_type": "deepseek_v3", "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96,
    "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 24, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "max_position_embeddings": 8192, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip


def kimi(seed: int, rope: dict[str, Any] | None = None) -> tuple[nn.Module, Bundle]:
    from transformers import Kimi_K25Config, Kimi_K25ForConditionalGeneration

    torch.manual_seed(seed)
    vision = {
        "patch_size": 7, "pos_emb_height": 8, "pos_emb_width": 8, "num_attention_heads": 2, "num_hidden_layers": 2,
        "hidden_size": 32, "intermediate_size": 48,
    }  # fmt: skip
    text = MLA if rope is None else {**MLA, "rope_parameters": rope}
    config = Kimi_K25Config(
        text_config=text, vision_config=vision, projection_hidden_size=32, image_token_id=token("<|media_pad|>"),
        video_token_id=token("<video>"), vision_start_token_id=token("<|media_begin|>"),
        vision_end_token_id=token("<|media_end|>"),
    )  # fmt: skip
    return sharpen(Kimi_K25ForConditionalGeneration(config), seed), Bundle(tokenizer())


def build_kimi_yarn(seed: int) -> tuple[nn.Module, Bundle]:
    return kimi(
        seed,
        {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 2048,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    )  # fmt: skip


def kimi_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    from emblema.models.families.kimi import patches

    made = [patches(config, picture) for picture in pictures]
    return {"pixel_values": torch.cat([x for x, _ in made]), "image_grid_thw": torch.cat([x for _, x in made])}
