"""Several questions about one linked front, in one forward: their rows share the table and never attend each other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from emblema.link.plan import LinkPlan, Source
from emblema.link.prompt import Prompt, Segment, TextPart
from emblema.models.adapter import Adapter, RowBatch
from emblema.models.table import KVTable


def same_front(prompts: Sequence[Prompt]) -> bool:
    """Whether prompts differ in their last part alone, and that is text in all of them."""
    fronts = [[_identity(segment) for segment in prompt.segments[:-1]] for prompt in prompts]
    return all(front == fronts[0] for front in fronts) and all(
        isinstance(prompt.segments[-1].part, TextPart) for prompt in prompts
    )


def _identity(segment: Segment) -> tuple[object, ...]:
    part = segment.part
    what = part.token_ids if isinstance(part, TextPart) else (part.chunk.id, part.slid)
    return segment.start, segment.position, what


def plain_ending(plan: LinkPlan, start: int) -> bool:
    """Whether a plan computes every row from `start` on, in all layers."""
    return all(
        part.source is Source.COMPUTED and part.layers == (0, plan.layers) and part.residual is None
        for part in plan.ranges
        if part.stop > start
    )


@torch.inference_mode()
def endings(
    adapter: Adapter, table: KVTable, prompts: Sequence[Prompt], plans: Sequence[LinkPlan], start: int
) -> list[Tensor]:
    """The last logits [vocab] float32 of each prompt, whose rows before `start` the table answers for.

    Args:
        table: holds the front alone, and again when this returns.
        plans: of the prompts; `plain_ending` holds for all.
    """
    device, front = adapter.device, table.length
    sizes = [prompt.tokens - start for prompt in prompts]
    places = torch.cat([torch.arange(start, prompt.tokens) for prompt in prompts])
    owner = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(sizes))
    stages = torch.cat([_stages(plan, start) for plan in plans])
    hidden = torch.zeros(len(places), front + len(places), dtype=torch.bool)
    hidden[:, front:] = owner[:, None] != owner[None, :]
    held, first = table.rows[:front].cpu(), 0
    for plan, size in zip(plans, sizes, strict=True):
        for part in (part for part in plan.ranges if part.stop > start):
            lines = slice(first + max(part.start, start) - start, first + part.stop - start)
            for begin, end in part.hidden:
                hidden[lines, :front] |= (held >= begin) & (held < end)
        first += size
    embeds = torch.cat([_embeds(adapter, prompt) for prompt in prompts])
    positions = torch.cat([prompt.positions[:, start:] for prompt in prompts], dim=1)
    lasts = torch.tensor(sizes).cumsum(0) - 1
    final = embeds.new_empty(len(prompts), adapter.hidden_size)
    table.allocate(places.to(device))
    try:
        for stage in stages.unique().tolist():
            now = (stages == stage).nonzero().squeeze(1)
            unseen = hidden[now]
            unseen[:, front:] |= stages > stage
            batch = RowBatch(
                embeds=embeds[now.to(device)],
                positions=positions[:, now].to(device),
                slots=(now + front).to(device),
                visual=torch.zeros(len(now), dtype=torch.bool, device=device),
                hidden_from=unseen.to(device),
            )
            found = adapter.forward(batch, table)
            asked = torch.isin(lasts, now)
            final[asked.to(device)] = found[torch.searchsorted(now, lasts[asked]).to(device)]
    finally:
        table.truncate(front)
    return list(adapter.logits(final))


def _stages(plan: LinkPlan, start: int) -> Tensor:
    stages = torch.zeros(plan.rows - start, dtype=torch.int64)
    for part in plan.ranges:
        if part.stop > start:
            stages[max(part.start, start) - start : part.stop - start] = part.stage
    return stages


def _embeds(adapter: Adapter, prompt: Prompt) -> Tensor:
    part = prompt.segments[-1].part
    return adapter.embed(torch.tensor(part.token_ids if isinstance(part, TextPart) else (), device=adapter.device))
