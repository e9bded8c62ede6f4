"""Frames of a video as the decoder is fed them in a stream: media tokens alone, no markers between frames."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from emblema.errors import MediaError, ModelError
from emblema.models.adapter import Adapter
from emblema.models.families.base import Prepared
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
    prepared = [preparer.image(picture) for picture in pictures]
    token_id = adapter.kind.placeholder(adapter.model.config, "image")
    visual = prepared[0].token_ids == (-1 if token_id is None else token_id)
    tokens = int(visual.sum())
    with torch.inference_mode():
        features = adapter.kind.encode(adapter.model, adapter.on_device(_joined(prepared)))
    media, count = features.media, len(pictures)
    if media.shape[0] != count * tokens:
        raise ModelError(
            f"the encoder of {adapter.family} gave {media.shape[0]} features for {count} x {tokens} tokens"
        )
    embeds = media.to(adapter.dtype).reshape(count, tokens, -1)
    deepstack = tuple(layer.to(adapter.dtype).reshape(count, tokens, -1) for layer in features.deepstack)
    offsets = frame_offsets(prepared[0], tokens, adapter.axes).to(adapter.device)
    return FrameCodes(embeds, offsets, deepstack, 0 if token_id is None else int(token_id))


def frame_offsets(prepared: Prepared, tokens: int, axes: int) -> Tensor:
    """Return positions [axes, tokens] of a frame's media tokens, counted from its corner."""
    if axes == 1 or not prepared.grid:
        return torch.arange(tokens).expand(axes, tokens).clone()
    grids = [grid for grid in prepared.grid if grid.tokens]
    grid = grids[0]
    steps = torch.meshgrid(torch.zeros(1).long(), torch.arange(grid.height), torch.arange(grid.width), indexing="ij")
    return torch.stack([axis.reshape(-1) for axis in steps])


def _joined(prepared: Sequence[Prepared]) -> Prepared:
    first = prepared[0]
    features = {name: torch.cat([piece.features[name] for piece in prepared]) for name in first.features}
    return replace(first, token_ids=torch.cat([piece.token_ids for piece in prepared]), features=features)
