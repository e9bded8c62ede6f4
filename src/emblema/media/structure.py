"""What a picture's file is made of: what is needed of it is counted before it is decoded, and the rest left out."""

from __future__ import annotations

import re
from typing import BinaryIO

from emblema.errors import MediaError
from emblema.media.formats import TIFF
from emblema.media.limits import MediaLimits
from emblema.media.tags import needed_tags, without_exif

_PNG = b"\x89PNG\r\n\x1a\n"
_SCAN = 0xDA
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a segment: TEM, restarts and the start of the image. 0xD9 is its end."""

_BESIDE = frozenset({*range(0xE0, 0xF0), 0xFE})
"""JPEG markers of segments for applications, and of comments."""
_SEGMENTS = {
    0xE0: ((b"JFIF\0", 14),),
    0xE1: ((b"Exif\0\0", 8), (b"http://ns.adobe.com/xap/1.0/\0", 29)),
    0xEE: ((b"Adobe", 12),),
}
"""Those that say how the picture looks: how they begin, and how long they are at least."""

_MARKER = re.compile(rb"\xff([^\x00\xff])")
_NEXT_JPEG = re.compile(rb"\xff\xd9[\x00\t\r\n -~]{0,512}\xff\xd8\xff")
"""The end of a JPEG and the start of another, perhaps with lines of text between them, as in a server's stream."""
_PIXELS = frozenset({b"IDAT", b"fdAT", b"fcTL"})
_NEEDED = frozenset({b"tRNS", b"eXIf", b"acTL", *_PIXELS})
"""Optional chunks of a PNG that say how its picture looks."""


def needed(data: bytes, name: str, limits: MediaLimits) -> bytes:
    """Return a picture's file without what is not needed of it: texts and colour profiles, for instance.

    Of a file with several frames only some may be decoded, so that their number does not matter here. What else takes
    long meets the time limit of the process that decodes.

    Raises:
        MediaError: a JPEG has more scans, or a PNG more other chunks, than the limits allow.
    """
    if data.startswith(b"\xff\xd8"):
        data = _needed_segments(data)
        scans = count_scans(data, limits.jpeg_scans)
        if scans > limits.jpeg_scans:
            raise MediaError(
                f"{name} has more than {limits.jpeg_scans} scans (the limit jpeg_scans): save it again as a plain JPEG."
            )
    elif data.startswith(_PNG):
        return _needed_chunks(data, name, limits)
    elif data.startswith(TIFF):
        return needed_tags(data)
    elif data[4:8] == b"ftyp":
        return without_exif(data)
    return data


def _needed_segments(data: bytes) -> bytes:
    """Return a JPEG without the segments before its pixels that do not say how it looks."""
    kept, place = [data[:2]], 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:
            place += 1
            continue
        if marker == _SCAN or marker in _ALONE or marker < 0xC0:
            break
        after = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        if after < place + 4 or after > len(data):
            break
        known = _SEGMENTS.get(marker, ())
        wanted = marker not in _BESIDE or any(
            data.startswith(begin, place + 4) and after - place - 4 >= least for begin, least in known
        )
        if wanted:
            kept.append(data[place:after])
        place = after
    return b"".join((*kept, data[place:]))


def _needed_chunks(data: bytes, name: str, limits: MediaLimits) -> bytes:
    """Return a PNG with the chunks that say how its picture looks; from a damaged chunk on it is left as it is."""
    kept: list[tuple[int, int]] = [(0, len(_PNG))]
    others, place = 0, len(_PNG)
    while place + 8 <= len(data):
        kind, size = data[place + 4 : place + 8], int.from_bytes(data[place : place + 4], "big")
        after = place + 12 + size
        if not kind.isalpha() or after > len(data):
            after = len(data)
        elif not (kind[:1].isupper() or kind in _NEEDED):
            place = after
            continue
        others += kind not in _PIXELS
        if others > limits.png_chunks:
            raise MediaError(
                f"{name} has more than {limits.png_chunks} chunks beside its pixels (the limit png_chunks): save it "
                "again without them."
            )
        if kept[-1][1] == place:
            kept[-1] = kept[-1][0], after
        else:
            kept.append((place, after))
        place = len(data) if kind == b"IEND" else after
    return data if len(kept) == 1 else b"".join(data[start:stop] for start, stop in kept)


def is_motion_jpeg(file: BinaryIO) -> bool:
    """Return whether a JPEG's file, open at its start, goes on with another one, as frames of Motion JPEG do.

    A camera's photo with pictures behind it, such as previews, has an index of them (CIPA DC-007), and is one picture.
    """
    data = file.read()
    file.seek(0)
    return _NEXT_JPEG.search(data) is not None and b"MPF\0" not in data[: 2**18]


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
