"""Gemma 4: pictures of up to 280 tokens in their own shape, sliding and full layers with heads of two widths."""

from typing import Any

from PIL import Image

from emblema.errors import MediaError
from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Family, Prepared, Toolkit, VideoSegment, join, tokens


class Gemma4(Family):
    """Gemma 4 (E2B, E4B, 26B-A4B, 31B): a frame of a video is a picture behind its time."""

    name = "Gemma 4"
    model_types: tuple[str, ...] = ("gemma4",)
    notes = "in sliding layers a picture's tokens attend each other both ways; layers may share rows; time stamps"
    video = "native"
    time_stamps = True
    softcap = True
    full_layers_causal = True

    def bidirectional(self, config: Any) -> bool:
        return getattr(config.get_text_config(), "use_bidirectional_attention", None) == "vision"

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        return None if kind == "audio" else super().placeholder(config, kind)

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        return [int(kit.config.boi_token_id)], [int(kit.config.eoi_token_id)]

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        return self._picture(kit, image, "image")

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        frames, pieces = kit.for_frames(), []
        for index, frame in enumerate(segment.frames):
            second = int(segment.start + index * segment.seconds_per_frame)
            stamp = f"{'' if index == 0 else ' '}{second // 60:02d}:{second % 60:02d} "
            piece = self._picture(frames, frame, "video")
            ids = [*kit.text(stamp), *piece.token_ids.tolist()]
            pieces.append(Prepared("video", tokens(ids), piece.features))
        return join(pieces)

    def count(self, kit: Toolkit, count: int) -> int:
        """Return the number of tokens of a picture, which the image processor says."""
        return count

    def _picture(self, kit: Toolkit, image: Image.Image, kind: ChunkKind) -> Prepared:
        batch = kit.images([image])
        ids = self.wrap(kit, kind, self.count(kit, int(batch["num_soft_tokens_per_image"][0])))
        return Prepared(kind, tokens(ids), {name: batch[name] for name in ("pixel_values", "image_position_ids")})


class Gemma4Unified(Gemma4):
    """Gemma 4 without an encoder (12B): patches are projected, and attend each other both ways in all layers."""

    name = "Gemma 4 unified"
    model_types = ("gemma4_unified",)
    notes = "a picture's tokens attend each other both ways; time stamps; its image processor needs torchvision"
    full_layers_causal = False

    def count(self, kit: Toolkit, count: int) -> int:
        """Return the number of tokens of a picture; refuse one that is wider than a sliding layer's window.

        Its tokens attend each other whatever the window, and tables attend none beyond it.
        """
        window = int(kit.config.get_text_config().sliding_window)
        if count > window:
            raise MediaError(
                f"A picture of {count} tokens is larger than the window of {window} of the model's sliding layers: "
                "give its image processor a smaller max_soft_tokens."
            )
        return count
