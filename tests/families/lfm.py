"""LFM2-VL and LFM3-VL: short convolutions between layers of attention."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor, nn

from tests.families.llava import LLAMA, plain_stock
from tests.families.parts import Bundle, sharpen, token, tokenizer
from tests.families.qwen import qwen_images

SIDE, FACTOR = 7, 2
BLOCK = SIDE * FACTOR


class Lfm2Images:
    """What the stock image processor gives, which needs torchvision: two tiles and a thumbnail of wide pictures."""

    def __call__(self, images: Sequence[Image.Image], return_tensors: str, **options: Any) -> dict[str, Any]:
        views = [self._views(image) for image in images]
        patches = [cut(view) for group in views for view in group]
        most = max(len(each) for each in patches)
        padded = [torch.nn.functional.pad(each, (0, 0, 0, most - len(each))) for each in patches]
        held = [[*[1] * len(each), *[0] * (most - len(each))] for each in patches]
        shapes = [[view.height // SIDE, view.width // SIDE] for group in views for view in group]
        batch: dict[str, Any] = {
            "pixel_values": torch.stack(padded), "pixel_attention_mask": torch.tensor(held),
            "spatial_shapes": torch.tensor(shapes),
        }  # fmt: skip
        if options.get("return_row_col_info"):
            batch |= {"image_rows": [1] * len(views), "image_cols": [max(1, len(group) - 1) for group in views]}
        return batch

    def _views(self, image: Image.Image) -> list[Image.Image]:
        whole = image.resize((2 * BLOCK, BLOCK))
        if image.width < 60:
            return [whole]
        wide = image.resize((4 * BLOCK, 2 * BLOCK))
        return [wide.crop((left, 0, left + 2 * BLOCK, 2 * BLOCK)) for left in (0, 2 * BLOCK)] + [whole]


def cut(image: Image.Image) -> Tensor:
    """Patches [patches, 3 x side x side] of a picture, row by row."""
    pixels = torch.from_numpy(numpy.asarray(image, dtype=numpy.float32) / 127.5 - 1)
    rows, columns = image.height // SIDE, image.width // SIDE
    return pixels.reshape(rows, SIDE, columns, SIDE, 3).permute(0, 2, 1, 3, 4).reshape(rows * columns, -1)


def build_lfm2_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

    torch.manual_seed(seed)
    text = {
        **LLAMA, "model_type": "lfm2", "num_hidden_layers": 5, "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    }  # fmt: skip
    vision = {
        "model_type": "siglip2_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "patch_size": SIDE, "num_patches": 16,
    }  # fmt: skip
    config = Lfm2VlConfig(
        text_config=text, vision_config=vision, image_token_id=token("<image>"), downsample_factor=FACTOR,
        projector_hidden_size=64,
    )  # fmt: skip
    return sharpen(Lfm2VlForConditionalGeneration(config), seed), Bundle(tokenizer(), Lfm2Images())


def build_lfm3_vl(seed: int) -> tuple[nn.Module, Bundle]:
    from transformers import Lfm3VlConfig, Lfm3VlForConditionalGeneration

    torch.manual_seed(seed)
    text = {
        **LLAMA, "model_type": "lfm3", "num_hidden_layers": 6, "head_dim": 16, "conv_L_cache": 7, "sliding_window": 12,
        "layer_types": ["conv", "conv", "full_attention", "conv", "sliding_attention", "conv"],
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "patch_size": 7,
    }  # fmt: skip
    config = Lfm3VlConfig(
        text_config=text, vision_config=vision, image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"), vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"), projector_hidden_size=64,
    )  # fmt: skip
    return sharpen(Lfm3VlForConditionalGeneration(config), seed), Bundle(tokenizer(), qwen_images())


def lfm3_stock(bundle: Bundle, config: Any, pictures: Sequence[Image.Image], ids: Tensor) -> dict[str, Tensor]:
    batch = plain_stock(bundle, config, pictures, ids)
    return {name: batch[name] for name in ("pixel_values", "image_grid_thw")}
