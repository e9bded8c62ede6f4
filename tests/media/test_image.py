import io
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_image, media_bytes
from emblema.media.structure import count_scans
from tests.media.attacks import frames, gif, hidden_scan_bomb, png, scan_bomb, unpacking

HURRIED = MediaLimits(picture_seconds=5)

Encode = Callable[..., bytes]


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises a size and holds nothing."""

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(b"")) + part(b"IEND", b"")


def test_path_bytes_pillow_and_array_give_the_same_picture(
    picture: Image.Image, encode: Encode, tmp_path: Path
) -> None:
    data = encode(picture)
    path = tmp_path / "a.png"
    path.write_bytes(data)
    forms = [str(path), path, data, picture, np.asarray(picture), Image.open(path), Image.open(io.BytesIO(data))]
    assert {media_bytes(load_image(form)) for form in forms} == {media_bytes(picture)}


def test_the_name_of_a_file_says_nothing(picture: Image.Image, encode: Encode, tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(encode(picture, "WEBP", lossless=True))
    assert media_bytes(load_image(path)) == media_bytes(picture)


def test_canonical_bytes_tell_sizes_apart() -> None:
    wide, high = Image.new("RGB", (8, 4)), Image.new("RGB", (4, 8))
    assert wide.tobytes() == high.tobytes()
    assert media_bytes(wide) != media_bytes(high)


def test_canonical_bytes_want_rgb() -> None:
    with pytest.raises(MediaError, match="load_image"):
        media_bytes(Image.new("L", (8, 8)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(picture: Image.Image, encode: Encode, orientation: int) -> None:
    turned = {
        1: lambda image: image,
        2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
        4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
        6: lambda image: image.transpose(Image.Transpose.ROTATE_270),
        7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
        8: lambda image: image.transpose(Image.Transpose.ROTATE_90),
    }[orientation](picture)
    exif = Image.Exif()
    exif[0x0112] = orientation
    loaded = load_image(encode(picture, exif=exif))
    assert media_bytes(loaded) == media_bytes(turned)
    assert not loaded.getexif()


def test_transparency_lies_on_white(encode: Encode) -> None:
    clear = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    half = Image.new("LA", (8, 8), (0, 128))
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 200, 0, 0])
    assert load_image(encode(clear)).getpixel((3, 3)) == (255, 255, 255)
    assert load_image(encode(half)).getpixel((3, 3)) == (127, 127, 127)
    assert load_image(encode(palette)).getpixel((3, 3)) == (200, 0, 0)
    assert load_image(encode(palette, transparency=1)).getpixel((3, 3)) == (255, 255, 255)
    assert load_image(encode(palette, "GIF", transparency=1)).getpixel((3, 3)) == (255, 255, 255)


def test_sixteen_bits_are_scaled_not_clipped(encode: Encode) -> None:
    deep = np.full((8, 8), 32_768, np.uint16)
    assert load_image(encode(Image.fromarray(deep))).getpixel((0, 0)) == (128, 128, 128)
    assert load_image(deep).getpixel((0, 0)) == (128, 128, 128)
    assert load_image(Image.fromarray(deep.astype(np.int32))).getpixel((0, 0)) == (128, 128, 128)


def test_grey_of_unstated_depth_is_eight_bits_where_it_can_be(encode: Encode) -> None:
    grey = Image.linear_gradient("L")
    assert media_bytes(load_image(grey.convert("I"))) == media_bytes(load_image(grey))
    assert media_bytes(load_image(encode(grey.convert("I"), "TIFF"))) == media_bytes(load_image(grey))
    brighter = np.asarray(grey, dtype=np.int32) + 1  # 256 is beyond 8 bits.
    assert load_image(Image.fromarray(brighter)).getextrema()[0] == (0, 1)


def test_grey_of_stated_depth_stays_dark(encode: Encode) -> None:
    dark = Image.fromarray(np.full((8, 8), 200, np.uint16))
    netpbm = b"P5 8 8 65535\n" + np.full((8, 8), 200, ">u2").tobytes()
    for source in (dark, encode(dark), netpbm, Image.open(io.BytesIO(netpbm))):
        assert load_image(source).getpixel((0, 0)) == (1, 1, 1)


class Place:
    """A path in bytes, as `os.scandir(b".")` gives them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> bytes:
        return bytes(self.path)


