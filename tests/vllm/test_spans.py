"""Cached and compute spans: whatever the budgets, every row is loaded or computed once and in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource, Selector
from emblema.vllm.spans import CachedSpans, Claim, clip_plan, unsupported_reason


@st.composite
def layouts(draw: st.DrawFn) -> tuple[CachedSpans, int]:
    """Cached spans in order, and how many rows the prompt has; the last row is in none."""
    row, cached = 0, []
    for _ in range(draw(st.integers(0, 6))):
        start = row + draw(st.integers(0 if not cached else 1, 9))
        row = start + draw(st.integers(1, 9))
        cached.append((start, row))
    return CachedSpans(tuple(cached)), row + draw(st.integers(1, 9))


@given(layouts(), st.integers(0, 12), st.integers(0, 3), st.integers(1, 8), st.integers(0, 60))
def test_every_row_is_ready_once(layout, tokens, slots, own, hit) -> None:
    cached, rows = layout
    computed = min(hit, rows - 1)
    ready = [0] * rows
    ready[:computed] = [1] * computed
    for _ in range(10 * rows + 10):
        if computed == rows:
            break
        claim = cached.claim(computed, tokens, slots)
        if claim is not None:
            assert claim.compute_rows <= tokens and len(claim.compute_spans) <= slots
            assert claim.compute_rows + claim.cached_rows == claim.stop - computed
            for row in range(computed, claim.stop):
                ready[row] += 1
                # A compute span is computed, a cached one is not.
                assert (row in cached) != any(start <= row < stop for start, stop in claim.compute_spans)
            computed = claim.stop
        bound = cached.rows_until(computed)
        step = min(own, rows - computed, rows if bound is None else bound)
        # At a cached span there is always a claim, so a request never waits for ever.
        assert step > 0
        ready[computed : computed + step] = [count + 1 for count in ready[computed : computed + step]]
        computed += step
    assert computed == rows and set(ready) == {1}


def test_a_claim_reaches_as_far_as_its_budgets() -> None:
    spans = ((4, 10), (12, 20), (25, 30))
    cached, fewer = CachedSpans(spans), CachedSpans(spans)
    fewer.skip_fewer()
    assert cached.claim(0, 11, 3).stop == 30  # type: ignore[union-attr]
    assert cached.claim(0, 10, 3).stop == 20  # type: ignore[union-attr]
    assert cached.claim(0, 11, 2).stop == 20  # type: ignore[union-attr]
    assert fewer.claim(0, 11, 3).stop == 10  # type: ignore[union-attr]
    assert cached.claim(0, 3, 3) is None
    assert cached.claim(6, 0, 0).compute_spans == ()  # type: ignore[union-attr]
    assert cached.claim(30, 99, 9) is None
    fewer.skip_fewer()
    assert fewer.spans == () and fewer.claim(0, 11, 3) is None


ORIGIN = ChunkOrigin("a" * 64)
TEXT = RowRange(6, 8, RowSource.COMPUTED, (0, 4))


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ((RowRange(0, 6, RowSource.COMPUTED, (0, 2)), RowRange(0, 6, RowSource.TAKEN, (2, 4), ORIGIN)), "some layers"),
        ((RowRange(0, 6, RowSource.ABSENT, (0, 4)),), "absent"),
        ((RowRange(0, 6, RowSource.COMPUTED, (0, 4), stage=1),), "several steps"),
        ((RowRange(0, 6, RowSource.COMPUTED, (0, 4), hidden=((0, 2),)),), "several steps"),
    ],
)
def test_plans_that_pages_cannot_carry_out(ranges, words) -> None:
    assert words in (unsupported_reason(LinkPlan("x", 8, 4, (*ranges, TEXT))) or "")


def test_pages_support_no_selector() -> None:
    ranges = (RowRange(0, 6, RowSource.COMPUTED, (0, 4)), TEXT)
    plan = LinkPlan("x", 8, 4, ranges, selectors=(Selector("deviation", ((0, 6),), 1, 2),))
    assert "values" in (unsupported_reason(plan) or "")


def test_cached_spans_join_and_are_cut_to_a_claim() -> None:
    origins = (ORIGIN, ChunkOrigin("b" * 64))
    taken = [RowRange(start, start + 3, RowSource.TAKEN, (0, 4), origins[start // 3]) for start in (0, 3)]
    plan = LinkPlan("x", 8, 4, (*taken, TEXT))
    assert unsupported_reason(plan) is None and CachedSpans.of(plan) == CachedSpans(((0, 6),))
    cut = clip_plan(plan, CachedSpans(((0, 6),)).claim(2, 0, 0))  # type: ignore[arg-type]
    assert [(part.start, part.stop, part.origin.offset) for part in cut.ranges] == [(2, 3, 2), (3, 6, 0)]


@pytest.mark.parametrize(("start", "stop", "kept"), [(3, 6, [(3, 6)]), (4, 6, [(4, 6)]), (0, 3, [(0, 3)])])
def test_a_claim_has_nothing_of_ranges_before_or_after_it(start: int, stop: int, kept: list[tuple[int, int]]) -> None:
    taken = [RowRange(first, first + 3, RowSource.TAKEN, (0, 4), ORIGIN) for first in (0, 3)]
    cut = clip_plan(LinkPlan("x", 8, 4, (*taken, TEXT)), Claim(start, stop, ()))
    assert [(part.start, part.stop) for part in cut.ranges] == kept


def test_half_of_the_spans_are_skipped_and_then_half_of_these() -> None:
    cached = CachedSpans(tuple((row, row + 1) for row in range(0, 18, 2)))
    reached = []
    while cached.spans:
        claim = cached.claim(0, 99, 99)
        assert claim is not None
        reached.append(claim.cached_rows)
        cached.skip_fewer()
    assert reached == [9, 4, 2, 1]
