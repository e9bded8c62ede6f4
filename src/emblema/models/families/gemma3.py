"""Gemma 3: 256 soft tokens a picture that attend each other both ways, sliding layers, one rope per layer type."""

from typing import Any

from PIL import Image

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Prepared, Toolkit, tokens


class Gemma3(Family):
    """Gemma 3; pan and scan is off, as its processor has it by default."""

    name = "Gemma 3"
    model_types = ("gemma3",)
    notes = "a picture's tokens attend each other both ways; sliding layers with their own rotary table"

    def bidirectional(self, config: Any) -> bool:
        return True

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        return None if kind == "audio" else super().placeholder(config, "image")

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        blank = kit.text("\n\n")
        return [*blank, int(kit.config.boi_token_id)], [int(kit.config.eoi_token_id), *blank]

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        batch = kit.images([image])
        ids = self.wrap(kit, "image", int(kit.config.mm_tokens_per_image))
        return Prepared("image", tokens(ids), {"pixel_values": batch["pixel_values"]})
