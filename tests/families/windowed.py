"""Mistral 3 and Gemma 3: layers with sliding windows."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.llava import LLAMA, SIGLIP, plain_stock
from tests.families.parts import Bundle, sharpen, token, tokenizer, typed


def build_mistral3(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    torch.manual_seed(seed)
    vision = {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 56, "patch_size": 7,
    }  # fmt: skip
    text = {**LLAMA, "model_type": "mistral", "head_dim": 16, "sliding_window": 24}
    config = Mistral3Config(
        text_config=text, vision_config=vision, image_token_index=token("[IMG]"), spatial_merge_size=2
    )
    images = PixtralImageProcessorPil(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14})
    return sharpen(Mistral3ForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def mistral3_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    return dict(bundle.image_processor(images=list(pictures), return_tensors="pt", patch_size=14))


def build_gemma3(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    torch.manual_seed(seed)
    text = {
        **{key: value for key, value in LLAMA.items() if key != "model_type"}, "num_hidden_layers": 4, "head_dim": 16,
        "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2, "query_pre_attn_scalar": 16,
    }  # fmt: skip
    config = Gemma3Config(
        text_config=text, vision_config={**SIGLIP, "image_size": 28}, mm_tokens_per_image=16,
        image_token_index=token("<image_soft_token>"), boi_token_index=token("<start_of_image>"),
        eoi_token_index=token("<end_of_image>"),
    )  # fmt: skip
    images = Gemma3ImageProcessorPil(size={"height": 28, "width": 28})
    return sharpen(Gemma3ForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def gemma3_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    batch = plain_stock(bundle, config, pictures, ids)
    return {"pixel_values": batch["pixel_values"], "token_type_ids": typed(ids, config.image_token_id)}
