"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: grids of patches at their own resolution, M-RoPE, native video."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from emblema.errors import MediaError
from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import (
    PART,
    PART_SIZES,
    Family,
    Features,
    Prepared,
    Toolkit,
    VideoSegment,
    feature_path,
    joined,
    tokens,
)
from emblema.models.positions import Grid


class QwenVL(Family):
    """Qwen2-VL and Qwen2.5-VL.

    Attributes:
        in_parts: whether the encoder takes the places of patches among those of a whole picture.
    """

    in_parts = True
    name = "Qwen2.5-VL"
    model_types: tuple[str, ...] = ("qwen2_vl", "qwen2_5_vl")
    notes = "M-RoPE in blocks; native video, time axis in seconds for Qwen2.5-VL"
    video = "native"

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        config = kit.config
        start, end = getattr(config, "vision_start_token_id", None), getattr(config, "vision_end_token_id", None)
        if start is None or end is None:
            start, end = kit.ids("<|vision_start|>", "<|vision_end|>")
        return [int(start)], [int(end)]

    def cell_side(self, config: Any) -> int | None:
        if not self.in_parts:
            return None
        vision = config.vision_config
        window = int(getattr(vision, "window_size", 0))
        return max(1, window // int(vision.patch_size) // int(vision.spatial_merge_size))

    def whole_layers(self, model: nn.Module) -> tuple[nn.Module, ...]:
        if not self.in_parts:
            return ()
        tower = _tower(model)
        among = getattr(tower, "fullatt_block_indexes", range(len(tower.blocks)))
        return tuple(tower.blocks[place].attn for place in sorted(among))

    def merge(self, kit: Toolkit) -> int:
        """Patches merged into one token, per side."""
        return int(kit.config.vision_config.spatial_merge_size)

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        batch = kit.images([image])
        frames, height, width = (int(size) for size in batch["image_grid_thw"][0])
        merge = self.merge(kit)
        before, _ = self.markers(kit, "image")
        grid = Grid(len(before), frames, height // merge, width // merge)
        features = {"pixel_values": batch["pixel_values"], "image_grid_thw": batch["image_grid_thw"]}
        return Prepared("image", tokens(self.wrap(kit, "image", grid.tokens)), features, (grid,))

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        pixels, sizes = self.video_patches(kit, segment)
        steps, height, width = (int(size) for size in sizes[0])
        merge = self.merge(kit)
        before, _ = self.markers(kit, "video")
        interval = self.interval(kit.config, segment.seconds_per_frame * temporal_patch(kit))
        grid = Grid(len(before), steps, height // merge, width // merge, interval)
        features = {"pixel_values_videos": pixels, "video_grid_thw": sizes}
        return Prepared("video", tokens(self.wrap(kit, "video", grid.tokens)), features, (grid,))

    def frame_size(self, kit: Toolkit, width: int, height: int, frames: int) -> tuple[int, int] | None:
        if kit.video is None:
            return None
        factor = int(kit.config.vision_config.patch_size) * self.merge(kit)
        return kit.video.frame_size(width, height, frames, factor, temporal_patch(kit))

    def video_patches(self, kit: Toolkit, segment: VideoSegment) -> tuple[Tensor, Tensor]:
        """Return the encoder's input for a segment, its frames scaled as the checkpoint's video processor does."""
        sizes = {frame.size for frame in segment.frames}
        size = self.frame_size(kit, *sizes.pop(), segment.clip_frames) if len(sizes) == 1 else None
        return video_patches(kit, segment.frames, size)

    def interval(self, config: Any, seconds_per_step: float) -> float:
        """Positions from one grid step to the next: seconds for Qwen2.5-VL, one for Qwen2-VL."""
        rate = getattr(config.vision_config, "tokens_per_second", None)
        return 1.0 if rate is None else float(rate) * seconds_per_step

    def encode(self, model: nn.Module, prepared: Prepared) -> Features:
        features = prepared.features
        if PART in features:
            features = _part_arguments(_tower(model), features)
        output = feature_path(model, "image" if "pixel_values" in features else "video")(**features)
        media = output[0] if isinstance(output, tuple) else getattr(output, "pooler_output", output)
        deepstack = output[1] if isinstance(output, tuple) else getattr(output, "deepstack_features", None)
        return Features(joined(media), tuple(joined(layer) for layer in deepstack or ()))


class Qwen3VL(QwenVL):
    """Qwen3-VL, dense and with experts: deepstack; every grid step of a video is alone after its time stamp."""

    name = "Qwen3-VL"
    model_types = ("qwen3_vl", "qwen3_vl_moe")
    notes = "M-RoPE interleaved, deepstack; native video with time stamps"
    time_stamps = True

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        pixels, sizes = self.video_patches(kit, segment)
        steps, height, width = (int(size) for size in sizes[0])
        merge, depth = self.merge(kit), temporal_patch(kit)
        before, after = self.markers(kit, "video")
        ids: list[int] = []
        grids = []
        for step in range(steps):
            first = step * depth
            last = min(first + depth, len(segment.frames)) - 1
            second = segment.start + (first + last) / 2 * segment.seconds_per_frame
            ids += [*kit.text(f"<{second:.1f} seconds>"), *before]
            grids.append(Grid(len(ids), 1, height // merge, width // merge))
            ids += [int(kit.config.video_token_id)] * grids[-1].tokens + after
        features = {"pixel_values_videos": pixels, "video_grid_thw": sizes}
        return Prepared("video", tokens(ids), features, tuple(grids))


class Qwen35VL(Qwen3VL):
    """Qwen3.5 and 3.6, dense and with experts: three layers of four are linear attention."""

    name = "Qwen3.5"
    model_types = ("qwen3_5", "qwen3_5_moe")
    notes = "linear attention, whose rows are what its state is made of: large; native video with time stamps"


def _tower(model: Any) -> Any:
    """Return the encoder of pictures."""
    return getattr(model, "visual", None) or model.model.visual


def _part_arguments(tower: Any, features: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the encoder's arguments for a part of a picture, whose patches are where they are in the whole.

    Args:
        tower: the encoder; it takes what it would make of the picture's sizes itself.
        features: of the part, with the sizes of the whole.
    """
    from transformers import vision_utils

    grid, part, sizes = features["image_grid_thw"], features[PART], features[PART_SIZES]
    merge = int(tower.spatial_merge_size)
    per = merge * merge
    patches = (part[:, None] * per + torch.arange(per, device=part.device)).flatten()
    made = {
        "pixel_values": features["pixel_values"],
        "image_grid_thw": grid.new_tensor([[1, merge, merge * len(part)]]),
        "position_ids": vision_utils.get_vision_position_ids(grid, merge)[patches],
        "cu_seqlens": sizes.new_tensor([0, len(patches)], dtype=torch.int32),
    }
    if hasattr(tower, "window_size"):
        made["window_index"] = torch.arange(len(part), device=part.device)
        made["cu_window_seqlens"] = torch.nn.functional.pad(sizes.cumsum(0) * per, (1, 0)).to(torch.int32)
    if hasattr(tower, "num_grid_per_side"):
        indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
            grid,
            num_grid_per_side=tower.num_grid_per_side,
            mode=tower.interpolation_mode,
            align_corners=tower.interpolation_align_corners,
            spatial_merge_size=merge,
        )
        made |= {"interp_indices": indices[patches], "interp_weights": weights[patches]}
    return made


def temporal_patch(kit: Toolkit) -> int:
    """Frames in one grid step."""
    return int(kit.config.vision_config.temporal_patch_size)


def video_patches(
    kit: Toolkit, frames: Sequence[Image.Image], size: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor]:
    """Encoder input of a segment, from the stock image processor: pixels [patches, width] and grid [1, 3].

    Frames are scaled to `size`, width and height in pixels; without it as the image processor scales pictures.

    The image processor repeats a picture over the temporal patch. A video patch holds successive frames there instead,
    so frame t gives the temporal slice t of its own patches; the last frame is repeated to fill the last patch.
    """
    if not frames:
        raise MediaError("A video segment needs at least one frame.")
    if len({frame.size for frame in frames}) > 1:
        raise MediaError("The frames of a video segment must have one size.")
    depth = temporal_patch(kit)
    padded = [*frames, *[frames[-1]] * (-len(frames) % depth)]
    if size is None:
        batch = kit.images(padded)
    else:
        kit = kit.for_frames()
        resample = Image.Resampling(int(kit.options.get("resample", Image.Resampling.BICUBIC)))
        scaled = [frame if frame.size == size else frame.convert("RGB").resize(size, resample) for frame in padded]
        batch = kit.images(scaled, do_resize=False)
    _, height, width = (int(size) for size in batch["image_grid_thw"][0])
    channels = int(getattr(kit.config.vision_config, "in_channels", None) or 3)
    patches = batch["pixel_values"].reshape(len(padded) // depth, depth, height * width, channels, depth, -1)
    slices = [patches[:, frame, :, :, frame] for frame in range(depth)]
    pixels = torch.stack(slices, dim=3).reshape(len(padded) // depth * height * width, -1)
    return pixels, torch.tensor([[len(padded) // depth, height, width]], dtype=torch.int64)
