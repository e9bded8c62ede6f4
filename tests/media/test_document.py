import io
from collections.abc import Iterable

import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_pages, media_kind
from emblema.media.load import load_media
from tests.media.making import tiff


def document(colours: Iterable[str], size: tuple[int, int] = (144, 72)) -> bytes:
    """A PDF with one page of each colour; 72 pixels are an inch."""
    sheets = [Image.new("RGB", size, colour) for colour in colours]
    buffer = io.BytesIO()
    sheets[0].save(buffer, "PDF", save_all=True, append_images=sheets[1:], resolution=72)
    return buffer.getvalue()


def written(*objects: str, trailer: str = "") -> bytes:
    """A PDF from the bodies of its objects, the first one its root."""
    text = b"%PDF-1.4\n"
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(text))
        text += f"{number} 0 obj {body} endobj\n".encode("latin-1")
    table = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n" + "".join(
        f"{place:010} 00000 n \n" for place in places
    )
    end = f"trailer << /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{len(text)}\n%%EOF\n"
    return text + table.encode() + end.encode("latin-1")


CATALOGUE = "<< /Type /Catalog /Pages 2 0 R >>"
NO_PAGES = "<< /Type /Pages /Kids [] /Count 0 >>"
ONE_PAGE = "<< /Type /Pages /Kids [3 0 R] /Count 1 >>"


def test_pages_become_pictures_at_the_wanted_size() -> None:
    sheets = load_pages(document(["red", "lime", "blue"]))
    assert [sheet.size for sheet in sheets] == [(288, 144)] * 3
    assert {sheet.mode for sheet in sheets} == {"RGB"}
    middles = [sheet.getpixel((100, 60)) for sheet in sheets]
    assert [middle.index(max(middle)) for middle in middles] == [0, 1, 2]


def test_an_encrypted_document() -> None:
    lock = "<< /Filter /Standard /V 1 /R 2 /O ({0}) /U ({0}) /P -4 >>".format("a" * 32)
    page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 72 72] >>"
    data = written(CATALOGUE, ONE_PAGE, page, trailer=f"/Encrypt {lock} /ID [(aaaaaaaaaaaaaaaa) (aaaaaaaaaaaaaaaa)]")
    with pytest.raises(MediaError, match="encrypted"):
        load_pages(data)


def test_documents_that_cannot_be_read() -> None:
    for data, message in [
        (b"", "empty"),
        (b"no document", "not a PDF"),
        (b"%PDF-1.7\nnothing more", "broken"),
        (document(["red"])[:300], "broken|pages"),
        (written(CATALOGUE, NO_PAGES), "no pages|broken"),
        (written(CATALOGUE, ONE_PAGE, "<< /Type /Nonsense >>"), "broken|small"),
    ]:
        with pytest.raises(MediaError, match=message):
            load_pages(data)


def test_limits() -> None:
    with pytest.raises(MediaError, match="3 pages"):
        load_pages(document(["red"] * 3), limits=MediaLimits(document_pages=2))
    # 288x144 a page: two are within the limit.
    within = MediaLimits(document_pixels=2 * 288 * 144)
    assert [sheet.size for sheet in load_pages(document(["red"] * 2), limits=within)] == [(288, 144)] * 2
    with pytest.raises(MediaError, match="page 3 of .*document_pixels.*split it"):
        load_pages(document(["red"] * 3), limits=within)


