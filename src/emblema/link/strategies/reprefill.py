"""`reprefill-deep-F`, `reprefill-shallow-F`: chunks computed again in a share of the layers, deepest or shallowest."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, ResidualUse, RowRange, RowSource
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, plan_chunks
from emblema.store.keys import ArtifactKey, ArtifactKind


@dataclass(frozen=True, slots=True)
class Reprefill:
    """Every chunk row is computed in context in `percent` of the layers, and taken in the others.

    Deep (Kamera, sections 6 and C.3, which calls it shallow re-prefill): rows begin from the residual stream that
    entered the cut when the chunk was prefilled alone. It is kept in the store beside the chunk's patches; where it is
    missing, one run of the chunk's lower layers forms it. So the first of the deep layers only writes the canonical KV
    again, and context comes in from the second on. At 100 the cut is the embeddings.

    Shallow (Kamera, appendix D): the refresh that misses where the deficit lives.

    Knob: F in percent of layers, rounded, one at least. Cost: text, and chunk rows in those layers computed; the KV of
    the other layers read, and for deep the hidden size per row of residual stream.
    """

    percent: float
    deep: bool

    @property
    def name(self) -> str:
        return f"reprefill-{'deep' if self.deep else 'shallow'}-{self.percent:.12g}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        count = self.count(layers)

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            rows, origin = segment.rows, ChunkOrigin(chunk.id)
            if count == layers:
                return [RowRange(*rows, RowSource.COMPUTED, (0, layers))]
            if not self.deep:
                shallow = RowRange(*rows, RowSource.COMPUTED, (0, count))
                return [shallow, RowRange(*rows, RowSource.TAKEN, (count, layers), origin)]
            cut = layers - count
            key = ArtifactKey(knowledge.model, chunk.id, kind=ArtifactKind.RESIDUAL, layer=cut)
            stream = ResidualUse(key, int(chunk.encoded.embeds.shape[1]))
            taken = RowRange(*rows, RowSource.TAKEN, (0, cut), origin)
            return [taken, RowRange(*rows, RowSource.COMPUTED, (cut, layers), residual=stream)]

        return plan_chunks(self.name, prompt, knowledge, chunk_ranges, in_context=True)

    def count(self, layers: int) -> int:
        """Return how many of the layers are computed: the nearest number to the share, one at least."""
        return max(1, int(layers * self.percent / 100 + 0.5))
