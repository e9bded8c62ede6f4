"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4V: three position axes."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.llava import LLAMA, plain_stock
from tests.families.parts import Bundle, sharpen, token, tokenizer, typed

QWEN_TEXT = {
    **{key: value for key, value in LLAMA.items() if key != "model_type"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
}  # fmt: skip
QWEN_TOKENS = {
    "image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>"),
    "vision_start_token_id": token("<|vision_start|>"), "vision_end_token_id": token("<|vision_end|>"),
}  # fmt: skip


def qwen_images(patch: int = 7) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    side = 2 * patch
    return Qwen2VLImageProcessorPil(
        patch_size=patch, merge_size=2, temporal_patch_size=2,
        size={"shortest_edge": 4 * side * side, "longest_edge": 24 * side * side},
    )  # fmt: skip


def qwen_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    batch = plain_stock(bundle, config, pictures, ids)
    return {**batch, "mm_token_type_ids": typed(ids, config.image_token_id, config.video_token_id)}


def build_qwen2_5_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(seed)
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "patch_size": 7,
        "window_size": 28, "fullatt_block_indexes": [1], "tokens_per_second": 2,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(text_config=QWEN_TEXT, vision_config=vision, **QWEN_TOKENS)
    return sharpen(Qwen2_5_VLForConditionalGeneration(config), seed), Bundle(tokenizer(), qwen_images())


def build_qwen2_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    torch.manual_seed(seed)
    vision = {
        "depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2, "patch_size": 7,
        "temporal_patch_size": 2, "spatial_merge_size": 2,
    }  # fmt: skip
    config = Qwen2VLConfig(text_config=QWEN_TEXT, vision_config=vision, **QWEN_TOKENS)
    return sharpen(Qwen2VLForConditionalGeneration(config), seed), Bundle(tokenizer(), qwen_images())


QWEN3_VISION = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8, "out_hidden_size": 64,
    "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1], "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}  # fmt: skip
QWEN3_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}


