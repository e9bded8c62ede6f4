"""Oracles for the bench alone: token selection that knows the re-prefill, which nobody has to serve with.

Each runs the whole prompt and hands back a strategy that computes the rows it chose; see `strategies.chosen`.
"""

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
from emblema.models.adapter import Adapter
from emblema.models.attending import attention_noted


def deficit_oracle(adapter: Adapter, prompt: Prompt, percent: float) -> Chosen:
    """The `percent` of chunk rows whose true deficit is largest (Kamera, section 4).

    The size is the squared norm of the position-free deficit of keys and values, summed over layers.

    Raises:
        StrategyError: the share is out of range.
    """
    budget = _budget(prompt, percent)
    table = conditioned_table(Executor(adapter), prompt)
    scores = torch.zeros(prompt.tokens)
    layers = range(len(adapter.layouts))
    for segment, chunk in prompt.chunk_segments:
        for rows in deficits_of(adapter, table, prompt, segment, (chunk, chunk.rows), layers):
            if rows is not None:
                size = rows.keys.square().sum(dim=(0, 2)) + rows.values.square().sum(dim=(0, 2))
                scores[segment.start : segment.stop] += size.cpu()
    return Chosen(f"oracle-deficit-{percent:g}", _top(scores, prompt, budget))


def query_oracle(adapter: Adapter, prompt: Prompt, percent: float) -> Chosen:
    """The `percent` of chunk rows that the question attends most in the re-prefill (Quest-style; Kamera, table 6).

    Quest bounds a page's attention by its keys' extremes; with pages of one token the bound is the score itself, so
    this chooses by the true one: the mass from all rows of the prompt's last part, summed over heads and layers.

    Raises:
        StrategyError: the share is out of range.
        ModelError: the model's attention does not go through transformers' interface.
    """
    budget = _budget(prompt, percent)
    start = prompt.segments[-1].start
    scores = torch.zeros(prompt.tokens)
    if start > 0:
        executor, layers = Executor(adapter), len(adapter.layouts)
        table = conditioned_table(executor, prompt.until(start))
        plan = LinkPlan("oracle", prompt.tokens, layers, tuple(computed(prompt, layers, 0, prompt.tokens)))
        with attention_noted(adapter) as noted:
            executor.run(plan.behind(start), prompt, Resources({}, {}), table=table, settled=start)
        scores[table.rows[: table.length].cpu()] = noted.mass().cpu()
    return Chosen(f"oracle-query-{percent:g}", _top(scores, prompt, budget))


def _candidates(prompt: Prompt) -> Tensor:
    kept = [segment.rows for segment, _ in prompt.chunk_segments if segment.start > 0]
    return torch.tensor(
        [row for rows in kept if rows not in prompt.slid_rows for row in range(*rows)], dtype=torch.int64
    )


def _budget(prompt: Prompt, percent: float) -> int:
    if not 0 < percent <= 100:
        raise StrategyError(f"an oracle's share is {percent:g}: it must be above 0 and at most 100 percent")
    return ceil(len(_candidates(prompt)) * percent / 100)


def _top(scores: Tensor, prompt: Prompt, budget: int) -> frozenset[int]:
    candidates = _candidates(prompt)
    return frozenset(candidates[scores[candidates].topk(budget).indices].tolist())
