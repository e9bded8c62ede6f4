"""What is left of a stream for other prompts: its frames as chunks, one for each visual cluster."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from emblema.kv.chunk import Encoded
from emblema.kv.layout import LayerRows
from emblema.kv.rotation import PhaseBook, relocate
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.stream.local import Local
from emblema.stream.log import FrameLog
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.seam import TokenIds

Markers = tuple[TokenIds, TokenIds]


def parts(local: Local, memory: Mosaic, most: int) -> Iterator[list[int]]:
    """Frames of every chunk, rising, `most` at the most: of each visual cluster, then what has not left the window."""
    near = {int(frame) for frame in local.frames if frame >= 0} | set(range(local.done, local.count))
    for group in (*(cluster.frames for cluster in memory.visual.level.clusters.values()), near):
        frames = sorted(group)
        yield from (frames[start : start + most] for start in range(0, len(frames), most))


class ChunkMaker:
    """Sets frames one behind the other from position 0, between the markers of media, as a chunk stands.

    Their rows are those that the stream wrote, relocated: they hold what the stream had seen by then. The markers' are
    computed around them.
    """

    def __init__(self, adapter: Adapter, log: FrameLog, local: Local, memory: Mosaic, markers: Markers) -> None:
        self.adapter, self.log, self.local, self.memory, self.markers = adapter, log, local, memory, markers

    def chunk(self, frames: Sequence[int]) -> tuple[Encoded, tuple[LayerRows, ...]]:
        """What the decoder would be fed for frames, and their rows in every layer."""
        encoded = self._encoded(frames)
        adapter, start = self.adapter, len(self.markers[0])
        stop = start + len(frames) * self.local.places.tokens
        table = adapter.table(encoded.tokens)
        table.allocate(torch.arange(encoded.tokens, device=adapter.device), encoded.groups)
        source = PhaseBook(adapter.tables, self.local.places.written(self._numbers(frames)))
        target = PhaseBook(adapter.tables, encoded.positions[:, start:stop])
        for layer, layout in enumerate(adapter.layouts):
            rows = relocate(self._rows(layer, frames), layout, source, target)
            table.write(layer, slice(start, stop), rows)
        around = (~encoded.visual).nonzero().squeeze(1)
        if len(around):
            kept = (encoded.embeds[around], encoded.positions[:, around], around, encoded.visual[around])
            adapter.forward(RowBatch(*kept), table)
        read = (table.read(layer) for layer in range(len(adapter.layouts)))
        return encoded, tuple(LayerRows(rows.keys.clone(), rows.values.clone()) for rows in read)

    def _numbers(self, frames: Sequence[int]) -> Tensor:
        return torch.tensor(frames, device=self.adapter.device)

    def _encoded(self, frames: Sequence[int]) -> Encoded:
        adapter, places = self.adapter, self.local.places
        device, axes = adapter.device, adapter.axes
        codes = self.log.codes(list(frames)).to(device)
        begin, end = (torch.tensor(ids, dtype=torch.int64, device=device) for ids in self.markers)
        media = torch.full((codes.frames * codes.tokens,), codes.token_id, device=device)
        corners = len(begin) + torch.arange(codes.frames, device=device) * places.span
        inside = (corners[None, :, None] + places.offsets[:, None, :]).flatten(1)
        behind = len(begin) + codes.frames * places.span
        ids = torch.cat((begin, media, end))
        positions = torch.cat(
            (
                torch.arange(len(begin), device=device).expand(axes, -1),
                inside,
                torch.arange(behind, behind + len(end), device=device).expand(axes, -1),
            ),
            dim=1,
        )
        embeds = torch.cat((adapter.embed(begin), codes.embeds.flatten(0, 1), adapter.embed(end)))
        visual = torch.zeros(len(ids), dtype=torch.bool, device=device)
        visual[len(begin) : len(begin) + len(media)] = True
        deepstack = tuple(layer.flatten(0, 1) for layer in codes.deepstack)
        return Encoded(ids, embeds, positions, behind + len(end), visual, deepstack, torch.full_like(ids, -1))

    def _rows(self, layer: int, frames: Sequence[int]) -> LayerRows:
        near = self.local.all(layer)
        if bool(torch.isin(near.frames, self._numbers(frames)).any()):
            return near.kv.select(torch.isin(near.frames, self._numbers(frames)).nonzero().squeeze(1))
        lines = self.memory.layers[layer].lines_of(frames)
        return self.memory.layers[layer].host.rows(lines.to(self.adapter.device))
