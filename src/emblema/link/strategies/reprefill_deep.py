"""`reprefill-deep-F`: shallow KV reused, the deepest share of the layers run again (Kamera, sections 6 and C.3)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, ResidualUse, RowRange, RowSource
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, lay_out, share_of
from emblema.store.keys import ArtifactKind, PatchKey


@dataclass(frozen=True, slots=True)
class ReprefillDeep:
    """Every chunk row is computed in context in the deepest `percent` of the layers, and taken below.

    Kamera calls it shallow re-prefill. The rows begin from the residual stream that entered the cut when the chunk was
    prefilled alone; it is kept in the store beside the chunk's patches, formed by one run of the chunk's lower layers
    where it is missing. So the first layer of those only writes the canonical KV again, and context comes in from the
    second on. At 100 the cut is the embeddings. Knob: F in percent of layers, rounded, one at least. Cost: text, and
    chunk rows in the deep layers computed; shallow KV read, and the hidden size per row of residual stream.
    """

    percent: float

    @property
    def name(self) -> str:
        return f"reprefill-deep-{self.percent:.12g}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        cut = layers - share_of(layers, self.percent)
        forming: list[PatchKey] = []

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            if cut == 0:
                return [RowRange(*segment.rows, RowSource.COMPUTED, (0, layers))]
            key = PatchKey(knowledge.model, chunk.id, kind=ArtifactKind.RESIDUAL, layer=cut)
            if knowledge.find_artifact(key) is None:
                forming.append(key)
            use = ResidualUse(key, int(chunk.encoded.embeds.shape[1]))
            return [
                RowRange(*segment.rows, RowSource.TAKEN, (0, cut), ChunkOrigin(chunk.id)),
                RowRange(*segment.rows, RowSource.COMPUTED, (cut, layers), residual=use),
            ]

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=True)
        return LinkPlan(
            self.name,
            prompt.tokens,
            layers,
            ranges,
            forming=tuple(dict.fromkeys(forming)),
            leaving=prompt.slid_rows,
        )
