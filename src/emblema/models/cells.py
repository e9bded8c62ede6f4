"""Cells of a picture: what the encoder reads alone, so that pictures are compared, and encoded, cell by cell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy
import torch
from blake3 import blake3
from torch import Tensor

from emblema.models.families.base import Family, Prepared

DIGEST_BYTES = 16


@dataclass(frozen=True)
class PictureCells:
    """The cells of one picture, none of which the encoder has see another.

    Attributes:
        prepared: the picture as the encoder takes it.
        tokens: [media tokens] int64, the cell of each.
        contents: [cells], what the encoder reads of each, contiguous.
        cut: returns the encoder's input for some cells alone; it gives their media tokens in the order of `order`.
    """

    prepared: Prepared
    tokens: Tensor
    contents: Sequence[Tensor]
    cut: Callable[[Sequence[int]], Prepared]

    @property
    def count(self) -> int:
        """How many cells there are."""
        return len(self.contents)

    @cached_property
    def shape(self) -> bytes:
        """A digest of all but the contents: pictures of the same shape have the same cells in the same places."""
        prepared = self.prepared
        said = f"{prepared.kind} {prepared.grid} {self.count}".encode()
        return blake3(said + prepared.token_ids.numpy().tobytes() + self.tokens.numpy().tobytes()).digest()

    @cached_property
    def digests(self) -> numpy.ndarray:
        """A digest of each cell's contents, [cells, 2] uint64."""
        written = b"".join(blake3(content.numpy().tobytes()).digest(DIGEST_BYTES) for content in self.contents)
        return numpy.frombuffer(written, dtype=numpy.uint64).reshape(-1, 2)

    def order(self, cells: Sequence[int]) -> Tensor:
        """Return which media tokens the encoder gives for some cells, [their tokens] int64: cell after cell."""
        found = [(self.tokens == cell).nonzero().squeeze(1) for cell in cells]
        return torch.cat(found) if found else torch.arange(0)


def cells_of(family: Family, config: Any, prepared: Prepared) -> PictureCells | None:
    """Return the cells of a picture; None where its encoder reads it as a whole, and for what is no picture.

    Args:
        family: the model's family.
        config: the model's configuration.
        prepared: the picture as the encoder takes it.
    """
    placeholder, side = family.placeholder(config, "image"), family.window_side(config)
    if prepared.kind != "image" or placeholder is None or family.media_tokens(config, "image") != (placeholder,):
        return None
    if side is not None:
        return windows(prepared, placeholder, side, int(config.vision_config.spatial_merge_size))
    names = family.tile_arguments
    return tiles(prepared, placeholder, names, family.tile_axis) if names else None


def tiles(prepared: Prepared, placeholder: int, names: Sequence[str], axis: int = 0) -> PictureCells | None:
    """Return the cells of a picture of tiles that have as many tokens each; None if they have not, or it is one tile.

    Args:
        prepared: the picture.
        placeholder: the token that stands for the encoder's rows.
        names: the encoder's arguments that hold something of every tile; the first holds its pixels.
        axis: of the tiles in them.
    """
    given = {name: prepared.features[name].movedim(axis, 0) for name in names if name in prepared.features}
    places = int((prepared.token_ids == placeholder).sum())
    count = len(given[names[0]])
    if count < 2 or places % count or any(len(each) != count for each in given.values()):
        return None
    per = places // count

    def content(tile: int) -> Tensor:
        parts = [each[tile].contiguous().flatten() for each in given.values()]
        return parts[0] if len(parts) == 1 else torch.cat([part.view(torch.uint8) for part in parts])

    def cut(cells: Sequence[int]) -> Prepared:
        own = torch.tensor(cells, dtype=torch.int64)
        features = {name: each.index_select(0, own).movedim(0, axis) for name, each in given.items()}
        ids = torch.full((per * len(own),), placeholder, dtype=torch.int64)
        return replace(prepared, token_ids=ids, features=prepared.features | features, grid=())

    tokens = torch.arange(places) // per
    return PictureCells(prepared, tokens, [content(tile) for tile in range(count)], cut)


def windows(prepared: Prepared, placeholder: int, side: int, merge: int) -> PictureCells | None:
    """Return the cells of a picture whose encoder attends within windows alone.

    Args:
        prepared: a picture in patches, `merge` x `merge` of which are a token, token after token.
        placeholder: the token that stands for the encoder's rows.
        side: tokens along a window's side; windows at the right and at the bottom may be smaller.
        merge: patches along a token's side.
    """
    grids, pixels = prepared.features["image_grid_thw"].tolist(), prepared.features["pixel_values"]
    if len(grids) != 1 or grids[0][0] != 1:
        return None
    height, width = grids[0][1] // merge, grids[0][2] // merge
    across = -(-width // side)
    row, column = torch.arange(height)[:, None] // side, torch.arange(width)[None] // side
    tokens = (row * across + column).flatten()
    count = int(tokens[-1]) + 1
    patches = pixels.reshape(height * width, -1)
    contents = list(patches) if side == 1 else [patches[tokens == cell] for cell in range(count)]

    def cut(cells: Sequence[int]) -> Prepared:
        own = torch.tensor(cells, dtype=torch.int64)
        heights = (height - own // across * side).clamp(max=side)
        widths = (width - own % across * side).clamp(max=side)
        grid = torch.stack((torch.ones_like(own), heights * merge, widths * merge), dim=1)
        order = torch.cat([(tokens == cell).nonzero().squeeze(1) for cell in cells])
        features = {"pixel_values": patches[order].reshape(-1, pixels.shape[1]), "image_grid_thw": grid}
        ids = torch.full((len(order),), placeholder, dtype=torch.int64)
        return replace(prepared, token_ids=ids, features=prepared.features | features, grid=())

    return PictureCells(prepared, tokens, contents, cut)
