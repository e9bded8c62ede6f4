"""Open a video or audio file with FFmpeg so that it reads that file and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from emblema.errors import MediaError
from emblema.extras import import_extra
from emblema.media.decoder_pool import DecodeTask, decode
from emblema.media.formats import HEAD_BYTES, format_of
from emblema.media.limits import MediaLimits

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

FORMATS = (
    "mov,matroska,avi,mpegts,mpeg,flv,ogg,gif,asf,h264,hevc,mjpeg,mpjpeg,apng,webp_pipe,wav,mp3,flac,aac,aiff,w64,caf"
)
"""Demuxers that may be used. Playlists and lists (hls, dash, concat) would open other files: they are not here."""

MICROSECONDS = 1_000_000
"""Unit of a container's duration, a second."""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What the header of a video or audio file says.

    Attributes:
        has_video: whether it has a video that is not a cover picture.
        seconds: how long it lasts; None where it does not say.
    """

    has_video: bool
    seconds: float | None


def read_container(file: BinaryIO, name: str, limits: MediaLimits) -> ContainerFacts:
    """Return what the header of an open file says.

    Raises:
        MediaError: it is no video or sound, or takes longer than a picture may.
    """
    for item in decode(DecodeTask("container", file, name, limits)):
        seconds = item.fields.get("seconds")
        return ContainerFacts(bool(item.fields.get("has_video")), seconds if isinstance(seconds, float) else None)
    raise MediaError(f"{name} cannot be read as video or sound.")


def describe_container(file: BinaryIO, name: str, limits: MediaLimits) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Read a file's header in this process: yield the fields of `ContainerFacts`."""
    refuse_hidden_picture(file, name)
    with open_container(file, name) as container:
        seconds = None if container.duration is None else container.duration / MICROSECONDS
        yield {"has_video": moving_picture(container) is not None, "seconds": seconds}, b""


def refuse_hidden_picture(file: BinaryIO, name: str) -> None:
    """Refuse a file whose first bytes say nothing and in which FFmpeg would look for a JPEG.

    Raises:
        MediaError: a JPEG stands behind bytes that are none of it.
    """
    head = file.read(HEAD_BYTES)
    file.seek(0)
    with open_container(file, name) as container:
        if container.format.name == "mjpeg" and format_of(head) is None:
            raise MediaError(f"{name} is a picture (JPEG) behind bytes that are none of it: cut them off.")
    file.seek(0)


@contextmanager
def open_container(place: BinaryIO | str, name: str, **given: Any) -> Iterator[InputContainer]:
    """Open the container in a file; what FFmpeg raises inside the block becomes a `MediaError` that names it.

    Args:
        place: an open file, or an address of a live source.
        given: further arguments of `av.open`; by default nothing but the file may be read.
    """
    av = import_extra("av", "video")
    given = {"options": {"format_whitelist": FORMATS, "protocol_whitelist": "none"}, **given}
    try:
        with av.open(place, mode="r", metadata_errors="ignore", **given) as container:
            yield container
    except MediaError:
        raise
    except (av.error.FFmpegError, OSError, EOFError, ValueError, MemoryError, IndexError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(place, str):
            raise MediaError(f"{name} cannot be read as live video ({reason})") from error
        raise MediaError(
            f"{name} cannot be read as video or sound: it is another kind of file, broken or truncated ({reason})."
        ) from error


def moving_picture(container: InputContainer) -> VideoStream | None:
    """Return the first video stream that is not a cover picture."""
    cover = import_extra("av.stream", "video").Disposition.attached_pic
    return next((s for s in container.streams.video if not s.disposition & cover), None)
