"""Cached spans: however a prompt is cut into steps, every row is taken or computed as the plan has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource, Selector
from emblema.served.spans import CachedSpans, StepRows, taken_rows, unsupported_reason


@st.composite
def layouts(draw: st.DrawFn) -> tuple[CachedSpans, int]:
    """Cached spans in order, and how many rows the prompt has; the last row is in none."""
    row, cached = 0, []
    for _ in range(draw(st.integers(0, 6))):
        start = row + draw(st.integers(0 if not cached else 1, 9))
        row = start + draw(st.integers(1, 9))
        cached.append((start, row))
    return CachedSpans(tuple(cached)), row + draw(st.integers(1, 9))


@given(layouts(), st.data())
def test_every_row_is_ready_once(layout, data) -> None:
    """Whatever a step's rows are, what it takes and computes are these rows and no others."""
    cached, rows = layout
    taken_rows_of_plan = {row for start, stop in cached.spans for row in range(start, stop)}
    first = start = data.draw(st.integers(0, rows - 1))
    stand_in, ready = False, {}
    while start < rows:
        stop = data.draw(st.integers(start + 1, rows))
        step = cached.step_rows(start, stop, stand_in)
        taken = [row for low, high in step.taken for row in range(low, high)]
        computed = [row for low, high in step.computed for row in range(low, high)]
        assert len(taken) == len(set(taken)) and computed == sorted(set(computed))
        assert set(taken) <= taken_rows_of_plan and computed and computed[-1] == stop - 1
        again = {start - 1} if stand_in else set()
        assert set(taken) - set(range(start, stop)) == again
        assert set(taken) | set(computed) == set(range(start, stop)) | again
        assert set(computed) & taken_rows_of_plan == ({stop - 1} if step.stand_in else set())
        ready |= {row: "computed" for row in computed}
        ready |= {row: "taken" for row in taken if row not in computed}
        start, stand_in = stop, step.stand_in
    # The last row is in no span, so every row is as the plan has it in the end.
    assert ready == {row: "taken" if row in taken_rows_of_plan else "computed" for row in range(first, rows)}


@given(layouts(), st.data())
def test_what_is_loaded_ends_with_the_last_taken_row(layout, data) -> None:
    cached, rows = layout
    ready = data.draw(st.integers(0, rows - 1))
    taken_of_plan = {row for start, stop in cached.spans for row in range(max(start, ready), min(stop, rows - 1))}
    loaded = cached.load(ready, rows)
    if loaded is None:
        assert not taken_of_plan
        return
    taken = [row for low, high in loaded.taken for row in range(low, high)]
    computed = [row for low, high in loaded.computed for row in range(low, high)]
    assert set(taken) == taken_of_plan and loaded.linked == len(taken) and loaded.stop == max(taken) + 1 < rows
    assert sorted([*taken, *computed]) == list(range(ready, loaded.stop))
    assert all(start < stop for start, stop in loaded.computed)


def test_a_hit_in_a_span_leaves_its_rows_alone() -> None:
    """Rows of the prefix cache are shared: none before a request's first step is written."""
    cached = CachedSpans(((4, 10), (12, 20)))
    assert cached.step_rows(6, 24, stand_in=False) == StepRows(((6, 10), (12, 20)), ((10, 12), (20, 24)))
    assert cached.step_rows(6, 8, stand_in=False) == StepRows(((6, 8),), ((7, 8),), stand_in=True)
    assert cached.step_rows(8, 11, stand_in=True) == StepRows(((7, 10),), ((10, 11),))
    assert cached.after(19) and not cached.after(20)
    assert cached.private_from(0) == 4 and cached.private_from(11) == 12 and cached.private_from(20) is None


def test_rows_up_to_the_end_of_an_exact_chunk_are_shared() -> None:
    """Also where the next chunk follows it at once, so that both are one span."""
    assert CachedSpans(((2, 10), (12, 20)), exact=10).private_from(0) == 12
    assert CachedSpans(((2, 20),), exact=10).private_from(0) == 10
    assert CachedSpans(((2, 10),), exact=10).private_from(0) is None
    assert CachedSpans(((0, 10),)).private_from(0) == 0, "captured after an anchor that is not there"


ORIGIN = ChunkOrigin("a" * 64)
TEXT = RowRange(6, 8, RowSource.COMPUTED, (0, 4))


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ((RowRange(0, 6, RowSource.COMPUTED, (0, 2)), RowRange(0, 6, RowSource.TAKEN, (2, 4), ORIGIN)), "some layers"),
        ((RowRange(0, 6, RowSource.ABSENT, (0, 4)),), "absent"),
        ((RowRange(0, 6, RowSource.COMPUTED, (0, 4), hidden=((0, 2),)),), "several steps"),
    ],
)
def test_plans_that_pages_cannot_carry_out(ranges, words) -> None:
    assert words in (unsupported_reason(LinkPlan("x", 8, 4, (*ranges, TEXT))) or "")


def test_pages_support_no_selector() -> None:
    ranges = (RowRange(0, 6, RowSource.COMPUTED, (0, 4)), TEXT)
    plan = LinkPlan("x", 8, 4, ranges, selectors=(Selector(((0, 6),), 1, 2),))
    assert "values" in (unsupported_reason(plan) or "")


def test_cached_spans_join_and_are_cut_to_a_claim() -> None:
    origins = (ORIGIN, ChunkOrigin("b" * 64))
    taken = [RowRange(start, start + 3, RowSource.TAKEN, (0, 4), origins[start // 3]) for start in (0, 3)]
    plan = LinkPlan("x", 8, 4, (*taken, TEXT))
    assert unsupported_reason(plan) is None and CachedSpans.of(plan) == CachedSpans(((0, 6),))
    cut = taken_rows(plan, ((2, 6),))
    assert [(part.start, part.stop, part.origin.offset) for part in cut.ranges] == [(2, 3, 2), (3, 6, 0)]


@pytest.mark.parametrize(
    ("taken", "kept"),
    [(((3, 6),), [(3, 6)]), (((4, 6),), [(4, 6)]), (((0, 3),), [(0, 3)]), (((1, 2), (4, 5)), [(1, 2), (4, 5)])],
)
def test_taken_rows_have_nothing_of_ranges_before_or_after_them(taken, kept) -> None:
    parts = [RowRange(first, first + 3, RowSource.TAKEN, (0, 4), ORIGIN) for first in (0, 3)]
    cut = taken_rows(LinkPlan("x", 8, 4, tuple(parts)), taken)
    assert [(part.start, part.stop) for part in cut.ranges] == kept
