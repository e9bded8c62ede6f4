"""`full-reuse`: MPIC's two-step baseline, after Prompt Cache (MPIC, sections 2.2 and 5.2)."""

from dataclasses import dataclass, replace

from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, blind_text, plan_chunks, taken


@dataclass(frozen=True, slots=True)
class FullReuse:
    """All text is computed blind to every chunk, and the last token over text and chunks, which are relocated.

    The text has its places in the prompt. The paper's two steps are one forward here, with the same rows. No knob.
    Cost: text computed; all chunks' KV read.
    """

    @property
    def name(self) -> str:
        return "full-reuse"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        plan = plan_chunks(self.name, prompt, knowledge, lambda segment, chunk: taken(segment, chunk, knowledge.layers))
        return replace(plan, ranges=blind_text(prompt, plan.ranges))
