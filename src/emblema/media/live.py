"""Live video: a camera of this machine, RTSP, HTTP or TCP, decoded in a process of its own like any other media."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from PIL import Image

from emblema.errors import MediaError
from emblema.media.clock import FrameClock
from emblema.media.container import FORMATS, moving_picture, open_container
from emblema.media.decoder_pool import DecodeTask, decode
from emblema.media.frames import FramePictures
from emblema.media.image import item_of, picture_of
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits

PROTOCOLS = {
    "rtsp": "rtsp,rtp,udp,tcp",
    "rtsps": "rtsp,rtsps,rtp,srtp,udp,tcp,tls",
    "http": "http,tcp",
    "https": "https,http,tls,tcp",
    "tcp": "tcp",
}
"""What FFmpeg may speak for an address, by its scheme: never files."""

LIVE_FORMATS = f"{FORMATS},rtsp"

BEAT_SECONDS = 1.0
"""A source whose frames are not kept is said to live so often."""

_CAMERA = re.compile(r"camera:(\d{1,3})")


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """A frame of a connection: seconds since its first frame, and how often its clock had jumped by then."""

    seconds: float
    picture: Image.Image
    jumps: int


def is_live(source: object) -> bool:
    """Return whether a source is a camera or an address that is nothing but live."""
    scheme = source.partition(":")[0].lower() if isinstance(source, str) else ""
    return scheme in ("camera", "rtsp", "rtsps", "tcp")


def live_name(address: str) -> str:
    """Return a short name of a live source for messages, without passwords and queries.

    Raises:
        MediaError: it is no live source.
    """
    if _CAMERA.fullmatch(address):
        return address
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise MediaError(f"the address of a live source cannot be read ({error})") from error
    if parts.scheme not in PROTOCOLS or not host or any(character <= " " for character in address):
        raise MediaError("a live source is camera:0, or an address that begins with rtsp, rtsps, http, https or tcp")
    name = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{parts.path}"
    return name if len(name) <= 120 else name[:119] + "\u2026"


def live_frames(
    address: str, fps: float, limits: MediaLimits = DEFAULT_LIMITS, patience: float = 10.0
) -> Iterator[LiveFrame]:
    """Yield frames of one connection to a live source, at most `fps` a second, for as long as it lasts.

    The address is opened as it is, in a private network too, where cameras are: let nobody name one who may not reach
    that network. What comes from it is decoded in a process within the limits.

    Args:
        address: `camera:0`, or an address.
        fps: frames a second to keep, by the source's clock.
        limits: bounds on frames and on the process.
        patience: seconds without anything after which a connection counts as lost.

    Raises:
        MediaError: it cannot be opened or read, falls silent, or is outside the limits.
    """
    name = live_name(address)
    within = replace(limits, media_seconds=2 * patience)
    options: dict[str, float | str] = {"address": address, "fps": float(fps), "patience": float(patience)}
    with open(os.devnull, "rb") as nothing:
        for item in decode(DecodeTask("live", nothing, name, within, 3 * limits.image_pixels, options, lazy=True)):
            if not item.data:
                continue
            seconds, jumps = item.fields.get("time"), item.fields.get("jumps")
            if not isinstance(seconds, float) or not math.isfinite(seconds) or type(jumps) is not int:
                raise MediaError(f"{name} was not decoded to frames.")
            yield LiveFrame(seconds, picture_of(item, name, limits), jumps)


def decode_live(
    file: BinaryIO, name: str, limits: MediaLimits, address: str, fps: float, patience: float
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Decode a live source in this process: yield time, sides and pixels of frames, and now and then a sign of life."""
    place, given = _input(address)
    clock, pictures, due, beat = FrameClock(), FramePictures(f"a frame of {name}", limits), 0.0, 0.0
    with open_container(place, name, timeout=patience, **given) as container:
        track = moving_picture(container)
        if track is None:
            raise MediaError(f"{name} holds no video.")
        for frame in container.decode(track):
            now = time.monotonic()
            seconds = clock.seconds(frame.time, now)
            if seconds + 1e-3 >= due:
                due = (int((seconds + 1e-3) * fps) + 1) / fps
                beat = now + BEAT_SECONDS
                yield item_of(pictures.picture(frame), time=seconds, jumps=clock.jumps)
            elif now >= beat:
                beat = now + BEAT_SECONDS
                yield {}, b""


def _input(address: str) -> tuple[str, dict[str, Any]]:
    """Return what FFmpeg opens for a live source, and the arguments of `av.open`."""
    camera = _CAMERA.fullmatch(address)
    if camera is not None:
        if sys.platform == "darwin":
            return camera[1], {"format": "avfoundation", "options": {"framerate": "30"}}
        return f"/dev/video{camera[1]}", {"format": "video4linux2"}
    scheme = urlsplit(address).scheme
    options = {"format_whitelist": LIVE_FORMATS, "protocol_whitelist": PROTOCOLS[scheme]}
    # What kind of frames come is told from two seconds of them; FFmpeg's own five would be missing at every connection.
    options["analyzeduration"] = "2000000"
    if scheme in ("rtsp", "rtsps"):
        options["rtsp_transport"] = "tcp"
    return address, {"options": options}
