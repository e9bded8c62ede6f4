"""Stores in a folder, as the tests open them."""

from pathlib import Path
from typing import Any

from emblema.store import Store

ONE = 260
"""Bytes of a numbered chunk: 3 layers of 80 bytes, 20 of embeddings."""


def opened(folder: Path, **options: Any) -> Store:
    return Store(folder / "store", **options)
