"""`full`: every row computed. Re-prefill, the ceiling; what the model's stock forward does."""

from dataclasses import dataclass

from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, computed


@dataclass(frozen=True, slots=True)
class Full:
    """Computes all rows; slid chunks condition the chunks after them and then leave the table."""

    @property
    def name(self) -> str:
        return "full"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        ranges = tuple(computed(prompt, knowledge.layers, 0, prompt.tokens))
        return LinkPlan(self.name, prompt.tokens, knowledge.layers, ranges, leaving=prompt.slid_rows)
