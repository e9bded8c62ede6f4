"""Patches that compose: what a chunk's rows take from single other chunks, learnt a row at a time.

Where a row of a chunk is computed in context, its *difference* from the canonical row (position-free, all layers' keys
and values side by side) is credited to the antecedent that the row attended most. For a list of antecedents that was
never seen, each row then takes the difference that it has for the one that it attends most on average. Differences are
kept as coefficients on directions that all chunks and layers of a model share, one byte each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor

from emblema.kv.layout import LayerLayout
from emblema.kv.patch import Factors, LayerPatch, Patch, factor

MOST_AVERAGED = 4
"""Differences that are averaged in an entry; later ones do not change it."""
MOST_SIGHTINGS = 31
"""Weight of what is known of a share against one more sighting, at most."""
MOST_ANTECEDENTS = 16
"""Antecedents that a row keeps an entry of, at most."""
MOST_WITNESSES = 64
"""Chunks that a pair is learnt from, at most; prompts with others are not learnt from then."""
PURITY = 0.5
"""Share of a row's attention to its antecedents that one of them needs, to be credited with the row's difference."""
ID_BYTES = 32

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class PairBasis:
    """Directions that the differences of a model's rows are kept on.

    Attributes:
        directions: [M, G] float32, orthonormal; G is the number of features of a row, all layers and slots together.
        exact: coefficients are kept as they are, float32, in place of one byte; for tests and measurements.
    """

    directions: Tensor
    exact: bool = False

    @cached_property
    def id(self) -> str:
        """A digest of the directions."""
        digest = blake3(self.directions.contiguous().numpy().tobytes())
        digest.update(bytes([self.exact]))
        return digest.hexdigest(16)

    @property
    def rank(self) -> int:
        return int(self.directions.shape[0])

    def coefficients(self, differences: Tensor) -> Tensor:
        """Return the coefficients [rows, M] of differences [rows, G]."""
        return differences @ self.directions.T

    def right_factors(self, layouts: Sequence[LayerLayout], dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return each layer's directions, [M, features] for keys and for values."""
        cuts = [heads * width for layout in layouts for heads, width in (layout.keys, layout.values)]
        slots = [slot.to(dtype).contiguous() for slot in self.directions.split(cuts, dim=1)]
        return tuple(zip(slots[::2], slots[1::2], strict=True))


def make_basis(differences: Tensor, rank: int) -> PairBasis:
    """Return the leading directions of differences [rows, G], `rank` or as many as there are rows or features."""
    return PairBasis(factor(differences[None], rank, torch.float32).right.contiguous())


def width_of(layouts: Sequence[LayerLayout]) -> int:
    """Return how many features a row has, all layers and slots together."""
    return sum(layout.features for layout in layouts)


@dataclass(frozen=True, slots=True)
class PairSighting:
    """What one prompt shows of a chunk: rows that were computed in context.

    Attributes:
        antecedents: ids of the chunks before it, each once.
        rows: [r] int64, rows of the chunk, in order.
        coefficients: [r, M] of their differences.
        mass: [antecedents, r] attention that each row gave to each antecedent.
        alone: [antecedents, r] what share of the attention each would have if it were the only one.
        witnesses: ids of every chunk that the rows may hold traces of.
    """

    antecedents: tuple[str, ...]
    rows: Tensor
    coefficients: Tensor
    mass: Tensor
    alone: Tensor
    witnesses: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPairs:
    """What is known of a chunk after each of some antecedents. Immutable; entries are in the order of their places.

    Attributes:
        rows: rows of the chunk.
        basis: id of the basis that coefficients belong to.
        antecedents: ids.
        witnesses: for each antecedent, ids of all chunks in the prompts that it was learnt from.
        prompts: [antecedents] int32, how many prompts it was learnt from.
        shares: [antecedents, rows] uint8, mean alone share in 1/255.
        sighted: [antecedents, rows] uint8, how many sightings the mean is of.
        places: [entries] int32, index of the antecedent times `rows`, and the row; ascending.
        coefficients: [entries, M] int8; float32 for an exact basis.
        scales: [entries] float32, what a coefficient of 1 stands for.
        counts: [entries] uint8, how many differences are averaged.
    """

    rows: int
    basis: str
    antecedents: tuple[str, ...]
    witnesses: tuple[frozenset[str], ...]
    prompts: Tensor
    shares: Tensor
    sighted: Tensor
    places: Tensor
    coefficients: Tensor
    scales: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, rows: int, basis: PairBasis) -> "ChunkPairs":
        """Return what is known before anything is learnt."""
        kept = torch.float32 if basis.exact else torch.int8
        return cls(
            rows,
            basis.id,
            (),
            (),
            torch.zeros(0, dtype=torch.int32),
            torch.zeros(0, rows, dtype=torch.uint8),
            torch.zeros(0, rows, dtype=torch.uint8),
            torch.zeros(0, dtype=torch.int32),
            torch.zeros(0, basis.rank, dtype=kept),
            torch.zeros(0),
            torch.zeros(0, dtype=torch.uint8),
        )

    @property
    def sources(self) -> frozenset[str]:
        """Ids of all chunks that it was learnt from, the chunk itself aside if it was no witness."""
        return frozenset().union(self.antecedents, *self.witnesses)

    @property
    def bytes(self) -> int:
        tensors = (self.prompts, self.shares, self.sighted, self.places, self.coefficients, self.scales, self.counts)
        return sum(tensor.nbytes for tensor in tensors) + ID_BYTES * len(self.sources)

    def to(self, device: torch.device) -> "ChunkPairs":
        """Return it as it is: it stays on the CPU, and patches composed from it follow the model."""
        return self


