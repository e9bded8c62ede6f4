"""Rows of a second pass: the best ones, and short gaps between them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.plan import Recomputation
from emblema.link.second_pass import chosen_rows, runs_of, spanned_rows
from emblema.models.attention import QuestionReadings


def test_the_best_candidates_are_chosen_in_order() -> None:
    again = Recomputation(((2, 5), (8, 12)), 3, (12, 14))
    scores = torch.tensor([0.1, 0.9, 0.2, 0.0, 0.8, 0.3, 0.0])
    assert chosen_rows(again, scores).tolist() == [3, 9, 10]
    assert chosen_rows(Recomputation(((2, 5),), 9, (12, 14)), scores[:3]).tolist() == [2, 3, 4]


def test_short_gaps_are_bridged_within_a_range() -> None:
    again = Recomputation(((2, 10), (12, 20)), 4, (20, 22), bridge=2)
    scores = torch.zeros(16)
    scores[[0, 3, 7, 8]] = 1.0
    # Rows 2 and 5 are two apart and 9 is three behind; 9 and 12 are of two ranges, with text in between.
    assert chosen_rows(again, scores).tolist() == [2, 3, 4, 5, 9, 12]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_runs_are_the_rows(rows: set[int]) -> None:
    spans = runs_of(torch.tensor(sorted(rows)))
    assert spanned_rows(spans).tolist() == sorted(rows)
    assert all(stop < start for (_, stop), (start, _) in zip(spans, spans[1:], strict=False))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=5), st.integers(0, 20),
       st.integers(0, 4), st.randoms(use_true_random=False))  # fmt: skip
def test_bridging_only_adds_candidates_in_short_gaps(ranges, budget, bridge, random) -> None:
    candidates, row = [], 0
    for gap, length in ranges:
        candidates.append((row + gap, row + gap + length))
        row += gap + length
    again = Recomputation(tuple(candidates), budget, (row, row + 1))
    allowed = spanned_rows(candidates)
    scores = torch.tensor([random.random() for _ in allowed])
    plain = set(chosen_rows(again, scores).tolist())
    bridged = Recomputation(tuple(candidates), budget, (row, row + 1), bridge=bridge)
    rows = chosen_rows(bridged, scores)
    assert plain <= set(rows.tolist()) <= set(allowed.tolist())
    assert rows.tolist() == sorted(set(rows.tolist()))
    spans = runs_of(torch.tensor(sorted(plain)))
    gaps = {row for (_, stop), (start, _) in zip(spans, spans[1:], strict=False) for row in range(stop, start)
            if start - stop <= bridge}  # fmt: skip
    assert set(rows.tolist()) - plain <= gaps


def test_readings_of_some_heads_join_to_those_of_all() -> None:
    some = QuestionReadings(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.1]))
    others = QuestionReadings(torch.tensor([0.5, 0.0]), torch.tensor([0.2, 0.4]))
    whole = some.joined(others)
    assert whole.last.tolist() == [1.5, 2.0]
    assert torch.equal(whole.largest, torch.tensor([0.5, 0.4]))
