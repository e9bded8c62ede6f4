"""A strategy that computes a share of each chunk's rows, wherever these are: for what computing them costs alone."""

from dataclasses import dataclass

import numpy as np

from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, plan_chunks


@dataclass(frozen=True, slots=True)
class ScatteredShare:
    """Rows drawn anywhere in each chunk are computed, as by a method that chooses rows by what is in them."""

    share: float
    seed: int = 0

    @property
    def name(self) -> str:
        return f"scattered-{100 * self.share:g}%"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            computed = np.zeros(chunk.tokens, dtype=bool)
            random = np.random.default_rng([self.seed, segment.start])
            computed[random.choice(chunk.tokens, round(self.share * chunk.tokens), replace=False)] = True
            edges = [0, *(np.flatnonzero(computed[1:] != computed[:-1]) + 1).tolist(), chunk.tokens]
            ranges = []
            for first, last in zip(edges, edges[1:], strict=False):
                source = RowSource.COMPUTED if computed[first] else RowSource.TAKEN
                origin = None if computed[first] else ChunkOrigin(chunk.id, first)
                rows = (segment.start + first, segment.start + last)
                ranges.append(RowRange(*rows, source, (0, knowledge.layers), origin))
            return ranges

        return plan_chunks(self.name, prompt, knowledge, chunk_ranges)
