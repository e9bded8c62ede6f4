"""Inside a stream: where an answer's time goes, what full attention looks at, and which clusters frames lie in."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.stream.systems.running import SystemsOptions, settings_for
from benchmarks.tasks.streams import GeneratedStream, seen
from benchmarks.tasks.streams.questions import UNDER, WHERE
from benchmarks.tasks.tiles import ICON_NAMES
from emblema.engine.engine import Engine
from emblema.errors import StreamError
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.stream import Stream

Attention = Callable[..., Any]


@dataclass(slots=True)
class AnswerTimes:
    """Seconds of watched answers.

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
class FrameClusters:
    """The cluster of every frame that has left the window: at the visual level, and of each layer."""

    visual: Mapping[int, int]
    layers: tuple[Mapping[int, int], ...]


def clusters_of(stream: Stream) -> FrameClusters:
    """Return where frames lie now.

    Raises:
        StreamError: the stream has no clusters.
    """
    memory = stream.memory
    if not isinstance(memory, Mosaic):
        raise StreamError(f"a stream with the method {stream.method!r} has no clusters: use mosaic")
    return FrameClusters(dict(memory.visual.home), tuple(dict(layer.home) for layer in memory.layers))


@contextmanager
def attention_through(wrap: Callable[[Attention], Attention]) -> Iterator[None]:
    """Have attention layers call another function, made from their own, in this block."""
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = wrap(stock)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = stock


@contextmanager
def watched(engine: Engine, stream: Stream) -> Iterator[AnswerTimes]:
    """Take the times of what a stream is asked in this block."""
    times, memory = AnswerTimes(), stream.memory

    def timing(stock: Attention, name: str) -> Attention:
        def run(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            found = stock(*args, **named)
            setattr(times, name, getattr(times, name) + time.perf_counter() - began)
            return found

        return run

    def enter(module: nn.Module, args: Any) -> None:
        times._began = time.perf_counter()

    def leave(module: nn.Module, args: Any, output: Tensor) -> None:
        times.layers += time.perf_counter() - times._began

    with ExitStack() as stack:
        for layer in engine.adapter.layers:
            attention = layer.get_submodule("self_attn")
            stack.callback(attention.register_forward_pre_hook(enter).remove)
            stack.callback(attention.register_forward_hook(leave).remove)
        stack.enter_context(attention_through(lambda stock: timing(stock, "attending")))
        memory.read = timing(memory.read, "reading")  # type: ignore[method-assign]
        stack.callback(lambda: memory.__dict__.pop("read"))
        yield times


def all_seen(stack: ExitStack, engine: Engine, options: SystemsOptions, frames: int) -> Stream:
    """Return a stream under full attention whose rows lie in the order of their frames: none leaves its window."""
    settings = settings_for("full", options.settings, window=frames, sinks=0)
    return stack.enter_context(engine.stream("full", settings))


def attention_on_frames(stream: Stream, text: str) -> Tensor:
    """Ask a stream of `all_seen`; return the attention that the rows after the frames give to these.

    Returns:
        [layers, heads, rows, frames, rows of a frame] float32; what falls on other rows is not in it.
    """
    begin, tokens = len(stream.turn.opening), int(stream.log.offsets.shape[1])
    stop = begin + stream.frames * tokens
    layers: dict[int, list[Tensor]] = {}

    def noting(stock: Attention) -> Attention:
        def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **extra: Any) -> Any:
            scaling = extra.get("scaling")
            scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
            keys = key[0].float().repeat_interleave(query.shape[1] // key.shape[1], dim=0)
            weights = torch.softmax(query[0].float() @ keys.transpose(1, 2) * scale + mask[0].float(), dim=-1)
            layers.setdefault(int(module.layer_idx), []).append(weights[:, :, begin:stop].cpu())
            return stock(module, query, key, value, mask, **extra)

        return attend

    with attention_through(noting), torch.inference_mode():
        stream.prefill(text)
    found = torch.stack([torch.cat(layers[layer], dim=1) for layer in sorted(layers)])
    return found.unflatten(3, (stream.frames, tokens))


def question_attention(stream: Stream, text: str) -> Tensor:
    """Return [layers, frames]: attention of the question's own rows to each frame, mean over heads and rows."""
    # What retrieval goes by: the question itself, without what the template puts around it.
    own = stream.turn.question(text).asking
    return attention_on_frames(stream, text)[:, :, own.start : own.stop].sum(4).mean((1, 2))


def frames_for(weights: Tensor, share: float) -> Tensor:
    """Return how many of the largest of [..., n] weights hold a share of their sum: [...] int64."""
    ordered = weights.double().sort(dim=-1, descending=True).values
    wanted = share * ordered.sum(-1, keepdim=True)
    return (ordered.cumsum(-1) < wanted - 1e-12).sum(-1).clamp_max(weights.shape[-1] - 1) + 1


def things(film: GeneratedStream, at: int, most: int) -> list[str]:
    """Return names of things that came into view once in the first `at` frames, spread over these."""
    views = [(own[0][1].begin, icon) for icon, own in seen(film, at).views.items() if len(own) == 1]
    ordered = [ICON_NAMES[icon] for _, icon in sorted(views)]
    count = min(most, len(ordered))
    return [ordered[round(place * (len(ordered) - 1) / max(1, count - 1))] for place in range(count)]


def wordings(thing: str) -> tuple[str, str]:
    """Return two questions about one thing."""
    return WHERE.format(thing), UNDER.format(thing)


def likeness(first: Sequence[float] | Tensor, second: Sequence[float] | Tensor) -> float:
    """Return the weighted Jaccard of two lists of shares: what both have over what either has."""
    pair = torch.stack((torch.as_tensor(first), torch.as_tensor(second))).double()
    either = float(pair.amax(0).sum())
    return float(pair.amin(0).sum()) / either if either else 0.0