@dataclass(frozen=True, slots=True)
class Composed:
    """A patch put together from pairs.

    Attributes:
        patch: the patch; rows without a known entry have zero coefficients.
        known: share of the rows with an entry.
        witnesses: ids of the chunks that the entries were learnt from.
    """

    patch: Patch
    known: float
    witnesses: frozenset[str]


def compose_pairs(
    pairs: ChunkPairs, antecedents: Sequence[str], right: Sequence[tuple[Tensor, Tensor]]
) -> Composed | None:
    """Return the patch of a chunk after some antecedents; None where nothing is known of any row.

    Each row takes the entry of the antecedent with the largest mean alone share, among those that it has an entry of.

    Args:
        pairs: what is known.
        antecedents: ids of the chunks that are there.
        right: `PairBasis.right_factors` of the basis that the pairs belong to.
    """
    present = set(antecedents)
    slots = [index for index, name in enumerate(pairs.antecedents) if name in present]
    if not slots or len(pairs.places) == 0:
        return None
    entries = np.full((len(pairs.antecedents), pairs.rows), -1)
    entries.reshape(-1)[pairs.places.numpy()] = np.arange(len(pairs.places))
    entries = entries[slots]
    winners = np.where(entries >= 0, pairs.shares.numpy()[slots].astype(np.int16), -1).argmax(axis=0)
    found = np.take_along_axis(entries, winners[None], axis=0)[0]
    rows = (found >= 0).nonzero()[0]
    if len(rows) == 0:
        return None
    held, scales = pairs.coefficients.numpy()[found[rows]], pairs.scales.numpy()[found[rows]]
    coefficients = np.zeros((pairs.rows, held.shape[1]), dtype=np.float32)
    coefficients[rows] = held * scales[:, None]
    left = torch.from_numpy(coefficients).to(right[0][0].dtype)
    layers = tuple(LayerPatch(Factors(left, keys), Factors(left, values)) for keys, values in right)
    used = {slots[index] for index in winners[rows].tolist()}
    witnesses = frozenset().union(*(pairs.witnesses[slot] for slot in used))
    return Composed(Patch(layers), len(rows) / pairs.rows, witnesses)


def sightings_of(pairs: ChunkPairs, antecedents: Sequence[str]) -> list[int]:
    """Return for each antecedent how many prompts it was learnt from."""
    known = dict(zip(pairs.antecedents, pairs.prompts.tolist(), strict=True))
    return [int(known.get(name, 0)) for name in antecedents]


def met_often(pairs: ChunkPairs, antecedents: Sequence[str], sightings: float) -> bool:
    """Return whether a chunk was met with each of some antecedents, and so many times with each on average."""
    met = sightings_of(pairs, list(dict.fromkeys(antecedents)))
    return bool(met) and min(met) > 0 and sum(met) >= sightings * len(met)


