"""Ovis 2: the whole picture, then tiles by row and column; its markers have rows in the visual table."""

from typing import Any

from PIL import Image
from torch import nn

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import (
    Family,
    Features,
    Prepared,
    Toolkit,
    VideoSegment,
    feature_path,
    in_token_order,
    join,
    joined,
    tokens,
)


class Ovis2(Family):
    """Ovis 2."""

    name = "Ovis 2"
    model_types = ("ovis2",)
    notes = "tiles by row and column, markers embedded by the encoder; a video frame is one view"

    def media_tokens(self, config: Any, kind: ChunkKind) -> tuple[int, ...]:
        return (int(config.image_token_id), *(int(token) for token in config.visual_indicator_token_ids))

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        return kit.ids("<IMG_START>"), kit.ids("<IMG_END>")

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        return self._views(kit, image)

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        frames = kit.for_frames()
        return join([self._views(frames, frame, crop_to_patches=False) for frame in segment.frames])

    def encode(self, model: nn.Module, prepared: Prepared) -> Features:
        output = feature_path(model, "image")(**prepared.features)
        image, *marks = self.media_tokens(model.config, prepared.kind)
        rows = dict(zip(marks, output.visual_indicator_features, strict=True))
        return Features(in_token_order(prepared.token_ids, image, joined(output.pooler_output), rows))

    def _views(self, kit: Toolkit, image: Image.Image, **options: Any) -> Prepared:
        batch = kit.images([image], **options)
        rows, columns = (int(count) for count in batch["grids"][0])
        vision = kit.config.vision_config
        side = -(-(vision.image_size // vision.patch_size) // vision.hidden_stride)
        view = [int(kit.config.image_token_id)] * side**2
        grid, column, row = kit.ids("<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>")
        before, after = self.markers(kit, "image")
        ids = [*before, *view, grid]
        if rows * columns > 1:
            line = [*view, *[column, *view] * (columns - 1)]
            ids += [*line, *[row, *line] * (rows - 1)]
        return Prepared("image", tokens([*ids, *after]), {"pixel_values": batch["pixel_values"]})
