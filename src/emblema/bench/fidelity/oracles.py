"""The rows that the two oracles choose, for several shares from one look at the re-prefill.

They choose as `emblema.link.oracle` does, which scores afresh for every share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from emblema.errors import StrategyError
from emblema.link.assemble import Resources
from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table, deficits_of
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import computed
from emblema.link.strategies.chosen import Chosen
from emblema.models.attending import attention_noted
from emblema.models.table import KVTable

Scores = Callable[[Executor, Prompt, KVTable], Tensor]


@dataclass(frozen=True, slots=True)
class Oracle:
    """A choice of the `percent` of visible chunk rows that `scores` puts highest; rounded up, in its favour."""

    kind: str
    percent: float

    @property
    def name(self) -> str:
        return f"oracle-{self.kind}-{self.percent:.12g}"

    @property
    def by_question(self) -> bool:
        """Whether each question has its own choice."""
        return self.kind == "query"

    def choose(self, scores: Tensor, prompt: Prompt) -> Chosen:
        """The strategy that computes the rows with the highest scores.

        Raises:
            StrategyError: the share is out of range.
        """
        if not 0 < self.percent <= 100:
            raise StrategyError(f"{self.name}: the share must be above 0 and at most 100 percent")
        spans = [segment.rows for segment, _ in prompt.chunk_segments if segment.start > 0]
        rows = [row for span in spans if span not in prompt.slid_rows for row in range(*span)]
        candidates = torch.tensor(rows, dtype=torch.int64)
        best = scores[candidates].topk(ceil(len(rows) * self.percent / 100)).indices
        return Chosen(self.name, frozenset(candidates[best].tolist()))


def deficit_scores(executor: Executor, prompt: Prompt, table: KVTable) -> Tensor:
    """[rows] squared norm of each chunk row's position-free deficit, over layers; `table` is the conditioned one."""
    adapter = executor.adapter
    scores = torch.zeros(prompt.tokens)
    layers = range(len(adapter.layouts))
    for segment, chunk in prompt.chunk_segments:
        for rows in deficits_of(adapter, table, prompt, segment, (chunk, chunk.rows), layers):
            if rows is not None:
                size = rows.keys.square().sum(dim=(0, 2)) + rows.values.square().sum(dim=(0, 2))
                scores[segment.start : segment.stop] += size.cpu()
    return scores


def query_scores(executor: Executor, prompt: Prompt, table: KVTable) -> Tensor:
    """[rows] attention that the prompt's last part pays each row; `table` holds what stands before it, and is kept."""
    start, layers, front = prompt.segments[-1].start, len(executor.adapter.layouts), table.length
    scores = torch.zeros(prompt.tokens)
    plan = LinkPlan("oracle", prompt.tokens, layers, tuple(computed(prompt, layers, 0, prompt.tokens)))
    with attention_noted(executor.adapter) as noted:
        executor.run(plan.behind(start), prompt, Resources({}, {}), table=table, settled=start)
    scores[table.rows[: table.length].cpu()] = noted.mass().cpu()
    table.truncate(front)
    return scores


def front_table(executor: Executor, prompt: Prompt) -> KVTable:
    """The re-prefilled table of what stands before the prompt's last part, slid chunks still in it."""
    return conditioned_table(executor, prompt.until(prompt.segments[-1].start))
