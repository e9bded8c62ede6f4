"""InternVL: tiles of a fixed number of tokens between <img> and </img>."""

from typing import Any

from PIL import Image

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Prepared, Toolkit, VideoSegment, join, tokens


class InternVL(Family):
    """InternVL 3 and 3.5 in their native form."""

    name = "InternVL"
    model_types = ("internvl",)
    notes = "tiles between <img> and </img>; a video frame is one tile"
    tile_arguments = ("pixel_values",)

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        start = getattr(kit.tokenizer, "start_image_token", None) or "<img>"
        end = getattr(kit.tokenizer, "end_image_token", None) or "</img>"
        return kit.ids(start), kit.ids(end)

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        return None if kind == "audio" else super().placeholder(config, "image")

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        return self._tiles(kit, image, crop=True)

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        frames = kit.for_frames()
        return join([self._tiles(frames, frame, crop=False) for frame in segment.frames])

    def _tiles(self, kit: Toolkit, image: Image.Image, crop: bool) -> Prepared:
        batch = kit.images([image], crop_to_patches=crop)
        tiles = int(batch["pixel_values"].shape[0])
        ids = self.wrap(kit, "image", tiles * int(kit.config.image_seq_length))
        return Prepared("image", tokens(ids), {"pixel_values": batch["pixel_values"]})
