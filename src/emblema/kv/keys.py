"""What a patch of a chunk is found by."""

from dataclasses import dataclass
from enum import StrEnum


class ArtifactKind(StrEnum):
    """What an artifact is.

    Attributes:
        PATCH: the conditioning patch of a chunk after its antecedents in their order.
        ORBIT: a patch averaged over the orderings of its antecedents (Kamera, section 5).
        REPAIR: what a window adds to rows that it wrote; it is in no store.
    """

    PATCH = "patch"
    ORBIT = "orbit"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class ArtifactKey:
    """Model, chunk, antecedents and kind; text in front and positions are not part of it and count only as drift.

    Attributes:
        model: the model's weights fingerprint, hex.
        chunk: id of the chunk that the artifact is of.
        antecedents: ids of the chunks before it, in their order; an orbit patch serves every ordering, so its ids are
            kept sorted and each once.
        kind: what the artifact is.
    """

    model: str
    chunk: str
    antecedents: tuple[str, ...] = ()
    kind: ArtifactKind = ArtifactKind.PATCH

    def __post_init__(self) -> None:
        ordered = tuple(sorted(set(self.antecedents))) if self.orbit else tuple(self.antecedents)
        object.__setattr__(self, "antecedents", ordered)

    @property
    def orbit(self) -> bool:
        """Return whether the patch is averaged over the orderings."""
        return self.kind is ArtifactKind.ORBIT

    @property
    def chunks(self) -> frozenset[str]:
        """Return every chunk the artifact was made from; it goes with any of them."""
        return frozenset((self.chunk, *self.antecedents))

    def __str__(self) -> str:
        before = ", ".join(name[:8] for name in self.antecedents)
        if self.orbit:
            return f"orbit patch of {self.chunk[:8]} after {{{before}}}"
        return f"{self.kind} of {self.chunk[:8]} after [{before}]"
