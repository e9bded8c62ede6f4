"""Plans: every row has exactly one source per layer, costs follow, and every strategy keeps to that."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import PlanError
from emblema.link.plan import ChunkOrigin, LinkPlan, PrefixOrigin, RowRange, RowSource, Selector
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from tests.link.pieces import LAYERS, LAYOUTS, chunk, knowledge, knowledges, prompts

NAMES = (
    *("full", "prefix", "blind", "patch-4", "patch-25%", "patch-100%", "patch-4-deep", "auto", "orbit-4"),
    *("mpic-2", "mpic-all", "full-reuse", "cacheblend-15", "cacheblend-100", "epic-2", "vlcache-30"),
    *("vlcache-30-uniform", "sink"),
)


@pytest.mark.parametrize("name", NAMES)
@given(prompt=prompts(), known=knowledges())
def test_every_row_has_one_source_in_every_layer(name: str, prompt: Prompt, known: Knowledge) -> None:
    plan = parse(name).plan(prompt, known)
    plan.validate()
    codes = plan.sources()
    for start, stop in prompt.text_rows:
        # Only an exact prefix ever stands in for text.
        taken = [
            part for part in plan.ranges if part.source is RowSource.TAKEN and part.start < stop and start < part.stop
        ]
        assert all(isinstance(part.origin, PrefixOrigin) for part in taken) and (codes[:, start:stop] <= 1).all()
        assert not taken or name in ("prefix", "auto")
    for start, stop in prompt.slid_rows:
        assert plan.leaving or (codes[:, start : min(stop, plan.rows - 1)] == 3).all()
    first = prompt.segments[0]
    if isinstance(first.part, ChunkPart) and name != "full" and not (codes[:, : first.stop] == 3).any():
        stop = min(first.stop, plan.rows - 1)
        assert (codes[:, :stop] == 1).all() or "prefix" in plan.strategy, "a chunk at row 0 is exact as it is"


@pytest.mark.parametrize("name", NAMES)
@given(prompt=prompts(), known=knowledges())
def test_costs_are_what_the_rows_add_up_to(name: str, prompt: Prompt, known: Knowledge) -> None:
    plan = parse(name).plan(prompt, known)
    codes = plan.sources()
    cost = plan.cost(LAYOUTS, 4)
    chosen = compared = 0
    for one in plan.selectors:
        rows = sum(stop - start for start, stop in one.candidates)
        chosen += one.budget * (LAYERS - one.layer - 1)
        compared += rows
    assert cost.rows_computed == ((codes == 0).sum() + chosen) / LAYERS
    assert cost.rows_patched <= cost.rows_taken
    taken = ((codes == 1) | (codes == 2)).sum()
    assert cost.bytes_read == (taken + compared) * 32 * 4
    assert (cost.patch_bytes > 0) == any(part.patch is not None for part in plan.ranges)


@given(prompt=prompts(), known=knowledges(), data=st.data())
def test_a_second_source_or_a_missing_one_is_refused(prompt: Prompt, known: Knowledge, data: st.DataObject) -> None:
    plan = parse("patch-4-deep").plan(prompt, known)
    index = data.draw(st.integers(0, len(plan.ranges) - 1))
    with pytest.raises(PlanError, match="two sources"):
        replace(plan, ranges=(*plan.ranges, plan.ranges[index])).validate()
    with pytest.raises(PlanError, match="no source"):
        replace(plan, ranges=plan.ranges[:index] + plan.ranges[index + 1 :]).validate()


def test_the_first_row_without_a_source_is_named() -> None:
    last = RowRange(3, 5, RowSource.COMPUTED, (0, 2))
    for ranges, row, layer in (
        ((RowRange(0, 2, RowSource.COMPUTED, (0, 2)), RowRange(2, 3, RowSource.COMPUTED, (0, 1))), 2, 1),
        ((RowRange(0, 1, RowSource.COMPUTED, (0, 2)), RowRange(1, 3, RowSource.COMPUTED, (1, 2))), 1, 0),
    ):
        with pytest.raises(PlanError, match=f"row {row} has no source in layer {layer}"):
            LinkPlan("test", 5, 2, (*ranges, last)).validate()


@pytest.mark.parametrize(
    "rows", [(-1, 2), (2, 2), (3, 2), (3, 6)], ids=["before the first", "none", "backwards", "after the last"]
)
@pytest.mark.parametrize("layers", [(0, 2), (-1, 1), (1, 1), (1, 3)])
def test_ranges_outside_of_the_prompt_or_the_model_are_refused(rows: tuple[int, int], layers: tuple[int, int]) -> None:
    whole = RowRange(0, 5, RowSource.COMPUTED, (0, 2))
    LinkPlan("test", 5, 2, (whole,)).validate()
    for wrong in (RowRange(*rows, RowSource.COMPUTED, (0, 2)), RowRange(0, 5, RowSource.COMPUTED, layers)):
        if wrong != whole:
            with pytest.raises(PlanError, match="lies outside 5 rows and 2 layers"):
                LinkPlan("test", 5, 2, (wrong,)).validate()


def test_taken_rows_and_no_others_have_an_origin() -> None:
    origin = ChunkOrigin(chunk(1, 4).id)
    for wrong in (RowRange(0, 4, RowSource.TAKEN, (0, 2)), RowRange(0, 4, RowSource.ABSENT, (0, 2), origin)):
        with pytest.raises(PlanError, match="have an origin"):
            LinkPlan("test", 5, 2, (wrong, RowRange(4, 5, RowSource.COMPUTED, (0, 2)))).validate()


@given(prompt=prompts())
def test_text_is_blind_to_slid_chunks_and_to_nothing_else(prompt: Prompt) -> None:
    text = set(prompt.text_rows)
    for part in parse("full").plan(prompt, knowledge()).ranges:
        before = tuple(rows for rows in prompt.slid_rows if rows[0] < part.start)
        assert part.hidden == (before if (part.start, part.stop) in text else ())


def test_patches_are_asked_for_by_what_stands_before() -> None:
    first, second = chunk(1, 5), chunk(2, 6)
    prompt = Prompt.of([ChunkPart(first), TextPart((1,)), ChunkPart(second), TextPart((2,))], 1)
    plan = parse("patch-4").plan(prompt, knowledge())
    assert [(key.chunk, key.antecedents) for key in plan.forming] == [(second.id, (first.id,))]
    assert plan.patch_need(plan.forming[0]) == (4, frozenset(range(LAYERS)))
    deep = parse("patch-4-deep").plan(prompt, knowledge())
    assert deep.patch_need(deep.forming[0]) == (4, frozenset({2, 3}))


def test_a_chunk_at_the_end_gives_its_last_row_to_the_logits() -> None:
    prompt = Prompt.of([TextPart((1, 2)), ChunkPart(chunk(1, 5))], 1)
    plan = parse("blind").plan(prompt, knowledge())
    assert (plan.sources()[:, -1] == 0).all() and (plan.sources()[:, 2:6] == 1).all()


def test_selectors_are_costed_by_their_budget_and_checked() -> None:
    origin = ChunkOrigin(chunk(1, 8).id)
    ranges = (
        RowRange(0, 8, RowSource.COMPUTED, (0, 2)),
        RowRange(0, 8, RowSource.TAKEN, (2, 4), origin),
        RowRange(8, 9, RowSource.COMPUTED, (0, 4)),
    )
    plan = LinkPlan("test", 9, 4, ranges, selectors=(Selector(((0, 8),), 1, 3),))
    plan.validate()
    assert plan.cost(LAYOUTS, 2).rows_computed == (8 * 2 + 3 * 2 + 4) / 4
    with pytest.raises(PlanError, match="selector"):
        replace(plan, selectors=(Selector(((0, 8),), 2, 3),)).validate()


@given(prompt=prompts(), known=knowledges())
def test_plans_can_be_read(prompt: Prompt, known: Knowledge) -> None:
    plan = parse("patch-4").plan(prompt, known)
    assert str(plan).count("\n") >= len(plan.ranges)


def simple(**changes: object) -> LinkPlan:
    """Six rows of a chunk computed in two layers, taken above; two rows of text."""
    ranges = (
        RowRange(0, 6, RowSource.COMPUTED, (0, 2)),
        RowRange(0, 6, RowSource.TAKEN, (2, 4), ChunkOrigin(chunk(1, 6).id)),
        RowRange(6, 8, RowSource.COMPUTED, (0, 4)),
    )
    return replace(LinkPlan("test", 8, 4, ranges, selectors=(Selector(((0, 6),), 1, 2),)), **changes)


def test_selectors_that_make_no_sense_are_refused() -> None:
    simple().validate()
    for wrong in (Selector(((0, 6),), 1, -1), Selector((), 1, 2)):
        with pytest.raises(PlanError, match="candidates, and a budget"):
            simple(selectors=(wrong,)).validate()


def test_a_row_has_one_mask() -> None:
    first, taken, last = simple().ranges
    low, high = replace(last, layers=(0, 2)), replace(last, layers=(2, 4))
    with pytest.raises(PlanError, match="two masks"):
        simple(ranges=(first, taken, low, replace(high, hidden=((0, 6),)))).validate()


@given(prompt=prompts())
def test_text_of_full_reuse_is_blind_to_chunks_and_the_last_row_is_not(prompt: Prompt) -> None:
    plan = parse("full-reuse").plan(prompt, knowledge())
    media = [segment.rows for segment, _ in prompt.chunk_segments]
    for part in plan.ranges:
        if part.source is not RowSource.COMPUTED:
            continue
        if part.stop == prompt.tokens and part.rows == 1:
            assert set(part.hidden) <= set(prompt.slid_rows)
        else:
            assert list(part.hidden) == [rows for rows in media if rows[0] < part.start]


def test_only_what_hides_nothing_is_exact() -> None:
    everything = LinkPlan("test", 4, 2, (RowRange(0, 4, RowSource.COMPUTED, (0, 2)),))
    assert everything.exact
    part = everything.ranges[0]
    assert not replace(everything, leaving=((0, 1),)).exact
    assert not replace(everything, ranges=(replace(part, hidden=((0, 1),)),)).exact
