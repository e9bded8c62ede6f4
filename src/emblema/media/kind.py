"""What a piece of media is, told by its content and never by its name."""

from typing import Literal

from emblema.errors import MediaError
from emblema.media.container import read_container
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.source import Source, describe, open_source

MediaKind = Literal["image", "video", "document", "audio"]

_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*")
_NETPBM = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")


def media_kind(source: Source, limits: MediaLimits = DEFAULT_LIMITS) -> MediaKind:
    """Return the kind of a path, bytes or address; an animated GIF or WebP is a picture.

    An address is fetched for it: fetch it first where the content is wanted too.

    Raises:
        MediaError: the source cannot be read, or is none of these.
    """
    with open_source(source, limits) as stream:
        head = stream.read(1024)
        if _is_picture(head):
            return "image"
        if b"%PDF-" in head:
            return "document"
        name = describe(source)
        try:
            return "video" if read_container(stream, name, limits).has_video else "audio"
        except MediaError as error:
            raise MediaError(f"{name} is no picture, video, PDF or sound that can be read ({error})") from error


def _is_picture(head: bytes) -> bool:
    if head.startswith(_PICTURES) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return True
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis"):
        return True
    return head.startswith(_NETPBM) and head[2:3].isspace()
