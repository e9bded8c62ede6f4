"""What a decoder's layers are given in one forward: the rows that still run, on each layer's device."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from emblema.models.attention import AttendedRows, attend_step
from emblema.models.linear_attention import StateScan
from emblema.models.tables import DecoderCache, KVTable

Narrow = Callable[[int], Tensor | None]
"""Called after each layer: indices of the rows, of those that ran in it, that later layers still compute; None: all."""


_OF_ROWS = ("position_ids", "moe_mm_token_type_ids")
"""Arguments of layers whose last axis is rows; the others have features after them."""


class LayerFeed:
    """Chooses what each layer is given, while the decoder's own forward gives all layers the same rows on one device.

    Rows that have left keep the hidden states that they left with; layers never see them. What goes to another device
    is copied there once.

    Args:
        table: the forward's. Layers that are called with another table meanwhile are left alone.
        devices: of each layer.
        seen: what the rows attend; None for a step of decoding, whose table knows it.
        narrow: says which rows leave; None keeps all.
        convolutions: layers whose rows are sequences of one row to them: the table says what each of these reads.
        mixers: modules of linear attention by layer, which run over all rows before.
        before_layer: called before each layer with the number of its rows.

    Attributes:
        rows: those that still run, of the rows that began; None while all do.
    """

    def __init__(
        self,
        table: DecoderCache,
        devices: Sequence[torch.device],
        seen: AttendedRows | None = None,
        narrow: Narrow | None = None,
        before_layer: Callable[[int], None] | None = None,
        convolutions: Collection[int] = (),
        mixers: Mapping[int, nn.Module] | None = None,
    ) -> None:
        self.table, self._devices, self._seen = table, tuple(devices), seen
        self._narrow, self._before_layer = narrow, before_layer
        # In a step of decoding they are sequences of one row already.
        self._convolutions = frozenset(() if seen is None else convolutions)
        self._scan = StateScan(table, mixers) if mixers and isinstance(table, KVTable) else None
        self._whole: Tensor | None = None
        # Copies of what all layers share, with the original, whose identity they are found by.
        self._copies: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}
        self.rows: Tensor | None = None

    @property
    def is_needed(self) -> bool:
        """Whether rows may leave, layers take them apart, or run over others too."""
        return self._narrow is not None or bool(self._convolutions) or self._scan is not None

    def attend(self, *args: Any, **extra: Any) -> tuple[Tensor, None]:
        """Attend for the rows that still run, in transformers' interface."""
        return attend_step(*args, **extra) if self._seen is None else self._seen.attend(*args, **extra)

    @contextmanager
    def feeding(self, layers: Sequence[nn.Module]) -> Iterator[None]:
        """Feed the layers inside the block, in the forward with this table."""
        hooks = [] if self._scan is None else self._scan.register()
        for index, layer in enumerate(layers):
            hooks.append(layer.register_forward_pre_hook(partial(self._before, index), with_kwargs=True))
            if self._narrow is not None or index in self._convolutions:
                hooks.append(layer.register_forward_hook(partial(self._after, index), with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _is_own(self, named: dict[str, Any]) -> bool:
        return any(value is self.table for value in named.values())

    def _before(self, index: int, layer: nn.Module, args: Any, named: dict[str, Any]) -> Any:
        if not self._is_own(named):
            return None
        device = self._devices[index]
        hidden = args[0].to(device)
        if self.rows is not None:
            self._whole = hidden
            hidden = hidden[:, self._on(self.rows, device)]
        if self._before_layer is not None:
            self._before_layer(hidden.shape[1])
        if self._seen is not None and isinstance(self.table, KVTable):
            seen = self._seen.on(device)
            self.table.slots, self.table.rows_before = seen.slots, seen.rows_before
            if self._scan is not None:
                self._scan.seen = seen
        given = {name: self._given(value, -1 if name in _OF_ROWS else -2, device) for name, value in named.items()}
        # What a layer takes by its place beside hidden states belongs to the rows too.
        beside = (self._given(value, -2, device) for value in args[1:])
        return (hidden.transpose(0, 1) if index in self._convolutions else hidden, *beside), given

    def _given(self, value: Any, axis: int, device: torch.device) -> Any:
        """Return an argument with the rows that still run, on an axis of tensors, on a device."""
        if isinstance(value, tuple):
            return tuple(self._given(part, axis, device) for part in value)
        if not isinstance(value, Tensor):
            return value
        key = (id(value), device)
        if key not in self._copies:
            moved = value.to(device)
            rows = None if self.rows is None else self._on(self.rows, device)
            self._copies[key] = value, moved if rows is None else moved.index_select(axis, rows)
        return self._copies[key][1]

    def _on(self, tensor: Tensor, device: torch.device) -> Tensor:
        if (id(tensor), device) not in self._copies:
            self._copies[id(tensor), device] = tensor, tensor.to(device)
        return self._copies[id(tensor), device][1]

    def _after(self, index: int, layer: nn.Module, args: Any, named: dict[str, Any], output: Any) -> Any:
        if not self._is_own(named) or self._seen is None:
            return None
        run = output[0] if isinstance(output, tuple) else output
        if index in self._convolutions:
            run = run.transpose(0, 1)
        if self.rows is not None and self._whole is not None:
            run = self._whole.index_copy(1, self._on(self.rows, run.device), run)
        kept = None if self._narrow is None else self._narrow(index)
        if kept is not None:
            kept = kept.to(self._seen.slots.device)
            self.rows = kept if self.rows is None else self.rows[kept]
            self._seen = self._seen.select(kept)
            self._copies.clear()
        return (run, *output[1:]) if isinstance(output, tuple) else run
