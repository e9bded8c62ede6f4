"""What a stream always sees: the turn's opening, the first frames, the latest ones, and the block under way."""

from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.table import KVTable
from emblema.stream.method import StreamRows
from emblema.stream.phases import PhaseTables
from emblema.stream.positions import Places
from emblema.stream.saved import Saved
from emblema.stream.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class Leaving:
    """Frames that leave the window: their numbers, their rows in every layer, and where these were written."""

    frames: range
    layers: tuple[LayerRows, ...]
    positions: Tensor


class Local:
    """Rows on the device, as first written; those of whole blocks side by side, those of the last block in a table.

    Attributes:
        done: frames of whole blocks.
        frames: [rows] int64, the frame of each row in front of the block; -1 for the opening.
        positions: [axes, rows] int64, where they were written.
        table: rows of the block under way.
        phases: kept for the stream.
    """

    def __init__(
        self,
        adapter: Adapter,
        settings: StreamSettings,
        places: Places,
        opening: tuple[int, ...],
        phases: PhaseTables,
    ) -> None:
        self.adapter, self.settings, self.places, self.phases = adapter, settings, places, phases
        self.done = 0
        device = adapter.device
        self.frames = torch.full((len(opening),), -1, dtype=torch.int64, device=device)
        self.positions = torch.arange(len(opening), device=device).expand(adapter.axes, -1)
        self.layers = self._prefilled(opening)
        self.table: KVTable = self._table()

    def _prefilled(self, opening: tuple[int, ...]) -> list[LayerRows]:
        adapter = self.adapter
        table = adapter.table(max(1, len(opening)))
        if opening:
            encoded = adapter.encode_text(torch.tensor(opening))
            slots = torch.arange(encoded.tokens, device=adapter.device)
            table.allocate(slots, encoded.groups)
            adapter.forward(RowBatch(encoded.embeds, encoded.positions, slots, encoded.visual), table)
        return [table.read(layer) for layer in range(len(adapter.layouts))]

    def _table(self) -> KVTable:
        return self.adapter.table(self.settings.block * self.places.tokens)

    @property
    def count(self) -> int:
        """Frames of the stream so far."""
        return self.done + self.table.length // self.places.tokens

    @property
    def room(self) -> int:
        """Frames that the block under way still takes."""
        return self.settings.block - (self.count - self.done)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers) + self.table.bytes

    def rows(self, layer: int) -> StreamRows:
        """What stands in front of the block under way."""
        return StreamRows(self.layers[layer], self.positions, self.frames)

    def block(self, layer: int) -> StreamRows:
        """The block under way."""
        frames = torch.arange(self.done, self.count, device=self.adapter.device)
        owners = frames.repeat_interleave(self.places.tokens)
        return StreamRows(self.table.read(layer), self.places.written(frames), owners)

    def every(self, layer: int) -> LayerRows:
        """Rows of both."""
        front, new = self.layers[layer], self.table.read(layer)
        if not new.tokens:
            return front
        return LayerRows(torch.cat((front.keys, new.keys), dim=1), torch.cat((front.values, new.values), dim=1))

    def all(self, layer: int) -> StreamRows:
        """Both."""
        front, new = self.rows(layer), self.block(layer)
        positions = torch.cat((front.positions, new.positions), dim=1)
        return StreamRows(self.every(layer), positions, torch.cat((front.frames, new.frames)))

    def advance(self) -> Leaving | None:
        """The block is whole: it joins the window. Returns the frames that leave it, if there are any."""
        sinks, window = self.settings.sinks, self.settings.window
        both = self.all(0)
        self.layers = [both.kv, *(self.every(layer) for layer in range(1, len(self.layers)))]
        self.positions, self.frames = both.positions, both.frames
        self.done, self.table = self.count, self._table()
        moving = self.frames[self.frames >= sinks]
        oldest = int(moving[0]) if moving.shape[0] else self.done
        leaving = range(oldest, max(oldest, self.done - window))
        if not leaving:
            return None
        gone = (self.frames >= leaving.start) & (self.frames < leaving.stop)
        out, stay = gone.nonzero().squeeze(1), (~gone).nonzero().squeeze(1)
        departed = Leaving(leaving, tuple(layer.select(out) for layer in self.layers), self.positions[:, out])
        self.frames, self.positions = self.frames[stay], self.positions[:, stay]
        self.layers = [layer.select(stay) for layer in self.layers]
        return departed

    def saved(self) -> Saved:
        """For a file."""
        state = Saved({"frames": self.frames, "positions": self.positions}, {"done": self.done})
        for index, rows in enumerate(self.layers):
            table = self.table.read(index)
            parts = {"keys": rows.keys, "values": rows.values, "new_keys": table.keys, "new_values": table.values}
            state.put(str(index), Saved(parts))
        return state

    def resume(self, saved: Saved) -> None:
        """Go on from what was saved."""
        device = self.adapter.device
        self.done = saved.facts["done"]
        self.frames, self.positions = saved.tensors["frames"].to(device), saved.tensors["positions"].to(device)
        self.table = self._table()
        for index in range(len(self.layers)):
            parts = {name: tensor.to(device) for name, tensor in saved.part(str(index)).tensors.items()}
            self.layers[index] = LayerRows(parts["keys"], parts["values"])
            new = LayerRows(parts["new_keys"], parts["new_values"])
            if index == 0:
                self.table.allocate(torch.arange(new.tokens, device=device))
            self.table.write(index, slice(0, new.tokens), new)


def joined(first: StreamRows, second: StreamRows) -> StreamRows:
    """Rows of one layer, one behind the other."""
    keys = torch.cat((first.kv.keys, second.kv.keys), dim=1)
    values = torch.cat((first.kv.values, second.kv.values), dim=1)
    positions = torch.cat((first.positions, second.positions), dim=1)
    return StreamRows(LayerRows(keys, values), positions, torch.cat((first.frames, second.frames)))
