"""Which kernels the search has here."""

from functools import cache

from emblema.stream.mosaic.kernels import ArrayKernels, Kernels


@cache
def load_kernels() -> Kernels:
    """Return the quickest kernels that there are: of a stream that is opened, so that no question waits for them.

    The first call of a process imports Numba, where it is installed, and may have to compile.
    """
    try:
        from emblema.stream.mosaic.compiled import LoopKernels
    except ImportError:
        return ArrayKernels()
    return LoopKernels()
