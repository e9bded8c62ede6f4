"""What a plan will do, worked out from its ranges and budgets before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from emblema.kv.layout import LayerLayout
from emblema.link.ranges import ChunkOrigin, RowRange, Selector, Source, code_of
from emblema.store.keys import ArtifactKind


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan will do, as its trace will report it.

    Attributes:
        rows_computed: rows run; a row in every layer counts 1.
        rows_taken: rows taken in at least one layer.
        rows_patched: rows patched in at least one layer.
        bytes_read: bytes of KV read from chunks and kept prefixes, those that a selector compares with included.
        patch_bytes: bytes of patch factors read.
        residual_bytes: bytes of kept residual streams read.
    """

    rows_computed: float
    rows_taken: int
    rows_patched: int
    bytes_read: int
    patch_bytes: int = 0
    residual_bytes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.rows_computed:g} rows computed, {self.rows_taken} taken, {self.rows_patched} patched; "
            f"{self.bytes_read:,} bytes of KV, {self.patch_bytes:,} of patches, {self.residual_bytes:,} of residuals"
        )


def cost_of(
    ranges: Sequence[RowRange],
    selectors: Sequence[Selector],
    layers: int,
    layouts: Sequence[LayerLayout],
    itemsize: int,
) -> Cost:
    """The cost of a plan's ranges and selectors; `itemsize` is bytes per number of the KV."""
    row_layers = numbers = factors = residuals = 0
    taken: set[int] = set()
    patched: set[int] = set()
    for part in ranges:
        own = layouts[part.layers[0] : part.layers[1]]
        if part.source is Source.COMPUTED:
            row_layers += part.rows * len(own)
            residuals += 0 if part.residual is None else part.rows * part.residual.width
        elif part.source is Source.TAKEN:
            taken.update(range(part.start, part.stop))
            numbers += part.rows * sum(features_read(part, layout) for layout in own)
            factors += sum(_factors(part, layout) for layout in own)
            if code_of(part) == 2:
                patched.update(range(part.start, part.stop))
    for one in selectors:
        rows = sum(stop - start for start, stop in one.candidates)
        row_layers += min(one.budget, rows) * (layers - one.layer - 1)
        numbers += rows * layouts[one.layer].features
    return Cost(
        rows_computed=row_layers / layers,
        rows_taken=len(taken),
        rows_patched=len(patched),
        bytes_read=numbers * itemsize,
        patch_bytes=factors * itemsize,
        residual_bytes=residuals * itemsize,
    )


def features_read(part: RowRange, layout: LayerLayout) -> int:
    """Numbers of KV read for each taken row of a layer; factors that stand in for keys leave only the values."""
    if part.patch is not None and part.patch.key.kind is ArtifactKind.KEYS and isinstance(part.origin, ChunkOrigin):
        return layout.values[0] * layout.values[1]
    return layout.features


def _factors(part: RowRange, layout: LayerLayout) -> int:
    if part.patch is None:
        return 0
    kind = part.patch.key.kind
    slots = (layout.keys,) if kind is ArtifactKind.KEYS else (layout.keys, layout.values)
    widths = [heads * width for heads, width in slots]
    return sum(
        min(part.patch.rank, width) * (part.rows + (0 if kind is ArtifactKind.BASIS else width)) for width in widths
    )
