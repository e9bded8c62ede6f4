"""Pictures of any bytes, and addresses of any text."""

import io
from collections.abc import Iterator
from contextlib import suppress

from PIL import Image

from emblema.errors import MediaError
from emblema.media.download import _parse, fetch, redirected
from emblema.media.image import decode_picture
from emblema.media.limits import MediaLimits
from tests.fuzz.targets import FuzzTarget
from tests.media import making
from tests.media.attacks import gif, hidden_scan_bomb, png, scan_bomb, unpacking

SMALL = MediaLimits(image_pixels=250_000, image_side=1000)


def decode(data: bytes) -> None:
    """Decode a picture, in this process; it is one RGB picture within the limits, or refused."""
    try:
        ((fields, pixels),) = decode_picture(io.BytesIO(data), "the picture", SMALL)
    except MediaError:
        return
    assert fields["width"] * fields["height"] <= SMALL.image_pixels
    assert len(pixels) == 3 * fields["width"] * fields["height"]


def encoded() -> Iterator[bytes]:
    gradient = Image.linear_gradient("L").resize((16, 12))
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM", "AVIF"):
        for mode in ("L", "RGB", "RGBA", "P", "1", "CMYK", "I;16"):
            buffer = io.BytesIO()
            with suppress(OSError, ValueError, KeyError):
                (gradient.convert(mode) if mode != "I;16" else gradient.convert("I")).save(buffer, kind)
                yield buffer.getvalue()
    yield from (making.encoded(making.corner(16, 16), "HEIF"), making.tiff(["red", "blue"], (8, 8)))
    yield from (making.animation(making.moving(2, 16, 16), kind, 100) for kind in ("GIF", "PNG", "WEBP"))
    yield from (scan_bomb(40, 64), hidden_scan_bomb(8, 64), gif(3, comments=2), png(8, 8, unpacking(b"iCCP", 100)))


def read_address(data: bytes) -> None:
    """Read an address, a redirect from one, and a `data:` address; nothing is connected to."""
    text = data.decode("utf-8", "replace")
    with suppress(MediaError):
        target = _parse(text)
        assert target.host and target.host.isascii() and not set(target.host) & set(b"/@\\ \r\n")
        assert target.port is not None and 0 <= target.port < 65_536
        assert not any(byte <= ord(" ") for byte in target.target)
    first, _, second = text.partition(" ")
    with suppress(MediaError):
        redirected(first, second)
    with suppress(MediaError):
        assert fetch(f"data:{text}")


def addresses() -> Iterator[bytes]:
    for text in (
        "http://example.org/a.png?b=c#d", "https://[::1]:8080/", "http://user:word@example.org/", "HTTP://127.1/",
        "http://bücher.example/", "http://a.example\\@b.example/", "http://a%00b/", "https://a.example/ //b.example/",
        "image/png;base64,aGVsbG8=", ",a%20b", ";base64,@@@", "http://[fe80::1%25eth0]/", "http://1.1.1.1:80:80/",
    ):  # fmt: skip
        yield text.encode()


TARGETS = {"picture": FuzzTarget(decode, encoded), "address": FuzzTarget(read_address, addresses, 512)}
