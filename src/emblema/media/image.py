"""Pictures: anything Pillow or numpy holds, as one upright RGB picture within the limits."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emblema.errors import MediaError
from emblema.extras import import_extra
from emblema.media.decoder_pool import DecodedItem, DecodeTask, decode
from emblema.media.formats import HEAD_BYTES, FileFormat, format_of, picture_start
from emblema.media.given import plain_source
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.orientation import picture_orientation, upright
from emblema.media.origin import Origin
from emblema.media.source import Source, describe, open_source
from emblema.media.structure import needed
from emblema.media.tags import page_numbers

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Formats that Pillow reads here; those that run other programs or hold vectors (EPS, WMF, …) are not tried."""

READ = "PNG, JPEG, WebP, GIF, BMP, TIFF, PNM, AVIF, HEIC"
"""The formats of pictures that are read, for messages."""

_ANIMATED = frozenset({"GIF", "PNG", "WEBP", "AVIF"})
"""Formats whose frames follow each other in time; those of a JPEG are other forms of one picture."""

ImageSource = Source | Image.Image | NDArray[np.generic]


def load_image(source: ImageSource, limits: MediaLimits = DEFAULT_LIMITS, *, whole: bool = False) -> Image.Image:
    """Load a picture as upright 8-bit RGB: a file in a process that decodes, a Pillow image or an array here.

    Its orientation is applied, transparency is laid on white; of an animation or of several pages the first is taken,
    of a Pillow image the current frame. Other data of the file, such as colour profiles, are ignored, as image
    processors do.

    Grey deeper than 8 bits is scaled to 8: PNG and PNM files and Pillow's modes `I;16` from 16 bits. Pillow's mode `I`
    and TIFF of 32 bits do not say how many bits are used: 8 if no value is above 255, else 16.

    Args:
        source: a path, bytes, a file object, an http(s) or `data:` address, a Pillow image, a tensor, or an array
            [height, width], [height, width, 1, 3 or 4] of bool, uint8, uint16, or of floats from 0 to 1.
        limits: bounds on bytes, pixels, sides and aspect ratio.
        whole: refuse a file of which the picture would be a part: an animation, or several pages.

    Raises:
        MediaError: the source is missing, empty, broken, truncated, no picture, not whole, or outside the limits.
        EmblemaError: a HEIC picture needs a package that is not installed.
    """
    if isinstance(source, Image.Image):
        return finish(source, "the given picture", limits)
    if hasattr(source, "detach") and hasattr(source, "cpu"):
        source = np.asarray(plain_source(source, limits))
    if isinstance(source, np.ndarray):
        return finish(_from_array(source, limits), "the given array", limits)
    name = describe(source)
    with open_source(source, limits) as file:
        task = DecodeTask("picture", file, name, limits, 3 * limits.image_pixels, {"whole": whole})
        pictures = [picture_of(item, name, limits) for item in decode(task)]
    if len(pictures) != 1:
        raise MediaError(f"{name} is not a picture that can be read.")
    return pictures[0]


