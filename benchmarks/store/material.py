"""What is measured with: chunks of random rows, and an emptied page cache."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows

MODEL = "0" * 64
"""The fingerprint of a model that does not exist."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """How much KV a token has: layers of `heads` heads of `width` features, keys and values, in bfloat16."""

    layers: int
    heads: int
    width: int
    hidden: int

    @property
    def token_bytes(self) -> int:
        """Bytes of KV of a token."""
        return self.layers * 2 * self.heads * self.width * torch.bfloat16.itemsize


SEVEN_BILLION = KVShape(layers=28, heads=4, width=128, hidden=3584)
"""The KV of Qwen2.5-VL-7B."""


def random_chunk(tokens: int, random: np.random.Generator, shape: KVShape) -> Chunk:
    """Return a chunk of normally distributed rows under an id of its own."""
    generator = torch.Generator().manual_seed(int(random.integers(2**62)))

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(torch.bfloat16)

    encoded = Encoded(
        token_ids=torch.zeros(tokens, dtype=torch.int64),
        embeds=numbers(tokens, shape.hidden),
        positions=torch.arange(tokens).repeat(3, 1),
        span=tokens,
        visual=torch.ones(tokens, dtype=torch.bool),
        deepstack=(),
        groups=torch.full((tokens,), -1, dtype=torch.int64),
    )
    size = (shape.heads, tokens, shape.width)
    rows = tuple(LayerRows(numbers(*size), numbers(*size)) for _ in range(shape.layers))
    return Chunk(random.bytes(32).hex(), "image", MODEL, encoded, rows)


def evict(path: Path) -> None:
    """Have the kernel forget a file's pages, once they are on disk; nothing where it takes no such advice."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def residency(path: Path) -> float:
    """Return the share of a file that is in the page cache; NaN where the system does not say."""
    size, mincore = path.stat().st_size, getattr(ctypes.CDLL(None), "mincore", None)
    if size == 0 or mincore is None:
        return float("nan")
    with path.open("rb") as file:
        # No page of the mapping is touched.
        held = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY), np.uint8)
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    failed = mincore(ctypes.c_void_p(held.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data))
    return float("nan") if failed else float((pages & 1).mean())


def cooled(paths: Sequence[Path]) -> float:
    """Evict files; return the largest share of any of them that stayed in the page cache."""
    for path in paths:
        evict(path)
    return max((residency(path) for path in paths), default=float("nan"))
