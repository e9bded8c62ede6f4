"""What a conditioning patch is found by."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class PatchKey:
    """Model, chunk and antecedents; text in front and positions are not part of it and count only as drift.

    Other pieces that are made from a chunk lie under such keys too: their kind stands behind the fingerprint, after a
    slash, so that every store tells them from patches.

    Attributes:
        model: the model's weights fingerprint, hex; `fingerprint/kind` for what is no plain patch.
        chunk: id of the patched chunk.
        antecedents: ids of the chunks before it, in their order; an orbit patch serves every ordering, so its ids are
            kept sorted and each once.
        orbit: whether the patch is averaged over the orderings.
    """

    model: str
    chunk: str
    antecedents: tuple[str, ...]
    orbit: bool = False

    def __post_init__(self) -> None:
        ordered = tuple(sorted(set(self.antecedents))) if self.orbit else tuple(self.antecedents)
        object.__setattr__(self, "antecedents", ordered)

    @classmethod
    def of(cls, kind: str, model: str, chunk: str, antecedents: tuple[str, ...] = (), *, orbit: bool = False) -> Self:
        """The key of a piece of some kind."""
        return cls(f"{model}/{kind}" if kind else model, chunk, antecedents, orbit)

    @property
    def kind(self) -> str:
        """What the piece is; empty for a patch."""
        return self.model.partition("/")[2]

    @property
    def chunks(self) -> frozenset[str]:
        """Every chunk the patch was made from; it goes with any of them."""
        return frozenset((self.chunk, *self.antecedents))

    def __str__(self) -> str:
        before = ", ".join(name[:8] for name in self.antecedents)
        if self.kind and not self.orbit:
            return f"{self.kind} of {self.chunk[:8]} after [{before}]"
        if self.orbit:
            return f"orbit patch of {self.chunk[:8]} after {{{before}}}"
        return f"patch of {self.chunk[:8]} after [{before}]"
