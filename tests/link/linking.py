"""Prompts in three settings, linked by any strategy with an empty store."""

from functools import cache

import torch

from emblema.link.executor import LinkedTable
from emblema.link.plan import LinkPlan
from emblema.link.prompt import ChunkPart, Prompt
from emblema.link.strategies.base import Strategy
from emblema.models.adapter import Adapter
from emblema.session.linker import Linker
from emblema.session.requests import LinkRequest, Prefill
from emblema.store.store import Store
from tests.engine.engines import linker_on, pictures, prompt_of, text, two_pages


def prompt_for(name: str, setting: str) -> Prompt:
    """Text and pictures; slid: the first has gone; leading: one stands at row 0 and a picture ends the prompt."""
    if setting == "visible":
        return two_pages(name)
    first, second, third = pictures(name, 3)
    if setting == "slid":
        parts = [text(5), ChunkPart(first, slid=True), text(3, 1), ChunkPart(second), ChunkPart(third), text(4, 2)]
        return prompt_of(name, parts)
    return prompt_of(name, [ChunkPart(first), text(3, 1), ChunkPart(second), text(2, 2), ChunkPart(third)])


def linker(name: str, prompt: Prompt) -> Linker:
    """A linker whose store has the prompt's chunks, and no patch or prefix yet."""
    store = Store().tenant()
    for _, chunk in prompt.chunk_segments:
        store.put(chunk)
    return linker_on(name, store)


def link(name: str, prompt: Prompt, strategy: str | Strategy) -> Prefill:
    return linker(name, prompt).link(LinkRequest(prompt, strategy))


@cache
def full(name: str, setting: str) -> LinkedTable:
    return link(name, prompt_for(name, setting), "full").linked


def patch_bytes_are_as_planned(plan: LinkPlan, planned: int, read: int) -> bool:
    """All of them are read; of patches whose layers have ranks of their own no more, and a third at least."""
    return read <= planned <= 3 * read


def assert_ran_as_planned(outcome: Prefill, prompt: Prompt, adapter: Adapter) -> None:
    """Assert that the trace of a float32 link is what the plan's cost said."""
    plan, trace = outcome.plan, outcome.linked.trace
    cost = plan.cost(adapter.layouts, 4)
    assert round(cost.rows_computed * plan.layers) == trace.row_layers, plan.strategy
    assert cost.bytes_read == trace.bytes_read, plan.strategy
    assert patch_bytes_are_as_planned(plan, cost.patch_bytes, trace.patch_bytes), plan.strategy
    assert trace.computed + trace.cached + trace.absent == prompt.tokens
    assert str(trace.row_layers // plan.layers) in str(cost)
    assert torch.isfinite(outcome.linked.logits).all()
