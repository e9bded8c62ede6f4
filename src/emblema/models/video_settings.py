"""What a checkpoint's video processor says about the frames of clips; its image processor is for pictures alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emblema.errors import MediaError

_DEFAULT_SIZES = {
    "Qwen2VLVideoProcessor": (128 * 28 * 28, 28 * 28 * 768),
    "Qwen3VLVideoProcessor": (128 * 32 * 32, 32 * 32 * 768),
    "Glm4vVideoProcessor": (112 * 112, 28 * 28 * 2 * 30000),
    "Glm46VVideoProcessor": (112 * 112, 28 * 28 * 2 * 30000),
}
"""Least and most pixels where a configuration leaves them out, as in transformers' classes."""

_BY_CLIP = frozenset({"Qwen3VLVideoProcessor", "Glm4vVideoProcessor", "Glm46VVideoProcessor"})
"""Video processors whose limits hold for all frames of a clip together; those of others hold for each frame."""

_SHARED = (
    *("do_resize", "size", "max_image_size", "resample", "do_center_crop", "crop_size", "do_pad", "do_convert_rgb"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "max_soft_tokens"),
)
"""Settings that image and video processors both have."""

_GEMMA4_TOKENS = 70
"""Tokens of a frame where the configuration leaves them out (transformers' default)."""

_MOST_TOKENS = 128_000
"""Tokens of a clip that share its pixels where `cap_pixels_per_frame` is set (transformers' default)."""


@dataclass(frozen=True, slots=True)
class VideoSettings:
    """The settings of one video processor, as its configuration has them."""

    values: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The name of its class, the same with and without torchvision."""
        return str(self.values.get("video_processor_type") or "").removesuffix("Fast")

    def options(self, image_processor: Any) -> dict[str, Any]:
        """Return what an image processor is told, so that it treats a picture as a frame."""
        found = {name: self.values.get(name) for name in _SHARED}
        if self.kind == "Gemma4VideoProcessor":
            found["max_soft_tokens"] = found["max_soft_tokens"] or _GEMMA4_TOKENS
        # SmolVLM's checkpoints say the size of frames there.
        found["size"] = (self.values.get("video_sampling") or {}).get("video_size") or found["size"]
        return {name: value for name, value in found.items() if value is not None and hasattr(image_processor, name)}

    def frame_size(self, width: int, height: int, frames: int, factor: int, depth: int) -> tuple[int, int]:
        """Return width and height that frames are scaled to, by the rule of Qwen's video processors.

        Args:
            width, height: of the frames, in pixels.
            frames: of the whole clip.
            factor: pixels of a token's side.
            depth: frames of a grid step.

        Raises:
            MediaError: the frames are too long and narrow for the model.
        """
        if max(width, height) > 200 * min(width, height):
            raise MediaError(f"A frame of {width}x{height} pixels is too long and narrow for the model.")
        least, most = self._pixels()
        count = 1
        if self.kind in _BY_CLIP:
            count = max(frames, depth)
            if height < factor or width < factor:
                scale = max(factor / height, factor / width)
                height, width = int(height * scale), int(width * scale)
        elif self.values.get("cap_pixels_per_frame"):
            tokens = int(self.values.get("max_video_tokens") or _MOST_TOKENS)
            shared = int(tokens * factor**2 * 0.9) * depth // max(frames, 1)
            most = max(min(most, shared), int(least * 1.05))
        high, wide = round(height / factor) * factor, round(width / factor) * factor
        steps = round(count / depth) * depth if count > 1 else 1
        if steps * high * wide > most:
            shrunk = math.sqrt(count * height * width / most)
            high = max(factor, math.floor(height / shrunk / factor) * factor)
            wide = max(factor, math.floor(width / shrunk / factor) * factor)
        elif steps * high * wide < least:
            grown = math.sqrt(least / (count * height * width))
            high, wide = math.ceil(height * grown / factor) * factor, math.ceil(width * grown / factor) * factor
        return wide, high

    def _pixels(self) -> tuple[int, int]:
        size = self.values.get("size") or {}
        least, most = _DEFAULT_SIZES.get(self.kind, _DEFAULT_SIZES["Qwen2VLVideoProcessor"])
        least = self.values.get("min_pixels") or size.get("shortest_edge") or least
        most = self.values.get("max_pixels") or size.get("longest_edge") or most
        return int(least), int(most)

    def to_json(self) -> dict[str, Any]:
        """Return what of them decides how frames are fed, for a chunk's identity."""
        known = (*_SHARED, "video_sampling", "min_pixels", "max_pixels", "cap_pixels_per_frame", "max_video_tokens")
        found = {name: self.values[name] for name in known if self.values.get(name) is not None}
        plain: dict[str, Any] = json.loads(json.dumps({"class": self.kind, **found}, sort_keys=True, default=str))
        return plain


def video_settings_of(processor: Any) -> VideoSettings | None:
    """Return the settings of a processor's video part, or those that its parts were loaded with; None without any."""
    part = getattr(processor, "video_processor", None)
    if part is not None and hasattr(part, "to_dict"):
        return VideoSettings({**part.to_dict(), "video_processor_type": type(part).__name__})
    found = getattr(processor, "video_settings", None)
    return found if isinstance(found, VideoSettings) else None
