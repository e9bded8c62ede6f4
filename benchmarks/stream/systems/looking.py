"""What full attention looks at when a stream is asked: its weights, row by row of every frame."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from benchmarks.stream.systems.inside import Attention, attention_through, opening_of, question_of
from benchmarks.stream.systems.running import settings_for
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.tasks.streams import GeneratedStream, seen
from benchmarks.tasks.streams.questions import UNDER, WHERE
from benchmarks.tasks.tiles import ICON_NAMES
from emblema.engine.engine import Engine
from emblema.stream.stream import Stream


def all_seen(stack: ExitStack, engine: Engine, wanted: SystemsWanted, frames: int) -> Stream:
    """A stream under full attention whose rows lie in the order of their frames: none leaves its window."""
    settings = settings_for("full", wanted.settings, window=frames, sinks=0)
    return stack.enter_context(engine.stream("full", settings))


def attention_on_frames(stream: Stream, text: str) -> Tensor:
    """Ask a stream of `all_seen`; the attention that the rows behind the frames give to these.

    Returns:
        [layers, heads, rows, frames, rows of a frame] float32; what falls on other rows is not in it.
    """
    begin, tokens = opening_of(stream), int(stream.log.offsets.shape[1])
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


def looks_of(stream: Stream, text: str) -> Tensor:
    """[layers, frames]: attention of the question's own rows to each frame, mean over heads and rows."""
    own = question_of(stream, text)
    return attention_on_frames(stream, text)[:, :, own.start : own.stop].sum(4).mean((1, 2))


def frames_for(weights: Tensor, share: float) -> Tensor:
    """How many of the largest of [..., n] weights hold a share of their sum: [...] int64."""
    ordered = weights.double().sort(dim=-1, descending=True).values
    wanted = share * ordered.sum(-1, keepdim=True)
    return (ordered.cumsum(-1) < wanted - 1e-12).sum(-1).clamp_max(weights.shape[-1] - 1) + 1


def things(film: GeneratedStream, at: int, most: int) -> list[str]:
    """Names of things that came into view once in the first `at` frames, spread over these."""
    views = [(own[0][1].begin, icon) for icon, own in seen(film, at).views.items() if len(own) == 1]
    ordered = [ICON_NAMES[icon] for _, icon in sorted(views)]
    count = min(most, len(ordered))
    return [ordered[round(place * (len(ordered) - 1) / max(1, count - 1))] for place in range(count)]


def wordings(thing: str) -> tuple[str, str]:
    """Two questions about one thing."""
    return WHERE.format(thing), UNDER.format(thing)


def likeness(one: Sequence[float] | Tensor, other: Sequence[float] | Tensor) -> float:
    """Weighted Jaccard of two lists of shares: what both have over what either has; of sets, their overlap."""
    pair = torch.stack((torch.as_tensor(one), torch.as_tensor(other))).double()
    either = float(pair.amax(0).sum())
    return float(pair.amin(0).sum()) / either if either else 0.0
