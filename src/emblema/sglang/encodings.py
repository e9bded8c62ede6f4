"""What SGLang's encoder made of pictures, in its cache: taken out to be stored, and put in where it is stored."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def _cache() -> Any:
    from sglang.srt.managers import mm_schedule

    return mm_schedule.embedding_cache


def encoding_of(item: Any) -> Tensor | None:
    """Return what the encoder made of a picture [media tokens, width]; None where that is not kept."""
    cache = _cache()
    found = None if cache is None else cache.get_single(item.hash)
    return None if found is None else found.embedding.reshape(-1, found.embedding.shape[-1])


def hand_over(items: Sequence[Any], encodings: Mapping[str, Tensor], device: torch.device) -> None:
    """Put into SGLang's cache what is stored of pictures, by the text of their hashes, unless it has it."""
    from sglang.srt.mem_cache.multimodal_cache import EmbeddingResult

    cache = _cache()
    for item in items if cache is not None else ():
        stored = encodings.get(str(item.hash))
        if stored is not None and cache.get_single(item.hash) is None:
            cache.set(item.hash, EmbeddingResult(embedding=stored.to(device)))
