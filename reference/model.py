"""The bundled model: its configuration, its tokenizer, its processor files, and the folder that holds them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from reference.words import INDEX, SPECIAL, VOCABULARY

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
PIXELS = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
PROCESSOR = {
    "size": PIXELS,
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": 3,
    "rescale_factor": 1 / 255,
}


def configuration() -> Qwen2_5_VLConfig:
    """Qwen2.5-VL with 2.2 M parameters: KV width 192, 28 x 28 px a token, vision windows of one token."""
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(VOCABULARY),
            "hidden_size": 192,
            "intermediate_size": 384,
            "num_hidden_layers": 5,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "max_position_embeddings": 32768,
            "initializer_range": 0.04,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": None,
            "eos_token_id": INDEX["<|im_end|>"],
            "pad_token_id": INDEX["<|endoftext|>"],
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 28,
            "fullatt_block_indexes": [],
            "out_hidden_size": 192,
            "initializer_range": 0.04,
            "tokens_per_second": 1,
        },
        image_token_id=INDEX["<|image_pad|>"],
        video_token_id=INDEX["<|video_pad|>"],
        vision_start_token_id=INDEX["<|vision_start|>"],
        vision_end_token_id=INDEX["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """Word-level, lower-casing, punctuation and digits one by one; white space, newlines too, is no token."""
    words = Tokenizer(models.WordLevel(dict(INDEX), unk_token="<unk>"))
    words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(True)]
    )
    words.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL[2:]),
        model_max_length=32768,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def new_model() -> Qwen2_5_VLForConditionalGeneration:
    """A fresh model with random weights, fp32."""
    return Qwen2_5_VLForConditionalGeneration(configuration()).to(torch.float32)


def write_folder(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    """Write the model with tokenizer, processor files and chat template, as Hugging Face lays a model out."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        eos_token_id=[INDEX["<|im_end|>"], INDEX["<|endoftext|>"]],
        pad_token_id=INDEX["<|endoftext|>"],
        do_sample=False,
        max_new_tokens=16,
    )
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer().save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}, indent=2)
    )
    image = {**PROCESSOR, "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    video = {**PROCESSOR, "video_processor_type": "Qwen2VLVideoProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    video |= {"fps": 1, "min_frames": 2, "max_frames": 768, "do_sample_frames": False}
    (folder / "preprocessor_config.json").write_text(json.dumps(image, indent=2) + "\n")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")
