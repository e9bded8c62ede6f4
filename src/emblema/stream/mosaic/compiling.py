"""How loops are compiled by Numba, and what they ask of the processor."""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic


def compiled(*signatures: str, **options: Any) -> Callable[[Any], Any]:
    """Compile a function for its signatures at once; without a cache where no folder for one can be written."""

    def wrap(function: Any) -> Any:
        settings = {"nogil": True, "error_model": "numpy", **options}
        try:
            return numba.njit(list(signatures), cache=True, **settings)(function)
        except (RuntimeError, OSError):
            return numba.njit(list(signatures), **settings)(function)

    return wrap


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
