"""Kimi K2.5: MoonViT patches, a DeepSeek-V3 decoder with latent attention."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor

from emblema.errors import MediaError
from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Prepared, Toolkit, tokens


class Kimi(Family):
    """Kimi K2.5. Its stock image processor needs torchvision; without one, `patches` does the same with PIL."""

    name = "Kimi K2.5"
    model_types = ("kimi_k25",)
    notes = "latent attention (MLA), experts; pictures prepared with PIL where torchvision is absent"

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        return None if kind == "audio" else int(config.image_token_id)

    def blanks(self, config: Any) -> tuple[int, ...]:
        return int(config.image_token_id), int(config.video_token_id)

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        begin, content, end = kit.ids("<|media_begin|>", "<|media_content|>", "<|media_end|>")
        return [begin, *kit.text("image"), content], [end]

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        if kit.image_processor is None:
            pixels, grid = patches(kit.config, image)
        else:
            batch = kit.images([image])
            pixels, grid = batch["pixel_values"], batch["image_grid_thw"]
        kernel = kit.config.vision_config.merge_kernel_size
        count = int(grid.prod()) // (int(kernel[0]) * int(kernel[1]))
        features = {"pixel_values": pixels.flatten(0, pixels.dim() - 4), "image_grid_thw": grid}
        return Prepared("image", tokens(self.wrap(kit, "image", count)), features)


def patches(
    config: Any, image: Image.Image, limit: int = 512, budget: int = 16384, mean: float = 0.5, spread: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Patches [patches, 3, side, side] and grid [1, 3]: shrunk to the budget, never enlarged, padded with black."""
    side = int(config.vision_config.patch_size)
    kernel: Sequence[int] = config.vision_config.merge_kernel_size
    if min(image.size) < 1:
        raise MediaError("A picture needs at least one pixel.")
    width, height = image.size
    across, down = max(1, width // side), max(1, height // side)
    longest = limit * side
    scale = min(1.0, (budget / (across * down)) ** 0.5, longest / height, longest / width)
    width, height = (min(longest, max(1, int(length * scale))) for length in (width, height))
    resized = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    rows, columns = (-(-length // (side * int(k))) * int(k) for length, k in zip((height, width), kernel, strict=True))
    canvas = numpy.zeros((rows * side, columns * side, 3), dtype=numpy.float32)
    canvas[:height, :width] = numpy.asarray(resized, dtype=numpy.float32) / 255.0
    pixels = torch.from_numpy((canvas - mean) / spread).permute(2, 0, 1)
    cut = pixels.reshape(3, rows, side, columns, side).permute(1, 3, 0, 2, 4)
    return cut.reshape(rows * columns, 3, side, side).contiguous(), torch.tensor([[1, rows, columns]])
