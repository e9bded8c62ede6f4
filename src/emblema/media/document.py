"""PDF documents as pictures, one a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from PIL import Image

from emblema.errors import MediaError
from emblema.extras import import_extra
from emblema.media.decoder_pool import DecodeTask, decode
from emblema.media.image import check_size, item_of, picture_of
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.source import Source, describe, open_source

if TYPE_CHECKING:
    import pypdfium2

POINTS_PER_INCH = 72


def load_pages(source: Source, dpi: float = 144.0, limits: MediaLimits = DEFAULT_LIMITS) -> list[Image.Image]:
    """Return the pages of a PDF as RGB pictures at `dpi` dots an inch, filled forms included.

    Raises:
        MediaError: the source is missing, empty, no PDF, broken, encrypted, without pages, or outside the limits.
    """
    if not 10 <= dpi <= 1200:
        raise MediaError(f"dpi is {dpi}: give a number from 10 to 1200.")
    name = describe(source)
    with open_source(source, limits) as file:
        task = DecodeTask("pages", file, name, limits, 3 * limits.image_pixels, {"dpi": float(dpi)})
        loaded: list[Image.Image] = []
        left = limits.document_pixels
        for item in decode(task):
            page = picture_of(item, name, limits)
            left -= page.width * page.height
            if len(loaded) == limits.document_pages or left < 0:
                raise MediaError(f"{name} was not decoded to pages within the limits.")
            loaded.append(page)
        return loaded


def decode_pages(file: BinaryIO, name: str, limits: MediaLimits, dpi: float) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Render a file in this process: yield the sides of each page, with its pixels; errors as `load_pages`."""
    pdfium = import_extra("pypdfium2", "documents")
    document = _open(pdfium, file.read(), name)
    try:
        count = len(document)
        if count == 0:
            raise MediaError(f"{name} has no pages.")
        if count > limits.document_pages:
            raise MediaError(f"{name} has {count} pages; the limit is {limits.document_pages}: split it.")
        left = limits.document_pixels
        for index in range(count):
            page = _render(pdfium, document, index, dpi / POINTS_PER_INCH, name, limits, left)
            left -= page.width * page.height
            yield item_of(page)
    finally:
        document.close()


def _open(pdfium: Any, data: bytes, name: str) -> pypdfium2.PdfDocument:
    if b"%PDF-" not in data[:1024]:
        raise MediaError(f"{name} is not a PDF.")
    try:
        document: pypdfium2.PdfDocument = pdfium.PdfDocument(data)
        document.init_forms()
        return document
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower() or "security" in str(error).lower():
            raise MediaError(f"{name} is encrypted: give a copy without a password.") from error
        raise MediaError(f"{name} is a broken or truncated PDF ({error}).") from error


def _render(
    pdfium: Any,
    document: pypdfium2.PdfDocument,
    index: int,
    scale: float,
    name: str,
    limits: MediaLimits,
    left: int,
) -> Image.Image:
    """Render a page, if its size is within the limits and the document may still have `left` pixels."""
    label = f"page {index + 1} of {name}"
    try:
        page = document[index]
        try:
            # PDFium rounds sides up.
            width, height = (math.ceil(side * scale) for side in page.get_size())
            check_size(width, height, label, limits)
            if width * height > left:
                raise MediaError(
                    f"{label}: up to here the pages have more than {limits.document_pixels} pixels "
                    "(MediaLimits.document_pixels): lower the dpi, or split it."
                )
            bitmap = page.render(scale=scale)
            try:
                return bitmap.to_pil().convert("RGB")
            finally:
                bitmap.close()
        finally:
            page.close()
    except pdfium.PdfiumError as error:
        raise MediaError(f"{label} is broken and cannot be drawn ({error}).") from error
