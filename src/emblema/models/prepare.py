"""Media to encoder input: stock image processor (PIL form without torchvision), tokenizer, own expansion."""

import json
from collections.abc import Sequence
from typing import Any

from PIL import Image

from emblema.errors import ModelError
from emblema.kv.chunk import ChunkKind
from emblema.models.families import family_of
from emblema.models.families.base import Prepared, Toolkit, VideoSegment
from emblema.models.video_settings import video_settings_of


class Preparer:
    """Prepares media for one model.

    Args:
        processor: a full processor, or any object with `tokenizer` and `image_processor` (and `feature_extractor`).
        config: the model's configuration.
    """

    def __init__(self, processor: Any, config: Any) -> None:
        tokenizer = getattr(processor, "tokenizer", None)
        if tokenizer is None:
            raise ModelError("The processor has no tokenizer; give a processor or a bundle with one.")
        self.processor = processor
        self.family = family_of(config)
        self.kit = Toolkit(
            config,
            tokenizer,
            getattr(processor, "image_processor", None),
            getattr(processor, "feature_extractor", None),
            video_settings_of(processor),
        )

    @property
    def tokenizer(self) -> Any:
        return self.kit.tokenizer

    @property
    def chat_template(self) -> str | None:
        """The processor's chat template, else the tokenizer's."""
        return getattr(self.processor, "chat_template", None) or getattr(self.tokenizer, "chat_template", None)

    @property
    def options(self) -> dict[str, Any]:
        """Every preprocessing option, JSON-able; part of a chunk's identity."""
        parts = {"image": self.kit.image_processor, "audio": self.kit.feature_extractor}
        described = {name: _describe(part) for name, part in parts.items() if part is not None}
        return {"family": self.family.name, "version": self.family.version(), **described}

    def markers(self, kind: ChunkKind) -> tuple[list[int], list[int]]:
        """Token ids that a chunk of this kind starts and ends with."""
        return self.family.markers(self.kit, kind)

    def image(self, image: Image.Image) -> Prepared:
        """Prepare a picture."""
        return self.family.prepare_image(self.kit, image)

    @property
    def time_stamps(self) -> bool:
        """Whether a segment's own tokens say when it happens, so that `start` changes them."""
        return self.family.time_stamps

    def video(
        self,
        frames: Sequence[Image.Image],
        seconds_per_frame: float,
        start: float = 0.0,
        clip_frames: int | None = None,
    ) -> Prepared:
        """Prepare a segment of video: frames of one size, evenly spaced, the first `start` seconds into the clip.

        Families that write time stamps into the text write these; a segment that should serve at any time keeps 0.
        Where the checkpoint's video processor has a limit for the pixels of a whole clip, `clip_frames` says how many
        frames that has; by default those of the segment.
        """
        segment = VideoSegment(frames, seconds_per_frame, start, len(frames) if clip_frames is None else clip_frames)
        return self.family.prepare_video(self.kit, segment)

    def video_options(self, width: int, height: int, clip_frames: int) -> dict[str, Any]:
        """Return what beside `options` decides how frames of a clip are fed; nothing where they are fed as pictures."""
        if self.kit.video is None:
            return {}
        return {"video": self.kit.video.to_json(), "size": self.family.frame_size(self.kit, width, height, clip_frames)}

    def audio(self, samples: Any, rate: int) -> Prepared:
        """Prepare a piece of sound: samples [n] float, at `rate` per second."""
        return self.family.prepare_audio(self.kit, samples, rate)


def _describe(part: Any) -> dict[str, Any]:
    described = part.to_dict() if hasattr(part, "to_dict") else {}
    described = {key: value for key, value in described.items() if key not in ("processor_class", "_processor_class")}
    plain: dict[str, Any] = json.loads(json.dumps(described, sort_keys=True, default=str))
    return {"class": type(part).__name__, **plain}
