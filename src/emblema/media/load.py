"""Loading media of any kind: from what a program or a message gives to decoded pictures, frames or samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from emblema.errors import MediaError
from emblema.media.audio import Audio, load_audio
from emblema.media.document import load_pages
from emblema.media.given import plain_source, read_item
from emblema.media.image import check_size, load_image
from emblema.media.kind import media_kind
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.origin import Origin
from emblema.media.settings import PLAIN, MediaSettings
from emblema.media.source import is_address, read_source
from emblema.media.video import Video, load_video


@dataclass(frozen=True, slots=True)
class DocumentPages:
    """The pages of a document, as RGB pictures."""

    pictures: tuple[Image.Image, ...]


LoadedMedia = Image.Image | DocumentPages | Video | Audio


def load_media(
    source: Any,
    kind: str | None = None,
    fps: float = 1.0,
    limits: MediaLimits = DEFAULT_LIMITS,
    settings: MediaSettings = PLAIN,
) -> LoadedMedia:
    """Load a source of a kind, or of the kind that its content says. Any thread may; it uses no model.

    Args:
        source: a path, bytes, an address, a file object, a Pillow image, an array or tensor, a list of frames or an
            array of four axes for a clip, a content item of a message, or what this function returned.
        kind: image, video, document or audio.
        fps: frames a second to sample a video at, and that a list of frames has.
        limits: bounds on it.
        settings: how it is to be taken; its rate goes before `fps`.

    Raises:
        MediaError: the source cannot be read, is outside the limits, or cannot follow a setting; the kind is unknown.
    """
    if isinstance(source, Mapping):
        item = read_item(source)
        if item is None:
            raise MediaError("a content item of no known type of media is given: give its path, bytes or address")
        return load_media(item.source, kind or item.kind, fps, limits, item.settings if settings == PLAIN else settings)
    if isinstance(source, DocumentPages | Video | Audio):
        settings.refuse_clip_settings("media that are decoded")
        return _sized(source, limits, settings)
    return _sized(_loaded(source, kind, fps, limits, settings), limits, settings)


def _loaded(source: Any, kind: str | None, fps: float, limits: MediaLimits, settings: MediaSettings) -> LoadedMedia:
    if kind not in (None, "image", "video", "document", "audio"):
        raise MediaError(f"unknown kind {kind!r}: choose image, video, document or audio")
    source = plain_source(source, limits)
    if isinstance(source, str | Path) and is_address(str(source)):
        source = read_source(str(source), limits)
    if isinstance(source, np.ndarray) and source.ndim == 4 and not (kind == "image" and len(source) == 1):
        source = list(source)
    elif isinstance(source, np.ndarray) and source.ndim == 4:
        source = source[0]
    if isinstance(source, list):
        if kind not in (None, "video"):
            raise MediaError(f"a list is given as {kind}: give its pictures one by one, or the list as a video")
        return _clip_of(source, fps, limits, settings)
    kind = kind or (media_kind(source, limits) if not isinstance(source, Image.Image | np.ndarray) else "image")
    if kind == "video":
        if isinstance(source, Image.Image | np.ndarray):
            raise MediaError("a single picture is given as a video: give a file, or a list of frames")
        return load_video(source, fps, limits, settings)
    settings.refuse_clip_settings(f"media of kind {kind}")
    if kind == "image":
        return load_image(source, limits, whole=True)
    if kind == "document":
        return DocumentPages(tuple(load_pages(source, limits=limits)))
    return load_audio(source, limits=limits)


def _clip_of(frames: Sequence[Any], fps: float, limits: MediaLimits, settings: MediaSettings) -> Video:
    """Return a clip of pictures, each shown 1/fps seconds after the one before."""
    rate = fps if settings.fps is None else settings.fps
    if not frames:
        raise MediaError("an empty list is given as a video: give it at least one frame")
    if settings.frames is not None or settings.start is not None or settings.end is not None:
        raise MediaError("a list of frames cannot be cut: give the frames that are meant")
    if not 1e-5 <= rate <= 1000:
        raise MediaError(f"fps is {rate!r}: give a number from 0.00001 to 1000.")
    if len(frames) > limits.video_frames:
        raise MediaError(f"a list of {len(frames)} frames is given; the limit is {limits.video_frames}")
    pictures: list[Image.Image] = []
    for number, frame in enumerate(frames, 1):
        pictures.append(load_image(plain_source(frame, limits), limits))
        if pictures[-1].size != pictures[0].size:
            size, first = ("x".join(map(str, picture.size)) for picture in (pictures[-1], pictures[0]))
            raise MediaError(f"frame {number} of a list is {size}, and the first {first}: a clip has one size")
        _check_pixels(number, pictures[0].size, limits)
    return Video(pictures, [index / rate for index in range(len(pictures))])


def _sized(media: LoadedMedia, limits: MediaLimits, settings: MediaSettings) -> LoadedMedia:
    """Return media whose pictures have the size that the settings ask for."""
    if isinstance(media, Audio):
        settings.refuse_all("sound")
        return media
    if isinstance(media, Image.Image):
        return _resized(media, limits, settings)
    if isinstance(media, Video):
        frames = [_resized(frame, limits, settings, len(media.frames)) for frame in media.frames]
        return media if frames == media.frames else Video(frames, media.times)
    if settings == PLAIN:
        return media
    return DocumentPages(tuple(_resized(page, limits, settings, len(media.pictures)) for page in media.pictures))


def _resized(picture: Image.Image, limits: MediaLimits, settings: MediaSettings, count: int = 1) -> Image.Image:
    size = settings.size(*picture.size)
    if size == picture.size:
        return picture
    check_size(*size, "the size that is asked for", limits)
    _check_pixels(count, size, limits)
    return Origin.of(picture).note(picture.resize(size, Image.Resampling.BICUBIC))


def _check_pixels(count: int, size: tuple[int, int], limits: MediaLimits) -> None:
    if count > 1 and count * size[0] * size[1] > limits.video_pixels:
        raise MediaError(
            f"{count} frames of {size[0]}x{size[1]} are more than {limits.video_pixels} pixels: give fewer."
        )
