"""Where there are many centroids, those that would be attended most are seen, and no more than were asked for."""

from typing import Any

import pytest
import torch

from emblema.errors import StreamError
from emblema.stream.foremost import foremost
from emblema.stream.method import Means, Query
from tests.engine.engines import engine, largest_error
from tests.families import words
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 2, "block": 4, "budget": 2, "first": 4, "largest": 2, "template": False}


def test_those_attended_most_stay_for_each_group() -> None:
    """Two groups of two queries, one head each: the shares worked out one by one."""
    torch.manual_seed(3)
    layout = engine(NAME).adapter.layouts[0]
    heads, width = layout.keys
    states, keys = torch.randn(2 * heads, 4, width), torch.randn(heads, 9, width)
    groups, hidden = torch.tensor([0, 0, 1, 1]), torch.ones(2, 9, dtype=torch.bool)
    hidden[0, 4] = hidden[1, 2] = False
    weight = torch.randn(9)
    means = Means(keys, keys + 1, torch.arange(9.0), weight, hidden)
    found = foremost(means, Query(states, groups, 2, heads, "frames"), layout, 3)
    for group in range(2):
        share = torch.zeros(9)
        for head in range(2 * heads):
            own = states[head, groups == group].mean(0)
            logits = keys[head // 2] @ own + weight
            share += torch.softmax(logits.masked_fill(~hidden[group], -torch.inf), 0)
        assert set(found.when[found.shown[group]].tolist()) == set(share.topk(3).indices.float().tolist())
    kept = found.when.long()
    assert (
        found.keys.equal(keys[:, kept]) and found.values.equal(keys[:, kept] + 1) and found.weight.equal(weight[kept])
    )
    assert foremost(means, Query(states, groups, 2, heads, "frames"), layout, 9) is means


def answer(**changes: Any) -> torch.Tensor:
    with engine(NAME).stream(**{**SMALL, **changes}) as stream:
        stream.push(shown(NAME, 26))
        return stream.prefill(QUESTION)


@pytest.mark.parametrize("positions", ["native", "packed"])
def test_a_block_is_frame_by_frame_with_few_centroids_too(positions: str) -> None:
    answers = [answer(attended=2, positions=positions, batched=batched) for batched in (True, False)]
    assert largest_error(*answers) < 1e-4
    assert largest_error(answers[0], answer(positions=positions)) > 1e-3


def test_as_many_as_there_are_is_all_of_them() -> None:
    assert answer(attended=1000).equal(answer())
    with pytest.raises(StreamError, match="attended"):
        answer(attended=0)
