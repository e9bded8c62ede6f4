"""Every strategy on every family: each method's own limit is exact, what was planned is what ran, decoding goes on."""

import re
from itertools import permutations

import pytest
import torch

from emblema.engine.engine import Engine
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.kv.layout import LayerRows
from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table, deficits_of, mean_deficits, orderings
from emblema.link.plan import RowSource
from emblema.link.prompt import ChunkPart, Prompt
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.registry import KINDS, parse
from emblema.link.taken_rows import LinkJob, Resources
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.requests import LinkRequest
from tests.engine.engines import engine, kv_error, largest_error, pictures, prompt_of, text
from tests.families import CASES, NAMES, picture, words
from tests.link.linking import assert_ran_as_planned, full, link, linker, patch_bytes_are_as_planned, prompt_for

families = pytest.mark.parametrize("name", NAMES)
settings = pytest.mark.parametrize("setting", ["visible", "slid", "leading"])

FEW = {"gemma3", "kimi_k25"}
"""A sliding window and a latent cache; the others, where every strategy runs, are nightly."""

every_family = pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.nightly) for name in CASES]
)

LIMITS = ("cacheblend-100", "mpic-all", "patch-60000")
MORE_LIMITS = ("mpic-60000", "vlcache-100", "vlcache-100-uniform", "orbit-60000")

STRATEGIES = (
    *("full", "prefix", "blind", "auto", "patch-4", "patch-25%", "patch-4-deep", "orbit-4"),
    *("mpic-2", "mpic-all", "full-reuse", "cacheblend-15", "epic-2", "vlcache-20", "vlcache-20-uniform"),
    *("sink", "query-40%"),
)


@pytest.mark.slow
@families
@settings
@pytest.mark.parametrize("strategy", LIMITS)
def test_the_limit_of_a_method_is_re_prefill(name: str, setting: str, strategy: str) -> None:
    outcome = link(name, prompt_for(name, setting), strategy)
    # From a state no row is hidden while others leave between layers.
    refused = engine(name).adapter.keeps_states and (setting, strategy) == ("slid", "cacheblend-100")
    assert (outcome.usage.fallback is not None) == refused
    assert largest_error(outcome.linked.logits, full(name, setting).logits) <= 1e-4
    assert kv_error(name, outcome.linked, full(name, setting)) <= 1e-4


@pytest.mark.nightly
@pytest.mark.slow
@families
def test_further_limits(name: str) -> None:
    for setting, strategies in (("visible", MORE_LIMITS), ("slid", MORE_LIMITS[:-1])):
        for strategy in strategies:
            logits = link(name, prompt_for(name, setting), strategy).linked.logits
            assert largest_error(logits, full(name, setting).logits) <= 1e-4, (setting, strategy)
    prompt = prompt_for(name, "visible")
    blind = link(name, prompt, "blind").linked
    assert largest_error(blind.logits, full(name, "visible").logits) > 1e-2


@pytest.mark.slow
@every_family
@settings
def test_what_was_planned_is_what_ran(name: str, setting: str) -> None:
    prompt, adapter = prompt_for(name, setting), engine(name).adapter
    one = linker(name, prompt)
    for strategy in STRATEGIES:
        assert_ran_as_planned(one.link(LinkRequest(prompt, strategy)), prompt, adapter)


@pytest.mark.nightly
@pytest.mark.slow
@every_family
@settings
def test_decoding_goes_on_after_each(name: str, setting: str) -> None:
    """Greedy tokens; where the linked table equals re-prefill's, the same tokens that follow re-prefill."""
    prompt, adapter = prompt_for(name, setting), engine(name).adapter

    def tokens(strategy: str | Strategy) -> list[int]:
        linked = link(name, prompt, strategy).linked
        rows = linked.table.length
        found = list(decode(adapter, DecodeStart.after(prompt, linked), Sampler(Sampling(max_new_tokens=4)), ()))
        assert len(found) == 4 and linked.table.length == rows + 3
        return found

    expected = tokens("full")
    for strategy in STRATEGIES:
        tokens(strategy)
    for strategy in LIMITS:
        assert tokens(strategy) == expected, strategy


