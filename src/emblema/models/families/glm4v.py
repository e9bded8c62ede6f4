"""GLM-4V: Qwen's grids with GLM's markers; each frame of a video is alone, its second after it."""

from collections.abc import Sequence
from typing import Any

from PIL import Image

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Prepared, Toolkit, tokens
from emblema.models.families.qwen_vl import QwenVL, temporal_patch, video_patches
from emblema.models.positions import Grid


class Glm4v(QwenVL):
    """GLM-4.1V; `start` seconds decide the time stamps in a video segment's text."""

    name = "GLM-4V"
    model_types = ("glm4v",)
    notes = "M-RoPE on half of each head, in pairs; native video with time stamps"
    time_stamps = True

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        # Frames of a video follow the image token too.
        return None if kind == "audio" else int(config.image_token_id)

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        config = kit.config
        if kind == "video":
            return [int(config.video_start_token_id)], [int(config.video_end_token_id)]
        return [int(config.image_start_token_id)], [int(config.image_end_token_id)]

    def prepare_video(
        self, kit: Toolkit, frames: Sequence[Image.Image], seconds_per_frame: float, start: float = 0.0
    ) -> Prepared:
        pixels, sizes = video_patches(kit, frames)
        steps, height, width = (int(size) for size in sizes[0])
        merge = self.merge(kit)
        before, after = self.markers(kit, "video")
        ids, grids = list(before), []
        for step in range(steps):
            opening, closing = self.markers(kit, "image")
            grids.append(Grid(len(ids) + len(opening), 1, height // merge, width // merge))
            second = int(start + step * temporal_patch(kit) * seconds_per_frame)
            frame = [int(kit.config.image_token_id)] * grids[-1].tokens
            ids += [*opening, *frame, *closing, *kit.text(str(second))]
        features = {"pixel_values_videos": pixels, "video_grid_thw": sizes}
        return Prepared("video", tokens([*ids, *after]), features, tuple(grids))
