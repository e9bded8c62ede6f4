"""Directories of tags: what is needed of them, and files that lead round in circles."""

import struct

import pytest

from emblema.media.tags import exif_orientation, needed_tags, page_numbers
from tests.media.making import exif, tiff


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "value"), [(1, "B"), (3, "H"), (4, "I"), (8, "h"), (9, "i")])
def test_an_orientation_of_any_whole_type(order: str, kind: int, value: str) -> None:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHI", 0x0112, kind, 1) + struct.pack(order + value, 6).ljust(4, b"\0")
    data = mark + struct.pack(order + "IH", 8, 1) + entry + bytes(4)
    assert exif_orientation(b"Exif\0\0" + data) == exif_orientation(data) == 6


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Exif\0\0",
        b"II*\0",
        exif(6)[:14],
        exif(6)[:20],
        b"no EXIF at all, but long enough",
        b"MM\0*" + b"\xff" * 20,
    ],
)
def test_what_is_no_exif_says_nothing(data: bytes) -> None:
    assert exif_orientation(data) is None


def test_an_orientation_that_is_no_whole_number_says_nothing() -> None:
    for kind in (2, 5, 7, 12, 99):
        entry = struct.pack("<HHI", 0x0112, kind, 1) + b"\6\0\0\0"
        assert exif_orientation(b"II*\0\x08\0\0\0\1\0" + entry + bytes(4)) is None


@pytest.mark.parametrize("big", [False, True])
def test_pages_are_counted_as_they_are_linked(big: bool) -> None:
    data = tiff(["red", "green", "blue"], big_tiff=big)
    assert data[2] == (43 if big else 42)
    assert page_numbers(data) == page_numbers(needed_tags(data)) == [0, 1, 2]


def test_directories_in_a_circle_end() -> None:
    data = bytearray(tiff(["red", "green"]))
    first = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[first : first + 2], "little")
    data[first + 2 + 12 * count : first + 6 + 12 * count] = first.to_bytes(4, "little")
    assert page_numbers(bytes(data)) == [0]
    assert needed_tags(bytes(data))[:8] == data[:8]
    assert page_numbers(bytes(data[: first + 1])) == []
