"""Frames of a video as the decoder is fed them in a stream: media tokens alone, no markers between frames."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from emblema.errors import MediaError
from emblema.models.adapter import Adapter
from emblema.models.families.base import Prepared
from emblema.models.positions import Grid, grid_positions, plain_positions
from emblema.models.prepare import Preparer


@dataclass(frozen=True, slots=True)
class FrameCodes:
    """What the encoder made of frames of one size.

    Attributes:
        embeds: [frames, tokens, hidden] in the model's dtype.
        offsets: [axes, tokens] int64, positions counted from a frame's corner; the same for every frame.
        deepstack: per early decoder layer, [frames, tokens, hidden] added after that layer; empty for most.
        token_id: the placeholder's id.
    """

    embeds: Tensor
    offsets: Tensor
    deepstack: tuple[Tensor, ...]
    token_id: int

    @property
    def frames(self) -> int:
        return int(self.embeds.shape[0])

    @property
    def tokens(self) -> int:
        return int(self.embeds.shape[1])

    @property
    def bytes(self) -> int:
        return self.embeds.nbytes + sum(layer.nbytes for layer in self.deepstack)

    def slice(self, start: int, stop: int) -> "FrameCodes":
        """Return frames `start` to `stop`, as views."""
        layers = tuple(layer[start:stop] for layer in self.deepstack)
        return FrameCodes(self.embeds[start:stop], self.offsets, layers, self.token_id)

    def to(self, device: torch.device) -> "FrameCodes":
        """Return the same codes on another device."""
        layers = tuple(layer.to(device) for layer in self.deepstack)
        return FrameCodes(self.embeds.to(device), self.offsets.to(device), layers, self.token_id)

    @classmethod
    def concatenate(cls, parts: Sequence["FrameCodes"]) -> "FrameCodes":
        """Return the frames of several codes, in order; there is at least one."""
        first = parts[0]
        layers = tuple(torch.cat([part.deepstack[index] for part in parts]) for index in range(len(first.deepstack)))
        return cls(torch.cat([part.embeds for part in parts]), first.offsets, layers, first.token_id)


def encode_frames(adapter: Adapter, preparer: Preparer, pictures: Sequence[Image.Image]) -> FrameCodes:
    """Run the encoder once over frames of one size, each as a picture of its own.

    Raises:
        MediaError: the frames have several sizes, or there is none.
        ModelError: the encoder gives other features for several pictures than for one.
    """
    sizes = {picture.size for picture in pictures}
    if len(sizes) != 1:
        raise MediaError(f"give one frame or more, all of one size, not {sorted(sizes)}")
    prepared, count = [preparer.image(picture) for picture in pictures], len(pictures)
    joined = _joined(prepared)
    visual, features = adapter.features(joined)
    tokens = int(visual.sum()) // count
    embeds = features.media.to(adapter.dtype).reshape(count, tokens, -1)
    deepstack = tuple(layer.to(adapter.dtype).reshape(count, tokens, -1) for layer in features.deepstack)
    offsets = frame_offsets(prepared[0], tokens, adapter.axes).to(adapter.device)
    return FrameCodes(embeds, offsets, deepstack, int(joined.token_ids[visual][0]))


def frame_offsets(prepared: Prepared, tokens: int, axes: int) -> Tensor:
    """Return positions [axes, tokens] of a frame's media tokens, counted from its corner."""
    grid = next((grid for grid in prepared.grid if grid.tokens), None)
    if axes == 1 or grid is None:
        return plain_positions(tokens, axes)
    return grid_positions(Grid(0, 1, grid.height, grid.width))


def _joined(prepared: Sequence[Prepared]) -> Prepared:
    first = prepared[0]
    features = {name: torch.cat([piece.features[name] for piece in prepared]) for name in first.features}
    return replace(first, token_ids=torch.cat([piece.token_ids for piece in prepared]), features=features)
