"""The conditioning patch: the low-rank part of what a chunk would have absorbed from its antecedents.

Kamera, equations 1 and 2: the deficit `KV(B | A) - KV(B)` is cut to its leading singular directions, per layer, keys
and values apart, all heads side by side. It is formed and added in the position-free frame (before the rotation), so a
patch formed at one position serves every other. A patch of rank R has the bytes of R directions in every layer; which
layers they go to is settled by the deficit's energy, as deep layers lack far more than the first ones.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows, all_finite

OVERSAMPLING = 8
"""Directions that are followed beyond the rank of a patch, at least."""
SPREAD = 3
"""Directions that one slot of a patch may have, over its rank."""
COLUMNS = 8
"""Directions come in multiples of this: products of other numbers of columns take up to twice as long."""
POWER = 4
"""Passes over a deficit and back that turn them to the leading ones."""
LEAST_KEPT = 0.8
"""Share of what is missing that a patch has to hold to be kept for later prompts, measured on real weights."""
BATCH_BYTES = 64 * 2**20
"""Of deficits that are factored at once, float32."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Low-rank matrix [tokens, features], `left [tokens, rank] @ right [rank, features]`; leading directions first."""

    left: Tensor
    right: Tensor

    @property
    def rank(self) -> int:
        return int(self.left.shape[1])

    @property
    def bytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    def slice(self, rank: int) -> "Factors":
        """Return the leading `rank` directions; itself where it has no more, so that shared ones stay shared."""
        return self if rank >= self.rank else Factors(self.left[:, :rank], self.right[:rank])

    def to(self, device: torch.device) -> "Factors":
        """Return the factors on a device."""
        return Factors(self.left.to(device), self.right.to(device))

    def copy(self) -> "Factors":
        """Return the factors in memory of their own."""
        return Factors(self.left.clone(), self.right.clone())

    def dense(self, heads: int) -> Tensor:
        """Return the matrix as rows [heads, tokens, width], float32."""
        matrix = self.left.float() @ self.right.float()
        return matrix.reshape(matrix.shape[0], heads, -1).transpose(0, 1)


@dataclass(frozen=True, slots=True)
class LayerPatch:
    """One layer's patch: of keys (MLA: the latent) and of values (MLA: the rotary key)."""

    keys: Factors
    values: Factors

    @property
    def bytes(self) -> int:
        return self.keys.bytes + self.values.bytes

    def apply(self, rows: LayerRows) -> LayerRows:
        """Return position-free rows with the patch added, float32."""
        keys = rows.keys.float() + self.keys.dense(rows.keys.shape[0])
        return LayerRows(keys, rows.values.float() + self.values.dense(rows.values.shape[0]))


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """A chunk's conditioning patch: one entry per layer, None where the layer is left unpatched."""

    layers: tuple[LayerPatch | None, ...]

    @property
    def slots(self) -> tuple[Factors, ...]:
        """The factors of keys and values of the layers that are patched."""
        return tuple(slot for layer in self.layers if layer is not None for slot in (layer.keys, layer.values))

    @property
    def rank(self) -> int:
        """The least rank that has room for what is held, if all layers had the same."""
        held = sum(slot.rank * _cost(slot) for slot in self.slots)
        longest = max((_most(slot) for slot in self.slots), default=0)
        return bisect_left(range(longest + 1), held, key=lambda rank: _room(self.slots, rank))

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers if layer is not None)

    @property
    def finite(self) -> bool:
        """Whether no number of it is NaN or infinite."""
        return all_finite(side for slot in self.slots for side in (slot.left, slot.right))

    def to(self, device: torch.device) -> "Patch":
        """Return the patch on a device."""
        return self.spread([device] * len(self.layers))

    def spread(self, devices: Sequence[torch.device]) -> "Patch":
        """Return the patch with each layer on a device of its own."""
        return Patch(
            tuple(
                None if layer is None else LayerPatch(layer.keys.to(device), layer.values.to(device))
                for layer, device in zip(self.layers, devices, strict=True)
            )
        )

    def copy(self) -> "Patch":
        """Return the patch in memory of its own."""
        layers = (None if each is None else LayerPatch(each.keys.copy(), each.values.copy()) for each in self.layers)
        return Patch(tuple(layers))

    def slice_evenly(self, rank: int) -> "Patch":
        """Return the patch with the leading `rank` directions of each slot."""
        return Patch(
            tuple(
                None if layer is None else LayerPatch(layer.keys.slice(rank), layer.values.slice(rank))
                for layer in self.layers
            )
        )

    def slice(self, rank: int) -> "Patch":
        """Return the patch cut to a lower rank: the directions of most energy that it has room for, of any layer.

        A rank beyond what is held keeps all. The columns of `left` have to be singular directions.
        """
        slots = self.slots
        room = _room(slots, rank)
        if sum(slot.rank * _cost(slot) for slot in slots) <= room:
            return self
        # Energy for each number that a direction takes; of one slot they fall, so a front of each is chosen.
        worth = _on_host([slot.left.float().square().sum(dim=0) / _cost(slot) for slot in slots])
        owner = torch.cat([torch.full((slot.rank,), index) for index, slot in enumerate(slots)])
        costs = torch.tensor([_cost(slot) for slot in slots])
        order = owner[worth.argsort(descending=True, stable=True)]
        kept = order[costs[order].cumsum(dim=0) <= room].bincount(minlength=len(slots)).tolist()
        cut = iter([slot.slice(count) for slot, count in zip(slots, kept, strict=True)])
        return Patch(tuple(None if layer is None else LayerPatch(next(cut), next(cut)) for layer in self.layers))

    def covers(self, layers: Collection[int]) -> bool:
        """Return whether all the given layers are patched."""
        return all(self.layers[index] is not None for index in layers)


