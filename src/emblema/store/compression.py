"""Rows kept in fewer bytes: narrower numbers, with one scale per channel where they are eight bits wide."""

from typing import Literal, get_args

import torch
from torch import Tensor

from emblema.errors import StoreError
from emblema.kv.compact_map import to_int8

Compression = Literal["none", "bf16", "fp8", "int8"]

COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
FP8_LARGEST = 448.0


def check_compression(name: str) -> Compression:
    """Return the compression of this name.

    Raises:
        StoreError: there is none.
    """
    for known in COMPRESSIONS:
        if name == known:
            return known
    raise StoreError(f"unknown compression {name!r}: choose {', '.join(COMPRESSIONS)}")


def compress(rows: Tensor, compression: Compression) -> tuple[Tensor, Tensor | None]:
    """Return rows [heads, tokens, width] as they are stored, and their scales [heads, width] float32 or None.

    `none` keeps every bit. `bf16` rounds float32 and float64 rows to bfloat16; others stay as they are. `fp8` (e4m3)
    and `int8` divide each channel, one feature of one head, by its largest magnitude over the tokens. Rows that would
    gain or lose an infinity or a NaN that way stay as they are.
    """
    if compression == "none" or rows.numel() == 0 or rows.dtype.itemsize == 1:
        return rows, None
    if compression == "bf16":
        if rows.dtype.itemsize == 2:
            return rows, None
        narrow = rows.to(torch.bfloat16)
        return (narrow if torch.equal(narrow.isfinite(), rows.isfinite()) else rows), None
    if compression == "int8":
        found = to_int8(rows)
        return (rows, None) if found is None else found
    exact = rows.float()
    scales = (exact.abs().amax(dim=1) / FP8_LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    if not bool((scales * FP8_LARGEST).isfinite().all()):
        return rows, None
    return (exact / scales[:, None]).clamp_(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn), scales


def restore(stored: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return rows [heads, tokens, width] in the dtype that they were made in, from what `compress` gave."""
    if scales is None:
        return stored if stored.dtype == dtype else stored.to(dtype)
    numbers = fp8_to_float32(stored) if stored.dtype == torch.float8_e4m3fn else stored.float()
    return numbers.mul_(scales[:, None]).to(dtype)


def fp8_to_float32(stored: Tensor) -> Tensor:
    """Return what `stored.float()` gives for e4m3, many times faster on a CPU, where torch converts number by number.

    Moved to float16's fields, the bits mean the same number divided by 256: the exponents' biases are 7 and 15.
    """
    bits = stored.view(torch.int8).to(torch.int16)
    magnitudes = (bits << 7) & 0x3F80
    if bool((magnitudes == 0x3F80).any()):
        return stored.float()
    return magnitudes.bitwise_or_(bits.bitwise_and_(-0x8000)).view(torch.float16).float().mul_(256)
