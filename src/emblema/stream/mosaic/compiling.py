"""How loops are compiled by Numba, and what they ask of the processor."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

SOURCES = ("compiled.py", "compiling.py", "kernels.py", "tiles.py")
"""Files of this folder that compiled functions, and what these call, are made of."""


class SourcesCache(FunctionCache):  # type: ignore[misc]
    """A function's compiled code, kept as long as no file changes that it is made of.

    Numba itself looks at the file of the function alone: code that calls a function of another file would stay.
    """

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), sources_digest())


@cache
def sources_digest() -> str:
    """Return the digest of all `SOURCES`."""
    folder = Path(__file__).parent
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in SOURCES)).hexdigest()


def compiled(*signatures: str, **options: Any) -> Callable[[Any], Any]:
    """Compile a function for its signatures at once; without a cache where no folder for one can be written."""

    def wrap(function: Any) -> Any:
        made = numba.njit(nogil=True, error_model="numpy", **options)(function)
        try:
            made._cache = SourcesCache(function)
            return _compile(made, signatures)
        except (RuntimeError, OSError):
            return _compile(numba.njit(nogil=True, error_model="numpy", **options)(function), signatures)

    return wrap


def _compile(function: Any, signatures: tuple[str, ...]) -> Any:
    for signature in signatures:
        function.compile(signature)
    function.disable_compile()
    return function


@intrinsic
def prefetch(typing_context, address):
    """Have the line of memory at an address loaded into the processor's cache, without waiting for it."""

    def build(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        kinds = [pointer.type, ir.IntType(32), ir.IntType(32), ir.IntType(32)]
        call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0")
        # For reading, near, of data.
        builder.call(call, [pointer, *(ir.Constant(ir.IntType(32), number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return numba.void(numba.uint64), build
