"""A second pass: what a plan of it must be, its limit, and what it leaves in the table and in the store."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import PlanError
from emblema.kv.layout import LayerRows
from emblema.link.executor import Executor
from emblema.link.plan import ChunkOrigin, LinkPlan, Recomputation, RowRange, RowSource, Selector
from emblema.link.prompt import ChunkPart, Prompt
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.query import QueryStrategy, unread_rows
from emblema.link.taken_rows import LinkJob
from emblema.session.requests import LinkRequest
from tests.engine.engines import engine, kv_error, largest_error, pictures, prompt_of, text
from tests.families import NAMES
from tests.link.linking import assert_ran_as_planned, full, link, linker, prompt_for
from tests.link.pieces import knowledges, prompts

families = pytest.mark.parametrize("name", NAMES)
settings = pytest.mark.parametrize("setting", ["visible", "slid", "leading"])
CHUNK = ChunkOrigin("a" * 64)


def plan_of(again: Recomputation, *ranges: RowRange, selectors: tuple[Selector, ...] = ()) -> LinkPlan:
    """Two rows of text, six taken, two of text; or other ranges."""
    whole = (0, 4)
    standard = (
        RowRange(0, 2, RowSource.COMPUTED, whole),
        RowRange(2, 8, RowSource.TAKEN, whole, CHUNK),
        RowRange(8, 10, RowSource.COMPUTED, whole),
    )
    return LinkPlan("x", 10, 4, ranges or standard, selectors=selectors, recomputation=again)


GOOD = Recomputation(((2, 8),), 3, (8, 10))


def test_a_second_pass_over_taken_rows_that_ends_with_the_prompt_is_valid() -> None:
    for again in (GOOD, replace(GOOD, budget=0), replace(GOOD, question=(9, 10)), replace(GOOD, candidates=((3, 5),))):
        plan_of(again).validate()
    assert GOOD.rows == 5 and GOOD.question_rows == 2
    assert replace(GOOD, budget=99).rows == 8, "no more than there are"


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (replace(GOOD, candidates=()), "needs candidates"),
        (replace(GOOD, budget=-1), "budget of 0 or more"),
        (replace(GOOD, question=(8, 9)), "end with the prompt"),
        (replace(GOOD, question=(-1, 10)), "end with the prompt"),
        (replace(GOOD, question=(10, 10)), "end with the prompt"),
        (replace(GOOD, question=(7, 10)), "must be computed"),
        (replace(GOOD, candidates=((1, 8),)), "taken in every layer"),
        (replace(GOOD, candidates=((2, 8), (0, 2))), "taken in every layer"),
        (replace(GOOD, candidates=((2, 9),)), "taken in every layer"),
    ],
)
def test_what_is_no_second_pass_is_refused(again: Recomputation, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan_of(again).validate()


def test_rows_of_some_layers_only_are_refused() -> None:
    ranges = (
        RowRange(0, 2, RowSource.COMPUTED, (0, 4)),
        RowRange(2, 5, RowSource.TAKEN, (0, 4), CHUNK),
        RowRange(5, 8, RowSource.COMPUTED, (0, 2)),
        RowRange(5, 8, RowSource.TAKEN, (2, 4), CHUNK),
        RowRange(8, 10, RowSource.COMPUTED, (0, 4)),
    )
    with pytest.raises(PlanError, match="some layers only"):
        plan_of(replace(GOOD, candidates=((2, 5),)), *ranges).validate()
    with pytest.raises(PlanError, match="without selectors"):
        whole = (replace(ranges[0]), RowRange(2, 8, RowSource.COMPUTED, (0, 4)), ranges[-1])
        taken = RowRange(2, 8, RowSource.TAKEN, (0, 4), CHUNK)
        selector = Selector(((2, 8),), 3, 2)
        assert whole[1].rows == taken.rows
        plan_of(GOOD, *whole, selectors=(selector,)).validate()


def test_what_is_left_of_it_after_reused_rows() -> None:
    again = Recomputation(((2, 8), (9, 12)), 3, (12, 14))
    left = again.after(5)
    assert left is not None and left.candidates == ((5, 8), (9, 12)) and left.question == (12, 14)
    assert again.after(12) is None, "nothing is left to choose from"


@given(prompts(), knowledges(), st.sampled_from([0.01, 0.12, 0.5, 1.0]), st.integers(0, 30))
def test_plans_are_valid_for_any_prompt(prompt: Prompt, store: Knowledge, share: float, reused: int) -> None:
    plan = QueryStrategy(share).plan(prompt, store)
    plan.validate()
    again = plan.recomputation
    slid = {row for start, stop in prompt.slid_rows for row in range(start, stop)}
    if again is not None:
        rows = {row for start, stop in again.candidates for row in range(start, stop)}
        assert not rows & slid and 0 not in rows and again.question == prompt.question_rows
        assert 0 < again.budget <= len(rows)
        assert not rows & set(range(*again.question))
    else:
        assert not unread_rows(prompt)
    if 0 < reused < prompt.tokens:
        plan.after(reused).validate()


def chunks_alone(name: str, setting: str) -> Prompt:
    """A prompt without text between chunks, so that every row but the chunks' own is exact at once."""
    first, second, third = pictures(name, 3)
    if setting == "visible":
        return prompt_of(name, [text(5), ChunkPart(first), ChunkPart(second), text(4, 2)])
    if setting == "slid":
        return prompt_of(name, [ChunkPart(first, slid=True), ChunkPart(second), ChunkPart(third), text(4, 2)])
    return prompt_of(name, [ChunkPart(first), ChunkPart(second), ChunkPart(third)])


