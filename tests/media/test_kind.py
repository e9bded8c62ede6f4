import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media import media_kind

Make = Callable[..., bytes]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
def test_pictures(picture: Image.Image, encode: Make, kind: str) -> None:
    assert media_kind(encode(picture, kind)) == "image"


@pytest.mark.slow
def test_everything_else(picture: Image.Image, clip: Make, tone: Make, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    picture.save(buffer, "PDF")
    assert media_kind(buffer.getvalue()) == "document"
    assert media_kind(clip()) == media_kind(clip(kind="matroska")) == "video"
    assert media_kind(tone()) == "audio"
    path = tmp_path / "clip.png"
    path.write_bytes(clip())
    assert media_kind(path) == "video"


def test_none_of_them() -> None:
    for data in (b"plain text, nothing else" * 10, bytes(2000), b"P5 is how this text begins"[1:]):
        with pytest.raises(MediaError, match="no picture"):
            media_kind(data)
