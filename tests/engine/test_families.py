"""Every family through the engine: exact when computed, lossy when blind, restored by a full-rank patch anywhere."""

from dataclasses import replace

import pytest
import torch

from emblema.engine.engine import Engine
from emblema.link.executor import LinkedTable
from emblema.link.plan import LinkPlan, RowRange, RowSource
from emblema.link.prompt import ChunkPart, Prompt
from emblema.link.strategies.base import Knowledge
from emblema.session.linker import Linker
from emblema.session.requests import LinkRequest
from emblema.store.store import Store
from tests.engine.engines import engine, kv_error, largest_error, linker_on, pictures, prompt_of, text, two_pages
from tests.families import CASES, joint, loaded, picture, stock_logits, words

families = pytest.mark.parametrize("name", CASES)


def linker(name: str) -> Linker:
    """A linker whose store has the pictures, and no patch or prefix yet."""
    store = Store().tenant()
    for chunk in pictures(name):
        store.put(replace(chunk, rows=tuple(chunk.rows)))
    return linker_on(name, store)


def link(name: str, prompt: Prompt, strategy: str) -> LinkedTable:
    return linker(name).link(LinkRequest(prompt, strategy)).linked


@families
def test_every_row_computed_is_the_stock_forward(name: str) -> None:
    item = loaded(name)
    stock_prompt, _, images, _ = joint(item)
    chunks = [engine(name).add(image) for image in images]
    ids = stock_prompt.token_ids
    first, second = stock_prompt.starts[1], stock_prompt.starts[3]
    parts: list = [ids[:first].tolist(), chunks[0], ids[first + chunks[0].tokens : second].tolist(), chunks[1]]
    parts.append(ids[second + chunks[1].tokens :].tolist())
    prefill = engine(name).prefill(parts, "full", template=False)
    assert torch.equal(prefill.token_ids, ids)
    stock = stock_logits(item, stock_prompt, images)[-1]
    assert largest_error(prefill.logits, stock) <= 1e-4
    assert (prefill.usage.computed_tokens, prefill.usage.cached_tokens) == (len(ids), 0)


@families
def test_a_full_rank_patch_restores_what_blind_reuse_loses_at_another_place(name: str) -> None:
    one = linker(name)
    near, far = two_pages(name), two_pages(name, shift=1000)
    formed = one.link(LinkRequest(near, "patch-60000"))
    assert formed.usage.forming_tokens > 0
    exact = link(name, far, "full")
    blind = link(name, far, "blind")
    again = one.link(LinkRequest(far, "patch-60000"))
    assert again.usage.forming_tokens == 0, "a patch formed at one position serves every other"
    assert kv_error(name, again.linked, exact) <= 1e-4
    assert largest_error(again.linked.logits, exact.logits) <= 1e-3
    assert kv_error(name, blind, exact) > 30e-4, "the test would not tell a lossy reuse from an exact one"


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3", "kimi_k25"])
def test_in_bfloat16_the_patch_stays_within_rounding(name: str) -> None:
    """Against re-prefill in the same dtype, a full-rank patch errs by roundings, blind reuse by the deficit."""
    case = CASES[name]
    model, bundle = case.build(0)
    inv_freq = {key: value.clone() for key, value in model.named_buffers() if "inv_freq" in key}
    model = model.to(torch.bfloat16)
    for key, value in inv_freq.items():
        owner, _, buffer = key.rpartition(".")
        setattr(model.get_submodule(owner), buffer, value)
    own = Engine(model, bundle)
    chunks = [own.add(picture(*case.sizes[index], seed=index)) for index in range(2)]
    prompt = [words(5).tolist(), chunks[0], words(3, 1).tolist(), chunks[1], words(4, 2).tolist()]
    results = {key: own.prefill(prompt, key, template=False) for key in ("full", "blind", "patch-60000")}

    def typical(key: str) -> float:
        pairs = zip(results[key].kv, results["full"].kv, strict=True)
        return max(
            float((one.values - other.values).float().norm() / other.values.float().norm()) for one, other in pairs
        )

    assert results["patch-60000"].kv[0].keys.dtype == torch.bfloat16
    blind = results["blind"]
    assert blind.trace.bytes_read == sum(one.bytes for one in chunks)
    assert blind.plan.cost(own.adapter.layouts, 2).bytes_read == blind.trace.bytes_read
    assert typical("patch-60000") < 2**-6 < 4 * 2**-6 < typical("blind")


@families
def test_an_exact_prefix_is_exact(name: str) -> None:
    one = linker(name)
    first, second = pictures(name)
    start = [text(5), ChunkPart(first), text(3, 1)]
    one.link(LinkRequest(prompt_of(name, start), "full"))
    longer = prompt_of(name, [*start, ChunkPart(second), text(4, 2)])
    outcome = one.link(LinkRequest(longer, "prefix"))
    assert outcome.linked.trace.cached == prompt_of(name, start).tokens
    assert kv_error(name, outcome.linked, link(name, longer, "full")) <= 1e-5
    moved = prompt_of(name, [text(4), ChunkPart(first), text(3, 1)])
    assert one.link(LinkRequest(moved, "prefix")).linked.trace.cached < 5, (
        "moved by a token, the picture is computed again"
    )


@families
def test_a_slid_picture_has_conditioned_the_next_one_and_is_gone(name: str) -> None:
    first, second = pictures(name)

    def prompt(slid: bool, word: int) -> Prompt:
        parts = [text(3), ChunkPart(first, slid=slid), ChunkPart(second), text(4, word)]
        return prompt_of(name, parts)

    outcome = link(name, prompt(True, 1), "full")
    visible = link(name, prompt(False, 1), "full")
    kept = [row for row in range(prompt(True, 1).tokens) if not 3 <= row < 3 + first.tokens]
    assert outcome.table.length == len(kept)
    start, stop = 3 + first.tokens, 3 + first.tokens + second.tokens
    for layer in range(len(engine(name).adapter.layouts)):
        slid_rows, rows = outcome.table.read(layer), visible.table.read(layer)
        assert largest_error(slid_rows.keys[:, 3 : 3 + stop - start], rows.keys[:, start:stop]) <= 1e-5
    assert largest_error(outcome.logits, visible.logits) > 1e-3, "the text still sees the slid picture"
    patched = linker(name).link(LinkRequest(prompt(True, 1), "patch-60000")).linked
    assert patched.trace.absent == first.tokens
    assert kv_error(name, patched, outcome) <= 1e-4


def test_rows_cannot_begin_above_the_first_layer() -> None:
    """The executor says so and the engine falls back."""
    name = "qwen2_5_vl"
    prompt = two_pages(name)
    blind = linker(name).link(LinkRequest(prompt, "blind")).plan
    ranges = []
    for part in blind.ranges:
        if part.source is RowSource.TAKEN:
            ranges.append(replace(part, layers=(0, 1)))
            ranges.append(RowRange(part.start, part.stop, RowSource.COMPUTED, (1, blind.layers)))
        else:
            ranges.append(part)
    plan = replace(blind, ranges=tuple(ranges))
    plan.validate()

    class Deep:
        name = "deep"

        def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
            return plan

    outcome = linker(name).link(LinkRequest(prompt, Deep()))
    assert outcome.usage.fallback is not None and "above a layer" in outcome.usage.fallback
    assert outcome.plan.strategy == "full" and outcome.linked.trace.cached == 0
