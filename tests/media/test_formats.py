"""Kinds of files by their first bytes: what is read, what stands behind junk, what is refused by its name."""

import io
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from emblema.errors import EmblemaError, MediaError
from emblema.media import load_image, load_video, media_bytes, media_kind
from emblema.media.formats import format_of, picture_start
from emblema.media.image import open_picture
from emblema.media.limits import DEFAULT_LIMITS
from emblema.media.load import load_media
from tests.media.making import corner, encoded, recording

UNREAD = {
    "JPEG XL": b"\xff\x0a" + bytes(200),
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 " + bytes(200),
    "Photoshop": b"8BPS\0\1" + bytes(200),
    "icon": b"\0\0\1\0\1\0\x10\x10" + bytes(200),
    "SVG": b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>",
    "zip archive or office": b"PK\x03\x04" + bytes(200),
    "web page": b"<!DOCTYPE html><html></html>",
    "DICOM": bytes(128) + b"DICM" + bytes(100),
    "camera raw": b"\0\0\0\x18ftypcrx \0\0\0\1crx isom" + bytes(200),
    "OpenEXR": b"\x76\x2f\x31\x01" + bytes(200),
}


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("kind", [None, "image", "video", "document"])
def test_what_is_not_read_is_refused_by_its_name(name: str, kind: str | None) -> None:
    with pytest.raises(MediaError, match=name):
        load_media(UNREAD[name], kind)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF", "HEIF"])
@pytest.mark.parametrize("junk", [b"", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf", b" \t", bytes(16)], ids=repr)
def test_a_picture_behind_white_space_is_that_picture(kind: str, junk: bytes) -> None:
    data = encoded(corner(), kind)
    assert media_kind(junk + data) == "image"
    assert media_bytes(load_image(junk + data)) == media_bytes(load_image(data))


def test_a_jpeg_behind_lines_of_text_is_that_picture() -> None:
    data = encoded(corner(), "JPEG")
    for junk in (b"Warning: something in line 5\n", b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n\r\n"):
        assert media_kind(junk + data) == "image"
        assert media_bytes(load_image(junk + data)) == media_bytes(load_image(data))


def test_a_jpeg_behind_other_bytes_is_refused_and_is_no_clip() -> None:
    data = b"\1\2\3\4" + encoded(corner(), "JPEG")
    for load in (media_kind, load_video, load_image):
        with pytest.raises(MediaError, match="behind bytes that are none of it|not a picture that can be read"):
            load(data)


def test_a_cover_in_a_recording_is_no_picture() -> None:
    tagged = b"ID3\x04\0\0\0\0\x10\0APIC\0\0\1\0\0\0\0image/jpeg\0\3\0" + encoded(corner(), "JPEG")
    assert picture_start(tagged) == 0 and format_of(tagged) is None
    assert picture_start(b"RIFF\x10\x01\0\0AVI LIST" + encoded(corner(), "JPEG")) == 0


def test_a_heic_photo_is_the_whole_picture_and_no_clip() -> None:
    data = encoded(corner(256, 128), "HEIF")
    found = load_media(data)
    assert isinstance(found, Image.Image) and found.size == (256, 128)
    assert np.abs(np.asarray(found).astype(int) - corner(256, 128)).mean() < 4
    with pytest.raises(MediaError, match="no clip: it is another kind of file .HEIC"):
        load_video(data)
    for stop in (12, 40, 200, len(data) // 2, len(data) - 40):
        with pytest.raises(MediaError):
            load_image(data[:stop])


def test_a_heic_bomb_is_refused_by_its_sides() -> None:
    """The sides in its header are what counts: it is refused before anything is decoded."""
    data = encoded(corner(64, 64), "HEIF")
    place = data.index(b"ispe") + 8
    bomb = data[:place] + struct.pack(">II", 60_000, 60_000) + data[place + 8 :]
    with pytest.raises(MediaError):
        load_image(bomb)


def test_a_heic_photo_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(EmblemaError, match=r"pip install 'emblema\[heic\]'"):
        open_picture(io.BytesIO(encoded_before), "the photo", DEFAULT_LIMITS)


encoded_before = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


def test_clips_in_boxes_are_no_pictures() -> None:
    for kind in ("mp4", "mov", "matroska"):
        assert format_of(recording([corner()] * 2, kind=kind)) is None
    assert format_of(b"\0\0\0\x14ftyphevc\0\0\0\0mif1hevc" + bytes(100)) is None