@pytest.mark.slow
@families
@settings
def test_all_rows_computed_again_are_re_prefills(name: str, setting: str) -> None:
    prompt = chunks_alone(name, setting)
    outcome = link(name, prompt, QueryStrategy(1.0, least_margin=None))
    expected = link(name, prompt, "full").linked
    assert outcome.usage.lane == "query-100%" and outcome.usage.fallback is None
    assert largest_error(outcome.linked.logits, expected.logits) <= 1e-4
    assert kv_error(name, outcome.linked, expected) <= 1e-4


@families
@settings
def test_the_prompt_is_computed_in_full_below_the_margin(name: str, setting: str) -> None:
    prompt = prompt_for(name, setting)
    outcome = link(name, prompt, QueryStrategy(0.4, least_margin=1.0))
    assert outcome.usage.lane == "full" and "computed in full" in (outcome.usage.fallback or "")
    assert outcome.usage.margin is not None and 0 <= outcome.usage.margin < 1
    assert largest_error(outcome.linked.logits, full(name, setting).logits) <= 1e-5
    first = link(name, prompt, QueryStrategy(0.4, least_margin=None))
    assert outcome.usage.margin == first.usage.margin
    assert outcome.usage.repeated_tokens == first.trace.computed + first.trace.repeated


@families
@settings
def test_what_was_planned_is_what_ran_and_the_store_is_as_it_was(name: str, setting: str) -> None:
    prompt, adapter = prompt_for(name, setting), engine(name).adapter
    one = linker(name, prompt)
    names = [chunk.id for _, chunk in prompt.chunk_segments]

    def stored() -> list[LayerRows]:
        with one.store.lease(names) as lease:
            return [LayerRows(row.keys.clone(), row.values.clone()) for name in names for row in lease.rows[name]]

    before = stored()
    outcome = one.link(LinkRequest(prompt, QueryStrategy(0.3, least_margin=None)))
    assert_ran_as_planned(outcome, prompt, adapter)
    again = outcome.plan.recomputation
    assert again is not None and outcome.trace.repeated == outcome.usage.repeated_tokens == again.question_rows
    (chosen,) = outcome.trace.selected
    assert len(chosen) == again.budget and list(chosen) == sorted(set(chosen))
    assert all(any(start <= row < stop for start, stop in again.candidates) for row in chosen)
    for left, right in zip(before, stored(), strict=True):
        assert torch.equal(left.keys, right.keys) and torch.equal(left.values, right.values)


