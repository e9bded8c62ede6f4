"""Orientation: all eight ways, for clips, live sources and pictures of each format."""

import numpy as np
import pytest
from PIL import Image

from emblema.media import load_image, load_video
from emblema.media.live import live_frames
from emblema.media.orientation import matrix_orientation, upright
from tests.media.making import MATRICES, corner, encoded, exif, recording, shown, with_matrix, with_segments
from tests.stream.live import camera

WAYS = pytest.mark.parametrize("orientation", MATRICES)


def differs(found: Image.Image, right: np.ndarray) -> float:
    """Mean difference of a picture from pixels; large where the sizes differ."""
    pixels = np.asarray(found).astype(int)
    return 255.0 if pixels.shape != right.shape else float(np.abs(pixels - right.astype(int)).mean())


@WAYS
def test_the_number_of_exif_says_what_the_matrix_of_a_clip_says(orientation: int) -> None:
    a, b, c, d = MATRICES[orientation]
    matrix = np.array([a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30], np.int32).tobytes()
    assert matrix_orientation(matrix) == orientation
    assert differs(upright(Image.fromarray(corner()), orientation), shown(corner(), orientation)) == 0


@pytest.mark.parametrize("matrix", [b"", bytes(36), bytes(35), b"\xff" * 36])
def test_a_matrix_that_says_nothing_turns_nothing_away(matrix: bytes) -> None:
    assert matrix_orientation(matrix) in MATRICES


def test_an_angle_between_quarter_turns_counts_as_the_nearest() -> None:
    for degrees, orientation in ((5, 1), (80, 6), (-85, 8), (170, 3)):
        cosine, sine = (round(65536 * turn(np.radians(degrees))) for turn in (np.cos, np.sin))
        matrix = np.array([cosine, sine, 0, -sine, cosine, 0, 0, 0, 1 << 30], np.int32).tobytes()
        assert matrix_orientation(matrix) == orientation


@WAYS
def test_a_clip_comes_as_its_display_matrix_shows_it(orientation: int) -> None:
    clip = with_matrix(recording([corner()] * 3, kind="mp4"), orientation)
    assert differs(load_video(clip).frames[0], shown(corner(), orientation)) < 8


@pytest.mark.parametrize("orientation", [2, 7])
def test_a_live_source_comes_as_its_display_matrix_shows_it(orientation: int) -> None:
    clip = with_matrix(recording([corner()] * 3, kind="mp4", movflags="frag_keyframe+empty_moov"), orientation)
    with camera(lambda number: iter([clip])) as server:
        found = next(live_frames(server.url, 1.0))
    assert differs(found.picture, shown(corner(), orientation)) < 8


@WAYS
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
def test_a_picture_comes_as_its_orientation_shows_it(kind: str, orientation: int) -> None:
    given: dict[str, object] = {"tiffinfo": {274: orientation}} if kind == "TIFF" else {"exif": exif(orientation)}
    assert differs(load_image(encoded(corner(), kind, **given)), shown(corner(), orientation)) < 8


ODD = {
    "unit as a byte": (0x0128, 1, 1, b"\2\0\0\0"),
    "unit as a large number": (0x0128, 4, 1, b"\xff\xff\xff\xff"),
    "resolution as text": (0x011A, 2, 3, b"72\0\0"),
    "name as a float": (0x010E, 11, 1, b"\0\0\x80\x3f"),
    "name beyond the end": (0x010E, 2, 2**31, b"\xff\xff\xff\x7f"),
    "XMP as a number": (0x02BC, 3, 1, b"\xff\xff\0\0"),
    "a directory before the file": (0x8769, 8, 1, b"\xff\xff\0\0"),
    "a type that is none": (0x9286, 99, 7, b"abcd"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_other_tags_do_not_matter(kind: str, odd: tuple[int, int, int, bytes]) -> None:
    if kind == "TIFF":
        data = with_tags(encoded(corner(), kind), (274, 3, 1, b"\6\0\0\0"), odd)
    else:
        data = encoded(corner(), kind, exif=exif(6, odd))
    assert differs(load_image(data), shown(corner(), 6)) < 8


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_other_tags_in_boxes_do_not_matter(kind: str, odd: tuple[int, int, int, bytes]) -> None:
    """Encoders write sound tags alone; one of them is made odd in the file."""
    data = encoded(corner(), kind, exif=exif(6, (0x0128, 3, 1, b"\2\0\0\0")))
    place = data.index(b"\x28\x01\x03\0\x01\0\0\0")
    number, type_, count, value = odd
    entry = np.array([number, type_], "<u2").tobytes() + np.array([count], "<u4").tobytes() + value
    assert differs(load_image(data[:place] + entry + data[place + 12 :]), shown(corner(), 6)) < 8


def with_tags(data: bytes, *tags: tuple[int, int, int, bytes]) -> bytes:
    """Add tags to the first directory of a little-endian TIFF, which is written anew at its end."""
    place = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[place : place + 2], "little")
    entries = [data[place + 2 + 12 * index : place + 14 + 12 * index] for index in range(count)]
    for number, kind, many, value in tags:
        entries.append(np.array([number, kind], "<u2").tobytes() + np.array([many], "<u4").tobytes() + value)
    entries.sort(key=lambda entry: int.from_bytes(entry[:2], "little"))
    directory = len(entries).to_bytes(2, "little") + b"".join(entries) + bytes(4)
    return data[:4] + len(data).to_bytes(4, "little") + data[8:] + directory


@pytest.mark.parametrize("marker", [0xE0, 0xE1, 0xE2, 0xED, 0xEE, 0xFE])
@pytest.mark.parametrize(
    "body", [b"", b"ICC_PROFILE\0", b"Photoshop 3.0\x008BIM\x03\xed", b"MPF\0II*\0\xff\xff\xff\xff"]
)
def test_segments_of_a_jpeg_beside_its_pixels_do_not_matter(marker: int, body: bytes) -> None:
    jpeg = with_segments(encoded(corner(), "JPEG"), (0xE1, exif(6)), (marker, body))
    assert differs(load_image(jpeg), shown(corner(), 6)) < 8
