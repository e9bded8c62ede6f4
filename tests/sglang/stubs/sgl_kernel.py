"""Stands in for SGLang's compiled kernels where they have no build for a CPU: whatever is asked for raises when called.

`make test-sglang` puts this file into its environment. SGLang imports names from here, and looks operators up in
`torch.ops.sgl_kernel`, long before it decides which it will call; with `torch_native` attention it calls none.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch


def missing(name: str) -> Callable[..., NoReturn]:
    """Return a function that says which kernel is not there."""

    def kernel(*arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(f"the kernel {name} of SGLang has no build for this CPU")

    kernel.__name__ = name
    return kernel


class MissingOperators:
    """`torch.ops.sgl_kernel`: those for a CPU raise when called, as they are looked up unasked; there are no others."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if not name.endswith("_cpu"):
            raise AttributeError(name)
        return missing(name)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)
    return missing(name)


torch.ops.sgl_kernel = MissingOperators()
