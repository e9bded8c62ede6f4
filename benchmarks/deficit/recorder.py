"""What a forward shows on its way: the attention of some rows, and the residual stream before every layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.models.adapter import Adapter
from emblema.models.attention_switch import attending_by


class Recording:
    """Attention and residual streams of the rows `start` to `stop` of one forward, counted in the order they run.

    Attributes:
        attention: per layer, [rows, slots] weights summed over heads, float32; layers without any are missing.
        streams: per layer, [rows, hidden] that entered it.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.attention: dict[int, Tensor] = {}
        self.streams: dict[int, Tensor] = {}
        self._seen: dict[tuple[str, int], int] = {}

    def attended(self, layer: int, weights: Tensor) -> None:
        """Take in weights [heads, rows, slots] of one block of rows."""
        own = self._own("attention", layer, weights.sum(dim=0))
        before = self.attention.get(layer)
        if before is not None and before.shape[1] < own.shape[1]:
            before = torch.nn.functional.pad(before, (0, own.shape[1] - before.shape[1]))
        self.attention[layer] = own if before is None else torch.cat((before, own))

    def entered(self, layer: int, stream: Tensor) -> None:
        """Take in the residual stream [rows, hidden] of one block of rows."""
        own = self._own("stream", layer, stream)
        before = self.streams.get(layer)
        self.streams[layer] = own.clone() if before is None else torch.cat((before, own))

    def _own(self, what: str, layer: int, rows: Tensor) -> Tensor:
        seen = self._seen.get((what, layer), 0)
        self._seen[what, layer] = seen + rows.shape[0]
        return rows[max(0, self.start - seen) : max(0, self.stop - seen)]


@contextmanager
def recorded(adapter: Adapter, start: int, stop: int) -> Iterator[Recording]:
    """Record every forward in the block; the decoder's own functions compute it as before.

    The model must not run in another thread meanwhile. A model whose attention does not go through transformers'
    interface leaves no attention.
    """
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    found = Recording(start, stop)

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        scaling = extra.get("scaling")
        scores = query.float() @ key.float().repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(2, 3)
        scores = scores * (query.shape[-1] ** -0.5 if scaling is None else float(scaling))
        weights = torch.softmax(scores if mask is None else scores + mask.float(), dim=-1)
        found.attended(int(module.layer_idx), weights[0])
        return stock(module, query, key, value, mask, **extra)

    def enter(layer: int) -> Any:
        def note(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            found.entered(layer, (given[0] if given else named["hidden_states"])[0])

        return note

    handles = [
        layer.register_forward_pre_hook(enter(index), with_kwargs=True) for index, layer in enumerate(adapter.layers)
    ]
    try:
        with attending_by(adapter.config, attend):
            yield found
    finally:
        for handle in handles:
            handle.remove()
