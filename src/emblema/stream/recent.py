"""The recent window: the turn's opening, the first frames, the latest ones, and the block under way."""

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.models.tables import KVTable
from emblema.stream.method import EvictedFrames, StreamContext, StreamRows
from emblema.stream.state import StreamState


class RecentWindow:
    """Rows on the device, as first written; those of complete blocks as tensors, those of the last block in a table.

    The turn's opening is prefilled as it is made.

    Attributes:
        done: frames of complete blocks.
        frames: [rows] int64, the frame of each row before the block under way; -1 for the opening.
        written: [axes, rows] int64, positions at which these were written.
        table: rows of the block under way.
    """

    def __init__(self, context: StreamContext) -> None:
        adapter, opening = context.adapter, context.opening
        self.adapter, self.settings = adapter, context.settings
        self.positions, self.phases = context.positions, context.phases
        self.done = 0
        # Frames of the block under way that were forgotten.
        self._gone: set[int] = set()
        self.frames = torch.full((len(opening),), -1, dtype=torch.int64, device=adapter.device)
        self.written = torch.arange(len(opening), device=adapter.device).expand(adapter.axes, -1)
        self._layers = list(adapter.prefill(adapter.encode_text(torch.tensor(opening, dtype=torch.int64)))[0])
        self.table = self._new_table()

    def _new_table(self) -> KVTable:
        return self.adapter.table(self.settings.block * self.positions.tokens)

    @property
    def count(self) -> int:
        """Frames of the stream so far."""
        return self.done + self.table.length // self.positions.tokens + len(self._gone)

    @property
    def block(self) -> list[int]:
        """The frames of the block under way."""
        return [frame for frame in range(self.done, self.count) if frame not in self._gone]

    @property
    def room(self) -> int:
        """Frames that the block under way still takes."""
        return self.settings.block - (self.count - self.done)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self._layers) + self.table.bytes

    def kv(self, layer: int, block: bool = True) -> LayerRows:
        """Return a layer's rows, [heads, rows, width] each; with `block` those of the block under way too."""
        rows = self._layers[layer]
        if not block or not self.table.length:
            return rows
        new = self.table.read(layer)
        return LayerRows(torch.cat((rows.keys, new.keys), dim=1), torch.cat((rows.values, new.values), dim=1))

    def rows(self, layer: int, block: bool = True) -> StreamRows:
        """Return a layer's rows with their frames and positions, as `kv`."""
        frames, written = self.frames, self.written
        if block:
            new = torch.tensor(self.block, dtype=torch.int64, device=self.adapter.device)
            written = torch.cat((written, self.positions.written(new)), dim=1)
            frames = torch.cat((frames, new.repeat_interleave(self.positions.tokens)))
        return StreamRows(self.kv(layer, block), written, frames)

    def end_block(self) -> EvictedFrames | None:
        """Move the complete block into the window; return the frames that leave it, if there are any."""
        window = self.rows(0)
        self._layers = [window.kv, *(self.kv(layer) for layer in range(1, len(self._layers)))]
        self.written, self.frames = window.positions, window.frames
        oldest = max(self.settings.sinks, self.done - self.settings.window)
        self.done, self.table, self._gone = self.count, self._new_table(), set()
        leaving = range(oldest, max(oldest, self.done - self.settings.window))
        if not leaving:
            return None
        gone = (self.frames >= leaving.start) & (self.frames < leaving.stop)
        out, stay = gone.nonzero().squeeze(1), (~gone).nonzero().squeeze(1)
        positions = self.positions.written(torch.arange(leaving.start, leaving.stop, device=self.adapter.device))
        evicted = EvictedFrames(leaving, tuple(self._dense(layer, out, leaving) for layer in self._layers), positions)
        self.frames, self.written = self.frames[stay], self.written[:, stay]
        self._layers = [layer.select(stay) for layer in self._layers]
        return evicted

    def _dense(self, rows: LayerRows, out: Tensor, leaving: range) -> LayerRows:
        """Return the rows of frames that leave, some of them `out` of a layer's; zeros for those forgotten."""
        tokens = self.positions.tokens
        if len(out) == len(leaving) * tokens:
            return rows.select(out)
        places = (self.frames[out] - leaving.start) * tokens + torch.arange(len(out), device=out.device) % tokens
        parts = []
        for part in (rows.keys, rows.values):
            dense = part.new_zeros(part.shape[0], len(leaving) * tokens, part.shape[2])
            dense[:, places] = part[:, out]
            parts.append(dense)
        return LayerRows(*parts)

    def forget(self, frames: range) -> None:
        """Forget the rows of frames."""
        new = torch.tensor(self.block, dtype=torch.int64).repeat_interleave(self.positions.tokens)
        stay = ((new < frames.start) | (new >= frames.stop)).nonzero().squeeze(1)
        if len(stay) < len(new):
            self._gone |= {frame for frame in self.block if frame in frames}
            former, self.table = self.table, self._new_table()
            self.table.allocate(former.rows[stay], former.groups[stay])
            for layer in range(len(self._layers)):
                self.table.write(layer, slice(0, len(stay)), former.read(layer).select(stay))
        own = ((self.frames < frames.start) | (self.frames >= frames.stop)).nonzero().squeeze(1)
        self.frames, self.written = self.frames[own], self.written[:, own]
        self._layers = [layer.select(own) for layer in self._layers]

    def state(self) -> StreamState:
        """Return the state for a file."""
        facts = {"done": self.done, "gone": sorted(self._gone)}
        state = StreamState({"frames": self.frames, "positions": self.written}, facts)
        for index, rows in enumerate(self._layers):
            new = self.table.read(index)
            parts = {"keys": rows.keys, "values": rows.values, "new_keys": new.keys, "new_values": new.values}
            state.put(str(index), StreamState(parts))
        return state

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state."""
        device = self.adapter.device
        self.done, self._gone = state.facts["done"], set(state.facts["gone"])
        self.frames, self.written = (state.tensors[name].to(device) for name in ("frames", "positions"))
        self.table = self._new_table()
        for index in range(len(self._layers)):
            parts = {name: tensor.to(device) for name, tensor in state.part(str(index)).tensors.items()}
            self._layers[index] = LayerRows(parts["keys"], parts["values"])
            new = LayerRows(parts["new_keys"], parts["new_values"])
            if index == 0:
                self.table.allocate(torch.arange(new.tokens, device=device))
            self.table.write(index, slice(0, new.tokens), new)
