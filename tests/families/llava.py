"""Families on the towers of CLIP and SigLIP with one position axis."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.parts import VOCAB, Bundle, sharpen, token, tokenizer

LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 8192, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7, "projection_dim": 32,
}  # fmt: skip


def plain_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    """Both pictures through the stock image processor at once."""
    return dict(bundle.image_processor(images=list(pictures), return_tensors="pt"))


def build_llava(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import LlavaConfig, LlavaForConditionalGeneration
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    torch.manual_seed(seed)
    config = LlavaConfig(text_config=LLAMA, vision_config=CLIP, image_token_id=token("<image>"))
    model = LlavaForConditionalGeneration(config)
    images = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    return sharpen(model, seed), Bundle(tokenizer(), images)


PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]


def build_llava_next(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    torch.manual_seed(seed)
    text = {**LLAMA, "num_key_value_heads": 4}
    config = LlavaNextConfig(
        text_config=text, vision_config=CLIP, image_token_index=token("<image>"), image_grid_pinpoints=PINPOINTS
    )
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, image_grid_pinpoints=PINPOINTS
    )
    return sharpen(LlavaNextForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def build_granite4_vision(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Granite4VisionConfig, Granite4VisionForConditionalGeneration
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    torch.manual_seed(seed)
    text = {key: value for key, value in LLAMA.items() if key != "model_type"} | {
        "num_hidden_layers": 6, "embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.8,
        "attention_multiplier": 0.25,
    }  # fmt: skip
    config = Granite4VisionConfig(
        text_config=text, vision_config={**CLIP, "hidden_size": 64}, image_token_index=token("<image>"),
        image_grid_pinpoints=PINPOINTS, downsample_rate="1/2", deepstack_layer_map=[[-2, 0], [-1, 1]],
        spatial_target_layers=[2, 3, 4, 5], qformer_config={"num_hidden_layers": 1, "intermediate_size": 48},
    )  # fmt: skip
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, image_grid_pinpoints=PINPOINTS
    )
    return sharpen(Granite4VisionForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "image_size": 28, "patch_size": 7,
}  # fmt: skip
QWEN2 = {**LLAMA, "model_type": "qwen2"}


def build_llava_onevision(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

    torch.manual_seed(seed)
    config = LlavaOnevisionConfig(
        text_config=QWEN2, vision_config=SIGLIP, image_token_index=token("<image>"), vision_aspect_ratio="anyres_max_2",
        video_token_index=token("<video>"), image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    images = LlavaOnevisionImageProcessorPil(size={"height": 28, "width": 28}, image_grid_pinpoints=PINPOINTS)
    return sharpen(LlavaOnevisionForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def onevision_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    batch = plain_stock(bundle, config, pictures, ids)
    return {name: batch[name] for name in ("pixel_values", "image_sizes")}


def build_deepseek_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import DeepseekVLConfig, DeepseekVLForConditionalGeneration
    from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil

    torch.manual_seed(seed)
    config = DeepseekVLConfig(text_config=LLAMA, vision_config=SIGLIP, image_token_id=token("<image_placeholder>"))
    images = DeepseekVLImageProcessorPil(size={"height": 28, "width": 28}, min_size=7)
    return sharpen(DeepseekVLForConditionalGeneration(config), seed), Bundle(tokenizer(), images)
