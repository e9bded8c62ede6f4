"""Rows of a second pass: the best ones."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.plan import Recomputation
from emblema.link.second_pass import chosen_rows, runs_of, spanned_rows
from emblema.models.noting import QuestionReadings


def test_the_best_candidates_are_chosen_in_order() -> None:
    again = Recomputation(((2, 5), (8, 12)), 3, (12, 14))
    scores = torch.tensor([0.1, 0.9, 0.2, 0.0, 0.8, 0.3, 0.0])
    assert chosen_rows(again, scores).tolist() == [3, 9, 10]
    assert chosen_rows(Recomputation(((2, 5),), 9, (12, 14)), scores[:3]).tolist() == [2, 3, 4]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_runs_are_the_rows(rows: set[int]) -> None:
    spans = runs_of(torch.tensor(sorted(rows)))
    assert spanned_rows(spans).tolist() == sorted(rows)
    assert torch.equal(spanned_rows([(70, 70), *reversed(spans), (3, 9)]), torch.tensor(sorted(rows | {*range(3, 9)})))
    assert torch.equal(spanned_rows(()), torch.arange(0))
    assert all(stop < start for (_, stop), (start, _) in zip(spans, spans[1:], strict=False))


def test_readings_of_some_heads_join_to_those_of_all() -> None:
    some = QuestionReadings(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.1]))
    others = QuestionReadings(torch.tensor([0.5, 0.0]), torch.tensor([0.2, 0.4]))
    whole = some.joined(others)
    assert whole.last.tolist() == [1.5, 2.0]
    assert torch.equal(whole.largest, torch.tensor([0.5, 0.4]))
