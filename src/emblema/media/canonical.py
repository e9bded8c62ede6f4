"""What a piece of media is, for its identity: decoded content, so that path, bytes and picture give one id."""

import struct

from PIL import Image

from emblema.errors import MediaError
from emblema.media.audio import Audio
from emblema.media.video import Video


def media_bytes(media: Image.Image | Video | Audio) -> bytes:
    """Canonical bytes of decoded media: kind and size, then pixels, frames with their times, or samples.

    Every field has a fixed width or is preceded by its length, so different media never give the same bytes.

    Raises:
        MediaError: a picture that is not RGB (see `load_image`).
    """
    if isinstance(media, Video):
        frames = [part for frame in media.frames for part in _image(frame)]
        times = struct.pack(f"<{len(media.times)}d", *media.times)
        return b"".join((b"video 1\0", struct.pack("<Q", len(media.frames)), times, *frames))
    if isinstance(media, Audio):
        samples = media.samples.astype("<f4").tobytes()
        return b"audio 1\0" + struct.pack("<QQ", media.rate, len(samples)) + samples
    return b"".join((b"image 1\0", *_image(media)))


def _image(image: Image.Image) -> tuple[bytes, bytes]:
    if image.mode != "RGB":
        raise MediaError(f"A picture of mode {image.mode} has no canonical bytes: pass it through load_image first.")
    return struct.pack("<QQ", image.width, image.height), image.tobytes()
