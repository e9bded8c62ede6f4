"""Documents (PDF, TIFF) as pictures, one a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from PIL import Image

from emblema.errors import MediaError
from emblema.extras import import_extra
from emblema.media.decoder_pool import DecodeTask, decode
from emblema.media.formats import HEAD_BYTES, format_of
from emblema.media.image import item_of, open_picture, picture_of
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.source import Source, describe, open_source

if TYPE_CHECKING:
    import pypdfium2

SCALE = 2.0
"""Pixels a point of a PDF: 144 dots an inch."""


def load_pages(source: Source, limits: MediaLimits = DEFAULT_LIMITS) -> list[Image.Image]:
    """Return the pages of a PDF as RGB pictures at 144 dots an inch, filled forms included, or those of a TIFF.

    A page of a PDF is drawn: one that would be too large or too small is drawn at another size, and one that is too
    narrow gets white margins.

    Raises:
        MediaError: the source is missing, empty, no PDF or TIFF, broken, encrypted, without pages, or outside the
            limits.
    """
    name = describe(source)
    with open_source(source, limits) as file:
        task = DecodeTask("pages", file, name, limits, 3 * limits.image_pixels)
        loaded: list[Image.Image] = []
        left = limits.document_pixels
        for item in decode(task):
            loaded.append(picture_of(item, name, limits))
            left -= loaded[-1].width * loaded[-1].height
            if len(loaded) > limits.document_pages or left < 0:
                raise MediaError(
                    f"page {len(loaded)} of {name}: up to here there are more than {limits.document_pages} pages, or "
                    f"{limits.document_pixels} pixels (the limit document_pixels): split it."
                )
        return loaded


def decode_pages(file: BinaryIO, name: str, limits: MediaLimits) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Render a file in this process: yield the sides of each page, with its pixels, which the caller counts."""
    known = format_of(file.read(HEAD_BYTES))
    file.seek(0)
    scanned = known is not None and known.name == "TIFF"
    for page in _scanned(file, name, limits) if scanned else _drawn(file, name, limits):
        yield item_of(page)


def _scanned(file: BinaryIO, name: str, limits: MediaLimits) -> Iterator[Image.Image]:
    """Yield the pages of a TIFF."""
    opened = open_picture(file, name, limits)
    _check_count(len(opened.pages), name, limits)
    for number in range(len(opened.pages)):
        yield opened.page(number, f"page {number + 1} of {name}", limits)


def _drawn(file: BinaryIO, name: str, limits: MediaLimits) -> Iterator[Image.Image]:
    """Yield the pages of a PDF."""
    pdfium = import_extra("pypdfium2", "documents")
    document = _open(pdfium, file.read(), name)
    try:
        count = len(document)
        if count == 0:
            raise MediaError(f"{name} has no pages.")
        _check_count(count, name, limits)
        for index in range(count):
            yield _render(pdfium, document, index, name, limits)
    finally:
        document.close()


def _check_count(count: int, name: str, limits: MediaLimits) -> None:
    if count > limits.document_pages:
        raise MediaError(f"{name} has {count} pages; the limit is {limits.document_pages}: split it.")


def _open(pdfium: Any, data: bytes, name: str) -> pypdfium2.PdfDocument:
    if b"%PDF-" not in data[:HEAD_BYTES]:
        known = format_of(data[:HEAD_BYTES])
        raise MediaError(
            f"{name} is not a PDF{'' if known is None else f' (it is another kind of file: {known.name})'}."
        )
    try:
        document: pypdfium2.PdfDocument = pdfium.PdfDocument(data)
        document.init_forms()
        return document
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower() or "security" in str(error).lower():
            raise MediaError(f"{name} is encrypted: give a copy without a password.") from error
        raise MediaError(f"{name} is a broken or truncated PDF ({error}).") from error


def _render(pdfium: Any, document: pypdfium2.PdfDocument, index: int, name: str, limits: MediaLimits) -> Image.Image:
    """Render a page at `SCALE`, or at a scale that keeps it within the limits."""
    label = f"page {index + 1} of {name}"
    try:
        page = document[index]
        try:
            width, height = page.get_size()
            if not width * height > 0:
                # A crop box beside the page leaves nothing of it; viewers show the whole page.
                page.set_cropbox(*page.get_mediabox())
                width, height = page.get_size()
            if not 0 < width * height < math.inf:
                raise MediaError(f"{label} has no area: remove it.")
            bitmap = page.render(scale=fitting_scale(width, height, limits))
            try:
                return _widened(bitmap.to_pil().convert("RGB"), limits)
            finally:
                bitmap.close()
        finally:
            page.close()
    except pdfium.PdfiumError as error:
        raise MediaError(f"{label} is broken and cannot be drawn ({error}).") from error


def fitting_scale(width: float, height: float, limits: MediaLimits) -> float:
    """Return the scale nearest to `SCALE` at which a page of these sides is within the limits of a picture.

    What is too narrow for any scale is as long as it may be. PDFium rounds sides up.
    """
    short, long = sorted((width, height))
    scale = max(SCALE, limits.image_side_least / short)
    scale = min(scale, (1 - 1e-6) * limits.image_side / long)
    # Where (width s + 1) (height s + 1) are all the pixels that a picture may have.
    area, half = width * height, (width + height) / 2
    most = (math.sqrt(half**2 + area * (limits.image_pixels - 1)) - half) / area
    return min(scale, most)


def _widened(page: Image.Image, limits: MediaLimits) -> Image.Image:
    """Return a page with white margins along its long sides, where it is narrower than a picture may be."""
    least = max(limits.image_side_least, math.ceil(max(page.size) / limits.aspect_ratio))
    if min(page.size) >= least:
        return page
    wide = Image.new("RGB", (max(page.width, least), max(page.height, least)), "white")
    wide.paste(page, ((wide.width - page.width) // 2, (wide.height - page.height) // 2))
    return wide