@pytest.mark.parametrize(
    ("sides", "size"),
    [
        ((2592, 7200), (4800, 13333)),
        ((14400, 720), (16384, 820)),
        ((14400, 14400), (8000, 8000)),
        ((14400, 36), (16384, 82)),
        ((36, 14400), (82, 16384)),
        ((3, 3), (6, 6)),
        ((1, 1), (4, 4)),
        ((300, 1), (1200, 6)),
    ],
)
def test_an_odd_page_is_drawn_at_the_nearest_size_that_is_allowed(
    sides: tuple[int, int], size: tuple[int, int]
) -> None:
    """A plan, a poster or a sliver among other pages; the others are as they would be alone."""
    content = "<< /Length 31 >>\nstream\n1 0 0 rg 0 0 99999 99999 re f\nendstream"
    page = "<< /Type /Page /Parent 2 0 R /Contents 3 0 R /MediaBox [0 0 {} {}] >>"
    kids = "<< /Type /Pages /Kids [4 0 R 5 0 R] /Count 2 >>"
    data = written(CATALOGUE, kids, content, page.format(612, 792), page.format(*sides))
    first, odd = load_pages(data)
    assert first.size == (1224, 1584)
    assert max(abs(found - right) for found, right in zip(odd.size, size, strict=True)) <= 2
    assert odd.getpixel((odd.width // 2, odd.height // 2)) == (255, 0, 0)
    limits = MediaLimits()
    assert max(odd.size) <= limits.image_side and odd.width * odd.height <= limits.image_pixels
    assert max(odd.size) <= limits.aspect_ratio * min(odd.size)


@pytest.mark.parametrize(
    ("boxes", "size"),
    [
        ("/MediaBox [0 0 0 0]", (1224, 1584)),
        ("/MediaBox [0 0 1000000000 1000000000]", (8000, 8000)),
        ("/MediaBox [0 0 100 200] /CropBox [500 500 600 600]", (200, 400)),
        ("/MediaBox [100 200 50 100]", (100, 200)),
        ("/MediaBox (no box)", (1224, 1584)),
        ("", (1224, 1584)),
    ],
)
def test_a_page_whose_boxes_make_no_sense_is_drawn_as_viewers_do(boxes: str, size: tuple[int, int]) -> None:
    page = "<< /Type /Page /Parent 2 0 R {} >>"
    kids = "<< /Type /Pages /Kids [3 0 R 4 0 R] /Count 2 >>"
    sheets = load_pages(written(CATALOGUE, kids, page.format("/MediaBox [0 0 612 792]"), page.format(boxes)))
    assert [sheet.size for sheet in sheets] == [(1224, 1584), size]


def test_pages_of_a_tiff() -> None:
    sheets = load_pages(tiff(["red", "lime", "blue"], compression="tiff_adobe_deflate"))
    assert [sheet.getpixel((5, 5)) for sheet in sheets] == [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    assert media_kind(tiff(["red", "lime"])) == "document" and media_kind(tiff(["red"])) == "image"
    assert [sheet.getpixel((5, 5)) for sheet in load_pages(tiff(["red"]))] == [(255, 0, 0)]
    with pytest.raises(MediaError, match="has 3 pages, and a picture has one: give it as a document"):
        load_media(tiff(["red", "lime", "blue"]), "image")
    with pytest.raises(MediaError, match="3 pages; the limit is 2"):
        load_pages(tiff(["red"] * 3), limits=MediaLimits(document_pages=2))
    with pytest.raises(MediaError, match="page 2 of .*document_pixels"):
        load_pages(tiff(["red"] * 2), limits=MediaLimits(document_pixels=5000))


def test_smaller_forms_and_masks_in_a_tiff_are_no_pages() -> None:
    """Overviews of maps (GDAL) and previews say so in the tag for the subfile's type."""
    file = io.BytesIO()
    with Image.new("RGB", (64, 48), "red") as whole:
        overview, mask = Image.new("RGB", (32, 24), "blue"), Image.new("L", (64, 48), 255)
        overview.encoderinfo, mask.encoderinfo = {"tiffinfo": {254: 1}}, {"tiffinfo": {254: 4}}
        whole.save(file, "TIFF", save_all=True, append_images=[overview, mask])
    assert media_kind(file.getvalue()) == "image"
    assert load_media(file.getvalue()).getpixel((5, 5)) == (255, 0, 0)
    preview = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(preview, "TIFF", tiffinfo={254: 1})
    with pytest.raises(MediaError, match="as raw files of cameras are"):
        load_media(preview.getvalue())
