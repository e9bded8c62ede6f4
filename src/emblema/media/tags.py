"""Directories of tags, as TIFF files and EXIF have them: of all tags only those that a picture needs are read."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

ORIENTATION = 274
_SUBFILE_TYPE = 254

REDUCED = 0b101
"""Bits of a subfile type: the picture is a smaller form of another, or a mask."""

_NEEDED = frozenset(
    {
        *(_SUBFILE_TYPE, 256, 257, 258, 259, 262, 266, 273, ORIENTATION, 277, 278, 279, 284, 292, 293, 317, 320),
        *(322, 323, 324, 325, 332, 334, 338, 339, 347, *range(512, 522), 529, 530, 531, 532),
    }
)
"""Tags of TIFF that say how pixels are stored and shown; others are about the picture, not of it."""

_EXIF = re.compile(rb"II\*\0\x08\0\0\0|MM\0\*\0\0\0\x08")
"""How EXIF data begin, before the number of their tags."""

_SIZES = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 16: "Q"}
"""Whole numbers by their type in a directory."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How a file writes its directories: byte order, and whether it is BigTIFF."""

    order: str
    big: bool

    @property
    def entry(self) -> int:
        return 20 if self.big else 12

    @property
    def count(self) -> struct.Struct:
        return struct.Struct(self.order + ("Q" if self.big else "H"))

    @property
    def place(self) -> struct.Struct:
        return struct.Struct(self.order + ("Q" if self.big else "I"))

    def number(self, entry: bytes) -> int | None:
        """Return the first value of an entry that holds whole numbers in itself; None of any other."""
        kind = _SIZES.get(struct.unpack_from(self.order + "H", entry, 2)[0])
        count = self.place.unpack_from(entry, 4)[0]
        if kind is None or not 0 < count * struct.calcsize("=" + kind) <= self.place.size:
            return None
        return int(struct.unpack_from(self.order + kind, entry, 4 + self.place.size)[0])


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory: where it stands, its entries by tag, and where the next one is, 0 for none."""

    place: int
    entries: tuple[tuple[int, bytes], ...]
    following: int


def exif_orientation(exif: bytes) -> int | None:
    """Return the orientation that EXIF data say, None where they say none; whatever else they hold does not matter."""
    data = exif.removeprefix(b"Exif\0\0")
    form = _form(data)
    first = None if form is None else next(_directories(data, form), None)
    if form is None or first is None:
        return None
    return next((form.number(entry) for tag, entry in first.entries if tag == ORIENTATION), None)


def page_numbers(data: bytes) -> list[int]:
    """Return which directories of a TIFF are pages: pictures that are no smaller form of another, and no mask."""
    form = _form(data)
    if form is None:
        return []
    numbers = []
    for number, directory in enumerate(_directories(data, form)):
        kinds = [form.number(entry) or 0 for tag, entry in directory.entries if tag == _SUBFILE_TYPE]
        if not (kinds and kinds[0] & REDUCED):
            numbers.append(number)
    return numbers


def needed_tags(data: bytes) -> bytes:
    """Return a TIFF whose directories hold the needed tags alone; what is no TIFF as it is."""
    form = _form(data)
    if form is None:
        return data
    kept = bytearray(data)
    for directory in _directories(data, form):
        entries = [entry for tag, entry in directory.entries if tag in _NEEDED]
        written = form.count.pack(len(entries)) + b"".join(entries) + form.place.pack(directory.following)
        kept[directory.place : directory.place + len(written)] = written
    return bytes(kept)


def without_exif(data: bytes) -> bytes:
    """Return an AVIF whose EXIF has no tags: its boxes say the orientation, and EXIF does not count (MIAF)."""
    kept = bytearray(data)
    for found in _EXIF.finditer(data):
        kept[found.end() : found.end() + 2] = b"\0\0"
    return bytes(kept)


def _form(data: bytes) -> _Form | None:
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or len(data) < 16:
        return None
    return _Form(order, struct.unpack_from(order + "H", data, 2)[0] == 43)


def _directories(data: bytes, form: _Form) -> Iterator[_Directory]:
    """Yield the directories of a file in their order; one that is cut off, or that came before, ends them."""
    place = int(form.place.unpack_from(data, 8 if form.big else 4)[0])
    seen: set[int] = set()
    while place not in seen and 0 < place <= len(data) - form.count.size:
        seen.add(place)
        begin = place + form.count.size
        count = min(form.count.unpack_from(data, place)[0], (len(data) - begin) // form.entry)
        places = range(begin, begin + count * form.entry, form.entry)
        entries = [data[start : start + form.entry] for start in places]
        end = begin + count * form.entry
        following = int(form.place.unpack_from(data, end)[0]) if end + form.place.size <= len(data) else 0
        tagged = tuple((int(struct.unpack_from(form.order + "H", entry)[0]), entry) for entry in entries)
        yield _Directory(place, tagged, following)
        place = following
