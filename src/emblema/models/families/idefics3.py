"""Idefics3, SmolVLM and Granite Docling: rows and columns of tiles, each announced, then the whole picture."""

from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import (
    Family,
    Features,
    Prepared,
    Toolkit,
    VideoSegment,
    feature_path,
    join,
    joined,
    tokens,
)


class Idefics3(Family):
    """Idefics3 and SmolVLM."""

    name = "Idefics3"
    model_types: tuple[str, ...] = ("idefics3", "smolvlm")
    notes = "row, column and global tokens as its processor writes them; a video frame is one view"
    tile_arguments: tuple[str, ...] = ("pixel_values", "pixel_attention_mask")
    tile_axis = 1

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        return None if kind == "audio" else super().placeholder(config, "image")

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        around = kit.ids("<fake_token_around_image>")
        return around, around

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        return self._views(kit, image)

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        frames = kit.for_frames()
        return join([self._views(frames, frame, do_image_splitting=False) for frame in segment.frames])

    def _views(self, kit: Toolkit, image: Image.Image, **options: Any) -> Prepared:
        batch = kit.images([image], return_row_col_info=True, **options)
        rows, columns = int(batch["rows"][0][0]), int(batch["cols"][0][0])
        config = kit.config
        side = config.vision_config.image_size // config.vision_config.patch_size
        media = "<image>" * (side * side // config.scale_factor**2)
        around = "<fake_token_around_image>"
        text = "".join(
            "".join(f"{around}<row_{row + 1}_col_{column + 1}>{media}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        text += ("\n" if rows else "") + f"{around}<global-img>{media}{around}"
        features = {"pixel_values": batch["pixel_values"]}
        if batch.get("pixel_attention_mask") is not None:
            features["pixel_attention_mask"] = torch.as_tensor(batch["pixel_attention_mask"])
        return Prepared("image", tokens(kit.text(text)), features)


class GraniteDocling(Idefics3):
    """Granite Docling; the image processor's `fine_route` decides how many tokens a tile has."""

    name = "Granite Docling"
    model_types = ("granite_docling",)
    notes = "tiles of a page, deepstack; a video frame is one tile"
    tile_arguments = ()
    logits_scaling = True

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        # A page of one tile ends with a line break.
        return kit.ids("<fake_token_around_image>"), []

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        frames = kit.for_frames()
        return join([self._views(frames, frame, crop_to_patches=False) for frame in segment.frames])

    def encode(self, model: nn.Module, prepared: Prepared) -> Features:
        output = feature_path(model, "image")(**prepared.features)
        return Features(joined(output.pooler_output), tuple(joined(layer) for layer in output.deepstack_features))

    def _views(self, kit: Toolkit, image: Image.Image, **options: Any) -> Prepared:
        batch = kit.images([image], **options)
        rows, columns = int(batch["rows"][0][0]), int(batch["cols"][0][0])
        vision = kit.config.vision_config
        count = (vision.image_size // vision.patch_size) ** 2 // vision.scale_factor**2
        names = [name for name in ("pixel_values", "pixel_attention_mask", "tile_fine_mask") if name in batch]
        media = "<image>" * (count * 4 if "tile_fine_mask" in names else count)
        around = "<fake_token_around_image>"
        text = "".join(
            "".join(f"{around}<row_{row + 1}_col_{column + 1}>{media}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        if rows * columns > 1:
            text += f"\n{around}<global-img>{media}{around}"
        features: dict[str, Tensor] = {name: torch.as_tensor(batch[name]) for name in names}
        return Prepared("image", tokens(kit.text(text)), features)
