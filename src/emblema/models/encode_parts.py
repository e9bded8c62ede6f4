"""Encoding a picture of which only some cells differ from another: these are encoded, all else is as in the other."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from emblema.errors import ModelError
from emblema.kv.chunk import Encoded
from emblema.models.adapter import Adapter
from emblema.models.cells import PictureCells
from emblema.models.families.base import Features, Prepared
from emblema.models.tower_rows import TowerRows, attending_kept, joined_rows, noting_rows

PROBED = 16
"""Tokens that did not change and are encoded again, to see how far a change moves what the encoder makes of others."""


def encode_changed(adapter: Adapter, cells: PictureCells, changed: Sequence[int], base: Encoded) -> Encoded:
    """Return what the encoder makes of a picture, which it reads cell by cell; it runs on some cells.

    Args:
        adapter: the model.
        cells: of the picture.
        changed: those that differ from another picture of the same shape; none runs nothing.
        base: what was made of the other.

    Raises:
        ModelError: the encoder reads none alone.
    """
    if not cells.alone:
        raise ModelError("this encoder attends over the whole picture: see encode_nearly")
    if not changed:
        return base
    part = cells.cut(changed)
    adapter.give_way(len(part.token_ids))
    return _with_features(base, cells.order(changed), adapter.features(part)[1], adapter.device)


def encode_noting(adapter: Adapter, prepared: Prepared, most_bytes: int) -> tuple[Encoded, TowerRows | None]:
    """Encode a picture; return also the rows of the encoder's layers that attend over all of it.

    None in place of these where they are more than so many bytes, or there is no such layer.
    """
    if not adapter.whole_layers or most_bytes == 0:
        return adapter.encode(prepared), None
    with noting_rows(adapter.whole_layers, most_bytes) as noted:
        encoded = adapter.encode(prepared)
    return encoded, joined_rows(noted, adapter.whole_layers)


def encode_nearly(
    adapter: Adapter, cells: PictureCells, changed: Sequence[int], base: Encoded, kept: TowerRows
) -> tuple[Encoded, float]:
    """Run the encoder on cells that differ from those of another picture of the same shape, among the other's.

    They attend the others as they were. The others are not made again, but for some: how far these move tells how far
    all do.

    Args:
        adapter: the model.
        cells: of the picture, which the encoder does not read alone.
        changed: those that differ; none runs nothing.
        base: what was made of the other picture.
        kept: the rows of the encoder's layers that attend over all of it.

    Returns:
        Nearly what the encoder makes of the picture, and how far cells that did not change moved, over the spread of
        all rows.
    """
    if not changed:
        return base, 0.0
    ran = [*changed, *cells.probes(changed, PROBED)]
    part = cells.cut(ran)
    adapter.give_way(len(part.token_ids))
    with attending_kept(adapter.whole_layers, kept, cells.places(ran).to(adapter.device)):
        _, features = adapter.features(part)
    order, first = cells.order(ran), len(cells.order(changed))
    encoded = _with_features(base, order[:first], features.of(slice(first)), adapter.device)
    held = Features(base.embeds[base.visual.nonzero().squeeze(1).to(base.embeds.device)], base.deepstack)
    return encoded, _moved(held, order[first:], features.of(slice(first, None)))


def _with_features(base: Encoded, order: Tensor, features: Features, device: torch.device) -> Encoded:
    """Return an encoding with other features of some media tokens [their tokens] int64."""
    order, media = order.to(device), base.visual.nonzero().squeeze(1).to(device)
    with torch.inference_mode():
        embeds = base.embeds.to(device, copy=True)
        embeds[media[order]] = features.media.to(embeds)
        deepstack = tuple(layer.to(device, copy=True) for layer in base.deepstack)
        for layer, own in zip(deepstack, features.deepstack, strict=True):
            layer[order] = own.to(layer)
    return replace(base, embeds=embeds, deepstack=deepstack)


def _moved(held: Features, places: Tensor, now: Features) -> float:
    """Return how far some of a picture's features moved, over the spread of all; 0 without places.

    Both are root mean squares, the spread of the distances from their mean.

    Args:
        held: of the picture's media tokens.
        places: [tokens] int64, of some of them.
        now: what these are now.
    """
    if not len(places):
        return 0.0
    spread = far = 0.0
    for rows, own in zip((held.media, *held.deepstack), (now.media, *now.deepstack), strict=True):
        rows = rows.float()
        spread += float((rows - rows.mean(dim=0)).square().sum(dim=1).mean())
        far += float((own.to(rows) - rows[places.to(rows.device)]).square().sum(dim=1).mean())
    return (far / max(spread, 1e-30)) ** 0.5
