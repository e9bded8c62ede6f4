"""Cells of a picture: what the encoder reads alone, so that pictures are compared, and encoded, cell by cell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from secrets import randbits
from typing import Any

import numpy
import torch
from blake3 import blake3
from torch import Tensor
from xxhash import xxh3_128_digest

from emblema.models.families.base import PART, PART_SIZES, Family, Prepared


@cache
def _seed() -> int:
    """Return the seed of this process's digests: who does not know it cannot make contents that have the same."""
    return randbits(64)


@dataclass(frozen=True)
class PictureCells:
    """The cells of one picture, by which it is compared and encoded.

    Attributes:
        prepared: the picture as the encoder takes it.
        tokens: [media tokens] int64, the cell of each.
        contents: [cells], what the encoder reads of each, as contiguous bytes.
        cut: returns the encoder's input for some cells alone; it gives their media tokens in the order of `order`.
        alone: whether the encoder has no cell see another. Otherwise some of its layers attend over the whole picture,
            and the cells are encoded by kept rows of these layers.
    """

    prepared: Prepared
    tokens: Tensor
    contents: Sequence[memoryview]
    cut: Callable[[Sequence[int]], Prepared]
    alone: bool = True

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
        """A digest of each cell's contents, [cells, 2] uint64, to be compared with others of this process alone."""
        written = b"".join(xxh3_128_digest(content, seed=_seed()) for content in self.contents)
        return numpy.frombuffer(written, dtype=numpy.uint64).reshape(-1, 2)

    def order(self, cells: Sequence[int]) -> Tensor:
        """Return which media tokens the encoder gives for some cells, [their tokens] int64: cell after cell."""
        found = [(self.tokens == cell).nonzero().squeeze(1) for cell in cells]
        return torch.cat(found) if found else torch.arange(0)

    def probes(self, changed: Sequence[int], tokens: int) -> list[int]:
        """Return cells of some `tokens` tokens, one at least, that are not among those given, evenly spread."""
        others = sorted(set(range(self.count)) - set(changed))
        wanted = min(len(others), max(1, tokens * self.count // len(self.tokens)))
        return [others[(2 * place + 1) * len(others) // (2 * wanted)] for place in range(wanted)]

    def places(self, cells: Sequence[int]) -> Tensor:
        """Return where the encoder has the patches of some cells among all, [their patches] int64, as `cut` has them.

        It has cell after cell.
        """
        every = self.order(range(self.count))
        per = len(self.prepared.features["pixel_values"]) // len(every)
        places = every.argsort()[self.order(cells)]
        return (places[:, None] * per + torch.arange(per)).flatten()


def cells_of(family: Family, config: Any, prepared: Prepared, alone: bool = True) -> PictureCells | None:
    """Return the cells of a picture; None where its encoder reads it as a whole, and for what is no picture.

    Args:
        family: the model's family.
        config: the model's configuration.
        prepared: the picture as the encoder takes it.
        alone: see `PictureCells`.
    """
    placeholder, side = family.placeholder(config, "image"), family.cell_side(config)
    if prepared.kind != "image" or placeholder is None or family.media_tokens(config, "image") != (placeholder,):
        return None
    if side is not None:
        return windows(prepared, placeholder, side, int(config.vision_config.spatial_merge_size), alone)
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

    def content(tile: int) -> memoryview:
        parts = [_bytes(each[tile].contiguous().flatten()) for each in given.values()]
        return (parts[0] if len(parts) == 1 else numpy.concatenate(parts)).data

    def cut(cells: Sequence[int]) -> Prepared:
        own = torch.tensor(cells, dtype=torch.int64)
        features = {name: each.index_select(0, own).movedim(0, axis) for name, each in given.items()}
        ids = torch.full((per * len(own),), placeholder, dtype=torch.int64)
        return replace(prepared, token_ids=ids, features=prepared.features | features, grid=())

    tokens = torch.arange(places) // per
    return PictureCells(prepared, tokens, [content(tile) for tile in range(count)], cut)


def windows(prepared: Prepared, placeholder: int, side: int, merge: int, alone: bool = True) -> PictureCells | None:
    """Return the cells of a picture in square windows, which the encoder has one after another.

    Args:
        prepared: a picture in patches, `merge` x `merge` of which are a token, token after token.
        placeholder: the token that stands for the encoder's rows.
        side: tokens along a window's side; windows at the right and at the bottom may be smaller.
        merge: patches along a token's side.
        alone: whether the encoder attends within windows alone: some of them are then as many pictures. Otherwise they
            are a part of this picture (`families.base.PART`).
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
    own = _bytes(patches)
    found = own if side == 1 else (own[(tokens == cell).numpy()] for cell in range(count))
    contents = [content.data for content in found]

    def cut(cells: Sequence[int]) -> Prepared:
        own = torch.tensor(cells, dtype=torch.int64)
        heights = (height - own // across * side).clamp(max=side)
        widths = (width - own % across * side).clamp(max=side)
        order = torch.cat([(tokens == cell).nonzero().squeeze(1) for cell in cells])
        features = {"pixel_values": patches[order].reshape(-1, pixels.shape[1])}
        if alone:
            sizes = (torch.ones_like(own), heights * merge, widths * merge)
            features["image_grid_thw"] = torch.stack(sizes, dim=1)
        else:
            features |= {PART: order, PART_SIZES: heights * widths}
        ids = torch.full((len(order),), placeholder, dtype=torch.int64)
        return replace(prepared, token_ids=ids, features=prepared.features | features, grid=())

    return PictureCells(prepared, tokens, contents, cut, alone)


def _bytes(numbers: Tensor) -> numpy.ndarray:
    """Return numbers [..., n] as bytes [..., n * their size]."""
    made: numpy.ndarray = numbers.view(torch.uint8).numpy()
    return made
