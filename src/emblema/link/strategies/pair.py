"""`pair` and `pair+query-R%`: rows with what they are known to take from each single chunk before them."""

from dataclasses import dataclass, replace

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, PatchUse, RowRange
from emblema.link.policy.margins import DEFAULT
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, lay_out, taken
from emblema.link.strategies.patch import patched
from emblema.link.strategies.query import recomputation, unread_rows
from emblema.store.keys import ArtifactKey, ArtifactKind


@dataclass(frozen=True, slots=True)
class Pair:
    """Relocated chunks with a patch put together from pairs (see `kv/pairs.py`); then perhaps a second pass.

    Pairs are learnt from the rows that earlier prompts computed in context. Each row takes what it is known to take
    from the chunk that it attends most, of those before it; it is blind where nothing is known. Without a second pass
    an answer is only as good as what is known, and its margin does not tell. Knob: R, as in `query-R%`. Cost: that of
    `blind` or of `query-R%`, and the coefficients read.

    Attributes:
        share: of the rows that are computed again; None for no second pass.
        least_margin: see `Recomputation`; 0 takes any answer.
    """

    share: float | None = None
    least_margin: float = DEFAULT

    @property
    def name(self) -> str:
        return "pair" if self.share is None else f"pair+query-{self.share * 100:.12g}%"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            key = ArtifactKey(knowledge.model, chunk.id, prompt.antecedents(segment), ArtifactKind.PAIRS)
            patch = knowledge.find_patch(key)
            if patch is None:
                return taken(segment, chunk, layers)
            return patched(segment, chunk, layers, PatchUse(key, patch.rank))

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=self.share is not None)
        plan = LinkPlan(self.name, prompt.tokens, layers, ranges)
        if self.share is None:
            return plan
        candidates = dict.fromkeys(unread_rows(prompt), self.share)
        again = recomputation(prompt, candidates, self.least_margin)
        return replace(plan, leaving=prompt.slid_rows, recomputation=again)
