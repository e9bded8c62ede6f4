"""GLM-4.1V to 4.6V and GLM-OCR: Qwen's grids with GLM's markers; each frame of a video is alone, its time after it."""

from typing import Any

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Prepared, Toolkit, VideoSegment, tokens
from emblema.models.families.qwen_vl import QwenVL, temporal_patch
from emblema.models.positions import Grid


class Glm4v(QwenVL):
    """GLM-4.1V, 4.5V, 4.6V and GLM-OCR; `start` seconds decide the time stamps in a video segment's text."""

    name = "GLM-4V"
    model_types = ("glm4v", "glm4v_moe", "glm46v", "glm_ocr")
    notes = "M-RoPE on half of each head, in pairs; native video with time stamps"
    time_stamps = True
    in_parts = False

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        # Frames of a video follow the image token too.
        return None if kind == "audio" else int(config.image_token_id)

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        config = kit.config
        if kind == "video":
            return [int(config.video_start_token_id)], [int(config.video_end_token_id)]
        return [int(config.image_start_token_id)], [int(config.image_end_token_id)]

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        pixels, sizes = self.video_patches(kit, segment)
        steps, height, width = (int(size) for size in sizes[0])
        merge = self.merge(kit)
        before, after = self.markers(kit, "video")
        ids, grids = list(before), []
        for step in range(steps):
            opening, closing = self.markers(kit, "image")
            grids.append(Grid(len(ids) + len(opening), 1, height // merge, width // merge))
            frame = [int(kit.config.image_token_id)] * grids[-1].tokens
            second = segment.start + step * temporal_patch(kit) * segment.seconds_per_frame
            ids += [*opening, *frame, *closing, *kit.text(_stamp(kit, second))]
        features = {"pixel_values_videos": pixels, "video_grid_thw": sizes}
        return Prepared("video", tokens([*ids, *after]), features, tuple(grids))


def _stamp(kit: Toolkit, second: float) -> str:
    """Return how a frame's time is written; GLM-4.6V has the type of GLM-4.5V, and a video processor of its own."""
    newer = kit.config.model_type in ("glm46v", "glm_ocr") or (kit.video and kit.video.kind.startswith("Glm46V"))
    return f"{second:.1f} seconds" if newer else str(int(second))
