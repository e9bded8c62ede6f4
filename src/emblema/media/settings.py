"""How a piece of media is to be taken, as content items of messages say it: each setting is followed, or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from emblema.errors import MediaError

LOW_DETAIL_SIDE = 512
"""Longest side, in pixels, of a picture whose `detail` is low, as in OpenAI's interface."""

_NAMES = {
    "fps": "fps",
    "sample_fps": "fps",
    "num_frames": "frames",
    "nframes": "frames",
    "video_start": "start",
    "video_end": "end",
    "min_pixels": "min_pixels",
    "max_pixels": "max_pixels",
    "resized_height": "height",
    "resized_width": "width",
    "detail": "detail",
}
"""Settings as Qwen's, transformers' and OpenAI's messages name them, and the fields that hold them."""

_CLIP_ONLY = ("fps", "frames", "start", "end")
_HARMLESS = frozenset({"type", "uuid", "id", "name", "filename", "format", "mime_type", "media_type", "cache_control"})
"""Keys of an item that change nothing about how its media are taken."""


def _check(value: Any, name: str, kind: Any, least: float, most: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= float(value) <= most:
        what = "a whole number" if kind is Integral else "a number"
        raise MediaError(f"{name} is {str(value)[:40]!r}: give {what} from {least:g} to {most:g}")


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """How a piece of media is to be taken, as items of messages say it; None is what it is without the setting.

    Any other key beside media is refused by its name. What comes of them goes to the model's own processor.

    Attributes:
        fps: frames a second to sample a clip at.
        frames: frames to take of a clip, evenly among all, in place of `fps`; `num_frames` or `nframes` in an item.
        start, end: seconds of a clip between which frames are taken; `video_start` and `video_end`.
        min_pixels, max_pixels: bounds on a picture's or frame's pixels; it is scaled to keep them.
        height, width: sides in pixels that a picture or frame is scaled to; `resized_height` and `resized_width`.
        detail: `low` for a picture of at most 512 pixels a side; `auto`, `high` and `original` for all of it.

    Raises:
        MediaError: a value is not right, or two exclude each other.
    """

    fps: float | None = None
    frames: int | None = None
    start: float | None = None
    end: float | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    height: int | None = None
    width: int | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        _check(self.fps, "fps", Real, 1e-5, 1000)
        _check(self.frames, "num_frames", Integral, 1, 2**31)
        _check(self.start, "video_start", Real, 0, 1e9)
        _check(self.end, "video_end", Real, 1e-9, 1e9)
        for name in ("min_pixels", "max_pixels"):
            _check(getattr(self, name), name, Integral, 1, 2**31)
        for name in ("height", "width"):
            _check(getattr(self, name), f"resized_{name}", Integral, 1, 2**20)
        if self.fps is not None and self.frames is not None:
            raise MediaError("fps and num_frames are both given: give one of the two")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise MediaError(f"video_start {self.start:g} is not before video_end {self.end:g}")
        if (self.height is None) != (self.width is None):
            raise MediaError("resized_height and resized_width go together: give both, or none")
        if self.height is not None and (self.min_pixels is not None or self.max_pixels is not None):
            raise MediaError("resized_height is given beside min_pixels or max_pixels: give one of the two")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise MediaError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}")
        if self.detail not in (None, "auto", "high", "low", "original"):
            raise MediaError(f"detail is {str(self.detail)[:40]!r}: give auto, low, high or original")

    def cut(self) -> dict[str, float]:
        """Return which frames of a clip are taken, as the process that decodes is told it."""
        return {
            "begin": float(self.start or 0.0),
            "end": math.inf if self.end is None else float(self.end),
            "count": int(self.frames or 0),
        }

    def refuse_clip_settings(self, kind: str) -> None:
        """Raise `MediaError` for a setting that only a clip has, of media of another kind."""
        self._refuse(_CLIP_ONLY, kind)

    def refuse_all(self, kind: str) -> None:
        """Raise `MediaError` for any setting of media that can follow none."""
        self._refuse(tuple(field.name for field in fields(self)), kind)

    def _refuse(self, names: tuple[str, ...], kind: str) -> None:
        for spelled, name in _NAMES.items():
            if name in names and getattr(self, name) is not None and (name, getattr(self, name)) != ("detail", "auto"):
                raise MediaError(f"{spelled} is given for {kind}, which cannot follow it: leave it out")

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the sides that a picture or frame of these sides is scaled to."""
        if self.width is not None and self.height is not None:
            return self.width, self.height
        scale = 1.0
        if self.detail == "low":
            scale = min(scale, LOW_DETAIL_SIDE / max(width, height))
        if self.max_pixels is not None:
            scale = min(scale, math.sqrt(self.max_pixels / (width * height)))
        if self.min_pixels is not None and width * height * scale**2 < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            return math.ceil(width * scale), math.ceil(height * scale)
        return max(1, math.floor(width * scale)), max(1, math.floor(height * scale))


PLAIN = MediaSettings()
"""Media as they are."""


def settings_of(item: Mapping[str, Any]) -> MediaSettings:
    """Return the settings in a content item; null is "not set".

    Args:
        item: a content item, or the mapping with its address.

    Raises:
        MediaError: a key that is none of these, or a value that is not right.
    """
    found: dict[str, Any] = {}
    for key, value in item.items():
        if value is None or key in _HARMLESS:
            continue
        name = _NAMES.get(key)
        if name is None:
            raise MediaError(f"{str(key)[:40]!r} beside media is not followed; known: {', '.join(_NAMES)}")
        if name in found:
            raise MediaError(f"{key} is given beside another setting of the same: give one of the two")
        found[name] = value
    return MediaSettings(**found)
