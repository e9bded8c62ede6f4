"""What clients of a server send and wait for: pictures as files, and what is made of uploads and caches."""

import time
from io import BytesIO
from typing import Any

import httpx
import numpy as np
from PIL import Image


def png_of(picture: Image.Image, **options: Any) -> bytes:
    """A picture as a file."""
    buffer = BytesIO()
    picture.save(buffer, "PNG", **options)
    return buffer.getvalue()


def noise(seed: int, side: int) -> bytes:
    """A picture of chance, as a file."""
    return png_of(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)))


def settled(http: httpx.Client, path: str) -> dict[str, Any]:
    """A file or a cache, once it is processed or failed."""
    until = time.monotonic() + 60
    while (found := http.get(path).json())["status"] == "uploaded":
        assert time.monotonic() < until
        time.sleep(0.02)
    told: dict[str, Any] = found
    return told
