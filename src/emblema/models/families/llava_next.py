"""LLaVA-NeXT and LLaVA-OneVision: a base view and tiles, unpadded, a newline embedding after each row."""

import math
from typing import Any

from PIL import Image

from emblema.models.families.base import Family, Prepared, Toolkit, tokens


class LlavaNext(Family):
    """LLaVA-NeXT (1.6)."""

    name = "LLaVA-NeXT"
    model_types: tuple[str, ...] = ("llava_next",)
    notes = "tiles with newline embeddings, packed by the model"

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        batch = kit.images([image])
        height, width = (int(side) for side in batch["image_sizes"][0])
        features = {"pixel_values": batch["pixel_values"], "image_sizes": batch["image_sizes"]}
        return Prepared("image", tokens(self.wrap(kit, "image", self.count(kit.config, height, width))), features)

    def count(self, config: Any, height: int, width: int) -> int:
        """Return tokens of a picture of this size: the base view, the unpadded tiles, one newline a row."""
        side = config.vision_config.image_size // config.vision_config.patch_size
        rows, columns = unpadded(config, side, height, width)
        return side * side + rows * columns + rows


class LlavaOnevision(LlavaNext):
    """LLaVA-OneVision; every picture is tiled as if it were the only one, so that a chunk never depends on others."""

    name = "LLaVA-OneVision"
    model_types = ("llava_onevision",)
    notes = "tiles as for a single picture; large pictures are pooled to the anyres budget"

    def count(self, config: Any, height: int, width: int) -> int:
        side = config.vision_config.image_size // config.vision_config.patch_size
        rows, columns = unpadded(config, side, height, width)
        budget = int(str(config.vision_aspect_ratio).removeprefix("anyres_max_"))
        ratio = math.sqrt(rows * columns / (budget * side**2))
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
        return side * side + rows * columns + rows


def unpadded(config: Any, side: int, height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of patches that the picture itself covers in its grid of tiles, padding cut away."""
    tile = config.vision_config.image_size
    best_height, best_width = best_grid(config.image_grid_pinpoints, height, width)
    rows, columns = best_height // tile * side, best_width // tile * side
    if width / height > columns / rows:
        covered = int(round(height * (columns / width), 7))
        rows -= (rows - covered) // 2 * 2
    else:
        covered = int(round(width * (rows / height), 7))
        columns -= (columns - covered) // 2 * 2
    return rows, columns


def best_grid(candidates: list[list[int]], height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) that keeps most of the picture's pixels, then wastes least."""

    def merit(candidate: list[int]) -> tuple[int, int]:
        scale = min(candidate[1] / width, candidate[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - candidate[0] * candidate[1]

    best = max(candidates, key=merit)
    return best[0], best[1]
