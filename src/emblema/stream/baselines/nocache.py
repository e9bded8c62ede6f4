"""NoCache: frames sampled evenly from all that was seen, and prefilled anew at each question.

What is sampled stands in the order of its time, as a turn of those frames alone would; `budget` frames and as many
more as sinks, window and the block under way have, so that as many rows are seen as by the other methods.
"""

from collections.abc import Mapping

import torch

from emblema.kv.layout import LayerRows
from emblema.models.batch import RowBatch
from emblema.models.table import KVTable
from emblema.stream.baselines.base import Base
from emblema.stream.method import NOTHING, Bytes, Found, Query, Scene, Sight, StreamRows


class NoCache(Base):
    """Keeps what the encoder made of the frames, which every stream does, and no rows."""

    name = "nocache"
    shares_local = False
    encodes = False

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._rows: tuple[StreamRows, ...] = ()
        self._sampled: list[int] = []
        self.prefilled = 0

    def prepare(self, sight: Sight) -> None:
        """Prefill opening and sampled frames, where the question will see them."""
        self._sampled = self._sample(sight)
        adapter, places, device = self.adapter, self.places, self.adapter.device
        codes = self.scene.log.codes(self._sampled).to(device)
        frames = torch.tensor(self._sampled, device=device)
        opening = torch.tensor(self.scene.opening, dtype=torch.int64, device=device)
        positions = places.written(frames)
        owners = frames.repeat_interleave(places.tokens)
        if places.zone is not None:
            positions = places.packed(positions, owners, places.corner(sight.high), sinks=False)
        begin = torch.arange(len(opening), device=device).expand(adapter.axes, -1)
        visual = torch.cat((torch.zeros(len(opening), dtype=torch.bool, device=device), owners >= 0))
        rows = torch.arange(len(visual), device=device)
        table = adapter.table(len(rows))
        table.allocate(rows, self._groups(opening, owners))
        batch = RowBatch(
            torch.cat((adapter.embed(opening), codes.embeds.flatten(0, 1))),
            torch.cat((begin, positions), dim=1),
            rows,
            visual,
            tuple(layer.flatten(0, 1) for layer in codes.deepstack),
        )
        adapter.forward(batch, table)
        self.prefilled += len(rows)
        self._rows = self._read(table, batch.positions, torch.cat((torch.full_like(opening, -1), owners)))

    def _sample(self, sight: Sight) -> list[int]:
        frames, settings = range(sight.low, sight.high), self.settings
        if settings.budget is None:
            return list(frames)
        most = settings.budget + settings.window + settings.sinks + sight.high % settings.block
        if len(frames) <= most:
            return list(frames)
        return sorted({frames[round(index * (len(frames) - 1) / (most - 1))] for index in range(most)})

    def _groups(self, opening: torch.Tensor, owners: torch.Tensor) -> torch.Tensor:
        groups = owners if self.adapter.kind.bidirectional else torch.full_like(owners, -1)
        return torch.cat((torch.full_like(opening, -1), groups))

    def _read(self, table: KVTable, positions: torch.Tensor, frames: torch.Tensor) -> tuple[StreamRows, ...]:
        read = (table.read(layer) for layer in range(len(self.adapter.layouts)))
        return tuple(StreamRows(LayerRows(rows.keys, rows.values), positions, frames) for rows in read)

    def read(self, layer: int, query: Query, sight: Sight) -> Found:
        return Found(self._rows[layer], placed=True) if self._rows else NOTHING

    def settle(self) -> None:
        """The question has what it needs."""
        self._rows = ()

    def bytes(self) -> Bytes:
        return Bytes({"rows": sum(rows.kv.bytes for rows in self._rows)}, {})

    def counts(self) -> Mapping[str, float]:
        return {"prefilled_rows": float(self.prefilled)}

    def retrieved(self) -> Mapping[int, float]:
        return dict.fromkeys(self._sampled, 1.0)
