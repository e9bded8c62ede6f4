"""What is measured with: chunks of random rows, a larger random model, pictures, and an emptied page cache."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows
from emblema.models.load import bundled_folder, load_processor

MODEL = "0" * 64
"""The fingerprint of a model that does not exist."""
LAYERS, HEADS, HIDDEN, INTERMEDIATE = 14, 12, 768, 2304
QUESTION = "which land does the tent stand on ?"


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
SMALL = KVShape(layers=2, heads=2, width=16, hidden=32)


def random_chunk(tokens: int, random: np.random.Generator, shape: KVShape = SMALL) -> Chunk:
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


def larger_model(seed: int) -> tuple[Any, Any]:
    """Return a random model of a hundred million parameters, of the bundled one's family, and its processor."""
    from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

    config = AutoConfig.from_pretrained(str(bundled_folder("reference")))
    text, vision = config.text_config, config.vision_config
    text.num_hidden_layers, text.hidden_size, text.intermediate_size = LAYERS, HIDDEN, INTERMEDIATE
    text.num_attention_heads = text.num_key_value_heads = HEADS
    text.layer_types = [text.layer_types[0]] * LAYERS
    eighth = HIDDEN // HEADS // 2 // 8
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [2 * eighth, 3 * eighth, 3 * eighth]}
    vision.out_hidden_size = HIDDEN
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
    return model.eval(), load_processor(str(bundled_folder("reference")))


def random_picture(side: int, random: np.random.Generator) -> Image.Image:
    """Return a picture of coloured squares."""
    squares = random.integers(0, 255, (side // 28, side // 28, 3), dtype=np.uint8)
    return Image.fromarray(squares).resize((side, side), Image.Resampling.NEAREST)


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
