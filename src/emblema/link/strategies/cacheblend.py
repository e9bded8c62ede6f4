"""`cacheblend-R`: the rows whose KV deviates most are computed again (CacheBlend, EuroSys 2025)."""

from dataclasses import dataclass, replace
from math import ceil

from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource, Selector
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, plan_chunks

CHECK_LAYER = 1
"""The second layer, as in the authors' code: keys and values of the first do not depend on context."""


@dataclass(frozen=True, slots=True)
class CacheBlend:
    """All chunk rows run up to the check layer; the `percent` of them that moved most run on, the others are taken.

    The deviation is the squared distance of fresh keys and values from the relocated ones; the share is of all chunk
    rows of the prompt together, a chunk at row 0 aside, which cannot deviate. Knob: R in percent. Cost: text, chunk
    rows in two layers and R % of them in the others computed; KV of all but the first two layers read, and the check
    layer's to compare with. Text and chosen rows run together, layer by layer, its strongest form (Kamera, section 6).
    """

    percent: float

    @property
    def name(self) -> str:
        return f"cacheblend-{self.percent:.12g}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        check = min(CHECK_LAYER, layers - 2)

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            rows = segment.rows
            if check < 0:
                return [RowRange(*rows, RowSource.COMPUTED, (0, layers))]
            return [
                RowRange(*rows, RowSource.COMPUTED, (0, check + 1)),
                RowRange(*rows, RowSource.TAKEN, (check + 1, layers), ChunkOrigin(chunk.id)),
            ]

        plan = plan_chunks(self.name, prompt, knowledge, chunk_ranges, in_context=True)
        candidates = tuple((part.start, part.stop) for part in plan.ranges if part.layers == (0, check + 1))
        rows = sum(stop - start for start, stop in candidates)
        selectors = (Selector(candidates, check, ceil(rows * self.percent / 100)),) if candidates else ()
        return replace(plan, selectors=selectors)