@pytest.mark.slow
@every_family
def test_slid_rows_leave_and_every_method_has_the_same_exact_rows_in_front(name: str) -> None:
    prompt = prompt_for(name, "slid")
    kept = prompt.tokens - sum(stop - start for start, stop in prompt.slid_rows)
    front = prompt.text_rows[0][1]
    leading = prompt_for(name, "leading")
    first = leading.segments[0].stop
    for strategy in STRATEGIES:
        linked = link(name, prompt, strategy).linked
        assert linked.table.length == kept, strategy
        other = link(name, leading, strategy).linked
        for layer in range(len(engine(name).adapter.layouts)):
            for mine, theirs, rows in ((linked, full(name, "slid"), front), (other, full(name, "leading"), first)):
                one, two = mine.table.read(layer, 0, rows), theirs.table.read(layer, 0, rows)
                assert largest_error(one.keys, two.keys) <= 1e-4, strategy
                assert largest_error(one.values, two.values) <= 1e-4, strategy


@every_family
def test_taken_rows_are_the_same_relocated_rows_in_every_method(name: str) -> None:
    prompt = prompt_for(name, "visible")
    blind = link(name, prompt, "blind").linked
    for strategy in ("mpic-2", "full-reuse", "cacheblend-15", "epic-2", "vlcache-20", "sink"):
        outcome = link(name, prompt, strategy)
        chosen = {row for rows in outcome.linked.trace.selected for row in rows}
        for part in outcome.plan.ranges:
            if part.source is not RowSource.TAKEN:
                continue
            rows = torch.tensor([row for row in range(part.start, part.stop) if row not in chosen])
            for layer in range(*part.layers):
                one = outcome.linked.table.read(layer).select(rows)
                two = blind.table.read(layer).select(rows)
                assert torch.equal(one.keys, two.keys) and torch.equal(one.values, two.values), strategy


@every_family
def test_an_orbit_patch_is_the_mean_over_the_other_orderings(name: str) -> None:
    first, second, third = pictures(name, 3)

    def ordered(*chunks: object) -> Prompt:
        a, b = (ChunkPart(chunk) for chunk in chunks)  # type: ignore[arg-type]
        return prompt_of(name, [text(2), a, text(1, 1), b, ChunkPart(third), text(4, 2)])

    prompt, swapped = ordered(first, second), ordered(second, first)
    one, adapter = linker(name, prompt), engine(name).adapter
    outcome = one.link(LinkRequest(prompt, "orbit-60000"))
    # One ordering each: the first and the second picture have no other, the third behind both has one.
    assert outcome.usage.forming_tokens == sum(segment.stop for segment, _ in prompt.chunk_segments)
    key = ArtifactKey(adapter.fingerprint, third.id, (first.id, second.id), ArtifactKind.ORBIT)
    segment = swapped.chunk_segments[-1][0]
    own = deficits_of(adapter, conditioned_table(Executor(adapter), swapped), swapped, segment, third.rows, {0, 2})
    stored = one.store.find_patch(key)
    assert stored is not None
    for layer in (0, 2):
        rows, held = own[layer], stored.layers[layer]
        assert rows is not None and held is not None
        keys, values = (side.dense(shape[0]) for side, shape in zip(
            (held.keys, held.values), (adapter.layouts[layer].keys, adapter.layouts[layer].values), strict=True
        ))  # fmt: skip
        # In layer 0 nothing has been absorbed yet: the deficit is rounding.
        scale = 1.0 if layer == 0 else float(rows.values.abs().max())
        assert float((keys - rows.keys).abs().max()) <= 1e-4 * max(scale, 1.0)
        assert float((values - rows.values).abs().max()) <= 1e-4 * max(scale, 1.0)
    assert one.link(LinkRequest(swapped, "orbit-8")).linked.trace.patched > 0
    # The third picture's set is known; the picture now second has another one.
    assert one.link(LinkRequest(swapped, "orbit-8")).usage.forming_tokens == 0


def test_orderings_are_exhausted_up_to_four_and_drawn_beyond() -> None:
    name = "llava"
    chunks = pictures(name, 7)
    last = ChunkPart(chunks[6])

    def others(count: int) -> list[tuple[str, ...]]:
        prompt = prompt_of(name, [text(2), *(ChunkPart(chunk) for chunk in chunks[:count]), last, text(1)])
        found = orderings(prompt, prompt.chunk_segments[-1][0])
        assert all(one.tokens == prompt.tokens - 1 and one.segments[-1].part == last for one in found)
        return [tuple(chunk.id for _, chunk in one.chunk_segments[:-1]) for one in found]

    for count in (2, 3, 4):
        ids = tuple(chunk.id for chunk in chunks[:count])
        assert sorted(others(count)) == sorted(set(permutations(ids)) - {ids})
    ids = tuple(chunk.id for chunk in chunks[:6])
    drawn = others(6)
    assert len(drawn) == len(set(drawn)) == 24 and ids not in drawn
    assert all(sorted(one) == sorted(ids) for one in drawn)
    assert others(6) == drawn, "the same patch each time"
    assert others(0) == [()] and others(1) == [(chunks[0].id,)]


