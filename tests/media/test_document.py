import io
from collections.abc import Iterable

import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_pages


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
    sheets = load_pages(document(["red", "lime", "blue"]), dpi=144)
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
    with pytest.raises(MediaError, match="page 3 of .*document_pixels.*lower the dpi"):
        load_pages(document(["red"] * 3), limits=within)
    with pytest.raises(MediaError, match="page 1 of .* too large"):
        load_pages(document(["red"], (5000, 5000)), dpi=1200)
    with pytest.raises(MediaError, match="narrow"):
        load_pages(document(["red"], (2000, 4)))
    for dpi in (0, float("nan"), 5000):
        with pytest.raises(MediaError, match="dpi"):
            load_pages(document(["red"]), dpi=dpi)
