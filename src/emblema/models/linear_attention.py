"""Layers of linear attention (Gated DeltaNet), run by their own forward over all rows of a prompt.

Such a layer keeps a state and no rows. What its projections give for a token does not depend on the token's place, so
these are stored as the token's row, and the state is made again from rows: stored ones, and those that are computed.
What a run of rows does to a state is a linear map and a state of its own, which stand for long runs in their place.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout, LayerRows, StateMap, StateShape
from emblema.models.attention import AttendedRows, ScannedRows
from emblema.models.tables import KVTable, LayerState, ScanStart

LINEAR = "linear_attention"
"""How configurations call such a layer."""
_PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
_SIZES = ("key_dim", "value_dim", "num_v_heads", "head_k_dim", "head_v_dim", "conv_kernel_size")
_PARTS = (*_PROJECTIONS, *_SIZES, "out_proj", "conv1d")


def find_state_mixer(layer: nn.Module) -> Any:
    """Return a layer's module of linear attention, with the projections of Qwen3.5's; None where it has no such one."""
    for module in layer.modules():
        if all(hasattr(module, name) for name in _PARTS):
            return module
    return None


def linear_layout(mixer: Any, dtype: torch.dtype) -> LayerLayout:
    """Return how rows of such a module are kept: queries and keys before the convolution; values and gates.

    A chunk is kept as a map of the state where that takes fewer bytes than its rows. Beside what a model loses that
    computes in 16 bits, a map in eight bits a number loses little.
    """
    state = StateShape(int(mixer.num_v_heads), int(mixer.head_k_dim), int(mixer.head_v_dim))
    keys, values = (1, 2 * int(mixer.key_dim)), (1, int(mixer.value_dim) + 2 * state.heads)
    layout = LayerLayout(keys, values, None, taps=int(mixer.conv_kernel_size), state=state, compact=dtype.itemsize == 2)
    return replace(layout, mapped_from=layout.map_numbers // layout.features + 1)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A module's call under way: what its projections give [sequences, scanned, width], and places of wanted rows."""

    given: dict[nn.Module, Tensor]
    places: Tensor


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of the rows of a scan that the module is called for, and what follows it.

    Attributes:
        slots: [run] int64 of the table, and `before`: those of all rows before the run that are there.
        own: [wanted] int64, rows of the batch that are among them, and `places`: where.
        until: the state that the run ends with is of all rows before this one; 0 where it is not.
        map: what follows; None where other rows do.
        aside: whether the run's rows are those that the map stands for: the state goes on as if they were not there.
        after: the state after the map is of all rows before this one; 0 where it is not.
    """

    slots: Tensor
    before: Tensor
    own: Tensor
    places: Tensor
    until: int
    map: StateMap | None = None
    aside: bool = False
    after: int = 0


def last_inputs(table: KVTable, layer: int, slots: Tensor, count: int | None = None) -> Tensor:
    """Return the last inputs of a convolution [1, channels, count], of rows in order; zeros where there are fewer.

    Args:
        table: has the rows, of a layer of linear attention.
        layer: of the decoder.
        slots: [rows] int64, in the order of the prompt.
        count: how many; by default all that the convolution reads of rows before.
    """
    layout = table.layouts[layer]
    count = layout.edge if count is None else count
    rows = table.slots_of(layer).select(slots[max(0, len(slots) - count) :])
    inputs = torch.cat((rows.keys, rows.values[..., : -layout.gates]), dim=-1).transpose(1, 2)
    return torch.nn.functional.pad(inputs, (count - inputs.shape[-1], 0))


def _all_rows(table: KVTable, device: torch.device) -> ScannedRows:
    """Return all rows of a table as rows to scan, none of them computed."""
    ordered, slots = table.order(device)[0][: table.length].sort()
    return ScannedRows(slots, slots[:0], slots[:0], 0, int(ordered[-1]) + 1)


def _pieces(rows: ScannedRows, order: Tensor, maps: Sequence[StateMap]) -> list[_Piece]:
    """Return the runs that a scan falls into where maps stand for some of its rows.

    Rows of the batch that are among those which a map stands for are the first of these, and run aside.

    Args:
        rows: the scan's.
        order: [slots] int64, the row of the prompt in each slot of the table.
        maps: of the layer, of slots.
    """
    found: list[_Piece] = []

    def add(first: int, last: int, until: int, **more: Any) -> None:
        own = ((rows.places >= first) & (rows.places < last)).nonzero()[:, 0]
        before = torch.cat((rows.before, rows.slots[:first]))
        found.append(_Piece(rows.slots[first:last], before, own, rows.places[own] - first, until, **more))

    scanned, start = order[rows.slots], 0
    for each in sorted(maps, key=lambda own: int(order[own.start])):
        row = int(order[each.start])
        first = int(torch.searchsorted(scanned, row))
        if first == len(scanned) or int(rows.slots[first]) != each.start:
            continue
        last = first + each.stop - each.start
        edge, after = (row, row + each.stop - each.start) if rows.until else (0, 0)
        inside = rows.places[(rows.places >= first) & (rows.places < last)]
        if len(inside) == 0:
            add(start, first, edge, map=each, after=after)
        else:
            add(start, first, edge)
            ends = last >= len(scanned)
            add(first, int(inside.max()) + 1, edge, map=None if ends else each, aside=True, after=after)
        start = last
    if start < len(scanned):
        add(start, len(scanned), rows.until)
    return found


class StateScan:
    """Has modules of linear attention run over every row up to the last one of a batch, in one forward.

    A module is handed the computed rows. Its projections run on these alone; their results are written to the table,
    and the rest of the module's own forward gets the rows of the table, in the order of the prompt. Where maps stand
    for some of these rows, it is called for each run of rows between them.

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
        # Whether the module's call under way is one of the runs' before the last.
        self._within = False
        # Of the module's call under way: rows of the batch that were run before the last run, and what came of them.
        self._earlier: list[tuple[Tensor, Tensor]] = []
        self._last: _Piece | None = None
        # Runs of a scan, with the scan and the edges of the maps that it was cut by.
        self._runs: tuple[ScannedRows, list[tuple[int, int]], list[_Piece]] | None = None

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
        table, last = self._table, int(self._table.rows[: self._table.length].max())
        hooks = self.register()
        try:
            for index, mixer in self._mixers.items():
                known = table.states.get(index)
                if known is None or known.until <= last:
                    table.states.pop(index, None)
                    device = table.devices[index]
                    z = torch.zeros(1, 0, int(mixer.value_dim), dtype=table.dtype, device=device)
                    for piece in self._runs_of(index, _all_rows(table, device)):
                        self._run(index, piece, z, (), {"cache": table})
        finally:
            for hook in hooks:
                hook.remove()

    def make_map(self, index: int, first: int, stop: int) -> StateMap:
        """Return the map of a layer's slots `first` to `stop`, whose convolution reads the slots before them.

        The module itself is run, from a state of zeros and from those of a basis: it is affine in its state.
        """
        dtype, device = self._table.dtype, self._table.devices[index]
        ends = self.run_from(index, first, stop, _basis(self._table.layouts[index], device))
        decay = (ends[1:] - ends[:1]).permute(1, 2, 0, 3).flatten(2)[..., : ends.shape[2]]
        # A head that leaves less of a state than rounding does has forgotten it.
        kept = (decay.norm(dim=(1, 2)) > torch.finfo(dtype).eps).nonzero()[:, 0]
        return StateMap(first, stop, ends[0].to(dtype), decay[kept].to(dtype), kept)

    def run_from(self, index: int, first: int, stop: int, starts: Tensor) -> Tensor:
        """Return the states that a layer's slots `first` to `stop` end with, by those that they begin with.

        Args:
            index: of a layer of linear attention.
            first, stop: slots in the order of the prompt; the convolution reads the slots before them.
            starts: [states, heads, key width, value width] float32.
        """
        table, layout = self._table, self._table.layouts[index]
        slots = torch.arange(first - layout.edge, stop, device=table.devices[index])
        inputs = last_inputs(table, index, slots[: layout.edge]).expand(len(starts), -1, -1)
        nothing = torch.zeros(1, 0, int(self._mixers[index].value_dim), dtype=table.dtype, device=starts.device)
        piece = _Piece(slots[layout.edge :], slots[:0], slots[:0], slots[:0], 0)
        given = [part.expand(len(starts), -1, -1) for part in self._given(index, piece, nothing)]
        known, hooks = table.states.pop(index, None), self.register()
        try:
            self._call(index, given, piece.places, ScanStart(starts, inputs, 0), (), {"cache": table})
        finally:
            for hook in hooks:
                hook.remove()
        ends = table.states.pop(index).state
        if known is not None:
            table.states[index] = known
        return ends

    @property
    def _under_way(self) -> _Scan | None:
        return self._scan if threading.get_ident() == self._thread else None

    def _begin(self, index: int, mixer: Any, args: Any, named: dict[str, Any]) -> Any:
        if self._within or self.seen is None or not any(value is self._table for value in named.values()):
            return None
        hidden = named["hidden_states"]
        # Past the hooks, which are for the module's own calls.
        qkv, z, b, a = (getattr(mixer, name).forward(hidden) for name in _PROJECTIONS)
        table, width = self._table, self._table.layouts[index].keys[1]
        known = table.states.get(index)
        table.put(index, self.seen.slots, LayerRows(qkv[..., :width], torch.cat((qkv[..., width:], b, a), dim=-1)))
        rows = self.seen.scanned(0 if known is None else known.until)
        if rows.start == 0:
            table.states.pop(index, None)
        runs = self._runs_of(index, rows)
        self._earlier = [(piece.own, self._run(index, piece, z, args, named)) for piece in runs[:-1]]
        self._last = runs[-1]
        self._scan = self._made(index, self._given(index, self._last, z), self._last.places)
        table.scan = self._start(index, self._last)
        stand_in = hidden.new_zeros(1, 1, 1).expand(1, len(self._last.slots), mixer.hidden_size)
        return args, {**named, "hidden_states": stand_in}

    def _runs_of(self, index: int, rows: ScannedRows) -> list[_Piece]:
        """Return the runs of a scan in a layer; layers whose maps stand for the same slots have the same."""
        maps = self._table.maps.get(index, ())
        edges = [(each.start, each.stop) for each in maps]
        if self._runs is None or self._runs[0] is not rows or self._runs[1] != edges:
            self._runs = rows, edges, _pieces(rows, self._table.order(rows.slots.device)[0], maps)
            return self._runs[2]
        by_start = {each.start: each for each in maps}
        return [
            piece if piece.map is None else replace(piece, map=by_start[piece.map.start]) for piece in self._runs[2]
        ]

    def _run(self, index: int, piece: _Piece, z: Tensor, args: Any, named: dict[str, Any]) -> Tensor:
        """Run a layer's module over a run of rows, and put the map after it on the state; return the wanted rows'."""
        table, output = self._table, z.new_zeros(1, 0, self._mixers[index].hidden_size)
        if len(piece.slots):
            given, start = self._given(index, piece, z), self._start(index, piece)
            output = self._call(index, given, piece.places, start, args, named)
        if piece.map is not None:
            state = table.states[index].state
            table.states[index] = LayerState(piece.map.apply(state), piece.after)
        return output

    def _call(
        self, index: int, given: Sequence[Tensor], places: Tensor, start: ScanStart, args: Any, named: dict[str, Any]
    ) -> Tensor:
        """Call a layer's module with what its projections give [sequences, rows, width]; return the wanted rows'."""
        mixer = self._mixers[index]
        self._scan, self._table.scan, self._within = self._made(index, given, places), start, True
        hidden = given[0].new_zeros(1, 1, 1).expand(*given[0].shape[:2], mixer.hidden_size)
        try:
            output: Tensor = mixer(*args, **{**named, "hidden_states": hidden})
        finally:
            self._scan, self._table.scan, self._within = None, None, False
        return output

    def _made(self, index: int, given: Sequence[Tensor], places: Tensor) -> _Scan:
        projections = (getattr(self._mixers[index], name) for name in _PROJECTIONS)
        return _Scan(dict(zip(projections, given, strict=True)), places)

    def _given(self, index: int, piece: _Piece, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what a layer's projections give for a run [1, rows, width], with the batch's own gates `z`."""
        layout = self._table.layouts[index]
        stored, half = self._table.slots_of(index).select(piece.slots), layout.gates // 2
        values, b, a = stored.values.split((layout.values[1] - layout.gates, half, half), dim=-1)
        gate = z.new_zeros(1, len(piece.slots), z.shape[-1])
        gate[:, piece.places] = z[:, piece.own]
        return torch.cat((stored.keys, values), dim=-1), gate, b, a

    def _start(self, index: int, piece: _Piece) -> ScanStart:
        known, until = self._table.states.get(index), None if piece.aside else piece.until
        if known is None:
            return ScanStart(None, None, until)
        return ScanStart(known.state, last_inputs(self._table, index, piece.before), until)

    def _spare(self, projection: nn.Module, args: Any) -> Any:
        return None if self._under_way is None else (args[0][:, :1], *args[1:])

    def _hand_over(self, projection: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        scan = self._under_way
        return None if scan is None else scan.given[projection]

    def _choose(self, projection: nn.Module, args: Any) -> Any:
        scan = self._under_way
        return None if scan is None else (args[0][:, scan.places], *args[1:])

    def _end(self, mixer: Any, args: Any, named: dict[str, Any], output: Any) -> Tensor | None:
        if self._within or not any(value is self._table for value in named.values()):
            return None
        earlier, last = self._earlier, self._last
        self._scan = self._table.scan = self._last = None
        self._earlier = []
        if not earlier or last is None or output is None:
            return None
        whole: Tensor = output.new_empty(1, len(last.own) + sum(len(own) for own, _ in earlier), output.shape[-1])
        for own, part in (*earlier, (last.own, output)):
            whole[:, own] = part
        return whole


def _basis(layout: LayerLayout, device: torch.device) -> Tensor:
    """Return states [sequences, heads, key width, value width] float32: zeros, then the identity's columns."""
    if layout.state is None:
        raise ModelError("A layer without a state has no map.")
    width, columns = layout.state.key_width, layout.state.value_width
    identity = torch.nn.functional.pad(torch.eye(width, device=device), (0, -width % columns))
    states = torch.cat((torch.zeros(1, width, columns, device=device), torch.stack(identity.split(columns, dim=1))))
    return states[:, None].expand(-1, layout.state.heads, -1, -1).contiguous()
