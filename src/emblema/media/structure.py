"""What a picture's file is made of, counted before it is decoded: small files can ask for a great deal of work."""

from __future__ import annotations

import re

from emblema.errors import MediaError
from emblema.media.limits import MediaLimits

_PNG = b"\x89PNG\r\n\x1a\n"
_SCAN = 0xDA
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a segment: TEM, restarts and the start of the image. 0xD9 is its end."""

_MARKER = re.compile(rb"\xff([^\x00\xff])")
_PIXELS = frozenset({b"IDAT", b"fdAT", b"fcTL"})


def check_structure(data: bytes, name: str, limits: MediaLimits) -> None:
    """Refuse a JPEG of many scans, and a PNG of many chunks or colour profiles.

    Of a file with several frames only the first is decoded, so that their number does not matter. What else takes long
    meets the time limit of the process that decodes.

    Raises:
        MediaError: the file has more of them than the limits allow.
    """
    if data.startswith(b"\xff\xd8"):
        scans = count_scans(data, limits.jpeg_scans)
        if scans > limits.jpeg_scans:
            raise MediaError(
                f"{name} has more than {limits.jpeg_scans} scans (MediaLimits.jpeg_scans): save it again as a plain "
                "JPEG."
            )
    elif data.startswith(_PNG):
        chunks, profiles = count_chunks(data, limits.png_chunks)
        if chunks > limits.png_chunks:
            raise MediaError(
                f"{name} has more than {limits.png_chunks} chunks beside its pixels (MediaLimits.png_chunks): save it "
                "again without them."
            )
        if profiles > 1:
            raise MediaError(f"{name} has more than one colour profile: save it again with one or none.")


def count_scans(data: bytes, most: int) -> int:
    """Return the number of scans of a JPEG up to its end marker; counting ends after `most`."""
    scans, place = 0, 0
    while scans <= most and (found := _MARKER.search(data, place)) is not None:
        marker, place = found[1][0], found.end()
        if marker == 0xD9:
            break
        scans += marker == _SCAN
        if marker not in _ALONE:
            place += max(2, int.from_bytes(data[place : place + 2], "big"))
    return scans


def count_chunks(data: bytes, most: int) -> tuple[int, int]:
    """Return the number of a PNG's chunks that hold no pixels, and of colour profiles; counting ends after `most`."""
    chunks, profiles, place = 0, 0, len(_PNG)
    while chunks <= most and place + 8 <= len(data):
        kind = data[place + 4 : place + 8]
        chunks += kind not in _PIXELS
        profiles += kind == b"iCCP"
        if kind == b"IEND":
            break
        place += 12 + int.from_bytes(data[place : place + 4], "big")
    return chunks, profiles
