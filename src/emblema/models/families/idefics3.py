"""Idefics3 and SmolVLM: rows and columns of tiles, each announced by its tokens, then the whole picture."""

from typing import Any

import torch
from PIL import Image

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Prepared, Toolkit, VideoSegment, join, tokens


class Idefics3(Family):
    """Idefics3 and SmolVLM."""

    name = "Idefics3"
    model_types = ("idefics3", "smolvlm")
    notes = "row, column and global tokens as its processor writes them; a video frame is one view"

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
