"""Directions pooled over items: one basis per layer, of which an item keeps its coefficients (Kamera, section 4)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch

Directions = tuple[Tensor, Tensor]
"""Orthonormal rows [rank, features] for the keys and the values of one layer."""


def pooled_directions(patches: Sequence[Patch], rank: int) -> list[Directions | None]:
    """Per layer, the leading directions of all patches together; None where no patch has the layer.

    Each item enters with its directions weighted by their singular values, as if the deficits were stacked.
    """
    pooled: list[Directions | None] = []
    for layers in zip(*(patch.layers for patch in patches), strict=True):
        held = [layer for layer in layers if layer is not None]
        if held:
            pooled.append((_leading([one.keys for one in held], rank), _leading([one.values for one in held], rank)))
        else:
            pooled.append(None)
    return pooled


def on_directions(
    deficits: Sequence[LayerRows | None], directions: Sequence[Directions | None], dtype: torch.dtype
) -> Patch:
    """Deficits as coefficients on given directions; a layer that lacks either is left unpatched."""
    layers: list[LayerPatch | None] = []
    for rows, basis in zip(deficits, directions, strict=True):
        if rows is None or basis is None:
            layers.append(None)
        else:
            keys, values = (
                _coefficients(slot, one, dtype) for slot, one in zip((rows.keys, rows.values), basis, strict=True)
            )
            layers.append(LayerPatch(keys, values))
    return Patch(tuple(layers))


def _leading(items: Sequence[Factors], rank: int) -> Tensor:
    device = items[0].right.device
    weighted = torch.cat([(one.left.float().norm(dim=0)[:, None] * one.right.float()).to(device) for one in items])
    right: Tensor = torch.linalg.svd(weighted, full_matrices=False).Vh
    return right[:rank]


def _coefficients(rows: Tensor, basis: Tensor, dtype: torch.dtype) -> Factors:
    matrix = rows.transpose(0, 1).reshape(rows.shape[1], -1).float()
    basis = basis.to(matrix.device)
    return Factors((matrix @ basis.T).to(dtype), basis.to(dtype))
