"""The kernel's page cache: emptied of a file, and asked how much of the file it holds."""

import ctypes
import mmap
import os
from pathlib import Path


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
    """The share of a file that is in the page cache; NaN where the system does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    if size == 0 or not hasattr(libc, "mincore"):
        return float("nan")
    with path.open("rb") as file:
        # A private mapping is writable, so that ctypes takes its address; no page of it is touched.
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    start = ctypes.c_char.from_buffer(mapped)
    try:
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), found)
    finally:
        del start
        mapped.close()
    return float("nan") if failed else sum(page & 1 for page in found) / pages


def cooled(paths: list[Path]) -> float:
    """Evict files; the largest share of one of them that stayed in the page cache."""
    for path in paths:
        evict(path)
    return max((residency(path) for path in paths), default=float("nan"))
