"""Directions of items that are not measured, for strategies that learn from other items: the same for every item.

A pool that grew along a run would give its early items less than its late ones, and a killed run another than a whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import torch

from benchmarks.fidelity.arms import Arm, AtShare
from emblema.kv.layout import LayerLayout
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.link.strategies.basis import Basis
from emblema.store.keys import PatchKey

POOLED = 16
"""Items whose patches are pooled."""


def learned_rank(arms: Iterable[Arm], layouts: Sequence[LayerLayout]) -> int:
    """The most directions that one of the strategies takes from other items, 0 if none does."""
    widest = max(heads * width for layout in layouts for heads, width in (layout.keys, layout.values))
    ranks = [0]
    for arm in arms:
        if isinstance(arm, Basis):
            ranks.append(arm.rank)
        elif isinstance(arm, AtShare) and arm.method == "basis":
            # The widest slot may take more than its share where others are full.
            ranks.append(widest if not _even(layouts) else ceil(widest * arm.percent / 100))
    return min(widest, max(ranks))


def merged(patches: Mapping[PatchKey, Patch], rank: int) -> dict[PatchKey, Patch]:
    """One piece whose directions are what all patches pool to, weighted as they are; of the model's own key."""
    if not patches:
        return {}
    layers: list[LayerPatch | None] = []
    for every in zip(*(patch.layers for patch in patches.values()), strict=True):
        held = [layer for layer in every if layer is not None]
        layers.append(
            LayerPatch(_merged([one.keys for one in held], rank), _merged([one.values for one in held], rank))
            if held
            else None
        )
    model = next(iter(patches)).model
    return {PatchKey(model, "pool", ()): Patch(tuple(layers))}


def _merged(items: Sequence[Factors], rank: int) -> Factors:
    weighted = torch.cat([one.left.float().norm(dim=0)[:, None] * one.right.float() for one in items])
    found = torch.linalg.svd(weighted, full_matrices=False)
    return Factors(torch.diag(found.S[:rank]), found.Vh[:rank])


def _even(layouts: Sequence[LayerLayout]) -> bool:
    return len({heads * width for one in layouts for heads, width in (one.keys, one.values)}) == 1