def test_a_path_in_bytes(picture: Image.Image, encode: Encode, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encode(picture))
    assert media_bytes(load_image(Place(path))) == media_bytes(picture)  # type: ignore[arg-type]
    with pytest.raises(MediaError, match="no file .*none"):
        load_image(Place(tmp_path / "none"))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "LAB", "HSV", "F"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    assert load_image(Image.new(mode, (8, 8))).mode == "RGB"


def test_arrays() -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    expected = media_bytes(load_image(grey))
    assert media_bytes(load_image(grey[:, :, None])) == expected
    assert media_bytes(load_image(np.repeat(grey[:, :, None], 3, axis=2))) == expected
    assert media_bytes(load_image(grey.astype(np.float64) / 255)) == expected
    assert media_bytes(load_image(np.asfortranarray(grey))) == expected
    assert load_image(np.ones((8, 8), dtype=bool)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(8, np.uint8),
        np.zeros((3, 8, 8), np.uint8),
        np.zeros((8, 8, 2), np.uint8),
        np.zeros((0, 8, 3), np.uint8),
        np.zeros((8, 8), np.int64),
        np.full((8, 8), np.nan),
        np.full((8, 8), 255.0),
        np.array([["a", "b"]]),
    ],
    ids=str,
)
def test_arrays_that_are_no_picture(array: np.ndarray) -> None:
    with pytest.raises(MediaError):
        load_image(array)


def test_first_frame_of_an_animation(encode: Encode) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert load_image(data).getpixel((0, 0)) == (255, 0, 0)


def test_a_given_picture_is_left_as_it_was(picture: Image.Image) -> None:
    loaded = load_image(picture)
    loaded.putpixel((0, 0), (1, 2, 3))
    assert picture.getpixel((0, 0)) == (0, 0, 0)


def test_files_that_are_not_there_or_no_pictures(tmp_path: Path) -> None:
    empty = tmp_path / "empty.png"
    empty.touch()
    text = tmp_path / "text.png"
    text.write_text("no picture at all")
    for source, message in [
        (tmp_path / "none.png", "no file"),
        (tmp_path, "folder"),
        (Path("/dev/zero"), "regular"),
        (empty, "empty"),
        (text, "not a picture"),
        (b"", "empty"),
        (b"%PDF-1.7", "not a picture"),
        ("a\0b", "Cannot open"),
        ("a" * 5000, "Cannot open"),
        ("ftp://example.org/a.png", "ftp"),
        (None, "NoneType"),
        (7, "int"),
        ([picture for picture in ()], "list"),
    ]:
        with pytest.raises(MediaError, match=message):
            load_image(source)  # type: ignore[arg-type]


def test_sizes_outside_the_limits(encode: Encode) -> None:
    for size, message in [
        ((1, 1), "too small"),
        ((3, 30), "too small"),
        ((20_000, 20), "narrow"),
        ((20, 20_000), "narrow"),
    ]:
        with pytest.raises(MediaError, match=message):
            load_image(encode(Image.new("RGB", size)))
        with pytest.raises(MediaError, match=message):
            load_image(Image.new("RGB", size))
    small = MediaLimits(image_side=40, image_pixels=1000, file_bytes=200)
    for image in (Image.new("RGB", (41, 10)), Image.new("RGB", (40, 30))):
        with pytest.raises(MediaError, match="scale it down"):
            load_image(image, small)
    with pytest.raises(MediaError, match="file_bytes"):
        load_image(bytes(201), small)


