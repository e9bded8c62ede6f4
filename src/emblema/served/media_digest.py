"""Digests of what encoders are given: what is stored is named by them, never by a name that a client gave."""

from typing import Any

import torch
from torch import Tensor


def add_to_digest(hasher: Any, value: Any) -> None:
    """Add a value to a digest: its kind and size first, so that no two values look alike."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        hasher.update(f"tensor {plain.dtype} {list(plain.shape)} ".encode())
        hasher.update(plain.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, list | tuple):
        hasher.update(f"list {len(value)} ".encode())
        for item in value:
            add_to_digest(hasher, item)
    else:
        written = f"{type(value).__name__} {value!r}".encode()
        hasher.update(f"value {len(written)} ".encode() + written)
