"""InternVL, Idefics and SmolVLM: pictures cut into tiles."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.llava import LLAMA, QWEN2
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
