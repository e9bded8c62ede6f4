"""Mistral Small 3.1 to 4 and Ministral 3: patches at their own resolution, a break token after each row."""

from PIL import Image

from emblema.errors import MediaError
from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Prepared, Toolkit, tokens


class Mistral3(Family):
    """Mistral Small 3.1 to 4 and Ministral 3, up to where the decoder scales its queries by position."""

    name = "Mistral 3"
    model_types = ("mistral3",)
    notes = "rows of patch tokens with breaks; a prompt ends where queries are scaled by position (8,192 or 16,384)"

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        return [], kit.ids("[IMG_END]")

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        patch = int(kit.config.vision_config.patch_size) * int(kit.config.spatial_merge_size)
        batch = kit.images([image], patch_size=patch)
        height, width = (int(side) // patch for side in batch["image_sizes"][0])
        if height * width < 2:
            # The stock projector drops the token axis of a single token.
            raise MediaError(
                f"A picture of {image.width}x{image.height} pixels gives less than two patches; enlarge it."
            )
        placeholder = self.placeholder(kit.config, "image")
        row = [placeholder or 0] * width + kit.ids("[IMG_BREAK]")
        ids = (row * height)[:-1] + kit.ids("[IMG_END]")
        features = {"pixel_values": batch["pixel_values"], "image_sizes": batch["image_sizes"]}
        return Prepared("image", tokens(ids), features)
