"""A stream's frames as chunks for other prompts."""

from collections.abc import Iterator, Sequence

import numpy
import torch
from torch import Tensor

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows
from emblema.kv.rotation import relocate
from emblema.models.batch import RowBatch
from emblema.store.identity import chunk_id
from emblema.store.store import TenantStore
from emblema.stream.mosaic.frame_memory import FrameMemory
from emblema.stream.recent import RecentWindow


def chunk_frames(recent: RecentWindow, memory: FrameMemory, most: int) -> Iterator[list[int]]:
    """Yield the frames of every chunk, rising, at most `most`: those that left the window, then the others."""
    gone = memory.context.log.gone
    near = sorted({int(frame) for frame in recent.frames if frame >= 0} | set(recent.block))
    for frames in (gone.live(memory.frames.start, memory.frames.stop).tolist(), near):
        yield from (frames[start : start + most] for start in range(0, len(frames), most))


class ChunkWriter:
    """Puts frames one after another from position 0, between the markers of media, as in a chunk.

    Their rows are those that the stream wrote, relocated: they depend on what the stream had seen by then. The
    markers' rows are computed around them.
    """

    def __init__(self, recent: RecentWindow, memory: FrameMemory, markers: tuple[Sequence[int], Sequence[int]]) -> None:
        self.adapter, self.recent, self.memory, self.markers = memory.adapter, recent, memory, markers

    def store(self, frames: Sequence[int], store: TenantStore) -> Chunk:
        """Put frames into a store as a chunk; its id follows from their embeddings and rows."""
        adapter = self.adapter
        encoded, rows = self.write(frames)
        tensors = (encoded.embeds, *(tensor for layer in rows for tensor in (layer.keys, layer.values)))
        id = chunk_id(
            (b"frames of a stream", *(_bytes(tensor) for tensor in tensors)),
            options={},
            model_fingerprint=adapter.fingerprint,
            dtype=adapter.dtype,
            adapter_version=adapter.version,
            salt=store.salt,
        )
        return store.put(Chunk(id, "video", adapter.fingerprint, encoded, rows))

    def write(self, frames: Sequence[int]) -> tuple[Encoded, tuple[LayerRows, ...]]:
        """Return what the decoder would be fed for frames, and their rows in every layer."""
        encoded = self._encoded(frames)
        adapter, start = self.adapter, len(self.markers[0])
        stop = start + len(frames) * self.recent.positions.tokens
        table = adapter.table(encoded.tokens)
        table.allocate(torch.arange(encoded.tokens, device=adapter.device), encoded.groups)
        numbers = torch.tensor(frames, device=adapter.device)
        source = adapter.phases(self.recent.positions.written(numbers))
        target = adapter.phases(encoded.positions[:, start:stop])
        for layer, layout in enumerate(adapter.layouts):
            rows = relocate(self._rows(layer, frames), layout, source, target)
            table.write(layer, slice(start, stop), rows)
        around = (~encoded.visual).nonzero().squeeze(1)
        if len(around):
            positions, slots = encoded.positions[:, around].to(adapter.device), around.to(adapter.device)
            visual = torch.zeros_like(slots, dtype=torch.bool)
            adapter.forward(RowBatch(encoded.embeds[slots], positions, slots, visual), table)
        read = (table.read(layer) for layer in range(len(adapter.layouts)))
        return encoded, tuple(LayerRows(rows.keys.clone(), rows.values.clone()) for rows in read)

    def _encoded(self, frames: Sequence[int]) -> Encoded:
        adapter, positions = self.adapter, self.recent.positions
        axes, codes = adapter.axes, self.memory.context.log.codes(list(frames)).to(adapter.device)
        begin, end = (torch.tensor(ids, dtype=torch.int64) for ids in self.markers)
        media = torch.full((codes.frames * codes.tokens,), codes.token_id)
        corners = len(begin) + torch.arange(codes.frames) * positions.span
        inside = (corners[None, :, None] + positions.offsets.cpu()[:, None, :]).flatten(1)
        after = len(begin) + codes.frames * positions.span
        ids = torch.cat((begin, media, end))
        front = torch.arange(len(begin)).expand(axes, -1)
        back = torch.arange(after, after + len(end)).expand(axes, -1)
        embeds = torch.cat((adapter.embed(begin), codes.embeds.flatten(0, 1), adapter.embed(end)))
        visual = torch.zeros(len(ids), dtype=torch.bool)
        visual[len(begin) : len(begin) + len(media)] = True
        deepstack = tuple(layer.flatten(0, 1) for layer in codes.deepstack)
        whole = torch.cat((front, inside, back), dim=1)
        return Encoded(ids, embeds, whole, after + len(end), visual, deepstack, torch.full_like(ids, -1))

    def _rows(self, layer: int, frames: Sequence[int]) -> LayerRows:
        near = self.recent.rows(layer)
        own = torch.isin(near.frames, torch.tensor(frames, device=self.adapter.device))
        if bool(own.any()):
            return near.kv.select(own.nonzero().squeeze(1))
        lines = self.memory.lines_of(layer, numpy.array(frames, dtype=numpy.int64))
        return self.memory.stores[layer].rows(lines.to(self.adapter.device))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
