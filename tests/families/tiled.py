"""InternVL, Idefics3, SmolVLM, Granite Docling, Aya Vision, Command A Vision and Ovis 2: pictures cut into tiles."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.llava import LLAMA, QWEN2, SIGLIP
from tests.families.parts import Bundle, sharpen, token, tokenizer


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


def build_granite_docling(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import GraniteDoclingConfig, GraniteDoclingForConditionalGeneration
    from transformers.models.granite_docling.image_processing_pil_granite_docling import GraniteDoclingImageProcessorPil

    torch.manual_seed(seed)
    text = {key: value for key, value in LLAMA.items() if key != "model_type"}
    vision = {**IDEFICS_VISION, "scale_factor": 2, "out_hidden_size": 64, "use_fine_route": False}
    config = GraniteDoclingConfig(
        text_config={**text, "embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.8,
                     "attention_multiplier": 0.25},
        vision_config={**vision, "deepstack_visual_indexes": [0]}, image_token_id=token("<image>"),
    )  # fmt: skip
    images = GraniteDoclingImageProcessorPil(size={"height": 28, "width": 28}, max_patches=4)
    return sharpen(GraniteDoclingForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


COHERE = {
    **LLAMA, "model_type": "cohere2", "num_hidden_layers": 4, "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip


def tiles_of_28(limit: int = 4) -> Any:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    return GotOcr2ImageProcessorPil(size={"height": 28, "width": 28}, min_patches=1, max_patches=limit)


def build_aya_vision(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import AyaVisionConfig, AyaVisionForConditionalGeneration

    torch.manual_seed(seed)
    config = AyaVisionConfig(text_config=COHERE, vision_config=SIGLIP, image_token_index=token("<|IMG_PATCH|>"))
    return sharpen(AyaVisionForConditionalGeneration(config), seed), Bundle(tokenizer(), tiles_of_28())


def build_cohere2_vision(seed: int) -> tuple[nn.Module, Bundle]:
    """Its own image processor needs torchvision; tiles of another are fed the same way."""
    from transformers import Cohere2VisionConfig, Cohere2VisionForConditionalGeneration

    torch.manual_seed(seed)
    config = Cohere2VisionConfig(
        text_config=COHERE, vision_config=SIGLIP, image_token_id=token("<|IMG_PATCH|>"), alignment_intermediate_size=64
    )
    return sharpen(Cohere2VisionForConditionalGeneration(config), seed), Bundle(tokenizer(), tiles_of_28())


def build_ovis2(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Ovis2Config, Ovis2ForConditionalGeneration
    from transformers.models.ovis2.image_processing_pil_ovis2 import Ovis2ImageProcessorPil

    torch.manual_seed(seed)
    marks = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    config = Ovis2Config(
        text_config=QWEN2, vision_config={**IDEFICS_VISION, "vocab_size": 40, "hidden_stride": 2}, hidden_size=64,
        vocab_size=LLAMA["vocab_size"], image_token_id=token("<IMG_ATOM>"),
        visual_indicator_token_ids=[token(mark) for mark in marks],
    )  # fmt: skip
    images = Ovis2ImageProcessorPil(size={"height": 28, "width": 28}, crop_to_patches=True, max_patches=4)
    return sharpen(Ovis2ForConditionalGeneration(config), seed), Bundle(tokenizer(), images)


def ovis2_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": bundle.image_processor(images=list(pictures), return_tensors="pt")["pixel_values"]}
