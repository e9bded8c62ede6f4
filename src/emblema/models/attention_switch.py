"""Having the layers of a model attend by another function for a while, in one thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

NAME = "emblema"
Attend = Callable[..., Any]


@dataclass(slots=True)
class _Blocks:
    """Blocks that are open on one configuration, and what it said before the first."""

    before: str
    count: int = 0


# transformers looks an attention function up by the name in a model's configuration, which threads share. So the name
# leads to one function, which asks what its own thread wants; the configuration is as it was after the last block.
_lock = threading.Lock()
_blocks: dict[int, _Blocks] = {}
_wanted = threading.local()


def stock_attend(*args: Any, **extra: Any) -> Any:
    """Attend as the model does by itself, in transformers' interface."""
    return _functions()["sdpa"](*args, **extra)


def attending() -> Attend | None:
    """Return the function that this thread's innermost block attends by; None outside of blocks."""
    found: Attend | None = getattr(_wanted, "attend", None)
    return found


def row_attend(*args: Any, **extra: Any) -> Any:
    """Attend as the forward under way would without the block around it, over the rows of its table."""
    attend: Attend = getattr(_wanted, "rows", None) or stock_attend
    return attend(*args, **extra)


@contextmanager
def attending_rows(attend: Attend) -> Iterator[None]:
    """Have `row_attend` call a function inside the block, in this thread."""
    outer = getattr(_wanted, "rows", None)
    _wanted.rows = attend
    try:
        yield
    finally:
        _wanted.rows = outer


def _functions() -> Any:
    """Return transformers' table of attention functions, which is imported with its models and not before."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS


def _attend(*args: Any, **extra: Any) -> Any:
    attend: Attend = getattr(_wanted, "attend", None) or stock_attend
    return attend(*args, **extra)


@contextmanager
def attending_by(config: Any, attend: Attend) -> Iterator[None]:
    """Have layers call an attention function of transformers' interface inside the block, in this thread.

    Args:
        config: the decoder's configuration.
        attend: the function; `stock_attend` inside another block attends as the model does by itself.
    """
    with _lock:
        _functions()[NAME] = _attend
        blocks = _blocks.setdefault(id(config), _Blocks(config._attn_implementation))
        blocks.count += 1
        config._attn_implementation = NAME
    outer = getattr(_wanted, "attend", None)
    _wanted.attend = attend
    try:
        yield
    finally:
        _wanted.attend = outer
        with _lock:
            blocks.count -= 1
            if blocks.count == 0:
                config._attn_implementation = blocks.before
                del _blocks[id(config)]