@pytest.mark.parametrize("side", [9_000, 12_000, 16_000, 100_000])
def test_bombs_are_refused_without_a_warning(side: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MediaError, match="too large"):
            load_image(png_header(side, side))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
def test_truncation_at_any_byte_is_one_clear_error(picture: Image.Image, encode: Encode, kind: str) -> None:
    data = encode(picture, kind)
    whole = media_bytes(load_image(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for stop in sorted({1, 3, 7, 12, *range(16, len(data) // 2, max(1, len(data) // 40)), len(data) * 3 // 4}):
            try:
                assert media_bytes(load_image(data[:stop])) == whole
            except MediaError as error:
                assert str(error)


@given(st.data())
def test_damaged_bytes_never_raise_anything_else(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"]))
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((16, 16)).save(buffer, kind)
    bytes_ = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 8))):
        bytes_[data.draw(st.integers(0, len(bytes_) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert load_image(bytes(bytes_)).mode == "RGB"
    except MediaError as error:
        assert str(error)


@pytest.mark.parametrize("bomb", [scan_bomb, hidden_scan_bomb])
@pytest.mark.parametrize("scans", [33, 400, 70_000])
def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(bomb: Callable[[int], bytes], scans: int) -> None:
    """400 scans in 20 kB were a second of work, 70,000 in 1 MB some ten minutes."""
    data = bomb(scans)
    assert len(data) < 2_000_000
    with pytest.raises(MediaError, match=r"more than 32 scans \(the limit jpeg_scans\)"):
        load_image(data, HURRIED)


def test_what_encoders_write_is_within_the_limit_of_scans(picture: Image.Image, encode: Encode) -> None:
    for mode in ("L", "RGB", "CMYK"):
        data = encode(picture.convert(mode), "JPEG", progressive=True)
        assert 5 < count_scans(data, 32) == data.count(b"\xff\xda") <= 18
        assert load_image(data).size == picture.size
    assert count_scans(encode(picture, "JPEG"), 32) == 1
    assert count_scans(b"\xff\xd8" + b"\xff" * 5_000_000, 32) == 0


@pytest.mark.parametrize(
    "made",
    [
        lambda: png(8, 8, unpacking(b"iCCP", 2**25)),
        lambda: png(8, 8, unpacking(b"zTXt", 2**25)),
        lambda: png(8, 8, unpacking(b"iTXt", 2**25)),
        lambda: png(8, 8, *[unpacking(b"zTXt", 1_000_000)] * 80),
        lambda: png(8, 8, *[unpacking(b"iCCP", 1_000_000)] * 2),
        lambda: png(8, 8, *[unpacking(b"iCCP", 1_000_000)] * 20_000),
        lambda: png(8, 8, *[(b"tEXt", b"a\0b")] * 300),
        lambda: png(8, 8, (b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(bytes(2**25), 9))),
        lambda: png(8, 8, (b"iCCP", b"no profile"), (b"zTXt", b""), (b"iTXt", b"\xff" * 9)),
    ],
    ids=["profile", "text", "international", "texts", "two profiles", "profiles", "chunks", "old EXIF", "nonsense"],
)
def test_what_unpacks_without_end_is_not_unpacked_and_the_picture_comes(made: Callable[[], bytes]) -> None:
    assert load_image(made(), HURRIED).size == (8, 8)


def test_chunks_that_are_needed_are_counted() -> None:
    with pytest.raises(MediaError, match="png_chunks"):
        load_image(png(8, 8, *[(b"tRNS", b"\0\0")] * 300), HURRIED)


def test_frames_and_comments_beside_the_first_frame_cost_little() -> None:
    for data in (gif(200_000), gif(1, comments=40_000), frames(500, "TIFF"), frames(500, "WEBP"), frames(500, "PNG")):
        assert load_image(data, HURRIED).size in ((8, 8), (16, 16))