def build_qwen3_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    torch.manual_seed(seed)
    text = {**QWEN_TEXT, "head_dim": 16, "rope_parameters": QWEN3_ROPE}
    config = Qwen3VLConfig(text_config=text, vision_config=QWEN3_VISION, **QWEN_TOKENS)
    return sharpen(Qwen3VLForConditionalGeneration(config), seed), Bundle(tokenizer(), qwen_images(8))


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def build_qwen3_vl_moe(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

    torch.manual_seed(seed)
    text = {**QWEN_TEXT, **EXPERTS, "head_dim": 16, "rope_parameters": QWEN3_ROPE}
    config = Qwen3VLMoeConfig(text_config=text, vision_config=QWEN3_VISION, **QWEN_TOKENS)
    return sharpen(Qwen3VLMoeForConditionalGeneration(config), seed), Bundle(tokenizer(), qwen_images(8))


HYBRID_TEXT = {
    "head_dim": 32, "num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    },
}  # fmt: skip


def build_qwen3_5(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    torch.manual_seed(seed)
    vision = {key: value for key, value in QWEN3_VISION.items() if key != "deepstack_visual_indexes"}
    config = Qwen3_5Config(text_config={**QWEN_TEXT, **HYBRID_TEXT}, vision_config=vision, **QWEN_TOKENS)
    return sharpen(Qwen3_5ForConditionalGeneration(config), seed), Bundle(tokenizer(), qwen_images(8))


def build_qwen3_5_moe(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    torch.manual_seed(seed)
    vision = {key: value for key, value in QWEN3_VISION.items() if key != "deepstack_visual_indexes"}
    text = {**QWEN_TEXT, **HYBRID_TEXT, **EXPERTS, "shared_expert_intermediate_size": 32}
    config = Qwen3_5MoeConfig(text_config=text, vision_config=vision, **QWEN_TOKENS)
    return sharpen(Qwen3_5MoeForConditionalGeneration(config), seed), Bundle(tokenizer(), qwen_images(8))


def build_glm4v(seed: int, name: str = "Glm4v", **more: Any) -> tuple[nn.Module, Bundle]:
    """GLM-4.1V, or another of its classes by the name that its configuration begins with."""
    import transformers
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    torch.manual_seed(seed)
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 7, "out_hidden_size": 64,
        "image_size": 56, "temporal_patch_size": 2, "spatial_merge_size": 2,
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    text = {**{key: value for key, value in LLAMA.items() if key != "model_type"}, "rope_parameters": rope, **more}
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=vision, image_token_id=token("<|image|>"), video_token_id=token("<|video|>"),
        image_start_token_id=token("<|begin_of_image|>"), image_end_token_id=token("<|end_of_image|>"),
        video_start_token_id=token("<|begin_of_video|>"), video_end_token_id=token("<|end_of_video|>"),
    )  # fmt: skip
    images = Glm4vImageProcessorPil(
        patch_size=7, merge_size=2, temporal_patch_size=2,
        size={"shortest_edge": 2 * 4 * 14 * 14, "longest_edge": 2 * 24 * 14 * 14},
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    return sharpen(model, seed), Bundle(tokenizer(), images)


def build_glm4v_moe(seed: int) -> tuple[nn.Module, Bundle]:
    """GLM-4.5V and 4.6V."""
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return build_glm4v(seed, "Glm4vMoe", head_dim=16, **experts)


def build_glm46v(seed: int) -> tuple[nn.Module, Bundle]:
    return build_glm4v(seed, "Glm46V")


def build_glm_ocr(seed: int) -> tuple[nn.Module, Bundle]:
    return build_glm4v(seed, "GlmOcr", head_dim=16)


def build_exaone4_5(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Exaone4_5_Config, Exaone4_5_ForConditionalGeneration

    torch.manual_seed(seed)
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "num_key_value_heads": 1,
        "out_hidden_size": 64, "patch_size": 7, "window_size": 28, "fullatt_block_indexes": [1],
    }  # fmt: skip
    text = {
        **LLAMA, "model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }  # fmt: skip
    tokens = {name: QWEN_TOKENS[name] for name in ("image_token_id", "video_token_id")}
    config = Exaone4_5_Config(text_config=text, vision_config=vision, **tokens)
    return sharpen(Exaone4_5_ForConditionalGeneration(config), seed), Bundle(tokenizer(), qwen_images())


def build_paddleocr_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import PaddleOCRVLConfig, PaddleOCRVLForConditionalGeneration
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil

    torch.manual_seed(seed)
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
        "patch_size": 7,
    }  # fmt: skip
    config = PaddleOCRVLConfig(text_config={**QWEN_TEXT, "head_dim": 16}, vision_config=vision, **QWEN_TOKENS)
    images = PaddleOCRVLImageProcessorPil(
        patch_size=7, merge_size=2, size={"shortest_edge": 4 * 14 * 14, "longest_edge": 24 * 14 * 14}
    )
    return sharpen(PaddleOCRVLForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def build_ernie4_5_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Ernie4_5_VLMoeConfig, Ernie4_5_VLMoeForConditionalGeneration
    from transformers.models.ernie4_5_vl_moe.image_processing_pil_ernie4_5_vl_moe import (
        Ernie4_5_VLMoeImageProcessorPil,
    )

    torch.manual_seed(seed)
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 7}
    text = {
        **QWEN_TEXT, "moe_intermediate_size": [32, 24], "moe_k": 2, "moe_num_experts": 4, "moe_num_shared_experts": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
    }  # fmt: skip
    config = Ernie4_5_VLMoeConfig(
        text_config=text, vision_config=vision, image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"), image_start_token_id=token("<|begin_of_image|>"),
        image_end_token_id=token("<|end_of_image|>"), video_start_token_id=token("<|begin_of_video|>"),
        video_end_token_id=token("<|end_of_video|>"),
    )  # fmt: skip
    images = Ernie4_5_VLMoeImageProcessorPil(
        patch_size=7, merge_size=2, size={"shortest_edge": 4 * 14 * 14, "longest_edge": 24 * 14 * 14}
    )
    return sharpen(Ernie4_5_VLMoeForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def ernie_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    """Experts take markers for media too."""
    media = torch.tensor([config.image_token_id, config.image_start_token_id, config.image_end_token_id])
    batch = qwen_stock(bundle, config, pictures, ids)
    return {**batch, "moe_mm_token_type_ids": torch.isin(ids, media).long()[None]}