def deficit(conditioned: LayerRows, canonical: LayerRows) -> LayerRows:
    """Return what the canonical rows lack (Kamera, equation 2), float32; both position-free."""
    return LayerRows(
        conditioned.keys.float() - canonical.keys.float(), conditioned.values.float() - canonical.values.float()
    )


def form_patch(deficits: Sequence[LayerRows | None], rank: int, dtype: torch.dtype, *, even: bool = False) -> Patch:
    """Return the patch of rank `rank` of position-free deficits, in `dtype`; a None leaves its layer unpatched.

    Layers, keys and values of the same shape are factored together. Their directions share one room, by energy; with
    `even` each slot has the rank.
    """
    slots = [slot for rows in deficits if rows is not None for slot in (rows.keys, rows.values)]
    made = iter(_factor_together([_matrix(slot) for slot in slots], rank if even else SPREAD * rank, dtype))
    whole = Patch(tuple(None if rows is None else LayerPatch(next(made), next(made)) for rows in deficits))
    return whole.slice(rank)


def form_faithful_patch(
    deficits: Sequence[LayerRows | None], rank: int, dtype: torch.dtype, least_kept: float | None = None
) -> Patch | None:
    """Return the patch as `form_patch`; None where it holds less than a share of what is missing.

    The share is `LEAST_KEPT` by default.

    A patch that holds little of it misleads: on real weights answers over such patches are further from full prefill's
    than over no patches at all.
    """
    patch = form_patch(deficits, rank, dtype)
    least = LEAST_KEPT if least_kept is None else least_kept
    return patch if kept_energy(deficits, patch) >= least else None


def kept_energy(deficits: Sequence[LayerRows | None], patch: Patch) -> float:
    """Return the share of the deficits' squared sum that a patch holds; 1 where nothing is missing.

    The columns of `left` have to be singular directions, and those of `right` orthonormal.
    """
    slots = [slot for rows in deficits if rows is not None for slot in (rows.keys, rows.values)]
    missing = sum(float(slot.float().square().sum()) for slot in slots)
    held = sum(float(slot.left.float().square().sum()) for slot in patch.slots)
    return min(1.0, held / missing) if missing > 0 else 1.0


def _on_host(vectors: Sequence[Tensor]) -> Tensor:
    """Return vectors side by side on the CPU; runs of them on one device are brought at once."""
    runs = [torch.cat(list(run)) for _, run in groupby(vectors, key=lambda vector: vector.device)]
    return torch.cat(list(map(Tensor.cpu, runs)))


def _sides(slot: Factors) -> tuple[int, int]:
    """Return the tokens and features of the matrix."""
    return int(slot.left.shape[0]), int(slot.right.shape[1])


def _cost(slot: Factors) -> int:
    """Return how many numbers a direction of it takes."""
    return sum(_sides(slot))


def _room(slots: Sequence[Factors], rank: int) -> int:
    """Return how many numbers the slots take where all have a rank, or all their directions if these are fewer."""
    return sum(min(rank, _most(slot)) * _cost(slot) for slot in slots)


