"""Claims and gaps: whatever the budgets, every row is loaded or computed once and in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, Selector, Source
from emblema.vllm.holes import beyond, claim, holes_of, room, within


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int]:
    """Holes in order, and how many rows the prompt has; the last row is in none."""
    row, holes = 0, []
    for _ in range(draw(st.integers(0, 6))):
        start = row + draw(st.integers(0 if not holes else 1, 9))
        row = start + draw(st.integers(1, 9))
        holes.append((start, row))
    return holes, row + draw(st.integers(1, 9))


@given(layouts(), st.integers(0, 12), st.integers(0, 3), st.integers(1, 8), st.integers(0, 60))
def test_every_row_is_had_once(layout, tokens, slots, own, hit) -> None:
    holes, rows = layout
    computed = min(hit, rows - 1)
    had = [0] * rows
    had[:computed] = [1] * computed
    for _ in range(10 * rows + 10):
        if computed == rows:
            break
        claimed = claim(holes, computed, tokens, slots)
        if claimed is not None:
            assert claimed.gap_rows <= tokens and len(claimed.gaps) <= slots
            assert claimed.gap_rows + claimed.taken_rows == claimed.stop - computed
            for row in range(computed, claimed.stop):
                had[row] += 1
                # A gap is computed, a hole is not.
                inside = any(start <= row < stop for start, stop in holes)
                assert inside != any(start <= row < stop for start, stop in claimed.gaps)
            computed = claimed.stop
        bound = room(holes, computed)
        step = min(own, rows - computed, rows if bound is None else bound)
        # At a hole there is always a claim, so a request never waits for ever.
        assert step > 0
        had[computed : computed + step] = [count + 1 for count in had[computed : computed + step]]
        computed += step
    assert computed == rows and set(had) == {1}


def test_a_claim_reaches_as_far_as_its_budgets() -> None:
    holes = [(4, 10), (12, 20), (25, 30)]
    assert claim(holes, 0, 11, 3).stop == 30  # type: ignore[union-attr]
    assert claim(holes, 0, 10, 3).stop == 20  # type: ignore[union-attr]
    assert claim(holes, 0, 11, 2).stop == 20  # type: ignore[union-attr]
    assert claim(holes, 0, 11, 3, most=1).stop == 10  # type: ignore[union-attr]
    assert claim(holes, 0, 3, 3) is None
    assert claim(holes, 6, 0, 0).gaps == ()  # type: ignore[union-attr]
    assert claim(holes, 30, 99, 9) is None


ORIGIN = ChunkOrigin("a" * 64)
TEXT = RowRange(6, 8, Source.COMPUTED, (0, 4))


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ((RowRange(0, 6, Source.COMPUTED, (0, 2)), RowRange(0, 6, Source.TAKEN, (2, 4), ORIGIN)), "some layers"),
        ((RowRange(0, 6, Source.ABSENT, (0, 4)),), "absent"),
        ((RowRange(0, 6, Source.COMPUTED, (0, 4), stage=1),), "several steps"),
        ((RowRange(0, 6, Source.COMPUTED, (0, 4), hidden=((0, 2),)),), "several steps"),
    ],
)
def test_plans_that_pages_cannot_carry_out(ranges, words) -> None:
    assert words in (beyond(LinkPlan("x", 8, 4, (*ranges, TEXT))) or "")


def test_a_selector_is_beyond_pages() -> None:
    ranges = (RowRange(0, 6, Source.COMPUTED, (0, 4)), TEXT)
    plan = LinkPlan("x", 8, 4, ranges, selectors=(Selector("deviation", ((0, 6),), 1, 2),))
    assert "values" in (beyond(plan) or "")


def test_holes_join_and_are_cut_to_a_claim() -> None:
    taken = (RowRange(0, 3, Source.TAKEN, (0, 4), ORIGIN), RowRange(3, 6, Source.TAKEN, (0, 4), ChunkOrigin("b" * 64)))
    plan = LinkPlan("x", 8, 4, (*taken, TEXT))
    assert beyond(plan) is None and holes_of(plan) == ((0, 6),)
    cut = within(plan, claim([(0, 6)], 2, 0, 0))  # type: ignore[arg-type]
    assert [(part.start, part.stop, part.origin.offset) for part in cut.ranges] == [(2, 3, 2), (3, 6, 0)]
