"""The words of a link plan: ranges of rows with their source, and choices left to run time. Plain data, no model."""

from dataclasses import dataclass, replace
from enum import StrEnum

from emblema.link.prompt import Rows
from emblema.store.keys import ArtifactKind, PatchKey


class Source(StrEnum):
    """Where a row of a layer comes from."""

    COMPUTED = "computed"
    TAKEN = "taken"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class ChunkOrigin:
    """Canonical rows of a chunk from row `offset` on; with `relocated`, turned to the range's positions."""

    chunk: str
    offset: int = 0
    relocated: bool = True


@dataclass(frozen=True, slots=True)
class PrefixOrigin:
    """Rows of an earlier prompt's exact table that stand at the same rows and positions; copied as they are."""

    entry: str


LIVE = "live"
"""The entry of a table under way, that a continued prompt goes on with."""

Origin = ChunkOrigin | PrefixOrigin


@dataclass(frozen=True, slots=True)
class PatchUse:
    """A stored patch, cut to a rank.

    A key of the kind KEYS adds nothing: its factors stand in for the chunk's own keys. Of the kind BASIS, the
    right factors are the model's and only the left ones are the item's.
    """

    key: PatchKey
    rank: int


@dataclass(frozen=True, slots=True)
class ResidualUse:
    """A chunk's kept residual stream, which rows computed above a skipped layer begin from.

    Attributes:
        key: what it is found by; it names the layer that the stream enters.
        width: numbers a row, the model's hidden size.
        offset: the stream's row that the range begins with.
    """

    key: PatchKey
    width: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `start` to `stop` in layers `layers[0]` to `layers[1]` (ends excluded).

    Attributes:
        source: computed, taken or absent.
        layers: the layers this range speaks of.
        origin: where taken rows come from.
        patch: what is added to taken chunk rows.
        hidden: row ranges that computed rows may not attend, in any layer.
        stage: computed rows of a lower stage run in an earlier forward, in which those of later stages are hidden. A
            row has one stage and one mask, whatever its layers.
        residual: what computed rows begin from in `layers[0]`, where the layers below do not compute them.
    """

    start: int
    stop: int
    source: Source
    layers: tuple[int, int]
    origin: Origin | None = None
    patch: PatchUse | None = None
    hidden: tuple[Rows, ...] = ()
    stage: int = 0
    residual: ResidualUse | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Selector:
    """A choice that depends on values: after layer `layer`, of the computed candidates only `budget` rows go on.

    The candidates are computed up to and including `layer`; in later layers the chosen ones are computed and the others
    are taken, as their ranges for those layers say.

    Attributes:
        rule: how rows are ranked: `deviation` (largest change of K and V against the taken rows, CacheBlend).
        candidates: row ranges to choose from.
        layer: the layer after which to choose.
        budget: how many candidate rows are computed in the later layers.
    """

    rule: str
    candidates: tuple[Rows, ...]
    layer: int
    budget: int


def clipped(part: RowRange, start: int) -> RowRange:
    """The range from row `start` on."""
    if part.start >= start:
        return part
    origin = part.origin
    if isinstance(origin, ChunkOrigin):
        origin = replace(origin, offset=origin.offset + start - part.start)
    residual = part.residual
    if residual is not None:
        residual = replace(residual, offset=residual.offset + start - part.start)
    return replace(part, start=start, origin=origin, residual=residual)


def describe(part: RowRange) -> str:
    """A range's origin, patch and mask in a few words."""
    words = []
    if isinstance(part.origin, ChunkOrigin):
        words.append(
            f"chunk {part.origin.chunk[:8]}" + (f" from row {part.origin.offset}" if part.origin.offset else "")
        )
        if not part.origin.relocated:
            words.append("not relocated")
    elif isinstance(part.origin, PrefixOrigin):
        words.append(f"prefix {part.origin.entry[:8]}")
    if part.patch is not None and part.patch.key.kind is ArtifactKind.KEYS:
        words.append(f"keys of rank {part.patch.rank}")
    elif part.patch is not None and part.patch.key.kind is ArtifactKind.REPAIR:
        words.append(f"repaired by rank {part.patch.rank}")
    elif part.patch is not None:
        words.append(f"patch of rank {part.patch.rank} behind {len(part.patch.key.antecedents)} chunks")
    if part.residual is not None:
        words.append(f"from the {part.residual.key.label} of {part.residual.key.chunk[:8]}")
    if part.hidden:
        words.append("blind to " + ", ".join(f"{start}-{stop}" for start, stop in part.hidden))
    return ", ".join(words)


def code_of(part: RowRange) -> int:
    """The source as a number: 0 computed, 1 taken, 2 taken and patched, 3 absent."""
    if part.source is Source.COMPUTED:
        return 0
    if part.source is Source.ABSENT:
        return 3
    return 1 if part.patch is None or part.patch.key.kind is ArtifactKind.KEYS else 2
