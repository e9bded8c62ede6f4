"""Media of chance for the doors by which they come, each with what right programs make of it.

An input is a file that other programs take (FFmpeg, Pillow, libheif), or one that holds what cannot be followed.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.media import making

HANDLED = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "PPM", "AVIF", "HEIF")


@dataclass(frozen=True, slots=True)
class Handed:
    """A file, and what it shows.

    Attributes:
        data: the file.
        kind: picture, pages or clip.
        pictures: what it shows upright, in order: the picture, each page, or each frame.
        seconds: how long each frame is shown.
        said: what it is, for messages.
    """

    data: bytes
    kind: str
    pictures: tuple[np.ndarray, ...]
    seconds: float = 0.0
    said: str = ""


def scene(chance: random.Random, width: int, height: int) -> np.ndarray:
    """A picture of flat areas, which lossy formats keep, in which no two of the eight ways are alike."""
    pixels = np.full((height, width, 3), chance.randrange(40, 90), np.uint8)
    pixels[:, : width // 4] = chance.randrange(200, 250)
    pixels[: height // 3, -width // 4 :] = (220, 30, 30)
    return pixels


def any_picture(chance: random.Random) -> Handed:
    """A picture of any format, way up, tags beside it and bytes before it."""
    kind, orientation = chance.choice(HANDLED), chance.randrange(1, 9)
    pixels = scene(chance, 16 * chance.randrange(3, 9), 16 * chance.randrange(3, 9))
    odd = [
        (chance.choice([0x0128, 0x011A, 0x010E, 0x02BC, 0x8769, 0x8825, 0x927C]), chance.randrange(14),
         chance.choice([0, 1, 2, 100, 2**31]), chance.randbytes(4))
        for _ in range(chance.randrange(3))
    ]  # fmt: skip
    options: dict[str, Any] = {}
    if kind in ("JPEG", "PNG", "WEBP"):
        options["exif"] = making.exif(orientation, *odd)
    elif kind in ("AVIF", "HEIF"):
        options["exif"] = making.exif(orientation)
    elif kind == "TIFF":
        options["tiffinfo"] = {274: orientation}
    else:
        orientation = 1
    data = making.encoded(pixels, kind, **options)
    if kind == "JPEG" and chance.random() < 0.5:
        beside = [(chance.choice([0xE2, 0xED, 0xEF, 0xFE]), chance.randbytes(chance.randrange(60))) for _ in range(3)]
        data = making.with_segments(data, *beside)
    junk = chance.choice([b"", b"", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf", bytes(7)])
    return Handed(junk + data, "picture", (making.shown(pixels, orientation),), said=f"{kind} {orientation} {junk!r}")


def any_pages(chance: random.Random) -> Handed:
    """A TIFF of several pages, in any compression."""
    colours = [chance.choice(["red", "lime", "blue", "white"]) for _ in range(chance.randrange(2, 6))]
    size = (8 * chance.randrange(1, 9), 8 * chance.randrange(1, 9))
    compression = chance.choice([None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
    names = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}
    pages = tuple(np.full((size[1], size[0], 3), names[colour], np.uint8) for colour in colours)
    big = chance.random() < 0.3
    return Handed(making.tiff(colours, size, compression=compression, big_tiff=big), "pages", pages, said="TIFF")


def any_clip(chance: random.Random) -> Handed:
    """A clip: recorded in parts whose clock jumps and whose size changes, turned, or an animated picture."""
    form = chance.choice(["parts", "turned", "animation", "plain"])
    width, height = 16 * chance.randrange(3, 7), 16 * chance.randrange(3, 7)
    if form == "animation":
        kind, count = chance.choice(["GIF", "WEBP", "PNG", "AVIF"]), chance.randrange(2, 7)
        frames = [np.full((height, width, 3), 30 + 35 * index, np.uint8) for index in range(count)]
        return Handed(making.animation(frames, kind, 200), "clip", tuple(frames), 0.2, f"{form} {kind}")
    if form == "turned":
        orientation = chance.randrange(1, 9)
        pixels = scene(chance, width, height)
        clip = making.with_matrix(making.recording([pixels] * 4, kind=chance.choice(["mp4", "mov"])), orientation)
        return Handed(clip, "clip", (making.shown(pixels, orientation),) * 4, 0.1, f"{form} {orientation}")
    if form == "plain":
        kind = chance.choice(["mp4", "matroska", "avi", "mpegts"])
        frames = [np.full((height, width, 3), 30 + 35 * index, np.uint8) for index in range(6)]
        start = 0.0 if kind in ("mp4", "avi") else float(chance.choice([0, 100]))
        return Handed(making.recording(frames, start, kind), "clip", tuple(frames), 0.1, f"{form} {kind}")
    shades = [30 + 20 * index for index in range(10)]
    first = [np.full((height, width, 3), shade, np.uint8) for shade in shades]
    other = (16 * chance.randrange(3, 7), 16 * chance.randrange(3, 7)) if chance.random() < 0.5 else (width, height)
    second = [np.full((other[1], other[0], 3), shade, np.uint8) for shade in shades[5:]]
    starts = chance.choice([(1, 200), (300, 1), (5, 20_000), (40_000, 2), (10, 10.2)])
    data = making.recording(first[:5], starts[0]) + making.recording(second, starts[1])
    return Handed(data, "clip", tuple(first), 0.1, f"{form} {starts} {other}")


def any_media(chance: random.Random) -> Handed:
    """Any of them."""
    return chance.choice([any_picture, any_picture, any_pages, any_clip, any_clip])(chance)


UNREAD: Mapping[str, Callable[[random.Random], bytes]] = {
    "JPEG XL": lambda chance: b"\xff\x0a" + chance.randbytes(300),
    "JPEG 2000": lambda chance: b"\0\0\0\x0cjP  \r\n\x87\n" + chance.randbytes(300),
    "Photoshop": lambda chance: b"8BPS\0\1" + chance.randbytes(300),
    "SVG": lambda chance: (
        b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>" + b" " * chance.randrange(9)
    ),
    "zip archive": lambda chance: b"PK\x03\x04" + chance.randbytes(300),
    "web page": lambda chance: b"<!doctype html>" + bytes(chance.randrange(32, 127) for _ in range(99)),
    "camera raw": lambda chance: b"\0\0\0\x18ftypcrx \0\0\0\1crx isom" + chance.randbytes(300),
}
"""Formats that are not read, by a part of the name that the refusal gives."""


def close(found: Any, right: np.ndarray) -> bool:
    """Return whether a picture has these sides, and these pixels but for what lossy formats change."""
    pixels = np.asarray(found).astype(int)
    return pixels.shape == right.shape and bool(np.abs(pixels - right.astype(int)).mean() < 10)
