"""PaddleOCR-VL and ERNIE 4.5 VL: grids of patches on three position axes; a video is its frames as pictures."""

from collections.abc import Sequence
from typing import Any

from PIL import Image
from torch import Tensor, nn

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Features, Prepared, Toolkit, in_token_order, tokens
from emblema.models.positions import Grid


class PaddleOCR(Family):
    """PaddleOCR-VL."""

    name = "PaddleOCR-VL"
    model_types: tuple[str, ...] = ("paddleocr_vl",)
    notes = "M-RoPE in blocks; a video frame is a picture"

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        return [int(kit.config.vision_start_token_id)], [int(kit.config.vision_end_token_id)]

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        batch = kit.images([image])
        merge = int(kit.config.vision_config.spatial_merge_size)
        frames, height, width = (int(size) for size in batch["image_grid_thw"][0])
        before, _ = self.markers(kit, "image")
        grid = Grid(len(before), frames, height // merge, width // merge)
        features = {"pixel_values": batch["pixel_values"], "image_grid_thw": batch["image_grid_thw"]}
        return Prepared("image", tokens(self.wrap(kit, "image", grid.tokens)), features, (grid,))


class Ernie(PaddleOCR):
    """ERNIE 4.5 VL: media tokens, markers among them, have experts of their own."""

    name = "ERNIE 4.5 VL"
    model_types = ("ernie4_5_vl_moe",)
    notes = "M-RoPE in interleaved pairs; experts for media; a video frame is a picture, without its time drawn on it"

    def media_tokens(self, config: Any, kind: ChunkKind) -> tuple[int, ...]:
        return int(config.image_token_id), int(config.image_start_token_id), int(config.image_end_token_id)

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        return [int(kit.config.image_start_token_id)], [int(kit.config.image_end_token_id)]

    def decoder_arguments(self, config: Any, visual: Tensor, deepstack: Sequence[Tensor]) -> dict[str, Any]:
        return {"moe_mm_token_type_ids": visual[None]}

    def encode(self, model: nn.Module, prepared: Prepared) -> Features:
        media = super().encode(model, prepared).media
        image, *marks = self.media_tokens(model.config, prepared.kind)
        owner: Any = model
        rows = {mark: owner.get_input_embeddings().weight[mark] for mark in marks}
        return Features(in_token_order(prepared.token_ids, image, media, rows))
