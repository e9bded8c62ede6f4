"""LFM2-VL and LFM3-VL: decoders in which short convolutions stand between layers of attention."""

from typing import Any

from PIL import Image

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Prepared, Toolkit, tokens


class Lfm2VL(Family):
    """LFM2-VL. Its image processor needs torchvision."""

    name = "LFM2-VL"
    model_types = ("lfm2_vl",)
    notes = "short convolutions between layers of attention; tiles and a thumbnail for large pictures"

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        start = getattr(kit.tokenizer, "image_start_token", None) or "<|image_start|>"
        end = getattr(kit.tokenizer, "image_end_token", None) or "<|image_end|>"
        return kit.ids(start), kit.ids(end)

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        batch = kit.images([image], return_row_col_info=True)
        shapes, factor = batch["spatial_shapes"], int(kit.config.downsample_factor)
        rows, columns = (int(batch[name][0]) for name in ("image_rows", "image_cols"))
        names = [f"<|img_row_{row + 1}_col_{column + 1}|>" for row in range(rows) for column in range(columns)]
        names.append(getattr(kit.tokenizer, "image_thumbnail_token", None) or "<|img_thumbnail|>")
        placeholder = int(kit.config.image_token_id)
        before, after = self.markers(kit, "image")
        ids = [*before]
        for name, count in zip(names, (shapes // factor).prod(-1).tolist(), strict=False):
            ids += [*(kit.ids(name) if len(shapes) > 1 else ()), *[placeholder] * count]
        features = {name: batch[name] for name in ("pixel_values", "spatial_shapes", "pixel_attention_mask")}
        return Prepared("image", tokens([*ids, *after]), features)


class Lfm3VL(Family):
    """LFM3-VL; a video is a row of pictures."""

    name = "LFM3-VL"
    model_types = ("lfm3_vl",)
    notes = "short convolutions between layers of attention, most of them with a window"

    def blanks(self, config: Any) -> tuple[int, ...]:
        return int(config.image_token_id), int(config.video_token_id)

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        return None if kind == "audio" else super().placeholder(config, "image")

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        return [int(kit.config.vision_start_token_id)], [int(kit.config.vision_end_token_id)]

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        batch = kit.images([image])
        grid = batch["image_grid_thw"]
        count = int(grid.prod()) // int(kit.config.vision_config.spatial_merge_size) ** 2
        features = {"pixel_values": batch["pixel_values"], "image_grid_thw": grid}
        return Prepared("image", tokens(self.wrap(kit, "image", count)), features)
