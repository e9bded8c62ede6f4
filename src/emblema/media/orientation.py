"""The eight ways in which a picture may be stored: EXIF's number, and a video's display matrix, make it upright."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from PIL import Image

from emblema.media.tags import ORIENTATION, exif_orientation

if TYPE_CHECKING:
    import av

_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture upright, by the number that EXIF gives to its orientation; 1 is upright."""

_BY_SIGNS = {(-1, 1): 2, (-1, -1): 3, (1, -1): 4}
"""Orientation by the signs of a and d of a matrix that keeps rows as rows."""
_BY_TURNED_SIGNS = {(1, 1): 5, (1, -1): 6, (-1, -1): 7, (-1, 1): 8}
"""Orientation by the signs of b and c of a matrix that makes rows columns."""


def upright(picture: Image.Image, orientation: int) -> Image.Image:
    """Return a picture turned and mirrored as its orientation says; a number that EXIF does not know says nothing."""
    transpose = _TRANSPOSES.get(orientation)
    return picture if transpose is None else picture.transpose(transpose)


def picture_orientation(picture: Image.Image) -> int:
    """Return the orientation of a loaded picture; 1 where its EXIF or XMP say none, or cannot be read so far."""
    exif = picture.info.get("exif")
    said = exif_orientation(exif) if isinstance(exif, bytes) else None
    if said is not None:
        return said
    try:
        found = picture.getexif().get(ORIENTATION)
    except MemoryError:
        raise
    except Exception:
        # XMP and the like, of any shape, come with sound pixels; Pillow raises many kinds of errors for them.
        return 1
    return found if isinstance(found, int) else 1


def frame_orientation(frame: av.VideoFrame) -> int:
    """Return the orientation that the display matrix of a decoded frame says; 1 without one."""
    found: Any = frame.side_data.get("DISPLAYMATRIX")
    return 1 if found is None else matrix_orientation(bytes(found))


def matrix_orientation(matrix: bytes) -> int:
    """Return the orientation of a display matrix (ISO 14496-12): nine native 32-bit integers a b u, c d v, x y w.

    It shows the pixel at (x, y) at (a x + c y, b x + d y). An angle between quarter turns counts as the nearest.
    """
    if len(matrix) != 36:
        return 1
    a, b, _, c, d = struct.unpack("=9i", matrix)[:5]
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return _BY_SIGNS.get((_sign(a), _sign(d)), 1)
    return _BY_TURNED_SIGNS[_sign(b), _sign(c)]


def _sign(number: int) -> int:
    return -1 if number < 0 else 1
