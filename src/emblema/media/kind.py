"""What a piece of media is, told by its content and never by its name."""

from typing import BinaryIO, Literal

from emblema.errors import MediaError
from emblema.media.container import read_container
from emblema.media.decoder_pool import DecodeTask, decode
from emblema.media.formats import HEAD_BYTES, format_of
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.source import Source, describe, open_source
from emblema.media.structure import is_motion_jpeg

MediaKind = Literal["image", "video", "document", "audio"]


def media_kind(source: Source, limits: MediaLimits = DEFAULT_LIMITS) -> MediaKind:
    """Return the kind of a path, bytes or address; an animated picture is a video, a TIFF of several pages a document.

    An address is fetched for it: fetch it first where the content is wanted too.

    Raises:
        MediaError: the source cannot be read, or is none of these.
    """
    name = describe(source)
    with open_source(source, limits) as stream:
        known = format_of(stream.read(HEAD_BYTES))
        stream.seek(0)
        if known is None:
            try:
                return "video" if read_container(stream, name, limits).has_video else "audio"
            except MediaError as error:
                raise MediaError(f"{name} is no picture, video, PDF or sound that can be read ({error})") from error
        if known.kind == "document":
            return "document"
        if known.kind == "unread":
            raise MediaError(
                f"{name} is no picture, video, PDF or sound that can be read: it is another kind of file "
                f"({known.name})."
            )
        if known.name == "JPEG":
            return "video" if is_motion_jpeg(stream) else "image"
        return _kind_of_several(stream, name, limits) if known.several else "image"


def _kind_of_several(stream: BinaryIO, name: str, limits: MediaLimits) -> MediaKind:
    """Return the kind of a picture's file that may have several frames or pages."""
    for item in decode(DecodeTask("count", stream, name, limits)):
        if item.fields.get("moves"):
            return "video"
        return "document" if item.fields.get("pages", 1) > 1 else "image"
    raise MediaError(f"{name} is not a picture that can be read.")
