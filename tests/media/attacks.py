"""Small files that ask for a great deal of work, made here."""

import io
import struct
import zlib

from PIL import Image


def scan_bomb(scans: int, side: int = 2000) -> bytes:
    """A grey progressive JPEG whose last scan comes again and again, 14 bytes each time."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True, quality=50)
    data = buffer.getvalue()
    end, last = data.rindex(b"\xff\xd9"), data.rindex(b"\xff\xda")
    return data[:end] + data[last:end] * (scans - data.count(b"\xff\xda")) + data[end:]


def hidden_scan_bomb(scans: int, side: int = 2000) -> bytes:
    """A scan bomb with what a careless count trips over: fill bytes before markers, and an end inside a comment."""
    data = scan_bomb(scans, side).replace(b"\xff\xda", b"\xff\xff\xff\xda")
    comment = b"\xff\xfe" + struct.pack(">H", 6) + b"\xff\xd9\xff\xd9"
    return data[:2] + comment + data[2:]


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A grey PNG with chunks of its own before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((width + 1) * height))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, data) for kind, data in parts)


def unpacking(kind: bytes, size: int) -> tuple[bytes, bytes]:
    """A chunk of text or a colour profile that unpacks to `size` bytes."""
    return kind, (b"a\0\1\0\0\0" if kind == b"iTXt" else b"a\0\0") + zlib.compress(bytes(size), 9)


def gif(frames: int, comments: int = 0) -> bytes:
    """A GIF of many equal frames, after a comment of so many blocks."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8), 7).save(buffer, "GIF")
    data = buffer.getvalue()
    start, end = data.index(b",\0\0\0\0"), data.rindex(b";")
    comment = b"\x21\xfe" + (b"\xff" + bytes(255)) * comments + b"\0" if comments else b""
    return data[:start] + comment + data[start:end] * frames + data[end:]


def frames(count: int, kind: str) -> bytes:
    """A picture of many frames or pages, in a format that has them."""
    buffer = io.BytesIO()
    pictures = [Image.new("L", (16, 16), index % 256) for index in range(count)]
    pictures[0].save(buffer, kind, save_all=True, append_images=pictures[1:])
    return buffer.getvalue()


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
