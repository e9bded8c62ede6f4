"""Tiny random models of every family, their processors, and stock inputs for the joint forward."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from emblema.models.adapter import Adapter, RowBatch
from emblema.models.prepare import Prepared, Preparer

SPECIALS = [
    "<pad>", "<unk>", "<s>", "</s>", "<image>", "<video>", "<audio>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    "<|audio_start|>", "<|audio_end|>", "<|audio_bos|>", "<|audio_eos|>", "<|audio_pad|>",
    "<img>", "</img>", "<IMG_CONTEXT>", "<fake_token_around_image>", "<global-img>",
    *[f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)],
    "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<start_of_image>", "<end_of_image>", "<image_soft_token>",
    "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>",
    "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "<|media_start|>",
    "<image_placeholder>", "<|im_start|>", "<|im_end|>",
]  # fmt: skip
WORDS = ["which", "land", "does", "the", "tent", "stand", "on", "image", "video", "seconds", "and"]
WORDS += ["\n", "\n\n", ".", "?", ":"]
WORDS += [str(number) for number in range(10)] + [f"word{number}" for number in range(60)]
VOCABULARY = {token: index for index, token in enumerate([*SPECIALS, *WORDS])}
VOCAB = 192


@dataclass
class Bundle:
    """What an engine is given in place of a full processor."""

    tokenizer: Any
    image_processor: Any = None
    feature_extractor: Any = None
    chat_template: str | None = None


@dataclass(frozen=True)
class Case:
    """One family of the matrix.

    Attributes:
        name: its name in test ids.
        build: seed to (model in eval mode, bundle).
        stock: prepared pieces, the pictures and the joint token ids to the stock forward's keyword arguments.
        sizes: sizes of the two pictures of the joint prompt.
        native_video, audio: what else it takes.
        relocatable: whether the adapter should accept it.
        marker: seed-independent notes.
    """

    name: str
    build: Callable[[int], tuple[nn.Module, Bundle]]
    stock: Callable[[Bundle, Any, Sequence[Image.Image], Tensor], dict[str, Tensor]]
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((40, 30), (28, 50))
    native_video: bool = False
    audio: bool = False
    notes: dict[str, Any] = field(default_factory=dict)


@cache
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.add_special_tokens({"additional_special_tokens": SPECIALS[4:]})
    return fast


def token(name: str) -> int:
    return VOCABULARY[name]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture whose regions differ, so that its tokens do."""
    rng = numpy.random.default_rng(seed)
    coarse = rng.integers(0, 255, (max(2, height // 6), max(2, width // 6), 3), dtype=numpy.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.NEAREST)


def words(count: int, seed: int = 0) -> Tensor:
    """Random text token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(token("word0"), len(VOCABULARY), (count,), generator=generator)


def sharpen(model: nn.Module, seed: int, gain: float = 1.6) -> nn.Module:
    """Random weights under which attention matters: outputs depend strongly on what is attended, no layer dominates."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                fan = parameter.shape[-1] if parameter.dim() == 2 else parameter[0].numel()
                noise = torch.randn(parameter.shape, generator=generator)
                if "embed" in name:
                    parameter.copy_(noise * 0.5)
                elif parameter.dim() == 3:
                    parameter.copy_(noise * gain / parameter.shape[-1] ** 0.5)
                else:
                    parameter.copy_(noise * gain / fan**0.5)
            elif "bias" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
            elif "norm" not in name and "layer_scale" not in name and "lambda" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.eval()


def typed(ids: Tensor, image: int | None, video: int | None = None) -> Tensor:
    """The processors' mm_token_type_ids [1, tokens]: 0 text, 1 image, 2 video."""
    kinds = torch.zeros_like(ids)
    if image is not None:
        kinds[ids == image] = 1
    if video is not None:
        kinds[ids == video] = 2
    return kinds[None]


@dataclass
class Loaded:
    """A case's model with adapter and preparer."""

    case: Case
    model: Any
    bundle: Bundle
    adapter: Adapter
    preparer: Preparer


@cache
def loaded(name: str, seed: int = 0) -> Loaded:
    """A case's model, built once per test run; tests must not change it."""
    case = CASES[name]
    model, bundle = case.build(seed)
    return Loaded(case, model, bundle, Adapter(model), Preparer(bundle, model.config))


@dataclass
class Prompt:
    """A joint prompt: per row its embedding, position, group, and what the stock forward needs."""

    token_ids: Tensor
    embeds: Tensor
    positions: Tensor
    visual: Tensor
    deepstack: tuple[Tensor, ...]
    groups: Tensor
    starts: list[int]
    offsets: list[int]

    def batch(self, rows: Tensor) -> RowBatch:
        order = (self.visual.long().cumsum(0) - 1)[rows]
        visual = self.visual[rows]
        deepstack = tuple(layer[order[visual]] for layer in self.deepstack)
        return RowBatch(self.embeds[rows], self.positions[:, rows], rows, visual, deepstack)


def compose(adapter: Adapter, parts: Sequence[Any]) -> Prompt:
    """Join encoded chunks into one prompt: each starts where the one before ends."""
    starts, offsets, start, offset = [], [], 0, 0
    groups, shift = [], 0
    for part in parts:
        starts.append(start)
        offsets.append(offset)
        groups.append(torch.where(part.groups >= 0, part.groups + shift, -1))
        shift = max(shift, int(groups[-1].max()) + 1)
        start, offset = start + part.tokens, offset + part.span
    layers = max(len(part.deepstack) for part in parts)
    return Prompt(
        torch.cat([part.token_ids for part in parts]),
        torch.cat([part.embeds for part in parts]),
        torch.cat([part.positions + offset for part, offset in zip(parts, offsets, strict=True)], dim=1),
        torch.cat([part.visual for part in parts]),
        tuple(torch.cat([part.deepstack[layer] for part in parts if part.deepstack]) for layer in range(layers)),
        torch.cat(groups),
        starts,
        offsets,
    )


def joint(item: Loaded, seed: int = 0) -> tuple[Prompt, list[Prepared], list[Image.Image], list[Any]]:
    """Text, picture, text, picture, text: the prompt, what was prepared, the pictures and the encoded parts."""
    pictures = [picture(*size, seed=seed + index) for index, size in enumerate(item.case.sizes)]
    prepared = [item.preparer.image(image) for image in pictures]
    parts: list[Any] = [item.adapter.encode_text(words(5, seed))]
    for index, piece in enumerate(prepared):
        parts += [item.adapter.encode(piece), item.adapter.encode_text(words(4, seed + 10 + index))]
    return compose(item.adapter, parts), prepared, pictures, parts


def run_all(adapter: Adapter, prompt: Prompt, capacity: int | None = None) -> tuple[Any, Tensor]:
    """Every row computed at once: the table and the logits."""
    rows = torch.arange(prompt.token_ids.shape[0])
    table = adapter.table(capacity or len(rows))
    table.allocate(rows, prompt.groups)
    hidden = adapter.forward(prompt.batch(rows), table)
    return table, adapter.logits(hidden)


def stock_logits(item: Loaded, prompt: Prompt, pictures: Sequence[Image.Image]) -> Tensor:
    """Logits [tokens, vocab] of the model's own forward."""
    arguments = item.case.stock(item.bundle, item.model.config, pictures, prompt.token_ids)
    with torch.inference_mode():
        return item.model(input_ids=prompt.token_ids[None], use_cache=False, **arguments).logits[0].float()


def require_torchvision() -> None:
    """Skip the test where torchvision is missing."""
    import pytest

    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")


def declare_torchvision_operators() -> Any:
    """torchvision's wheel asks for two operators that a CPU build of torch lacks; declared, it imports."""
    if importlib.util.find_spec("torchvision") is None or torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


TORCHVISION = declare_torchvision_operators()  # kept: torch forgets the operators when this object goes

# --- the matrix -------------------------------------------------------------------------------------------------------

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


def build_internvl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import InternVLConfig, InternVLForConditionalGeneration
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    torch.manual_seed(seed)
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": [28, 28], "patch_size": [7, 7],
    }  # fmt: skip
    config = InternVLConfig(
        text_config=QWEN2, vision_config=vision, image_token_id=token("<IMG_CONTEXT>"), image_seq_length=4
    )
    images = GotOcr2ImageProcessorPil(size={"height": 28, "width": 28}, min_patches=1, max_patches=4)
    return sharpen(InternVLForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def internvl_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    batch = bundle.image_processor(images=list(pictures), return_tensors="pt", crop_to_patches=True)
    return {"pixel_values": batch["pixel_values"]}


IDEFICS_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip


def build_idefics3(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    torch.manual_seed(seed)
    config = Idefics3Config(
        text_config=LLAMA, vision_config=IDEFICS_VISION, image_token_id=token("<image>"), scale_factor=2
    )
    images = Idefics3ImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 28})
    return sharpen(Idefics3ForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def build_smolvlm(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    torch.manual_seed(seed)
    config = SmolVLMConfig(
        text_config=LLAMA, vision_config=IDEFICS_VISION, image_token_id=token("<image>"), scale_factor=2
    )
    images = SmolVLMImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 28})
    return sharpen(SmolVLMForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def idefics_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    batch = bundle.image_processor(images=[list(pictures)], return_tensors="pt")
    return {name: batch[name] for name in ("pixel_values", "pixel_attention_mask")}


def build_deepseek_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import DeepseekVLConfig, DeepseekVLForConditionalGeneration
    from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil

    torch.manual_seed(seed)
    config = DeepseekVLConfig(text_config=LLAMA, vision_config=SIGLIP, image_token_id=token("<image_placeholder>"))
    images = DeepseekVLImageProcessorPil(size={"height": 28, "width": 28}, min_size=7)
    return sharpen(DeepseekVLForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


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


def build_glm4v(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Glm4vConfig, Glm4vForConditionalGeneration
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    torch.manual_seed(seed)
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 7, "out_hidden_size": 64,
        "image_size": 56, "temporal_patch_size": 2, "spatial_merge_size": 2,
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    text = {**{key: value for key, value in LLAMA.items() if key != "model_type"}, "rope_parameters": rope}
    config = Glm4vConfig(
        text_config=text, vision_config=vision, image_token_id=token("<|image|>"), video_token_id=token("<|video|>"),
        image_start_token_id=token("<|begin_of_image|>"), image_end_token_id=token("<|end_of_image|>"),
        video_start_token_id=token("<|begin_of_video|>"), video_end_token_id=token("<|end_of_video|>"),
    )  # fmt: skip
    images = Glm4vImageProcessorPil(
        patch_size=7, merge_size=2, temporal_patch_size=2,
        size={"shortest_edge": 2 * 4 * 14 * 14, "longest_edge": 2 * 24 * 14 * 14},
    )  # fmt: skip
    return sharpen(Glm4vForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


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


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("llava", build_llava, plain_stock),
        Case("llava_next", build_llava_next, plain_stock),
        Case("llava_onevision", build_llava_onevision, onevision_stock),
        Case("qwen2_vl", build_qwen2_vl, qwen_stock, native_video=True),
        Case("qwen2_5_vl", build_qwen2_5_vl, qwen_stock, native_video=True),
        Case("qwen3_vl", build_qwen3_vl, qwen_stock, native_video=True),
        Case("qwen3_vl_moe", build_qwen3_vl_moe, qwen_stock, native_video=True),
        Case("internvl", build_internvl, internvl_stock, sizes=((60, 30), (28, 50))),
        Case("idefics3", build_idefics3, idefics_stock),
        Case("smolvlm", build_smolvlm, idefics_stock),
        Case("deepseek_vl", build_deepseek_vl, plain_stock),
        Case("mistral3", build_mistral3, mistral3_stock),
        Case("gemma3", build_gemma3, gemma3_stock),
        Case("glm4v", build_glm4v, qwen_stock, native_video=True),
        Case("kimi_k25", kimi, kimi_stock),
        Case("kimi_k25_yarn", build_kimi_yarn, kimi_stock),
        Case("qwen2_5_omni", build_qwen2_5_omni, omni_stock, native_video=True, audio=True),
        Case("qwen3_omni_moe", build_qwen3_omni, omni_stock, native_video=True, audio=True),
    )
}
