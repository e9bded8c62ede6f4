"""What kind of file some bytes begin, by signatures: pictures and documents, and the names of what is not read."""

from dataclasses import dataclass
from typing import Literal

HEAD_BYTES = 1024
"""How much of a file tells what it is."""

JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_JUNK = b"\0\t\n\r \xef\xbb\xbf"
"""Bytes before a picture that other programs pass over: white space, zeros and a byte order mark."""

_HEIC = frozenset({b"heic", b"heix", b"heim", b"heis", b"mif1", b"mif2", b"miaf", b"avci", b"jpeg", b"j2ki", b"vvic"})
_UNREAD = (
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL \r\n", "JPEG XL"),
    (b"\0\0\0\x0cjP  \r\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS", "Photoshop"),
    (b"\0\0\1\0", "icon (ICO)"),
    (b"\x76\x2f\x31\x01", "OpenEXR"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"DDS ", "DDS"),
    (b"qoif", "QOI"),
    (b"FUJIFILMCCD-RAW", "camera raw (RAF)"),
    (b"gimp xcf", "GIMP"),
    (b"%!PS", "PostScript"),
    (b"PK\x03\x04", "zip archive or office document"),
    (b"\xd0\xcf\x11\xe0", "older office document"),
    (b"\x1f\x8b", "gzip archive"),
    (b"7z\xbc\xaf", "7-Zip archive"),
    (b"Rar!", "RAR archive"),
    (b"{\\rtf", "rich text"),
    (b"<svg", "SVG drawing"),
    (b"<!doctype html", "web page"),
    (b"<html", "web page"),
)


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of files.

    Attributes:
        name: as people call it.
        kind: what reads it; `unread` where nothing does.
        several: whether a file of it may hold several frames or pages.
    """

    name: str
    kind: Literal["picture", "document", "unread"]
    several: bool = False


def picture_start(head: bytes) -> int:
    """Return where a picture or document begins in the first bytes of a file: behind what other programs pass over.

    Before a JPEG these are also lines of text, such as headers and warnings of a server.
    """
    start = len(head) - len(head.lstrip(_JUNK))
    box = head.find(b"ftyp", start, start + 5)
    if box >= 4:
        # The length before it, which begins with zeros, may look like white space.
        start = box - 4
    if file_format(head, start) is not None:
        return start
    found = head.find(JPEG)
    is_text = all(32 <= byte < 127 or byte in _JUNK for byte in head[:found]) and not _named(head[start:])
    return found if found > 0 and is_text else 0


def format_of(head: bytes) -> FileFormat | None:
    """Return the format of a file by its first bytes; None for one that is no picture, document or well known kind."""
    return file_format(head, picture_start(head))


def file_format(head: bytes, start: int = 0) -> FileFormat | None:
    """Return the format whose signature stands at a place of a file's first bytes."""
    data = head[start:]
    found = _picture(data)
    if found is not None:
        return found
    if b"%PDF-" in head:
        return FileFormat("PDF", "document", several=True)
    name = _named(data)
    return None if name is None else FileFormat(name, "unread")


def _picture(data: bytes) -> FileFormat | None:
    if data.startswith(PNG):
        # Frames are announced before the first pixels.
        pixels = data.find(b"IDAT")
        return FileFormat("PNG", "picture", several=b"acTL" in data[: pixels if pixels > 0 else None] or pixels < 0)
    if data.startswith(JPEG):
        return FileFormat("JPEG", "picture")
    if data.startswith((b"GIF87a", b"GIF89a")):
        return FileFormat("GIF", "picture", several=True)
    if data.startswith(b"BM"):
        return FileFormat("BMP", "picture")
    if data.startswith(TIFF):
        return FileFormat("TIFF", "picture", several=True)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return FileFormat("WebP", "picture", several=data[12:16] == b"VP8X" and bool(data[20:21] and data[20] & 2))
    if data[:2] in (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6") and data[2:3].isspace():
        return FileFormat("PNM", "picture")
    return _by_brands(data)


def _by_brands(data: bytes) -> FileFormat | None:
    """Return the format of a file in boxes (ISO 14496-12) that holds a picture, not a clip."""
    if data[4:8] != b"ftyp":
        return None
    size = min(int.from_bytes(data[:4], "big"), len(data))
    main = data[8:12]
    brands = {main, *(data[place : place + 4] for place in range(16, size - 3, 4))}
    if main == b"avis" or (main != b"hevc" and brands & {b"avif", b"avis"}):
        return FileFormat("AVIF", "picture", several=b"avis" in brands)
    if main in _HEIC:
        return FileFormat("HEIC", "picture")
    if main == b"crx ":
        return FileFormat("camera raw (CR3)", "unread")
    return None


def _named(data: bytes) -> str | None:
    lower = data[:256].lower()
    for signature, name in _UNREAD:
        if data.startswith(signature) or (signature[:1] == b"<" and lower.startswith(signature)):
            return name
    if lower.startswith(b"<?xml") and b"<svg" in data.lower():
        return "SVG drawing"
    return "DICOM" if data[128:132] == b"DICM" else None
