"""What an artifact of a chunk (a patch, factors of its keys, its residual stream) is found by."""

from dataclasses import dataclass
from enum import StrEnum

from blake3 import blake3


class ArtifactKind(StrEnum):
    """What an artifact is.

    Attributes:
        PATCH: the conditioning patch of a chunk after its antecedents in their order.
        ORBIT: a patch averaged over the orderings of its antecedents (Kamera, section 5).
        BASIS: a patch on directions pooled over other chunks (Kamera, section 4).
        KEYS: low-rank factors of the chunk's own keys (ShadowKV).
        RESIDUAL: the residual stream that enters one layer where the chunk is prefilled alone.
        PAIR: what is known of a chunk after each of some single other chunks; it has no antecedents of its own.
        PAIRS: a patch put together from these for the antecedents that are there; it is in no store.
        REPAIR: what a window adds to rows that it wrote; it is in no store.
    """

    PATCH = "patch"
    ORBIT = "orbit"
    BASIS = "basis"
    KEYS = "keys"
    RESIDUAL = "residual"
    PAIR = "pair"
    PAIRS = "pairs"
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
        rank: of BASIS, the number of pooled directions.
        layer: of RESIDUAL, index of the layer that the stream enters.
        held_out: of ORBIT, digest of the one ordering that is left out of the average; None where none is by name.
    """

    model: str
    chunk: str
    antecedents: tuple[str, ...] = ()
    kind: ArtifactKind = ArtifactKind.PATCH
    rank: int | None = None
    layer: int | None = None
    held_out: str | None = None

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

    @property
    def label(self) -> str:
        """Return the kind and its parameter as files and ids hold them; empty for a plain patch or an orbit patch."""
        if self.kind is ArtifactKind.BASIS:
            return f"basis-{self.rank}"
        if self.kind is ArtifactKind.RESIDUAL:
            return f"residual-{self.layer}"
        if self.orbit:
            return "" if self.held_out is None else f"without-{self.held_out}"
        return "" if self.kind is ArtifactKind.PATCH else str(self.kind)

    @property
    def written_model(self) -> str:
        """Return the model field of files and ids: the fingerprint; then, for a label, a slash and the label."""
        return f"{self.model}/{self.label}" if self.label else self.model

    def __str__(self) -> str:
        before = ", ".join(name[:8] for name in self.antecedents)
        if self.orbit:
            return f"orbit patch of {self.chunk[:8]} after {{{before}}}"
        return f"{self.label or 'patch'} of {self.chunk[:8]} after [{before}]"


def orbit_key(model: str, chunk: str, antecedents: tuple[str, ...], *, strict: bool = False) -> ArtifactKey:
    """Return the key of a chunk's orbit patch after a set of chunks; a strict one leaves the given ordering out."""
    held_out = blake3("".join(antecedents).encode()).hexdigest(16) if strict else None
    return ArtifactKey(model, chunk, antecedents, ArtifactKind.ORBIT, held_out=held_out)


def key_of_written(written_model: str, chunk: str, antecedents: tuple[str, ...], orbit: bool) -> ArtifactKey:
    """Return the key whose `written_model`, chunk, antecedents and orbit flag a file holds.

    Raises:
        ValueError: the label is of no kind that is stored.
    """
    model, _, label = written_model.partition("/")
    name, _, parameter = label.partition("-")
    if orbit:
        key = ArtifactKey(model, chunk, antecedents, ArtifactKind.ORBIT, held_out=parameter or None)
    elif name == ArtifactKind.BASIS:
        key = ArtifactKey(model, chunk, antecedents, ArtifactKind.BASIS, rank=int(parameter))
    elif name == ArtifactKind.RESIDUAL:
        key = ArtifactKey(model, chunk, antecedents, ArtifactKind.RESIDUAL, layer=int(parameter))
    else:
        key = ArtifactKey(model, chunk, antecedents, ArtifactKind(name) if name else ArtifactKind.PATCH)
    if key.written_model != written_model:
        raise ValueError(f"it is of the unknown kind {label[:40]!r}")
    return key
