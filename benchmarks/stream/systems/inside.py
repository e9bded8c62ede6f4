"""Where the bench looks behind a stream's door: where an answer's time goes, and which clusters frames lie in."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.engine.engine import Engine
from emblema.errors import StreamError
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.stream import Stream

Attention = Callable[..., Any]


@dataclass(slots=True)
class Times:
    """Seconds of answers under watch.

    Attributes:
        reading: in the memory, transfers that were waited for among them.
        attending: in the attention function itself.
        layers: in attention layers as a whole.
    """

    reading: float = 0.0
    attending: float = 0.0
    layers: float = 0.0
    _began: float = field(default=0.0, repr=False)


@dataclass(frozen=True, slots=True)
class Homes:
    """The cluster of every frame that has left the window: at the visual level, and of each layer."""

    visual: Mapping[int, int]
    layers: tuple[Mapping[int, int], ...]


def homes_of(stream: Stream) -> Homes:
    """Where frames lie now.

    Raises:
        StreamError: the stream has no clusters.
    """
    memory = stream.memory
    if not isinstance(memory, Mosaic):
        raise StreamError(f"a stream with the method {stream.method!r} has no clusters: use mosaic")
    return Homes(dict(memory.visual.home), tuple(dict(layer.home) for layer in memory.layers))


def opening_of(stream: Stream) -> int:
    """Rows in front of the first frame's."""
    return len(stream.turn.opening)


def question_of(stream: Stream, text: str) -> range:
    """Which of a question's rows retrieval goes by: the question itself, without what the template puts around it."""
    return stream.turn.question(text).asking


@contextmanager
def attention_through(wrap: Callable[[Attention], Attention]) -> Iterator[None]:
    """The function that attention layers call is another one made from it, in this block."""
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = wrap(stock)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = stock


@contextmanager
def watched(engine: Engine, stream: Stream) -> Iterator[Times]:
    """Take the times of what a stream is asked in this block."""
    times, memory = Times(), stream.memory
    read = memory.read

    def reading(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        found = read(*args, **named)
        times.reading += time.perf_counter() - began
        return found

    def timing(stock: Attention) -> Attention:
        def attend(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            found = stock(*args, **named)
            times.attending += time.perf_counter() - began
            return found

        return attend

    def enter(module: nn.Module, args: Any) -> None:
        times._began = time.perf_counter()

    def leave(module: nn.Module, args: Any, output: Tensor) -> None:
        times.layers += time.perf_counter() - times._began

    with ExitStack() as stack:
        for layer in engine.adapter.layers:
            attention = layer.get_submodule("self_attn")
            stack.callback(attention.register_forward_pre_hook(enter).remove)
            stack.callback(attention.register_forward_hook(leave).remove)
        stack.enter_context(attention_through(timing))
        memory.read = reading  # type: ignore[method-assign]
        stack.callback(lambda: memory.__dict__.pop("read"))
        yield times
