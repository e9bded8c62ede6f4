"""Mistral 3, Gemma 3 and Gemma 4: layers with sliding windows."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.kimi import MLA
from tests.families.llava import LLAMA, SIGLIP, plain_stock
from tests.families.parts import VOCAB, Bundle, sharpen, token, tokenizer, typed


def mistral3(seed: int, text: dict[str, Any], gain: float = 1.6) -> tuple[nn.Module, Bundle]:
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    torch.manual_seed(seed)
    vision = {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 56, "patch_size": 7,
    }  # fmt: skip
    config = Mistral3Config(
        text_config=text, vision_config=vision, image_token_index=token("[IMG]"), spatial_merge_size=2
    )
    images = PixtralImageProcessorPil(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14})
    return sharpen(Mistral3ForConditionalGeneration(config), seed, gain), Bundle(tokenizer(), images)


def build_mistral3(seed: int) -> tuple[nn.Module, Bundle]:
    return mistral3(seed, {**LLAMA, "model_type": "mistral", "head_dim": 16, "sliding_window": 24})


SCALED = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def build_ministral3(seed: int) -> tuple[nn.Module, Bundle]:
    text = {**LLAMA, "model_type": "ministral3", "head_dim": 16, "max_position_embeddings": 131072}
    return mistral3(seed, {**text, "rope_parameters": dict(SCALED)})


def build_mistral_small4(seed: int) -> tuple[nn.Module, Bundle]:
    """Its experts in every layer multiply what the tower rounds otherwise for two pictures than for one."""
    text = {**MLA, "model_type": "mistral4", "first_k_dense_replace": 0, "max_position_embeddings": 131072}
    return mistral3(seed, {**text, "rope_parameters": dict(SCALED)}, gain=1.2)


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


def build_gemma4(seed: int) -> tuple[nn.Module, Bundle]:
    """The shapes of 26B-A4B: two widths of heads, keys that are values in full layers, experts, both ways of seeing."""
    return gemma4(seed, {})


def gemma4(seed: int, changed: dict[str, Any]) -> tuple[nn.Module, Bundle]:
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig, Gemma4VisionConfig
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    torch.manual_seed(seed)
    plain = {key: value for key, value in LLAMA.items() if key not in ("model_type", "rope_theta")}
    text = {
        **plain, "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1,
        "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2, "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision", "enable_moe_block": True,
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24, "final_logit_softcapping": 30.0,
    }  # fmt: skip
    vision = Gemma4VisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=16, patch_size=4, pooling_kernel_size=2, position_embedding_size=256, standardize=True,
    )  # fmt: skip
    config = Gemma4Config(
        text_config=Gemma4TextConfig(**{**text, **changed}), vision_config=vision,
        image_token_id=token("<|image|>"), video_token_id=token("<|video|>"),
        boi_token_id=token("<start_of_image>"), eoi_token_id=token("<end_of_image>"),
    )  # fmt: skip
    images = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70, do_normalize=True)
    model: Any = sharpen(Gemma4ForConditionalGeneration(config), seed)
    model.model.vision_tower.std_scale.fill_(0.3)
    for layer in model.model.language_model.layers:
        layer.layer_scalar.fill_(0.8)
    return model, Bundle(tokenizer(), images)


def build_gemma4_shared(seed: int) -> tuple[nn.Module, Bundle]:
    """The shapes of E2B and E4B: the last layers attend rows of earlier ones, and every layer embeds tokens' ids."""
    text = {
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "use_bidirectional_attention": None,
        "use_double_wide_mlp": True, "enable_moe_block": False, "attention_k_eq_v": False,
    }  # fmt: skip
    return gemma4(seed, text)


def gemma4_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    batch = bundle.image_processor(images=list(pictures), return_tensors="pt")
    kept = {name: batch[name] for name in ("pixel_values", "image_position_ids")}
    return {**kept, "mm_token_type_ids": typed(ids, config.image_token_id)}


class MergedPatches:
    """An image processor of Gemma 4 unified's output, whose own needs torchvision: patches of 8 pixels, at most 16."""

    image_mean, image_std = [0.0] * 3, [1.0] * 3

    def to_dict(self) -> dict[str, Any]:
        return {"side": 8}

    def __call__(self, images: Sequence[Image.Image], return_tensors: str, **options: Any) -> dict[str, Tensor]:
        pixels, places, counts = torch.zeros(len(images), 16, 192), torch.full((len(images), 16, 2), -1), []
        mean, spread = (torch.tensor(options.get(name, getattr(self, name))) for name in ("image_mean", "image_std"))
        for index, image in enumerate(images):
            columns, rows = (min(4, max(1, length // 8)) for length in image.size)
            resized = numpy.asarray(image.resize((columns * 8, rows * 8)), dtype=numpy.float32) / 255
            cut = ((torch.from_numpy(resized) - mean) / spread).reshape(rows, 8, columns, 8, 3).transpose(1, 2)
            counts.append(rows * columns)
            pixels[index, : counts[-1]] = cut.reshape(rows * columns, 192)
            across, down = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy")
            places[index, : counts[-1]] = torch.stack((across, down), dim=-1).reshape(-1, 2)
        return {
            "pixel_values": pixels, "image_position_ids": places, "num_soft_tokens_per_image": torch.tensor(counts),
        }  # fmt: skip


def build_gemma4_unified(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import (
        Gemma4UnifiedConfig,
        Gemma4UnifiedForConditionalGeneration,
        Gemma4UnifiedTextConfig,
        Gemma4UnifiedVisionConfig,
    )

    torch.manual_seed(seed)
    text = Gemma4UnifiedTextConfig(
        **{key: value for key, value in LLAMA.items() if key not in ("model_type", "num_hidden_layers", "rope_theta")},
        num_hidden_layers=4, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2, attention_k_eq_v=True, final_logit_softcapping=30.0,
    )  # fmt: skip
    vision = Gemma4UnifiedVisionConfig(
        patch_size=4, pooling_kernel_size=2, mm_embed_dim=64, mm_posemb_size=16, output_proj_dims=64
    )
    config = Gemma4UnifiedConfig(
        text_config=text, vision_config=vision, image_token_id=token("<|image|>"), video_token_id=token("<|video|>"),
        boi_token_id=token("<start_of_image>"), eoi_token_id=token("<end_of_image>"), audio_config=None,
    )  # fmt: skip
    model: Any = sharpen(Gemma4UnifiedForConditionalGeneration(config), seed)
    for layer in model.model.language_model.layers:
        if hasattr(layer, "layer_scalar"):
            layer.layer_scalar.fill_(0.8)
    return model, Bundle(tokenizer(), MergedPatches())
