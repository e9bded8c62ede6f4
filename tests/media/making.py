"""Files with the traits of real ones, made on the spot: clocks, matrices, sizes, pages, tags."""

import io
import struct
from collections.abc import Sequence

import av
import numpy as np
from PIL import Image

MATRICES = {
    1: (1, 0, 0, 1),
    2: (-1, 0, 0, 1),
    3: (-1, 0, 0, -1),
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: (0, 1, -1, 0),
    7: (0, -1, -1, 0),
    8: (0, -1, 1, 0),
}
"""a, b, c, d of the display matrix for each of EXIF's orientations: x' = a x + c y, y' = b x + d y (ISO 14496-12)."""


def shown(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Return pixels as a display matrix puts them: each is moved by itself."""
    a, b, c, d = MATRICES[orientation]
    height, width = pixels.shape[:2]
    rows, columns = np.mgrid[0:height, 0:width]
    across, down = a * columns + c * rows, b * columns + d * rows
    across, down = across - across.min(), down - down.min()
    turned = np.zeros((down.max() + 1, across.max() + 1, 3), pixels.dtype)
    turned[down, across] = pixels
    return turned


def corner(width: int = 96, height: int = 64) -> np.ndarray:
    """A picture that looks different in each of the eight ways: white at the left, red at the upper right."""
    pixels = np.full((height, width, 3), 60, np.uint8)
    pixels[:, : width // 6] = 250
    pixels[: height // 3, -width // 4 :] = (230, 20, 20)
    return pixels


def moving(count: int, width: int = 96, height: int = 64) -> list[np.ndarray]:
    """Pictures on which a bright column moves."""
    frames = []
    for index in range(count):
        pixels = np.full((height, width, 3), 40, np.uint8)
        pixels[:, index * 4 % width : index * 4 % width + 8] = (220, 200, 60)
        frames.append(pixels)
    return frames


def recording(
    frames: Sequence[np.ndarray], start: float = 0.0, kind: str = "mpegts", rate: int = 10, **options: str
) -> bytes:
    """Encode pictures as a clip whose first frame has the time stamp `start`, in seconds."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind, options=options) as out:
        codec = {"mpegts": "libx264", "mpeg": "mpeg2video"}.get(kind, "mpeg4")
        quality = {"preset": "ultrafast", "bf": "0", "crf": "10"} if codec == "libx264" else {"qscale": "2"}
        track = out.add_stream(codec, rate=rate, options=quality)
        track.height, track.width = frames[0].shape[:2]
        track.pix_fmt = "yuv420p"
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts = round(start * rate) + index
            out.mux(track.encode(frame))
        out.mux(track.encode(None))
    return file.getvalue()


def with_matrix(clip: bytes, orientation: int) -> bytes:
    """Write a display matrix into an MP4, as phones and recorders do."""
    a, b, c, d = MATRICES[orientation]
    data = bytearray(clip)
    place = data.index(b"tkhd") + 44  # Behind version, times, id, duration, layer, group and volume.
    numbers = [a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30]
    data[place : place + 36] = struct.pack(">9i", *numbers)
    return bytes(data)


def animation(frames: Sequence[np.ndarray], kind: str, milliseconds: int) -> bytes:
    """Encode an animated picture."""
    file = io.BytesIO()
    pictures = [Image.fromarray(pixels) for pixels in frames]
    options = {"WEBP": {"lossless": True}, "AVIF": {"speed": 10}}.get(kind, {})
    pictures[0].save(file, kind, save_all=True, append_images=pictures[1:], duration=milliseconds, **options)
    return file.getvalue()


def tiff(colours: Sequence[str], size: tuple[int, int] = (64, 48), **options: object) -> bytes:
    """Encode a TIFF with a page of each colour."""
    file = io.BytesIO()
    pages = [Image.new("RGB", size, colour) for colour in colours]
    pages[0].save(file, "TIFF", save_all=True, append_images=pages[1:], **options)
    return file.getvalue()


def exif(orientation: int, *odd: tuple[int, int, int, bytes]) -> bytes:
    """EXIF data with an orientation, and tags of any type: number, type, count, and value or its place."""
    tags = sorted([(0x0112, 3, 1, struct.pack("<I", orientation)), *odd])
    table = b"".join(struct.pack("<HHI", *tag[:3]) + tag[3] for tag in tags)
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + table + bytes(4)


def with_segments(jpeg: bytes, *segments: tuple[int, bytes]) -> bytes:
    """Put segments into a JPEG, behind its first marker."""
    written = b"".join(b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body for marker, body in segments)
    return jpeg[:2] + written + jpeg[2:]


def encoded(pixels: np.ndarray, kind: str, **options: object) -> bytes:
    """Encode a picture, without loss where its format can."""
    file = io.BytesIO()
    if kind == "HEIF":
        import pillow_heif

        pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=-1, **options)
        return file.getvalue()
    given = {"WEBP": {"lossless": True}, "JPEG": {"quality": 98}, "AVIF": {"quality": 100, "speed": 10}}.get(kind, {})
    Image.fromarray(pixels).save(file, kind, **given, **options)
    return file.getvalue()