@families
def test_slid_rows_leave_the_table_and_others_stay_in_their_places(name: str) -> None:
    prompt = prompt_for(name, "slid")
    linked = link(name, prompt, QueryStrategy(0.3, least_margin=None)).linked
    gone = {row for start, stop in prompt.slid_rows for row in range(start, stop)}
    assert linked.rows == linked.table.length == prompt.tokens - len(gone)
    assert linked.table.rows[: linked.rows].tolist() == [row for row in range(prompt.tokens) if row not in gone]


@families
def test_only_chosen_rows_and_the_question_differ_from_blind_reuse(name: str) -> None:
    """Text between chunks is computed once, over the rows as they were taken."""
    prompt = prompt_for(name, "visible")
    outcome, blind = link(name, prompt, QueryStrategy(0.3, least_margin=None)), link(name, prompt, "blind").linked
    start, stop = prompt.question_rows
    changed = {*outcome.trace.selected[0], *range(start, stop)}
    kept = torch.tensor([row for row in range(prompt.tokens) if row not in changed])
    for layer in range(outcome.plan.layers):
        left, right = outcome.linked.table.read(layer).select(kept), blind.table.read(layer).select(kept)
        assert largest_error(left.keys, right.keys) <= 1e-5 and largest_error(left.values, right.values) <= 1e-5


@families
def test_a_prompt_may_end_with_a_chunk(name: str) -> None:
    prompt = prompt_for(name, "leading")
    assert prompt.question_rows == (prompt.tokens - 1, prompt.tokens)
    outcome = link(name, prompt, QueryStrategy(0.5, least_margin=None))
    again = outcome.plan.recomputation
    assert again is not None and again.question_rows == 1 and again.candidates[-1][1] == prompt.tokens - 1
    assert 0 not in [start for start, _ in again.candidates], "a chunk at row 0 is exact"


@families
def test_a_continued_table_chooses_among_the_rows_that_are_new(name: str) -> None:
    adapter = engine(name).adapter
    executor = Executor(adapter)
    first, second = pictures(name)
    front = [text(5, 1), ChunkPart(first), text(3, 2)]
    before, whole = (prompt_of(name, parts) for parts in (front, [*front, ChunkPart(second), text(4, 3)]))
    knowledge = Knowledge(adapter.fingerprint, adapter.layouts, lambda key: None, lambda prompt: None)
    one = linker(name, whole)
    begun = executor.run(LinkJob(one.link(LinkRequest(before, "full")).plan, before))
    held = [begun.table.read(layer, 0, before.tokens) for layer in range(len(adapter.layouts))]
    held = [LayerRows(rows.keys.clone(), rows.values.clone()) for rows in held]
    plan = QueryStrategy(1.0, least_margin=None).plan(whole, knowledge).after(before.tokens)
    assert plan.recomputation is not None and plan.recomputation.candidates == ((before.tokens, whole.tokens - 4),)
    linked = executor.run(LinkJob(plan, whole, reused_rows=before.tokens), table=begun.table)
    expected = link(name, whole, "full").linked
    assert largest_error(linked.logits, expected.logits) <= 1e-4 and kv_error(name, linked, expected) <= 1e-4
    for layer, rows in enumerate(held):
        now = linked.table.read(layer, 0, before.tokens)
        assert torch.equal(rows.keys, now.keys) and torch.equal(rows.values, now.values)


@families
def test_an_unsure_answer_on_a_continued_table_is_computed_after_the_rows_that_were_there(name: str) -> None:
    first, second = pictures(name)
    front = [text(5, 1), ChunkPart(first), text(3, 2)]
    before, whole = (prompt_of(name, parts) for parts in (front, [*front, ChunkPart(second), text(4, 3)]))
    one = linker(name, whole)
    begun = one.link(LinkRequest(before, "full", reserve=whole.tokens)).linked
    request = LinkRequest(whole, QueryStrategy(0.3, least_margin=1.0), table=begun.table, reused_rows=before.tokens)
    outcome = one.link(request)
    expected = link(name, whole, "full").linked
    assert outcome.usage.lane == "full" and outcome.linked.table.length == whole.tokens
    assert largest_error(outcome.linked.logits, expected.logits) <= 1e-4
    assert kv_error(name, outcome.linked, expected) <= 1e-4
