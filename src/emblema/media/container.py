"""Opening a video or audio file with FFmpeg so that it reads that file and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from emblema.errors import MediaError

FORMATS = "mov,matroska,avi,mpegts,mpeg,flv,ogg,gif,asf,h264,hevc,mjpeg,apng,webp_pipe,wav,mp3,flac,aac,aiff,w64,caf"
"""Demuxers that may be used. Playlists and lists (hls, dash, concat) would open other files: they are not here."""


@contextmanager
def open_container(stream: BinaryIO, name: str) -> Iterator[InputContainer]:
    """The container in the stream; whatever FFmpeg raises inside the block becomes a `MediaError` that names it."""
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "none"}
    try:
        with av.open(stream, mode="r", options=options, metadata_errors="ignore") as container:
            yield container
    except MediaError:
        raise
    except (av.error.FFmpegError, OSError, EOFError, ValueError, MemoryError, IndexError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MediaError(
            f"{name} cannot be read as video or sound: it is another kind of file, broken or truncated ({reason})."
        ) from error


def moving_picture(container: InputContainer) -> VideoStream | None:
    """The first video stream that is not a cover picture."""
    return next((s for s in container.streams.video if not s.disposition & Disposition.attached_pic), None)
