"""`auto`: an exact prefix where it holds every chunk, else the patch within a quarter of the chunks' bytes."""

from dataclasses import dataclass, replace

from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.patch import PatchStrategy
from emblema.link.strategies.prefix import Prefix


@dataclass(frozen=True, slots=True)
class Auto:
    """The default: exact where exactness is free."""

    share: float = 0.25

    @property
    def name(self) -> str:
        return "auto"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        chunks = prompt.chunk_segments
        match = knowledge.find_prefix(prompt)
        if not chunks or (match is not None and match.rows >= chunks[-1][0].stop):
            return replace(Prefix().plan(prompt, knowledge), strategy="auto:prefix")
        plan = PatchStrategy(share=self.share).plan(prompt, knowledge)
        return replace(plan, strategy=f"auto:{plan.strategy}")
