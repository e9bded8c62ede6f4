"""Which frames a query retrieves: exactly by its own orders where all are compared, nearly so through postings."""

from copy import deepcopy

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.method import Query, VisibleRange
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.postings import BOUND, PAGE, Postings
from emblema.stream.mosaic.ranking import first_lines, log_sum
from emblema.stream.mosaic.retrieval import choose_frames

SEEDS = st.integers(0, 10_000)
WIDTH = 6


def scenes(frames: int, parts: int, heads: int, seed: int, length: int = 20) -> Tensor:
    """Return keys of frames that stay in one place for a while, around something that all have in common."""
    made = torch.Generator().manual_seed(seed)
    places = torch.randn(-(-frames // length), parts, heads, WIDTH, generator=made)
    noise = torch.randn(frames, parts, heads, WIDTH, generator=made)
    return places.repeat_interleave(length, 0)[:frames] + 0.3 * noise + 5


def memory_of(keys: Tensor, first: int = 3, together: int = 8) -> tuple[FrameKeys, Postings]:
    held = FrameKeys(*keys.shape[1:])
    postings = Postings(held)
    for start in range(0, len(keys), together):
        block = keys[start : start + together]
        frames = range(first + start, first + start + len(block))
        held.add(frames, block)
        postings.add(frames)
    return held, postings


def asked(heads: int, rows: int, seed: int, groups: list[int] | None = None) -> Query:
    states = 3 * torch.randn(heads, rows, WIDTH, generator=torch.Generator().manual_seed(seed))
    own = torch.tensor(groups or [0] * rows)
    return Query(states, own, int(own.max()) + 1, 2, "question")


def chosen(
    keys: FrameKeys, postings: Postings | None, query: Query, visible: VisibleRange, budget: int = 64, pool: float = 4.0
) -> list[NDArray[numpy.int64]]:
    return choose_frames(keys, postings, query, visible, budget, ForgottenFrames(), pool)


def by_hand(keys: FrameKeys, query: Query, group: int, low: int, high: int, budget: int) -> set[int]:
    """Take the first frame of every query's order, then the second ones, and so on; inside a place by attention."""
    frames = torch.arange(low, high)
    exact = keys.of(frames)
    shared = query.states.shape[0] // keys.heads
    places: dict[int, tuple[int, float]] = {}
    for head in range(query.states.shape[0]):
        for row in (query.groups == group).nonzero().squeeze(1).tolist():
            shares = torch.softmax((exact[:, :, head // shared] @ query.states[head, row]).flatten(), 0)
            for place, entry in enumerate(shares.argsort(descending=True).tolist()):
                frame, mine = low + entry // keys.parts, (place, -float(shares[entry]))
                places[frame] = min(places.get(frame, mine), mine)
    return set(sorted(places, key=places.__getitem__)[:budget])


@given(SEEDS, st.integers(1, 3), st.integers(12, 40), st.integers(1, 9), st.booleans())
def test_every_query_gets_its_own_first_frames(seed: int, parts: int, count: int, budget: int, several: bool) -> None:
    keys, postings = memory_of(scenes(count, parts, 2, seed, 5))
    query = asked(4, 3, seed, [0, -1, 1] if several else [0, 0, -1])
    for visible in (VisibleRange(0, 100, 100), VisibleRange(7, 3 + count - 2, 3 + count - 2)):
        low, high = max(3, visible.low), min(3 + count, visible.high)
        found = chosen(keys, postings, query, visible, budget, 100.0)
        for group, own in enumerate(found):
            assert len(own) == min(budget, high - low) and bool((numpy.diff(own) > 0).all())
            wanted = by_hand(keys, query, group, low, high, budget)
            # Two frames of almost the same attention may change places.
            assert len(wanted - set(own.tolist())) <= 1 or budget >= high - low


@pytest.mark.slow
@given(SEEDS)
def test_what_lies_after_the_recent_window_or_out_of_sight_is_not_retrieved(seed: int) -> None:
    keys, postings = memory_of(scenes(300, 2, 2, seed), together=60)
    for pool in (1.0, 100.0):
        visible = VisibleRange(50, 200, 180)
        for own in chosen(keys, postings, asked(4, 3, seed), visible, 9, pool):
            assert len(own) == 9 and own.min() >= 50 and own.max() < 180


@given(SEEDS, st.integers(1, 40), st.integers(1, 3), st.integers(1, 12))
def test_lines_come_in_the_order_of_every_query(seed: int, count: int, queries: int, budget: int) -> None:
    """All first ones, then all second ones, by weight inside a place; heads may have fewer keys than others."""
    drawn = numpy.random.default_rng(seed)
    logits = drawn.standard_normal((2, queries, count)).astype(numpy.float32)
    logits[:, :, 1:][numpy.broadcast_to(drawn.random((2, 1, count - 1)) < 0.5, (2, queries, count - 1))] = -numpy.inf
    lines, mass = drawn.integers(0, 30, (2, count)), log_sum(logits)
    groups = drawn.integers(0, 2, queries)
    found = first_lines(logits.copy(), mass, lines, groups, 2, budget)
    for group, own in enumerate(found):
        listed = []
        for head, query in numpy.ndindex(2, queries):
            if groups[query] == group:
                order = (-logits[head, query]).argsort(kind="stable")
                listed += [
                    (
                        place,
                        float(mass[head, query] - logits[head, query, key]),
                        head * queries + query,
                        lines[head, key],
                    )
                    for place, key in enumerate(order)
                    if logits[head, query, key] > -numpy.inf
                ]
        assert own.tolist() == list(dict.fromkeys(line for *_, line in sorted(listed)))[:budget]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [9, 400])
def test_a_budget_is_filled_from_a_part_of_a_stream_and_by_few_queries(budget: int) -> None:
    keys, postings = memory_of(scenes(3000, 2, 2, seed=budget))
    query = asked(2, 1, seed=1)
    found = chosen(keys, postings, query, VisibleRange(0, 9999, 9999), budget)[0]
    assert len(found) == budget


def test_all_of_a_span_are_compared_where_the_lists_visited_have_little_of_it() -> None:
    keys, postings = memory_of(scenes(3000, 2, 2, seed=1))
    query, span = asked(2, 1, seed=1), VisibleRange(1500, 1800, 1800)
    near, exact = (chosen(keys, postings, query, span, 60, p)[0] for p in (4.0, 999.0))
    assert near.tolist() == exact.tolist() and len(near) == 60


@pytest.mark.slow
@pytest.mark.parametrize("frames", [40, 700, 3000])
@pytest.mark.parametrize("still", [False, True])
def test_every_key_lies_in_one_list(frames: int, still: bool) -> None:
    keys = torch.ones(frames, 2, 2, WIDTH) if still else scenes(frames, 2, 2, seed=frames)
    held, postings = memory_of(keys)
    query = asked(4, 2, 1).states.reshape(2, -1, WIDTH)
    entries, mass = postings.find(query, 3, 3 + frames, 10**9)
    for own in entries:
        known = own[own >= 0]
        assert len(numpy.unique(known)) == len(known) <= 2 * frames
    if postings.codes <= 2 * 32:
        # All codes are visited.
        assert all(len(own[own >= 0]) == 2 * frames for own in entries)
    assert postings.codes >= 2 * frames * 2 / PAGE / 4
    exact = held.logits(query, numpy.tile(numpy.arange(2 * frames), (2, 1))).logsumexp(2)
    # A mean key stands for its list: the sum comes out too small, never too large by more than half precision loses.
    every = held.of(torch.arange(3, 3 + frames)).abs().amax((0, 1))
    lost = 2**-11 * torch.einsum("hqw,hw->hq", query.abs(), every) + 1e-4
    assert bool((torch.from_numpy(mass) <= exact + lost).all())
    if still:
        torch.testing.assert_close(torch.from_numpy(mass), exact, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_postings_find_most_of_what_comparing_all_finds(seed: int) -> None:
    keys, postings = memory_of(scenes(4000, 4, 2, seed))
    visible, found, wanted = VisibleRange(0, 5000, 5000), 0.0, 0.0
    for number in range(8):
        query = asked(4, 6, 100 * seed + number)
        exact, near = (chosen(keys, postings, query, visible, pool=pool)[0] for pool in (1000.0, 4.0))
        states = query.states.reshape(2, -1, WIDTH)
        shares = torch.softmax(keys.logits_between(states, 0, 4000), 2).unflatten(2, (-1, 4)).sum((0, 1, 3))
        found += float(shares[torch.from_numpy(numpy.intersect1d(exact, near)) - 3].sum())
        wanted += float(shares[torch.from_numpy(exact) - 3].sum())
        assert len(near) == len(exact) == 64
    assert found >= 0.9 * wanted


def test_a_code_reaches_as_far_as_the_farthest_key_of_its_list() -> None:
    keys = scenes(1500, 1, 2, seed=1)
    keys[::50] += 4 * torch.randn(30, 1, 2, WIDTH, generator=torch.Generator().manual_seed(2))
    held, postings = memory_of(keys)
    means, reach = (postings.state().tensors[name] for name in ("means", "reach"))
    for head, lists in enumerate(postings._lists):
        for code, own in enumerate(lists):
            found = held.of_heads(torch.tensor([list(own)]), torch.tensor([head]))[0]
            farthest = float((found - means[head, code].float()).norm(dim=1).max())
            # Means are rounded, and move a little after a key has come.
            assert 0.5 * farthest - 0.01 <= float(reach[head, code]) * WIDTH**0.5 / BOUND <= 2 * farthest + 0.01
        assert bool((reach[head, len(lists) :] < -1e20).all())


@pytest.mark.slow
@given(SEEDS, st.integers(1, 60))
def test_keys_and_postings_go_on_from_their_state(seed: int, more: int) -> None:
    every = scenes(200 + more, 2, 2, seed)
    held, postings = memory_of(every[:200])
    again = FrameKeys(2, 2, WIDTH)
    again.restore(deepcopy(held.state()), *(part.clone() for part in held.index_of(range(3, 203))))
    listed = Postings(again)
    listed.restore(deepcopy(postings.state()))
    for keys, lists in ((held, postings), (again, listed)):
        frames = range(203, 203 + more)
        keys.add(frames, every[200:])
        lists.add(frames)
    query = asked(4, 3, seed)
    first, second = (
        chosen(keys, lists, query, VisibleRange(0, 999, 999), 7, 1.0)[0]
        for keys, lists in ((held, postings), (again, listed))
    )
    assert first.tolist() == second.tolist() and postings.codes == listed.codes
