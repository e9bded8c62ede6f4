"""Buffers on the host that grow with a stream, each large one in a mapping of its own.

A large buffer in the allocator's heap leaves a gap when it is replaced by a larger one, and what comes to lie in the
gap keeps it from being given back: the process then grows by more than its buffers do. A mapping goes back whole, and
its pages take memory once they are written. Those of rows that are of no use any more can be given back before.
"""

import ctypes
import math
import mmap
import sys
from contextlib import suppress

import torch
from torch import Tensor

LEAST_MAPPED = 128 * 2**10
"""Bytes of a buffer that has a mapping of its own, at least: the allocator's own bound before it moves."""
LEAST_LARGE = 4 * 2**20
"""Bytes of a buffer that lies in large pages where the system has them, at least: one may stay empty."""


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, scattered: bool = False) -> Tensor:
    """Return zeros on the host.

    Args:
        scattered: short rows are read from all over the buffer. A long one lies in large pages then, so that the
            processor need not look for the page of each.
    """
    count = math.prod(shape)
    if count * dtype.itemsize < LEAST_MAPPED:
        return torch.zeros(shape, dtype=dtype)
    mapping = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if scattered and len(mapping) >= LEAST_LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # A system that was built without them refuses.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=dtype).view(shape)


def grown(held: Tensor, more: int, begin: int = 0, scattered: bool = False) -> Tensor:
    """Return a buffer with `more` rows of zeros after those of `held`, on its device; rows before `begin` are zeros.

    Args:
        scattered: as of `host_buffer`.
    """
    shape = (len(held) + more, *held.shape[1:])
    larger = host_buffer(shape, held.dtype, scattered) if held.device.type == "cpu" else held.new_zeros(shape)
    larger[begin : len(held)] = held[begin:]
    return larger


def give_back(held: Tensor, begin: int, stop: int) -> None:
    """Give back the memory of rows from `begin` and before `stop`, which are zeros, of a buffer on the host.

    They stay zeros, and take memory again when they are written. Pages that other rows lie on too stay as they are.
    """
    if not sys.platform.startswith("linux"):
        # Elsewhere such pages need not be zeros afterwards.
        return
    width = held[:1].nbytes
    start = -(-(held.data_ptr() + begin * width) // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (held.data_ptr() + stop * width) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
