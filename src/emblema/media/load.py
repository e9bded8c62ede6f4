"""Loading media of any kind: from a file of any kind to decoded pictures, frames or samples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from emblema.errors import MediaError
from emblema.media.audio import Audio, load_audio
from emblema.media.document import load_pages
from emblema.media.image import load_image
from emblema.media.kind import media_kind
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.source import is_address, read_source
from emblema.media.video import Video, load_video


@dataclass(frozen=True, slots=True)
class DocumentPages:
    """The pages of a document, as RGB pictures."""

    pictures: tuple[Image.Image, ...]


LoadedMedia = Image.Image | DocumentPages | Video | Audio


def load_media(
    source: Any, kind: str | None = None, fps: float = 1.0, limits: MediaLimits = DEFAULT_LIMITS
) -> LoadedMedia:
    """Load a source of a kind, or of the kind that its content says. Any thread may; it uses no model.

    Args:
        source: a path, bytes, an address, a Pillow image, an array, or what this function returned.
        kind: image, video, document or audio.
        fps: frames a second to sample a video at.
        limits: bounds on it.

    Raises:
        MediaError: the source cannot be read, is outside the limits, or the kind is unknown.
    """
    if isinstance(source, DocumentPages | Video | Audio):
        return source
    if isinstance(source, str | Path) and is_address(str(source)):
        source = read_source(str(source), limits)
    if isinstance(source, bytearray | memoryview):
        source = bytes(source)
    kind = kind or (media_kind(source, limits) if isinstance(source, str | Path | bytes) else "image")
    if kind == "image":
        return load_image(source, limits)
    if kind == "document":
        return DocumentPages(tuple(load_pages(source, limits=limits)))
    if kind == "video":
        return load_video(source, fps, limits)
    if kind == "audio":
        return load_audio(source, limits=limits)
    raise MediaError(f"unknown kind {kind!r}: choose image, video, document or audio")
