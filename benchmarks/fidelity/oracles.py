"""Token selection that knows the re-prefill: the bench's upper bounds, which no server could use.

An oracle runs the whole prompt, scores the chunk rows and returns a strategy that computes the best of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.errors import ModelError, StrategyError
from emblema.kv.chunk import Chunk
from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table, deficits_of
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, computed, lay_out
from emblema.link.taken_rows import LinkJob
from emblema.models.adapter import Adapter
from emblema.models.attention import attending_by
from emblema.models.noting import attention_weights
from emblema.models.tables import KVTable


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """A strategy: text, slid chunks and the given chunk rows computed in one forward, the other chunk rows taken.

    Slid chunks are computed whole, so that the chosen rows see what really conditioned them. They leave the table, so
    their cost is not charged. Cost: the computed rows, and the other rows' KV read; choosing is not charged.
    """

    name: str
    rows: frozenset[int]

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            ranges = []
            slid = segment.rows in prompt.slid_rows
            for chosen, run in groupby(range(*segment.rows), lambda row: slid or row in self.rows):
                rows = list(run)
                first, stop = rows[0], rows[-1] + 1
                if chosen:
                    ranges.append(RowRange(first, stop, RowSource.COMPUTED, (0, layers)))
                else:
                    origin = ChunkOrigin(chunk.id, first - segment.start)
                    ranges.append(RowRange(first, stop, RowSource.TAKEN, (0, layers), origin))
            return ranges

        ranges = lay_out(prompt, knowledge, chunk_ranges, in_context=True)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)


@dataclass(frozen=True, slots=True)
class Oracle:
    """A choice of the `percent` of visible chunk rows with the highest scores, rounded up.

    Attributes:
        kind: `deficit` (Kamera, section 4) or `query` (Quest-style; Kamera, table 6).
        percent: share of the chunk rows.
    """

    kind: str
    percent: float

    @property
    def name(self) -> str:
        return f"oracle-{self.kind}-{self.percent:.12g}"

    @property
    def by_question(self) -> bool:
        """Whether each question has its own choice."""
        return self.kind == "query"

    def scores(self, executor: Executor, prompt: Prompt, table: KVTable) -> Tensor:
        """Return a score for each row [rows]; `table` is what `front_table` returns, and is kept.

        Raises:
            ModelError: the model's attention does not go through transformers' interface (`query` only).
        """
        return (query_scores if self.by_question else deficit_scores)(executor, prompt, table)

    def choose(self, scores: Tensor, prompt: Prompt, anchor: Sequence[int] = ()) -> ChosenRows:
        """Return the strategy that computes the rows with the highest scores.

        Args:
            scores: of the prompt's rows.
            prompt: the prompt.
            anchor: token ids that chunks were captured after: one that leads is exact and has nothing to choose.

        Raises:
            StrategyError: the share is out of range.
        """
        if not 0 < self.percent <= 100:
            raise StrategyError(f"an oracle's share is {self.percent:g}: it must be above 0 and at most 100 percent")
        spans = [segment.rows for segment, _ in prompt.chunk_segments if not prompt.leads(segment, anchor)]
        rows = [row for span in spans if span not in prompt.slid_rows for row in range(*span)]
        candidates = torch.tensor(rows, dtype=torch.int64)
        best = scores[candidates].topk(ceil(len(rows) * self.percent / 100)).indices
        return ChosenRows(self.name, frozenset(candidates[best].tolist()))


def front_table(executor: Executor, prompt: Prompt) -> KVTable:
    """Return the re-prefilled table of what comes before the prompt's last part, slid chunks still in it."""
    return conditioned_table(executor, prompt.until(prompt.segments[-1].start))


def deficit_scores(executor: Executor, prompt: Prompt, table: KVTable) -> Tensor:
    """Return the squared norm of each chunk row's position-free deficit, summed over layers, [rows]."""
    adapter = executor.adapter
    scores = torch.zeros(prompt.tokens)
    layers = range(len(adapter.layouts))
    for segment, chunk in prompt.chunk_segments:
        for rows in deficits_of(adapter, table, prompt, segment, chunk.rows, layers):
            if rows is not None:
                size = rows.keys.square().sum(dim=(0, 2)) + rows.values.square().sum(dim=(0, 2))
                scores[segment.start : segment.stop] += size.cpu()
    return scores


def query_scores(executor: Executor, prompt: Prompt, table: KVTable) -> Tensor:
    """Return the attention that the prompt's last part pays each row, summed over heads and layers, [rows].

    Quest bounds a page's attention by its keys' extremes; with pages of one token the bound is the score itself.
    """
    start, layers, front = prompt.segments[-1].start, len(executor.adapter.layouts), table.length
    scores = torch.zeros(prompt.tokens)
    plan = LinkPlan("oracle", prompt.tokens, layers, tuple(computed(prompt, layers, 0, prompt.tokens)))
    with attention_sums(executor.adapter) as seen:
        executor.run(LinkJob(plan.after(start), prompt, reused_rows=start), table=table)
    if not seen:
        raise ModelError("the model's attention does not go through transformers' interface: nothing was recorded")
    for by_slot in seen:
        scores[table.rows[: by_slot.shape[0]].cpu()] += by_slot.cpu()
    table.truncate(front)
    return scores


@contextmanager
def attention_sums(adapter: Adapter) -> Iterator[list[Tensor]]:
    """Collect, of every call of attention in the block, the weights summed over heads and rows, [slots] float32.

    The decoder's own functions compute it as before; the model must not run in another thread meanwhile. A model whose
    attention does not go through transformers' interface leaves none.
    """
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    found: list[Tensor] = []

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        weights = attention_weights(query[0], key[0], None if mask is None else mask[0, 0], extra.get("scaling"))
        found.append(weights.sum(dim=(0, 1)))
        return stock(module, query, key, value, mask, **extra)

    with attending_by(adapter.config, attend):
        yield found
