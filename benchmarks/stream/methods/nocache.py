"""NoCache: frames sampled evenly from all that was seen, and prefilled again at each question.

They are in the order of their time, as a turn of those frames alone would be: `budget` frames, and as many more as
sinks, window and the block under way have, so that as many rows are visible as for the other methods.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.models.batch import RowBatch
from emblema.stream.method import MemoryBytes, Method, Query, Selection, StreamContext, StreamRows, VisibleRange


class NoCache(Method):
    """Keeps no rows; what the encoder made of the frames is in every stream's log."""

    name = "nocache"
    shares_window = False
    encodes = False

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        self._rows: tuple[StreamRows, ...] = ()
        self._sampled: list[int] = []
        self._prefilled = 0

    def prepare(self, visible: VisibleRange) -> None:
        """Prefill opening and sampled frames, where the question will see them."""
        self._sampled = self._sample(visible)
        adapter, device = self.adapter, self.adapter.device
        codes = self.context.log.codes(self._sampled).to(device)
        frames = torch.tensor(self._sampled, device=device)
        opening = torch.tensor(self.context.opening, dtype=torch.int64)
        positions = self.positions.written(frames)
        owners = frames.repeat_interleave(self.positions.tokens)
        if self.positions.front is not None:
            end = self.positions.corner(visible.high)
            positions = self.positions.pack(positions, owners, end, sinks=False)
        begin = torch.arange(len(opening), device=device).expand(adapter.axes, -1)
        owners = torch.cat((torch.full_like(opening, -1, device=device), owners))
        rows = torch.arange(len(owners), device=device)
        table = adapter.table(len(rows))
        table.allocate(rows, self._groups(owners))
        batch = RowBatch(
            torch.cat((adapter.embed(opening), codes.embeds.flatten(0, 1))),
            torch.cat((begin, positions), dim=1),
            rows,
            owners >= 0,
            tuple(layer.flatten(0, 1) for layer in codes.deepstack),
        )
        adapter.forward(batch, table)
        self._prefilled += len(rows)
        layers = (table.read(layer) for layer in range(len(adapter.layouts)))
        self._rows = tuple(StreamRows(LayerRows(kv.keys, kv.values), batch.positions, owners) for kv in layers)

    def _sample(self, visible: VisibleRange) -> list[int]:
        frames, settings = range(visible.low, visible.high), self.settings
        if settings.budget is None:
            return list(frames)
        most = settings.budget + settings.window + settings.sinks + visible.high % settings.block
        if len(frames) <= most:
            return list(frames)
        return sorted({frames[round(index * (len(frames) - 1) / (most - 1))] for index in range(most)})

    def _groups(self, owners: Tensor) -> Tensor:
        return owners if self.adapter.kind.bidirectional(self.adapter.model.config) else torch.full_like(owners, -1)

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        return Selection(self._rows[layer], placed=True) if self._rows else Selection()

    def settle(self) -> None:
        self._rows = ()

    def bytes(self) -> MemoryBytes:
        return MemoryBytes({"rows": sum(rows.kv.bytes for rows in self._rows)}, {})

    def counts(self) -> Mapping[str, float]:
        return {"prefilled_rows": float(self._prefilled)}

    def retrieved(self) -> Mapping[int, float]:
        return dict.fromkeys(self._sampled, 1.0)
