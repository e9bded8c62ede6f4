"""Layers of linear attention (Gated DeltaNet), run by their own forward over all rows of a prompt.

Such a layer keeps a state and no rows. What its projections give for a token does not depend on the token's place, so
these are stored as the token's row, and the state is made again from rows: stored ones, and those that are computed.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.models.attention import AttendedRows, ScannedRows
from emblema.models.tables import KVTable, ScanStart

LINEAR = "linear_attention"
"""How configurations call such a layer."""
_PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
_PARTS = (*_PROJECTIONS, "out_proj", "conv1d", "key_dim", "value_dim", "num_v_heads", "conv_kernel_size")


def find_state_mixer(layer: nn.Module) -> Any:
    """Return a layer's module of linear attention, with the projections of Qwen3.5's; None where it has no such one."""
    for module in layer.modules():
        if all(hasattr(module, name) for name in _PARTS):
            return module
    return None


def linear_layout(mixer: Any) -> LayerLayout:
    """Return how rows of such a module are kept: queries and keys before the convolution; values and gates."""
    gates = 2 * int(mixer.num_v_heads)
    width = int(mixer.value_dim) + gates
    return LayerLayout((1, 2 * int(mixer.key_dim)), (1, width), None, taps=int(mixer.conv_kernel_size), gates=gates)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A module's call under way: what its projections give [1, scanned, width], and where the computed rows are."""

    given: dict[nn.Module, Tensor]
    places: Tensor


def last_inputs(table: KVTable, layer: int, slots: Tensor, count: int | None = None) -> Tensor:
    """Return the last inputs of a convolution [1, channels, count], of rows in order; zeros where there are fewer.

    Args:
        table: has the rows, of a layer of linear attention.
        layer: of the decoder.
        slots: [rows] int64, in the order of the prompt.
        count: how many; by default all that the convolution reads of rows before.
    """
    layout = table.layouts[layer]
    count = (layout.taps or 1) - 1 if count is None else count
    rows = table.read(layer).select(slots[max(0, len(slots) - count) :])
    inputs = torch.cat((rows.keys, rows.values[..., : -layout.gates]), dim=-1).transpose(1, 2)
    return torch.nn.functional.pad(inputs, (count - inputs.shape[-1], 0))


def _all_rows(table: KVTable, device: torch.device) -> ScannedRows:
    """Return all rows of a table as rows to scan, none of them computed."""
    ordered, slots = table.order(device)[0][: table.length].sort()
    return ScannedRows(slots, slots[:0], slots[:0], 0, int(ordered[-1]) + 1)


class StateScan:
    """Has modules of linear attention run over every row up to the last one of a batch, in one forward.

    A module is handed the computed rows. Its projections run on these alone; their results are written to the table,
    and the rest of the module's own forward gets the rows of the table, in the order of the prompt.

    Args:
        table: the forward's. Modules that are called with another table meanwhile are left alone.
        mixers: the modules by layer.

    Attributes:
        seen: the batch's rows, before each layer; None where there are none, and a module runs over all of the table.
    """

    def __init__(self, table: KVTable, mixers: Mapping[int, Any]) -> None:
        self._table, self._mixers = table, mixers
        self.seen: AttendedRows | None = None
        self._thread = threading.get_ident()
        self._scan: _Scan | None = None

    def register(self) -> list[RemovableHandle]:
        """Register hooks at the modules, to be removed after the forward."""
        hooks = []
        for index, mixer in self._mixers.items():
            hooks.append(mixer.register_forward_pre_hook(partial(self._begin, index), with_kwargs=True))
            for name in _PROJECTIONS:
                projection = getattr(mixer, name)
                hooks.append(projection.register_forward_pre_hook(self._spare))
                hooks.append(projection.register_forward_hook(self._hand_over))
            hooks.append(mixer.out_proj.register_forward_pre_hook(self._choose))
            hooks.append(mixer.register_forward_hook(self._end, with_kwargs=True, always_call=True))
        return hooks

    def make_states(self) -> None:
        """Run the modules over all rows of the table where the state after these is not known."""
        last = int(self._table.rows[: self._table.length].max())
        hooks = self.register()
        try:
            for index, mixer in self._mixers.items():
                known = self._table.states.get(index)
                if known is None or known.until <= last:
                    weight = mixer.in_proj_qkv.weight
                    nothing = torch.zeros(1, 0, mixer.hidden_size, dtype=self._table.dtype, device=weight.device)
                    mixer(hidden_states=nothing, cache=self._table)
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def _under_way(self) -> _Scan | None:
        return self._scan if threading.get_ident() == self._thread else None

    def _begin(self, index: int, mixer: Any, args: Any, named: dict[str, Any]) -> Any:
        if not any(value is self._table for value in named.values()):
            return None
        hidden = named["hidden_states"]
        # Past the hooks, which are for the module's own calls.
        qkv, z, b, a = (getattr(mixer, name).forward(hidden) for name in _PROJECTIONS)
        layout, table = self._table.layouts[index], self._table
        width, known = layout.keys[1], table.states.get(index)
        if self.seen is None:
            rows = _all_rows(table, hidden.device)
        else:
            table.put(index, self.seen.slots, LayerRows(qkv[..., :width], torch.cat((qkv[..., width:], b, a), dim=-1)))
            rows = self.seen.scanned(0 if known is None else known.until)
        stored = table.read(index).select(rows.slots)
        values, b, a = stored.values.split((layout.values[1] - layout.gates, b.shape[-1], a.shape[-1]), dim=-1)
        gate = z.new_zeros(1, len(rows.slots), z.shape[-1])
        gate[:, rows.places] = z
        given = (torch.cat((stored.keys, values), dim=-1), gate, b, a)
        self._scan = _Scan(dict(zip((getattr(mixer, name) for name in _PROJECTIONS), given, strict=True)), rows.places)
        if known is None or rows.start == 0:
            table.scan = ScanStart(None, None, rows.until)
        else:
            table.scan = ScanStart(known.state, last_inputs(table, index, rows.before), rows.until)
        return args, {**named, "hidden_states": hidden.new_zeros(1, 1, 1).expand(1, len(rows.slots), hidden.shape[-1])}

    def _spare(self, projection: nn.Module, args: Any) -> Any:
        return None if self._under_way is None else (args[0][:, :1], *args[1:])

    def _hand_over(self, projection: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        scan = self._under_way
        return None if scan is None else scan.given[projection]

    def _choose(self, projection: nn.Module, args: Any) -> Any:
        scan = self._under_way
        return None if scan is None else (args[0][:, scan.places], *args[1:])

    def _end(self, mixer: Any, args: Any, named: dict[str, Any], output: Any) -> None:
        if any(value is self._table for value in named.values()):
            self._scan = self._table.scan = None
