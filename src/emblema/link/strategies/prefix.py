"""`prefix`: the longest exact prefix of earlier prompts is taken, the rest computed. What engines do today."""

from dataclasses import dataclass

from emblema.link.plan import LinkPlan, PrefixOrigin, RowRange, RowSource
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, computed


@dataclass(frozen=True, slots=True)
class Prefix:
    """Exact, like `full`; a chunk that moved, or is after other text, is computed again."""

    @property
    def name(self) -> str:
        return "prefix"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        match = knowledge.find_prefix(prompt)
        rows = 0 if match is None else min(match.rows, prompt.tokens - 1)
        ranges: list[RowRange] = []
        if match is not None and rows > 0:
            ranges.append(RowRange(0, rows, RowSource.TAKEN, (0, knowledge.layers), PrefixOrigin(match.entry)))
        ranges += computed(prompt, knowledge.layers, rows, prompt.tokens)
        return LinkPlan(self.name, prompt.tokens, knowledge.layers, tuple(ranges), leaving=prompt.slid_rows)