def _most(slot: Factors) -> int:
    """Return the rank that the matrix can have; a sum that was not factored again may have more directions."""
    return max(slot.rank, min(_sides(slot)))


def _matrix(rows: Tensor) -> Tensor:
    """Return rows [heads, tokens, width] as one matrix [tokens, heads * width], float32."""
    return rows.transpose(0, 1).reshape(rows.shape[1], -1).float()


def _factor_together(matrices: Sequence[Tensor], rank: int, dtype: torch.dtype) -> list[Factors]:
    """Return the leading factors of each matrix [tokens, features]; those of one shape on one device are one batch."""
    alike: dict[tuple[tuple[int, int], torch.device], list[int]] = {}
    for index, matrix in enumerate(matrices):
        alike.setdefault(((matrix.shape[0], matrix.shape[1]), matrix.device), []).append(index)
    found: dict[int, Factors] = {}
    for (shape, _), indices in alike.items():
        few = max(1, BATCH_BYTES // (4 * max(1, shape[0] * shape[1])))
        for start in range(0, len(indices), few):
            batch = indices[start : start + few]
            left, right = _leading_pairs(torch.stack([matrices[index] for index in batch]), min(rank, *shape))
            for at, index in enumerate(batch):
                found[index] = Factors(left[at].to(dtype).contiguous(), right[at].to(dtype).contiguous())
    return [found[index] for index in range(len(matrices))]


def _leading_pairs(matrices: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return left [batch, tokens, rank] and right [batch, rank, features] factors of matrices.

    Subspace iteration (Halko, Martinsson and Tropp, algorithm 4.4) with CholeskyQR, and the directions of Rayleigh and
    Ritz at the end; a rank that is not low gets a full SVD. It has a generator of its own, so results repeat.
    """
    size = -(-(rank + OVERSAMPLING) // COLUMNS) * COLUMNS
    if rank == 0 or 2 * size > min(matrices.shape[1:]):
        left, weights, right = torch.linalg.svd(matrices, full_matrices=False)
        return left[..., :rank] * weights[..., None, :rank], right[:, :rank]
    generator = torch.Generator().manual_seed(rank)
    # As large as the batch: a product with one matrix for all of it takes longer.
    basis = torch.randn(matrices.shape[2], size, generator=generator).to(matrices.device).repeat(len(matrices), 1, 1)
    for _ in range(POWER):
        images = matrices @ basis.float()
        # Twice, for what the first leaves where columns nearly depend on each other.
        basis = _orthonormal(_orthonormal((images.mT @ matrices).mT))
    images = matrices @ basis.float()
    within = images.double()
    _, turns = torch.linalg.eigh(within.mT @ within)
    # From the largest on.
    turns = turns[..., -rank:].flip(-1)
    return images @ turns.float(), (basis @ turns).float().mT


def _orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis of columns [batch, rows, columns], float64 (CholeskyQR, shifted)."""
    columns = columns.double()
    gram = columns.mT @ columns
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    # Columns may depend on each other, or be zero.
    diagonal.add_(diagonal.sum(dim=-1, keepdim=True) * 1e-15 + 1e-300)
    # The other form waits for a device to look for errors.
    triangle, _ = torch.linalg.cholesky_ex(gram)
    basis: Tensor = torch.linalg.solve_triangular(triangle.mT, columns, upper=True, left=False)
    return basis


def rank_for_share(share: float, tokens: int, layouts: Sequence[LayerLayout], layers: Collection[int]) -> int:
    """Return the largest rank whose patch on `layers` has at most `share` of the bytes of the chunk's KV; 0 if none.

    A slot of width F costs `rank (tokens + F)` numbers; beyond full rank a slot costs no more. Layers that keep a map
    of the chunk's state are not patched.
    """
    budget = share * sum(layout.numbers(tokens) for layout in layouts)
    patched = [layouts[index] for index in layers if not layouts[index].is_mapped(tokens)]
    slots = [slot for layout in patched for slot in (layout.keys, layout.values)]
    widths = [heads * width for heads, width in slots]
    ranks = range(1, min(tokens, max(widths, default=0)) + 1)
    return bisect_right(ranks, budget, key=lambda rank: _numbers(rank, tokens, widths))


def _numbers(rank: int, tokens: int, widths: Sequence[int]) -> int:
    return sum(min(rank, tokens, width) * (tokens + width) for width in widths)
