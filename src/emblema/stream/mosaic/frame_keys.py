"""Mean keys of all frames of one layer, in eight bits on the host: what frames are scored and clustered by."""

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.stream.buffers import give_back, grown, host_buffer
from emblema.stream.lines import LineField
from emblema.stream.state import StreamState

MOST, SCALES = 127, torch.bfloat16
UPWARD = 1 + 2**-7
"""Makes up for what a scale may lose in rounding, so that no entry leaves its bits."""


class FrameKeys:
    """One key for each part of a frame and head, around a centre that all keys of the layer share.

    The centre is often much larger than the differences. No softmax over frames depends on it, so products leave it
    out. A key has a scale for each part and head.

    Args:
        parts: of a frame.
        heads, width: of the keys that queries are matched with.

    Attributes:
        first: the first frame.
        count: frames.
    """

    def __init__(self, parts: int, heads: int, width: int) -> None:
        self.parts, self.heads, self.width = parts, heads, width
        self.first = self.count = self._left = 0
        self._keys = torch.zeros(0, parts, heads, width, dtype=torch.int8)
        self._scales = torch.zeros(0, parts, heads, dtype=SCALES)
        self._centre: Tensor | None = None

    @property
    def bytes(self) -> int:
        """Bytes on the host; spare rows, and what was given back, take none."""
        return self._keys[self._left : self.count].nbytes + self._scales[self._left : self.count].nbytes

    @property
    def centre(self) -> Tensor:
        """What is left out of all keys, [heads, width]; there is a frame."""
        if self._centre is None:
            raise ValueError("no frame was added")
        return self._centre

    def add(self, frames: range, keys: Tensor) -> None:
        """Add mean keys [frames, parts, heads, width] of the next frames; the first ones make the centre."""
        if self._centre is None:
            self.first, self._centre = frames.start, keys.mean((0, 1))
            self._keys = host_buffer((64, *keys.shape[1:]), torch.int8)
            self._scales = host_buffer((64, *keys.shape[1:3]), SCALES)
        stop = self.count + len(keys)
        if stop > len(self._keys):
            more = max(stop, int(1.5 * len(self._keys))) - len(self._keys)
            self._keys, self._scales = (
                grown(own, more, self._left, scattered=True) for own in (self._keys, self._scales)
            )
        away = keys - self._centre
        scales = (away.abs().amax(-1).clamp_min(1e-12) * UPWARD / MOST).to(SCALES)
        self._keys[self.count : stop] = (away / scales[..., None].float()).round().to(torch.int8)
        self._scales[self.count : stop] = scales
        self.count = stop

    def clear(self, frames: Tensor) -> None:
        """Overwrite keys of frames [n] with zeros."""
        self._keys[frames - self.first] = 0
        self._scales[frames - self.first] = 0

    def drop(self, until: int) -> None:
        """Give back the memory of frames before `until`, whose keys were cleared."""
        left, self._left = self._left, max(self._left, min(until - self.first, self.count))
        for own in (self._keys, self._scales):
            give_back(own, left, self._left)

    def of(self, frames: Tensor) -> Tensor:
        """Return keys of frames [n] less the centre, [n, parts, heads, width] float32."""
        lines = frames - self.first
        return self._keys[lines].float() * self._scales[lines].float()[..., None]

    def of_heads(self, entries: Tensor, heads: Tensor) -> Tensor:
        """Return keys of heads [lists] less the centre, [lists, n, width] float32.

        Args:
            entries: [lists, n], a frame's line times `parts`, and its part.
        """
        rows = (entries * self.heads + heads[:, None]).numpy()
        # Keys are taken eight bytes at a time where they are as long, and made longer by torch: several times as quick.
        kind = numpy.int64 if self.width % 8 == 0 else numpy.int8
        taken = self._keys.view(-1, self.width).numpy().view(kind).take(rows, axis=0).view(numpy.int8)
        scales = self._scales.view(torch.int16).view(-1).numpy().take(rows)
        return torch.from_numpy(taken).float().mul_(torch.from_numpy(scales).view(SCALES).float()[:, :, None])

    def logits(self, states: Tensor, entries: NDArray[numpy.int64]) -> Tensor:
        """Return products of queries with keys of their head less the centre's, [heads, queries, n].

        Args:
            states: [heads, queries, width], those of all query heads that share a key head.
            entries: [heads, n] as `of_heads`; -1 for none, whose product is of no use.
        """
        keys = self.of_heads(torch.from_numpy(entries.clip(0)), torch.arange(self.heads))
        return states @ keys.to(states.device).transpose(1, 2)

    def logits_between(self, states: Tensor, low: int, high: int) -> Tensor:
        """Return `logits` of all keys of the lines from `low` to `high`, part by part."""
        keys = self._keys[low:high].to(states.device).float().flatten(0, 1).permute(1, 2, 0)
        # Scales that are apart in memory take several times as long.
        scales = self._scales[low:high].flatten(0, 1).T.float().contiguous()
        return (states @ keys).mul_(scales.to(states.device)[:, None])

    @property
    def fields(self) -> tuple[LineField, LineField]:
        """What `index_of` returns of a frame."""
        shape = (self.parts, self.heads)
        return LineField((*shape, self.width), torch.int8), LineField(shape, SCALES)

    def index_of(self, frames: range) -> tuple[Tensor, Tensor]:
        """Return keys and scales of frames, as views."""
        lines = slice(frames.start - self.first, frames.stop - self.first)
        return self._keys[lines], self._scales[lines]

    def state(self) -> StreamState:
        """Return the state for a file, without the keys."""
        return StreamState({} if self._centre is None else {"centre": self._centre}, {"first": self.first})

    def restore(self, state: StreamState, keys: Tensor, scales: Tensor) -> None:
        """Go on from a saved state, and the keys of its frames; no frame has come yet."""
        self._keys, self._scales = (grown(own, 0, scattered=True) for own in (keys, scales))
        self._centre = state.tensors.get("centre")
        self.first, self.count, self._left = state.facts["first"], len(self._keys), 0