def decode_picture(
    file: BinaryIO, name: str, limits: MediaLimits, whole: bool = False
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Decode a file in this process: yield the sides of the one picture, with its pixels; errors as `load_image`."""
    opened = open_picture(file, name, limits)
    if whole and len(opened.pages) > 1:
        raise MediaError(f"{name} has {len(opened.pages)} pages, and a picture has one: give it as a document.")
    if whole and opened.moves:
        raise MediaError(f"{name} is an animation, not a picture: give it as a video, or one frame of it.")
    yield item_of(opened.page(0, name, limits))


def count_frames(file: BinaryIO, name: str, limits: MediaLimits) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Look at a picture's file in this process: yield how many pages it has, and whether it moves."""
    opened = open_picture(file, name, limits)
    yield {"pages": len(opened.pages), "moves": opened.moves}, b""


@dataclass(frozen=True, slots=True)
class OpenedPicture:
    """A picture's file in this process of which nothing is decoded yet.

    Attributes:
        image: as Pillow opened it.
        pages: which of its frames are pages: of a TIFF there may be several.
    """

    image: Image.Image
    pages: Sequence[int] = (0,)

    @property
    def moves(self) -> bool:
        """Whether it is an animation."""
        return self.image.format in _ANIMATED and bool(getattr(self.image, "is_animated", False))

    def page(self, number: int, name: str, limits: MediaLimits) -> Image.Image:
        """Return a page as upright RGB; errors as `load_image`."""
        if len(self.pages) > 1 or self.pages[0] != 0:
            with decoding(name):
                self.image.seek(self.pages[number])
        return finish(self.image, name, limits)


def open_picture(file: BinaryIO, name: str, limits: MediaLimits) -> OpenedPicture:
    """Open a picture's file in this process, without what is not needed of it; errors as `load_image`."""
    data = file.read()
    start = picture_start(data[:HEAD_BYTES])
    known = format_of(data[:HEAD_BYTES])
    if known is None or known.kind != "picture":
        raise no_picture(name, known)
    with decoding(name):
        data = needed(data[start:] if start else data, name, limits)
        # The formats that this build of Pillow has; `Image.open` would look for others too.
        kinds = [kind for kind in FORMATS if kind in Image.OPEN]
    if known.name == "HEIC":
        import_extra("pillow_heif", "heic").register_heif_opener(thumbnails=False, decode_threads=1)
        kinds = ["HEIF"]
    pages = page_numbers(data) if known.name == "TIFF" else [0]
    if not pages:
        raise MediaError(f"{name} is a TIFF without a whole picture, as raw files of cameras are: export a picture.")
    with decoding(name, known):
        image = Image.open(io.BytesIO(data), formats=kinds)
        return OpenedPicture(image, pages)


def no_picture(name: str, known: FileFormat | None) -> MediaError:
    """Return the error for a file that is no picture, with the name of its format where that is known."""
    if known is None:
        return MediaError(f"{name} is not a picture that can be read ({READ}).")
    return MediaError(f"{name} is not a picture that can be read ({READ}): it is another kind of file ({known.name}).")


def import_formats() -> None:
    """Import Pillow's modules for the formats that are tried."""
    for kind in FORMATS:
        module = "WebP" if kind == "WEBP" else kind.capitalize()
        import_module(f"PIL.{module}ImagePlugin")


def item_of(picture: Image.Image, **fields: float) -> tuple[dict[str, Any], bytes]:
    """Return what a decoding process sends of an RGB picture: its sides, other fields, and its pixels."""
    return {"width": picture.width, "height": picture.height, **fields}, picture.tobytes()


def picture_of(item: DecodedItem, name: str, limits: MediaLimits) -> Image.Image:
    """Return the RGB picture that a decoding process sent.

    Raises:
        MediaError: its sides are outside the limits, or not those of its pixels.
    """
    width, height = item.fields.get("width"), item.fields.get("height")
    if type(width) is not int or type(height) is not int or len(item.data) != 3 * width * height:
        raise MediaError(f"{name} was not decoded to a picture.")
    check_size(width, height, name, limits)
    return Image.frombytes("RGB", (width, height), item.data)


def check_size(width: int, height: int, name: str, limits: MediaLimits) -> None:
    """Refuse a picture whose sides are outside the limits."""
    size = f"{name} is {width}x{height} pixels"
    short, long = sorted((width, height))
    if short < limits.image_side_least:
        raise MediaError(f"{size}: too small, a side needs {limits.image_side_least} or more.")
    if long > limits.aspect_ratio * short:
        raise MediaError(f"{size}: too long and narrow, one side may be {limits.aspect_ratio:g} times the other.")
    if long > limits.image_side or width * height > limits.image_pixels:
        raise MediaError(
            f"{size}: too large, at most {limits.image_side} a side and {limits.image_pixels} in all; scale it down."
        )


def finish(image: Image.Image, name: str, limits: MediaLimits) -> Image.Image:
    """Return the current frame of an opened picture as upright RGB; errors as `load_image`."""
    check_size(image.width, image.height, name, limits)
    with decoding(name):
        image.load()
        return upright(_to_rgb(image, image.format, name), picture_orientation(image))


def _to_rgb(image: Image.Image, file_format: str | None, name: str) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _scale_deep(image, file_format, name).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    # A fresh picture: no palette, EXIF or other data of the file may hang on to it.
    fresh = Image.new("RGB", rgb.size)
    fresh.paste(rgb)
    scaled_from = Origin.noted(image)
    return fresh if scaled_from is None else scaled_from.note(fresh)


def _scale_deep(image: Image.Image, file_format: str | None, name: str) -> Image.Image:
    values = np.asarray(image)
    if image.mode == "F":
        return Image.fromarray(_from_floats(values, name))
    highest = int(values.max())
    if values.min() < 0 or highest > 65_535:
        raise MediaError(f"{name} holds values beyond 16 bits: convert it to 8 bits a channel.")
    # Pillow opens 16-bit PNM, and in older releases PNG, in mode I too; a dark one is not to be brightened.
    if image.mode == "I" and file_format not in ("PNG", "PPM") and highest <= 255:
        return Image.fromarray(values.astype(np.uint8))
    return Image.fromarray(_narrow(values.astype(np.uint32)))


def _from_array(array: NDArray[np.generic], limits: MediaLimits) -> Image.Image:
    shape = "x".join(map(str, array.shape))
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise MediaError(f"An array of shape {shape} is no picture: give [height, width] or [height, width, 3 or 4].")
    check_size(array.shape[1], array.shape[0], "the given array", limits)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif array.dtype == np.uint16:
        array = _narrow(array.astype(np.uint32))
    elif np.issubdtype(array.dtype, np.floating):
        array = _from_floats(array, "the given array")
    elif array.dtype != np.uint8:
        raise MediaError(f"An array of {array.dtype} is no picture: give uint8, uint16, bool, or floats from 0 to 1.")
    return Image.fromarray(np.ascontiguousarray(array))


def _from_floats(values: NDArray[np.generic], name: str) -> NDArray[np.uint8]:
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all() or numbers.min() < 0 or numbers.max() > 1:
        raise MediaError(f"{name} holds floats outside 0 to 1: scale them, or give uint8.")
    return np.rint(numbers * 255).astype(np.uint8)


def _narrow(values: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Round 16 bits to 8."""
    return ((values * np.uint32(255) + np.uint32(32_767)) // np.uint32(65_535)).astype(np.uint8)


@contextmanager
def decoding(name: str, known: FileFormat | None = None) -> Iterator[None]:
    """Turn whatever a decoder raises into one MediaError."""
    try:
        yield
    except (MediaError, MemoryError):
        raise
    except Image.UnidentifiedImageError as error:
        kind = "" if known is None else f" {known.name}"
        raise MediaError(f"{name} is a broken or truncated{kind} picture, or of a kind that cannot be read.") from error
    except Image.DecompressionBombError as error:
        raise MediaError(f"{name} is too large a picture once unpacked; scale it down.") from error
    except Exception as error:
        raise MediaError(f"{name} is a broken or truncated picture ({error}).") from error