def test_means_leave_out_what_is_left_out() -> None:
    def rows(value: float) -> LayerRows:
        return LayerRows(torch.full((1, 2, 3), value), torch.full((1, 2, 3), -value))

    mean = mean_deficits([[None, rows(1.0)], [None, rows(3.0)]])
    assert mean[0] is None and mean[1] is not None and mean[1].keys.eq(2).all() and mean[1].values.eq(-2).all()


@pytest.mark.slow
@every_family
def test_a_table_under_way_is_gone_on_with(name: str) -> None:
    """Rows in front stand already; each method answers for the rest, and at its limit as re-prefill does."""
    first, second, third = pictures(name, 3)
    front = [text(3), ChunkPart(first), text(2, 1)]
    before = prompt_of(name, front)
    whole = prompt_of(name, [*front, ChunkPart(second), text(2, 3), ChunkPart(third), text(4, 2)])
    one, executor = linker(name, whole), Executor(engine(name).adapter)
    expected = one.link(LinkRequest(whole, "full")).linked
    for strategy in STRATEGIES:
        if strategy in ("prefix", "auto"):
            continue
        plan = one.link(LinkRequest(whole, strategy)).plan.after(before.tokens)
        table = conditioned_table(executor, before)
        keys = {part.patch.key for part in plan.ranges if part.patch is not None}
        held = {key: patch for key in keys if (patch := one.store.find_patch(key)) is not None}
        linked = executor.run(LinkJob(plan, whole, Resources(held), before.tokens), table=table)
        assert linked.table.length == whole.tokens
        if strategy in ("full", "mpic-all"):
            assert largest_error(linked.logits, expected.logits) <= 1e-4, strategy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "kimi_k25"])
def test_in_bfloat16_every_method_runs_and_the_limits_hold_to_rounding(name: str) -> None:
    case = CASES[name]
    model, bundle = case.build(0)
    kept = {key: buffer.clone() for key, buffer in model.named_buffers() if "inv_freq" in key}
    model.to(torch.bfloat16)
    for key, value in kept.items():
        owner, _, buffer = key.rpartition(".")
        setattr(model.get_submodule(owner), buffer, value)
    own = Engine(model, bundle)
    chunks = [own.add(picture(*case.sizes[index], seed=index)) for index in range(2)]
    prompt = [words(5).tolist(), chunks[0], words(3, 1).tolist(), chunks[1], words(4, 2).tolist()]
    logits = own.prefill(prompt, "full", template=False).logits
    for strategy in (*STRATEGIES, *LIMITS):
        own.forget_prompts()
        prefill = own.prefill(prompt, strategy, template=False)
        cost = prefill.plan.cost(own.adapter.layouts, 2)
        assert cost.bytes_read == prefill.trace.bytes_read, strategy
        assert patch_bytes_are_as_planned(prefill.plan, cost.patch_bytes, prefill.trace.patch_bytes), strategy
        assert torch.isfinite(prefill.logits).all()
        if strategy in LIMITS:
            assert float((prefill.logits - logits).norm() / logits.norm()) < 0.05, strategy


def test_pieces_go_with_their_chunk() -> None:
    name = "llava"
    prompt = prompt_for(name, "visible")
    one = linker(name, prompt)
    for strategy in ("orbit-3", "patch-3"):
        assert one.link(LinkRequest(prompt, strategy)).linked.trace.row_layers > 0
    before = one.store.statistics.patches
    # Two orbit patches and two patches.
    assert before == 4
    assert one.store.delete(prompt.chunk_segments[0][1].id)
    # The second chunk's patches were made from the first as well.
    assert one.store.statistics.patches == 0


def test_all_strategies_are_tried_here() -> None:
    """Nothing that a user can ask for is left out of this page."""
    tried = {kind.usage for kind in KINDS for name in STRATEGIES if re.fullmatch(kind.pattern, name)}
    assert tried == {kind.usage for kind in KINDS}
    assert all(parse(name).name == name for name in STRATEGIES)
