"""What is made from a chunk and kept beside its canonical rows: patches, factors of its keys, its residual stream."""

from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.layout import all_finite
from emblema.kv.pairs import ChunkPairs
from emblema.kv.patch import Factors, Patch


@dataclass(frozen=True, slots=True, eq=False)
class KeyFactors:
    """A chunk's own position-free keys (MLA: the latent) as low-rank factors, one of every layer (ShadowKV)."""

    layers: tuple[Factors, ...]

    @property
    def rank(self) -> int:
        """Return the largest rank of any layer."""
        return max((factors.rank for factors in self.layers), default=0)

    @property
    def bytes(self) -> int:
        return sum(factors.bytes for factors in self.layers)

    def to(self, device: torch.device) -> "KeyFactors":
        """Return the factors on a device."""
        return KeyFactors(tuple(factors.to(device) for factors in self.layers))


@dataclass(frozen=True, slots=True, eq=False)
class ResidualStream:
    """The residual stream that enters one layer where a chunk is prefilled alone; it holds no position.

    Attributes:
        rows: [tokens, hidden], in the model's dtype.
        layer: index of the layer that it enters.
        layers: number of layers of the model.
    """

    rows: Tensor
    layer: int
    layers: int

    @property
    def bytes(self) -> int:
        return self.rows.nbytes

    def to(self, device: torch.device) -> "ResidualStream":
        """Return the stream on a device."""
        return ResidualStream(self.rows.to(device), self.layer, self.layers)


Artifact = Patch | KeyFactors | ResidualStream | ChunkPairs


def artifact_finite(artifact: Artifact) -> bool:
    """Return whether no number of an artifact is NaN or infinite."""
    if isinstance(artifact, ResidualStream):
        return all_finite([artifact.rows])
    if isinstance(artifact, ChunkPairs):
        return all_finite([artifact.coefficients, artifact.scales])
    if isinstance(artifact, KeyFactors):
        factors = list(artifact.layers)
    else:
        factors = [slot for layer in artifact.layers if layer is not None for slot in (layer.keys, layer.values)]
    return all_finite(side for slot in factors for side in (slot.left, slot.right))


def sources_of(artifact: Artifact | None) -> frozenset[str]:
    """Return ids of chunks that an artifact was made from and that its key does not name."""
    return artifact.sources if isinstance(artifact, ChunkPairs) else frozenset()
