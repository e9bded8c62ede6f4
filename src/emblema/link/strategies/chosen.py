"""Rows named beforehand computed in context: what the bench's oracles come to. Not listed, it has no name to ask by."""

from dataclasses import dataclass
from itertools import groupby

from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, Source
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, lay_out


@dataclass(frozen=True, slots=True)
class Chosen:
    """Text, slid chunks and the given chunk rows computed in one forward, the other chunk rows taken.

    Slid chunks are computed whole, so that chosen rows see what really conditioned them: they leave the table, and an
    oracle may have for nothing what it does not keep. Cost: those rows computed, the other rows' KV read; what it took
    to choose is not in it.
    """

    name: str
    rows: frozenset[int]

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            ranges = []
            slid = segment.rows in prompt.slid_rows
            for ours, run in groupby(range(*segment.rows), lambda row: slid or row in self.rows):
                rows = list(run)
                first, stop = rows[0], rows[-1] + 1
                if ours:
                    ranges.append(RowRange(first, stop, Source.COMPUTED, (0, layers)))
                else:
                    origin = ChunkOrigin(chunk.id, first - segment.start)
                    ranges.append(RowRange(first, stop, Source.TAKEN, (0, layers), origin))
            return ranges

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=True)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
