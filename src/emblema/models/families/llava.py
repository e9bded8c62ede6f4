"""LLaVA and its like: a fixed number of tokens for every picture, no markers."""

from typing import Any

from PIL import Image

from emblema.models.families.base import Family, Prepared, Toolkit, tokens


class Llava(Family):
    """LLaVA 1.5 and DeepSeek-VL."""

    name = "LLaVA"
    model_types = ("llava", "deepseek_vl")
    notes = "one row of patch tokens per picture, no markers"

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        batch = kit.images([image])
        count = self.count(kit.config)
        return Prepared("image", tokens(self.wrap(kit, "image", count)), {"pixel_values": batch["pixel_values"]})

    def count(self, config: Any) -> int:
        """Return the number of tokens of a picture."""
        vision = config.vision_config
        patches = (vision.image_size // vision.patch_size) ** 2
        if getattr(config, "vision_feature_select_strategy", "default") == "default":
            return patches
        return patches + (0 if vision.model_type.startswith("siglip") else 1)
