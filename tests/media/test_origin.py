"""The picture before it was scaled is known of the scaled one, and of no file that says so."""

from io import BytesIO

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from emblema.media.load import load_media
from emblema.media.origin import Origin
from emblema.media.settings import MediaSettings


def picture(seed: int = 1) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 60, 3), dtype=np.uint8))


def loaded(source: object, **settings: int) -> Image.Image:
    found = load_media(source, settings=MediaSettings(**settings))  # type: ignore[arg-type]
    assert isinstance(found, Image.Image)
    return found


def test_scaled_pictures_have_the_origin_of_the_one_they_are_of() -> None:
    whole, small, smaller = loaded(picture()), loaded(picture(), max_pixels=600), loaded(picture(), max_pixels=300)
    assert whole.size != small.size != smaller.size
    assert Origin.of(whole) == Origin.of(small) == Origin.of(smaller) != Origin.of(picture(2))
    assert Origin.noted(whole) is None and Origin.of(loaded(small)) == Origin.of(whole), "also when it is loaded again"
    assert Origin.of(loaded(small, max_pixels=300)) == Origin.of(whole)


def test_a_file_cannot_name_its_origin() -> None:
    named, file = PngInfo(), BytesIO()
    named.add_text("emblema origin", "x")
    picture().save(file, "PNG", pnginfo=named)
    assert Origin.noted(loaded(file.getvalue())) is None
    opened = Image.open(file)
    assert opened.info["emblema origin"] == "x" and Origin.noted(opened) is None
