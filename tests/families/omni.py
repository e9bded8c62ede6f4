"""Qwen's omni models: pictures, video and sound."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.llava import plain_stock
from tests.families.parts import Bundle, sharpen, token, tokenizer
from tests.families.qwen import EXPERTS, QWEN3_ROPE, QWEN3_VISION, QWEN_TEXT, qwen_images


def omni_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    return {**plain_stock(bundle, config, pictures, ids), "attention_mask": torch.ones_like(ids)[None]}


def sounds() -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=16, sampling_rate=1600, hop_length=16, chunk_length=2, n_fft=64)


def build_qwen2_5_omni(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

    torch.manual_seed(seed)
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "patch_size": 7,
        "window_size": 28, "fullatt_block_indexes": [1],
    }  # fmt: skip
    audio = {
        "num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32,
        "n_window": 16, "output_dim": 64, "max_source_positions": 128,
    }  # fmt: skip
    config = Qwen2_5OmniThinkerConfig(
        text_config=QWEN_TEXT, vision_config=vision, audio_config=audio, audio_token_index=token("<|audio_pad|>"),
        image_token_index=token("<|image_pad|>"), video_token_index=token("<|video_pad|>"),
        audio_start_token_id=token("<|audio_bos|>"), audio_end_token_id=token("<|audio_eos|>"),
        vision_start_token_id=token("<|vision_start|>"), vision_end_token_id=token("<|vision_end|>"),
    )  # fmt: skip
    model = Qwen2_5OmniThinkerForConditionalGeneration(config)
    return sharpen(model, seed), Bundle(tokenizer(), qwen_images(), sounds())


def build_qwen3_omni(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    torch.manual_seed(seed)
    audio = {
        "num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32,
        "n_window": 50, "n_window_infer": 100, "output_dim": 64, "max_source_positions": 128,
        "downsample_hidden_size": 8,
    }  # fmt: skip
    text = {**QWEN_TEXT, **EXPERTS, "head_dim": 16, "rope_parameters": QWEN3_ROPE}
    config = Qwen3OmniMoeThinkerConfig(
        text_config=text, vision_config=QWEN3_VISION, audio_config=audio, audio_token_id=token("<|audio_pad|>"),
        image_token_id=token("<|image_pad|>"), video_token_id=token("<|video_pad|>"),
        audio_start_token_id=token("<|audio_start|>"), vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )  # fmt: skip
    model = Qwen3OmniMoeThinkerForConditionalGeneration(config)
    return sharpen(model, seed), Bundle(tokenizer(), qwen_images(8), sounds())
