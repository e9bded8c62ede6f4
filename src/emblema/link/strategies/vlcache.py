"""`vlcache-R`, `vlcache-R-uniform`: a chunk's first tokens computed, fewer in deeper layers (VLCache, 2512.12977)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, first_computed, plan_chunks


@dataclass(frozen=True, slots=True)
class VLCache:
    """On average over the layers, the first `percent` of each chunk's rows are computed in context.

    First tokens, as errors of reused rows add up along the chunk; a row can only be computed where the layer below
    computed it, so a budget that adapts to layers falls with depth. The paper profiles each model for its schedule;
    without a profile it falls linearly, layer l of L weighing L - l, and no layer takes more than the whole chunk.
    `uniform` gives every layer the same rows, as Kamera ran it. Knob: R in percent of rows times layers. Cost: text and
    R % of chunk rows times layers computed; the KV of the rest read.
    """

    percent: float
    uniform: bool = False

    @property
    def name(self) -> str:
        return f"vlcache-{self.percent:.12g}" + ("-uniform" if self.uniform else "")

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            counts = self.counts(chunk.tokens, knowledge.layers)
            return first_computed(segment, chunk, knowledge.layers, counts)

        return plan_chunks(self.name, prompt, knowledge, chunk_ranges, in_context=True)

    def counts(self, tokens: int, layers: int) -> tuple[int, ...]:
        """Return how many of a chunk's first rows each layer computes; at least one row in the first layer."""
        share = self.percent / 100
        if self.uniform:
            return (max(1, round(share * tokens)),) * layers
        budget, full = share * tokens * layers, 0
        while full < layers:
            scale = (budget - full * tokens) / sum(range(1, layers - full + 1))
            if scale * (layers - full) <= tokens:
                break
            full += 1
        falling = [scale * (layers - index) for index in range(full, layers)] if full < layers else []
        counts = [tokens] * full + [min(tokens, round(count)) for count in falling]
        return (max(1, counts[0]), *counts[1:])
