"""Pictures and folders of replicas."""

import io

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def picture():
    """Return what makes a small picture of a number, as PNG."""

    def make(number: int) -> bytes:
        pixels = np.random.default_rng(number).integers(0, 255, (56, 56, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()

    return make