def learn(pairs: ChunkPairs, sighting: PairSighting, purity: float = PURITY) -> ChunkPairs:
    """Return what is known after one more prompt.

    Every antecedent's alone shares are updated. A row's difference is credited to the antecedent that it attended most,
    if that has a share of `purity` of the attention to all antecedents.
    """
    witnesses = dict(zip(pairs.antecedents, pairs.witnesses, strict=True))
    grown = {name: witnesses.get(name, frozenset()) | sighting.witnesses for name in sighting.antecedents}
    kept = [index for index, name in enumerate(sighting.antecedents) if len(grown[name]) <= MOST_WITNESSES]
    if not kept or len(sighting.rows) == 0:
        return pairs
    names = [sighting.antecedents[index] for index in kept]
    pairs = _with_antecedents(pairs, names)
    place_of = {name: place for place, name in enumerate(pairs.antecedents)}
    slots = np.array([place_of[name] for name in names])
    rows, mass, alone = sighting.rows.numpy(), sighting.mass.numpy(), sighting.alone.numpy()
    known = list(pairs.witnesses)
    for name in names:
        known[place_of[name]] = grown[name]
    prompts, shares, sighted = pairs.prompts.numpy().copy(), pairs.shares.numpy().copy(), pairs.sighted.numpy().copy()
    prompts[slots] += 1
    at = (slots[:, None], rows[None])
    weight = sighted[at].astype(np.float32)
    shares[at] = ((shares[at] * weight + 255 * alone[kept]) / (weight + 1)).round().clip(0, 255)
    sighted[at] = (weight + 1).clip(max=MOST_SIGHTINGS)
    slot_of = np.full(len(sighting.antecedents), -1)
    slot_of[kept] = slots
    winners = slot_of[mass.argmax(axis=0)]
    won = ((mass.max(axis=0) >= purity * mass.sum(axis=0)) & (winners >= 0)).nonzero()[0]
    pairs = replace(
        pairs,
        witnesses=tuple(known),
        prompts=torch.from_numpy(prompts),
        shares=torch.from_numpy(shares),
        sighted=torch.from_numpy(sighted),
    )
    return _credited(pairs, winners[won] * pairs.rows + rows[won], sighting.coefficients.numpy()[won])


def without(pairs: ChunkPairs, chunk: str) -> ChunkPairs:
    """Return what is known without all that was learnt where a chunk was there."""
    kept = [index for index, known in enumerate(pairs.witnesses) if chunk not in (*known, pairs.antecedents[index])]
    return pairs if len(kept) == len(pairs.antecedents) else _select(pairs, kept)


