"""The recent window: the turn's opening, the first frames, the latest ones, and the block under way."""

import torch

from emblema.kv.layout import LayerRows
from emblema.models.table import KVTable
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
        self.frames = torch.full((len(opening),), -1, dtype=torch.int64, device=adapter.device)
        self.written = torch.arange(len(opening), device=adapter.device).expand(adapter.axes, -1)
        self._layers = list(adapter.capture(adapter.encode_text(torch.tensor(opening, dtype=torch.int64))))
        self.table = self._new_table()

    def _new_table(self) -> KVTable:
        return self.adapter.table(self.settings.block * self.positions.tokens)

    @property
    def count(self) -> int:
        """Frames of the stream so far."""
        return self.done + self.table.length // self.positions.tokens

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
            new = torch.arange(self.done, self.count, device=self.adapter.device)
            written = torch.cat((written, self.positions.written(new)), dim=1)
            frames = torch.cat((frames, new.repeat_interleave(self.positions.tokens)))
        return StreamRows(self.kv(layer, block), written, frames)

    def end_block(self) -> EvictedFrames | None:
        """Move the complete block into the window; return the frames that leave it, if there are any."""
        window = self.rows(0)
        self._layers = [window.kv, *(self.kv(layer) for layer in range(1, len(self._layers)))]
        self.written, self.frames = window.positions, window.frames
        self.done, self.table = self.count, self._new_table()
        moving = self.frames[self.frames >= self.settings.sinks]
        oldest = int(moving[0]) if moving.shape[0] else self.done
        leaving = range(oldest, max(oldest, self.done - self.settings.window))
        if not leaving:
            return None
        gone = (self.frames >= leaving.start) & (self.frames < leaving.stop)
        out, stay = gone.nonzero().squeeze(1), (~gone).nonzero().squeeze(1)
        evicted = EvictedFrames(leaving, tuple(layer.select(out) for layer in self._layers), self.written[:, out])
        self.frames, self.written = self.frames[stay], self.written[:, stay]
        self._layers = [layer.select(stay) for layer in self._layers]
        return evicted

    def state(self) -> StreamState:
        """Return the state for a file."""
        state = StreamState({"frames": self.frames, "positions": self.written}, {"done": self.done})
        for index, rows in enumerate(self._layers):
            new = self.table.read(index)
            parts = {"keys": rows.keys, "values": rows.values, "new_keys": new.keys, "new_values": new.values}
            state.put(str(index), StreamState(parts))
        return state

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state."""
        device = self.adapter.device
        self.done = state.facts["done"]
        self.frames, self.written = (state.tensors[name].to(device) for name in ("frames", "positions"))
        self.table = self._new_table()
        for index in range(len(self._layers)):
            parts = {name: tensor.to(device) for name, tensor in state.part(str(index)).tensors.items()}
            self._layers[index] = LayerRows(parts["keys"], parts["values"])
            new = LayerRows(parts["new_keys"], parts["new_values"])
            if index == 0:
                self.table.allocate(torch.arange(new.tokens, device=device))
            self.table.write(index, slice(0, new.tokens), new)
