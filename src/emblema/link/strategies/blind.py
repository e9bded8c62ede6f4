"""`blind`: every chunk taken as it was prefilled alone, only relocated. The floor (Kamera section 2)."""

from dataclasses import dataclass

from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, plan_chunks, taken


@dataclass(frozen=True, slots=True)
class Blind:
    """Loses what chunks absorb from each other; single-hop readout stays intact."""

    @property
    def name(self) -> str:
        return "blind"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        return plan_chunks(self.name, prompt, knowledge, lambda segment, chunk: taken(segment, chunk, knowledge.layers))
