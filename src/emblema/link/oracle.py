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
from emblema.models.table import KVTable


def deficit_oracle(adapter: Adapter, prompt: Prompt, percent: float) -> Chosen:
    """The `percent` of chunk rows whose true deficit is largest (Kamera, section 4).

    The size is the squared norm of the position-free deficit of keys and values, summed over layers.

    Raises:
        StrategyError: the share is out of range.
    """
    executor = Executor(adapter)
    return choice("deficit", percent, deficit_scores(executor, prompt, conditioned_table(executor, prompt)), prompt)


def query_oracle(adapter: Adapter, prompt: Prompt, percent: float) -> Chosen:
    """The `percent` of chunk rows that the question attends most in the re-prefill (Quest-style; Kamera, table 6).

    Quest bounds a page's attention by its keys' extremes; with pages of one token the bound is the score itself, so
    this chooses by the true one: the mass from all rows of the prompt's last part, summed over heads and layers.

    Raises:
        StrategyError: the share is out of range.
        ModelError: the model's attention does not go through transformers' interface.
    """
    executor, start = Executor(adapter), prompt.segments[-1].start
    if start == 0:
        return choice("query", percent, torch.zeros(prompt.tokens), prompt)
    table = conditioned_table(executor, prompt.until(start))
    return choice("query", percent, query_scores(executor, prompt, table), prompt)


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


def choice(kind: str, percent: float, scores: Tensor, prompt: Prompt) -> Chosen:
    """The strategy that computes the `percent` of visible chunk rows with the highest scores; rounded up.

    Raises:
        StrategyError: the share is out of range.
    """
    if not 0 < percent <= 100:
        raise StrategyError(f"an oracle's share is {percent:g}: it must be above 0 and at most 100 percent")
    spans = [segment.rows for segment, _ in prompt.chunk_segments if segment.start > 0]
    rows = [row for span in spans if span not in prompt.slid_rows for row in range(*span)]
    candidates = torch.tensor(rows, dtype=torch.int64)
    best = scores[candidates].topk(ceil(len(rows) * percent / 100)).indices
    return Chosen(f"oracle-{kind}-{percent:.12g}", frozenset(candidates[best].tolist()))
