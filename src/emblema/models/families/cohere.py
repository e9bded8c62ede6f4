"""Aya Vision and Command A Vision: tiles between markers, and the whole picture after them."""

from typing import Any

from PIL import Image

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Prepared, Toolkit, tokens

_START, _END, _PATCH, _BREAK = "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>"


class AyaVision(Family):
    """Aya Vision; a frame of a video is tiled as a picture is."""

    name = "Aya Vision"
    model_types: tuple[str, ...] = ("aya_vision",)
    notes = "numbered tiles; sliding layers, and full layers without positions"
    tile_arguments = ("pixel_values",)

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        return kit.ids(_START), kit.ids(_END)

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        pixels = kit.images([image], crop_to_patches=True)["pixel_values"]
        text = self.tiles(_PATCH * self.count(kit.config), int(pixels.shape[0]))
        return Prepared("image", tokens(kit.text(f"{_START}{text}{_END}")), {"pixel_values": pixels})

    def count(self, config: Any) -> int:
        """Return the number of tokens of a tile."""
        side = config.vision_config.image_size // config.vision_config.patch_size
        return int(side // config.downsample_factor) ** 2

    def tiles(self, media: str, count: int) -> str:
        """Return the text of so many views, each with its placeholders `media`: the last is the whole picture."""
        return "".join(f"TILE_{tile}{media}" for tile in range(1, count)) + f"TILE_GLOBAL{media}"


class Cohere2Vision(AyaVision):
    """Command A Vision."""

    name = "Command A Vision"
    model_types = ("cohere2_vision",)
    notes = "tiles with a break after each; its image processor needs torchvision"

    def tiles(self, media: str, count: int) -> str:
        return f"{media}{_BREAK}" * count
