"""Pauses inside a model's encoder: the tower of one large picture takes longer than others can wait for a token."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

SECONDS = 0.02
"""At least so long between two pauses, so that a small picture has none."""


@contextmanager
def pausing(model: nn.Module, decoder: nn.Module, pause: Callable[[], None]) -> Iterator[None]:
    """Call `pause` between the modules that encode media, until the block ends; what it raises ends the forward.

    Args:
        model: whose modules without parts are meant, but for those of its decoder.
        decoder: of the model.
        pause: may run the model's decoder, and encode something else in a forward of its own.
    """
    decoding = set(decoder.modules())
    last = time.perf_counter()

    def between(*_: object) -> None:
        nonlocal last
        if time.perf_counter() - last > SECONDS:
            # None within the pause, whose forwards have these modules too.
            last = math.inf
            pause()
            last = time.perf_counter()

    leaves = [module for module in model.modules() if module not in decoding and not any(module.children())]
    hooks = [module.register_forward_pre_hook(between) for module in leaves]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
