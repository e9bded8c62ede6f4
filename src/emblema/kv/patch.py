"""The conditioning patch: the low-rank part of what a chunk would have absorbed from its antecedents.

Kamera, equations 1 and 2: the deficit `KV(B | A) - KV(B)` is cut to its leading singular directions, per layer, keys
and values apart, all heads side by side. It is formed and added in the position-free frame (before the rotation), so a
patch formed at one position serves every other.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows

EXACT_SIDE = 384
"""Deficits whose shorter side is at most this long get a full SVD; larger ones a randomised one."""

OVERSAMPLING = 8
"""Directions that are followed beyond the rank of a patch, at least."""
COLUMNS = 8
"""Directions come in multiples of this: products of other numbers of columns take up to twice as long."""
POWER = 4
"""Passes over a deficit and back that turn them to the leading ones."""
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
        """Return the leading `rank` directions."""
        return Factors(self.left[:, :rank], self.right[:rank])

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
    def rank(self) -> int:
        """The largest rank held by any layer."""
        return max((max(layer.keys.rank, layer.values.rank) for layer in self.layers if layer is not None), default=0)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers if layer is not None)

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

    def slice(self, rank: int) -> "Patch":
        """Return the patch cut to a lower rank; a rank beyond what is held keeps all."""
        return Patch(
            tuple(
                None if layer is None else LayerPatch(layer.keys.slice(rank), layer.values.slice(rank))
                for layer in self.layers
            )
        )

    def covers(self, layers: Collection[int]) -> bool:
        """Return whether all the given layers are patched."""
        return all(self.layers[index] is not None for index in layers)


def deficit(conditioned: LayerRows, canonical: LayerRows) -> LayerRows:
    """Return what the canonical rows lack (Kamera, equation 2), float32; both position-free."""
    return LayerRows(
        conditioned.keys.float() - canonical.keys.float(), conditioned.values.float() - canonical.values.float()
    )


def form_patch(deficits: Sequence[LayerRows | None], rank: int, dtype: torch.dtype) -> Patch:
    """Return the patch of rank `rank` of position-free deficits, in `dtype`; a None leaves its layer unpatched."""
    (patch,) = form_patches([deficits], rank, dtype)
    return patch


def form_patches(every: Sequence[Sequence[LayerRows | None]], rank: int, dtype: torch.dtype) -> list[Patch]:
    """Return the patch of rank `rank` of each chunk's position-free deficits, in `dtype`.

    Layers, keys, values and chunks of the same shape are factored together.
    """
    slots = [slot for deficits in every for rows in deficits if rows is not None for slot in (rows.keys, rows.values)]
    made = iter(_factor_together([_matrix(slot) for slot in slots], rank, dtype))
    return [
        Patch(tuple(None if rows is None else LayerPatch(next(made), next(made)) for rows in deficits))
        for deficits in every
    ]


def remaining(deficits: Sequence[LayerRows | None], patch: Patch) -> list[LayerRows | None]:
    """Return what a patch leaves of position-free deficits, float32; a layer that it lacks stays as it is."""
    left: list[LayerRows | None] = []
    for rows, layer in zip(deficits, patch.layers, strict=True):
        if rows is None or layer is None:
            left.append(rows)
            continue
        keys = rows.keys.float() - layer.keys.dense(rows.keys.shape[0]).to(rows.keys.device)
        values = rows.values.float() - layer.values.dense(rows.values.shape[0]).to(rows.values.device)
        left.append(LayerRows(keys, values))
    return left


def compose(patch: Patch, update: Patch, rank: int | None = None) -> Patch:
    """Return the sum of two patches of a chunk, of their joint rank, or cut to `rank` by its leading directions.

    A layer that one patch lacks is the other's. Kamera, appendix D: an update carries only what changed.
    """
    layers: list[LayerPatch | None] = []
    for stored, added in zip(patch.layers, update.layers, strict=True):
        if stored is None or added is None:
            layers.append(stored or added)
        else:
            layers.append(LayerPatch(_sum(stored.keys, added.keys, rank), _sum(stored.values, added.values, rank)))
    return Patch(tuple(layers))


def _sum(stored: Factors, added: Factors, rank: int | None) -> Factors:
    left = torch.cat([stored.left, added.left.to(stored.left)], dim=1)
    right = torch.cat([stored.right, added.right.to(stored.right)])
    if rank is None or rank >= left.shape[1]:
        return Factors(left, right)
    tall, inner = torch.linalg.qr(left.float())
    wide, outer = torch.linalg.qr(right.float().T)
    turned, weights, second = torch.linalg.svd(inner @ outer.T, full_matrices=False)
    cut = tall @ (turned[:, :rank] * weights[:rank])
    return Factors(cut.to(left.dtype).contiguous(), (second[:rank] @ wide.T).to(right.dtype).contiguous())


def factor(rows: Tensor, rank: int, dtype: torch.dtype) -> Factors:
    """Return the leading factors of rows [heads, tokens, width], taken as one matrix [tokens, heads * width]."""
    matrix = _matrix(rows)
    rank = min(rank, *matrix.shape)
    if min(matrix.shape) <= EXACT_SIDE or 4 * rank > min(matrix.shape):
        left, weights, right = torch.linalg.svd(matrix, full_matrices=False)
    else:
        left, weights, right = _randomised_svd(matrix, rank)
    return Factors((left[:, :rank] * weights[:rank]).to(dtype).contiguous(), right[:rank].to(dtype).contiguous())


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

    A slot of width F costs `rank (tokens + F)` numbers; beyond full rank a slot costs no more.
    """
    budget = share * tokens * sum(layout.features for layout in layouts)
    slots = [slot for index in layers for slot in (layouts[index].keys, layouts[index].values)]
    widths = [heads * width for heads, width in slots]
    ranks = range(1, min(tokens, max(widths)) + 1)
    return bisect_right(ranks, budget, key=lambda rank: _numbers(rank, tokens, widths))


def _numbers(rank: int, tokens: int, widths: Sequence[int]) -> int:
    return sum(min(rank, tokens, width) * (tokens + width) for width in widths)


def _randomised_svd(matrix: Tensor, rank: int, oversampling: int = 16, power: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Halko, Martinsson and Tropp's range finder with power iterations; its own generator, so results repeat."""
    generator = torch.Generator().manual_seed(rank)
    probe = torch.randn(matrix.shape[1], rank + oversampling, generator=generator).to(matrix.device)
    basis, _ = torch.linalg.qr(matrix @ probe)
    for _ in range(power):
        other, _ = torch.linalg.qr(matrix.T @ basis)
        basis, _ = torch.linalg.qr(matrix @ other)
    left, weights, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return basis @ left, weights, right