def bounded(pairs: ChunkPairs, most_bytes: int) -> ChunkPairs:
    """Return what is known cut to so many bytes, and to `MOST_ANTECEDENTS` entries a row.

    An entry is worth its share of the row's attention times how often its antecedent was met: how likely it is served.
    """
    row_bytes = 2 * pairs.rows + ID_BYTES
    antecedents = max(1, most_bytes // 2 // row_bytes)
    if len(pairs.antecedents) > antecedents:
        worth = pairs.prompts * pairs.shares.float().mean(dim=1)
        pairs = _select(pairs, sorted(worth.topk(antecedents).indices.tolist()))
    entry_bytes = pairs.coefficients.shape[1] * pairs.coefficients.itemsize + 9
    room = max(0, (most_bytes - pairs.bytes) // entry_bytes + len(pairs.places))
    crowded = len(pairs.antecedents) > MOST_ANTECEDENTS and len(pairs.places) > MOST_ANTECEDENTS
    crowded = crowded and np.bincount(pairs.places.numpy() % pairs.rows).max() > MOST_ANTECEDENTS
    if len(pairs.places) <= room and not crowded:
        return pairs
    places = pairs.places.long()
    worth = pairs.prompts[places // pairs.rows] * pairs.shares.flatten()[places].float()
    if crowded:
        table = torch.full((len(pairs.antecedents), pairs.rows), -1.0)
        table.view(-1)[places] = worth
        least = table.topk(MOST_ANTECEDENTS, dim=0).values[-1]
        worth = torch.where(worth >= least[places % pairs.rows], worth, -1.0)
    kept = worth.topk(min(room, int((worth >= 0).sum()))).indices.sort().values
    return _entries(pairs, kept)


def turned(pairs: ChunkPairs, turn: Tensor, basis: str) -> ChunkPairs:
    """Return what is known on another basis, `turn` [M, M'] being the products of both bases' directions.

    What the old basis could not hold is gone, so that the next sightings weigh as much as all before.
    """
    decoded = pairs.coefficients.float() * pairs.scales[:, None]
    coefficients, scales = _encoded((decoded @ turn).numpy(), pairs.coefficients.numpy().dtype)
    return replace(
        pairs,
        basis=basis,
        coefficients=torch.from_numpy(coefficients),
        scales=torch.from_numpy(scales),
        counts=pairs.counts.clamp_max(1),
    )


def _with_antecedents(pairs: ChunkPairs, names: Sequence[str]) -> ChunkPairs:
    """Return the pairs with room for more antecedents."""
    new = tuple(name for name in names if name not in pairs.antecedents)
    if not new:
        return pairs
    nothing = torch.zeros(len(new), pairs.rows, dtype=torch.uint8)
    return replace(
        pairs,
        antecedents=pairs.antecedents + new,
        witnesses=pairs.witnesses + (frozenset(),) * len(new),
        prompts=torch.cat((pairs.prompts, torch.zeros(len(new), dtype=torch.int32))),
        shares=torch.cat((pairs.shares, nothing)),
        sighted=torch.cat((pairs.sighted, nothing)),
    )


def _credited(pairs: ChunkPairs, places: Ints, coefficients: Floats) -> ChunkPairs:
    """Return the pairs with differences averaged into the entries of places, each place once."""
    held, scales = pairs.coefficients.numpy().copy(), pairs.scales.numpy().copy()
    kept, counts = pairs.places.numpy(), pairs.counts.numpy().copy()
    found = np.searchsorted(kept, places)
    known = np.zeros(len(places), dtype=bool)
    if len(kept):
        known = kept[found.clip(max=len(kept) - 1)] == places
    old = found[known]
    open_ = counts[old] < MOST_AVERAGED
    old, more = old[open_], coefficients[known][open_]
    weight = counts[old].astype(np.float32)[:, None]
    mean = (held[old] * scales[old, None] * weight + more) / (weight + 1)
    held[old], scales[old] = _encoded(mean, held.dtype)
    counts[old] += 1
    fresh, fresh_scales = _encoded(coefficients[~known], held.dtype)
    joined = np.concatenate((kept, places[~known].astype(np.int32)))
    order = joined.argsort()
    one = np.ones(len(fresh), dtype=np.uint8)
    return replace(
        pairs,
        places=torch.from_numpy(joined[order]),
        coefficients=torch.from_numpy(np.concatenate((held, fresh))[order]),
        scales=torch.from_numpy(np.concatenate((scales, fresh_scales))[order]),
        counts=torch.from_numpy(np.concatenate((counts, one))[order]),
    )


def _select(pairs: ChunkPairs, kept: Sequence[int]) -> ChunkPairs:
    """Return the pairs of some antecedents, given by their indices in order."""
    slots = torch.full((len(pairs.antecedents),), -1)
    slots[list(kept)] = torch.arange(len(kept))
    places = pairs.places.long()
    own = slots[places // pairs.rows]
    pairs = replace(pairs, places=(own * pairs.rows + places % pairs.rows).to(torch.int32))
    pairs = _entries(pairs, own >= 0)
    indices = torch.tensor(list(kept), dtype=torch.int64)
    return replace(
        pairs,
        antecedents=tuple(pairs.antecedents[index] for index in kept),
        witnesses=tuple(pairs.witnesses[index] for index in kept),
        prompts=pairs.prompts[indices],
        shares=pairs.shares[indices],
        sighted=pairs.sighted[indices],
    )


def _entries(pairs: ChunkPairs, kept: Tensor) -> ChunkPairs:
    """Return the pairs with some entries only, given by a mask, or by their indices in order."""
    return replace(
        pairs,
        places=pairs.places[kept],
        coefficients=pairs.coefficients[kept],
        scales=pairs.scales[kept],
        counts=pairs.counts[kept],
    )


def _encoded(coefficients: Floats, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Floats]:
    """Return coefficients [n, M] as they are kept, and the scale of each row [n]."""
    if dtype != np.int8:
        return coefficients, np.ones(len(coefficients), dtype=np.float32)
    scales = np.abs(coefficients).max(axis=1, initial=1e-12) / np.float32(127)
    return (coefficients / scales[:, None]).round().astype(np.int8), scales
