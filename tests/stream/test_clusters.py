"""The algebra of clusters: running statistics, thresholds, cuts, the first partition, retrieval."""

from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.kv.rotation import PhaseBook, rotate
from emblema.stream.context import MemoryContext
from emblema.stream.method import Centroids, Query, Selection, VisibleRange
from emblema.stream.mosaic.bisecting import second_sides
from emblema.stream.mosaic.clusters import (
    TAU_LARGE,
    TAU_SMALL,
    Cluster,
    ClusterLevel,
    RunningVariance,
    variance_of,
    with_one_more,
)
from emblema.stream.mosaic.paper import BREADTH, PaperMosaic, choose_clusters
from tests.engine.engines import engine
from tests.stream.plain import shown

SEEDS = st.integers(0, 10_000)
NAME = "qwen2_5_vl"
SMALL: dict[str, Any] = {"window": 2, "block": 4, "sinks": 1, "budget": 8, "template": False}


def states(count: int, width: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def cut_in_two(vectors: Tensor) -> tuple[list[int], list[int]]:
    side = second_sides(vectors[None], torch.tensor([len(vectors)]))[0]
    left, right = ((side == value).nonzero().squeeze(1).tolist() for value in (False, True))
    return left, right


@given(SEEDS, st.integers(1, 30))
def test_running_statistics_are_those_of_all_states(seed: int, count: int) -> None:
    vectors, spread = states(count, seed=seed) * 3 + 2, RunningVariance()
    for vector in vectors:
        spread.add(vector)
    assert spread.mean is not None
    torch.testing.assert_close(spread.mean, vectors.mean(0), rtol=1e-4, atol=1e-4)
    assert spread.variance == pytest.approx(variance_of(vectors), rel=1e-3, abs=1e-4)


def test_one_state_more_by_hand() -> None:
    """n = 1: the mean moves half of the way, the variance is a quarter of the squared distance."""
    mean, variance = with_one_more(torch.tensor([4.0, 0.0]), torch.tensor([0.0, 0.0]), 0.0, 1)
    assert mean.tolist() == [2.0, 0.0] and variance == 4.0


def test_the_threshold_rises_from_one_bound_to_the_other() -> None:
    level = ClusterLevel(None, True)
    for frame, vector in enumerate(states(50)):
        level.add(frame, vector)
    spread = level._spread.variance
    bounds = [level._bound(size) / spread for size in (0, 1, 5, 20, 10_000)]
    assert bounds == sorted(bounds)
    assert bounds[0] == pytest.approx(TAU_SMALL) and bounds[-1] == pytest.approx(TAU_LARGE)


@given(SEEDS, st.integers(2, 20))
def test_a_cut_has_two_sides_and_every_state_lies_on_its_own(seed: int, count: int) -> None:
    vectors = states(count, seed=seed)
    left, right = cut_in_two(vectors)
    assert left and right and sorted(left + right) == list(range(count))
    centres = torch.stack([vectors[side].mean(0) for side in (left, right)])
    nearest = torch.cdist(vectors, centres).argmin(1)
    assert nearest[left].tolist() == [0] * len(left) and nearest[right].tolist() == [1] * len(right)


def test_states_that_cannot_be_told_apart_are_cut_in_the_middle() -> None:
    assert cut_in_two(torch.ones(5, 3)) == ([0, 1], [2, 3, 4])


def partition_of(vectors: Tensor) -> ClusterLevel:
    level = ClusterLevel(None, True)
    for frame, vector in enumerate(vectors):
        level.add(frame, vector)
    level.partition([(None, list(range(len(vectors))))])
    return level


def test_two_heaps_are_two_clusters() -> None:
    heaps = torch.cat([states(6, seed=1) * 0.05 + torch.eye(5)[0], states(9, seed=2) * 0.05 + torch.eye(5)[3]])
    mixed = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    parts = partition_of(heaps[mixed]).clusters.values()
    assert sorted(sorted(mixed[own.frames].tolist()) for own in parts) == [list(range(6)), list(range(6, 15))]


@given(SEEDS, st.integers(1, 25))
def test_every_part_of_a_partition_fits(seed: int, count: int) -> None:
    level = partition_of(states(count, seed=seed))
    assert sorted(frame for own in level.clusters.values() for frame in own.frames) == list(range(count))
    assert all(
        len(own.frames) == 1 or own.variance <= level._bound(len(own.frames) - 1) for own in level.clusters.values()
    )


@given(SEEDS)
def test_a_pooled_query_is_the_mean_of_all_products(seed: int) -> None:
    queries, means = states(12, 6, seed).reshape(4, 3, 6), states(5, 12, seed + 1)
    heads = means.reshape(5, 2, 6)
    found = Query(queries, torch.zeros(3).long(), 1, 2, "question").score_pooled(heads.transpose(0, 1))[0]
    by_hand = sum((queries[head] @ heads[:, head // 2].T).mean(0) for head in range(4)) / 2
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-5)


def made(sizes: list[int], groups: list[int]) -> list[Cluster]:
    """Return clusters of so many frames, numbered one after the other."""
    ends = numpy.cumsum(sizes).tolist()
    spans = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    pairs = zip(spans, groups, strict=True)
    return [Cluster(id, group, frames, torch.zeros(1), 0.0) for id, (frames, group) in enumerate(pairs)]


def chosen(scores: list[float], sizes: list[int], groups: list[int], budget: int | None, low: int = 0) -> list[int]:
    found = choose_clusters(made(sizes, groups), scores, VisibleRange(low, 999, 999), budget)
    return sorted(own.id for own in found)


def test_two_stages() -> None:
    scores, sizes, groups = [9.0, -9.0, 5.0, 4.0, 1.0], [1, 3, 2, 2, 8], [0, 0, 1, 1, 2]
    # By size, visual cluster 0 scores -4.5 in spite of its best part; 1 scores 4.5, 2 scores 1: they hold 12 frames.
    assert BREADTH == 3 and chosen(scores, sizes, groups, 4) == [2, 3]
    # 2 does not fit; then the best of the others comes.
    assert chosen(scores, sizes, groups, 5) == [0, 2, 3] == chosen(scores, sizes, groups, 6)
    assert chosen(scores, sizes, groups, None) == [0, 1, 2, 3, 4] and chosen(scores, sizes, groups, None, 4) == [
        2,
        3,
        4,
    ]


@given(SEEDS, st.integers(1, 40), st.integers(1, 60))
def test_a_budget_is_never_exceeded_nor_left_where_something_fits(seed: int, count: int, budget: int) -> None:
    random = numpy.random.default_rng(seed)
    scores, sizes, groups = random.normal(size=count), random.integers(1, 9, count), random.integers(0, 5, count)
    found = chosen(scores.tolist(), sizes.tolist(), groups.tolist(), budget)
    left = budget - int(sizes[found].sum())
    assert left >= 0 and len(set(found)) == len(found)
    assert not any(sizes[row] <= left for row in range(count) if row not in found)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_nearly_equal_states_are_few_clusters(noise: float) -> None:
    scene = states(1, 16, seed=3)

    def clusters_of(vectors: Tensor) -> int:
        level = ClusterLevel(None, True)
        for frame, vector in enumerate(vectors):
            level.add(frame, vector)
            level.touched.add(level.take(frame).id)
            level.refine()
        return len(level.clusters)

    assert clusters_of(scene + noise * scene.std() * states(600, 16, seed=4)) <= 3
    # States that differ are told apart.
    assert clusters_of(states(60, 16, seed=5)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("high", [27, 12])
@pytest.mark.parametrize("low", [0, 5])
def test_no_frame_is_seen_twice_and_none_is_missing(low: int, high: int) -> None:
    with engine(NAME).stream("mosaic-paper", **SMALL) as stream:
        stream.push(shown(NAME, 27))
        stream.advance()
        recent, memory = stream.recent, stream.memory
        assert isinstance(memory, PaperMosaic)
        far = sorted(frame for cluster in memory.visual.clusters.values() for frame in cluster.frames)
        near = {int(frame) for frame in recent.frames if frame >= 0}
        for layer, own in enumerate(memory.layers):
            states = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(layer))
            visible = VisibleRange(low, high, max(low, high - 2))
            memory.prepare(visible)
            found = memory.read(layer, Query(states, torch.zeros(3).long(), 1, 2, "question"), visible)
            assert found.rows is not None and found.centroids is not None
            rows = found.rows.frames if found.shown is None else found.rows.frames[found.shown[0]]
            seen = rows.unique().tolist()
            assert len(rows) == len(seen) * recent.positions.tokens
            clusters = list(own.level.clusters.values())
            for place in found.centroids.shown[0].nonzero().squeeze(1).tolist():
                seen += clusters[place].frames
            assert len(seen) == len(set(seen))
            assert all(low <= frame < high for frame in seen)
            # Where part of a cluster is out of sight, its centroid is too.
            if (low, high) == (0, 27):
                assert sorted(seen) == far
            assert not near & set(seen)
            assert set(range(max(low, high - 2), high)) <= set(seen) | near | set(range(recent.done, recent.count))


def test_a_centroid_of_equal_rows_counts_as_all_of_them() -> None:
    """Five members with the same key, value and place: one row with the log of their number is the same attention."""
    loaded = engine(NAME)
    layout, adapter = loaded.adapter.layouts[0], loaded.adapter
    with loaded.stream("mosaic-paper", **SMALL) as stream:
        stream.push(shown(NAME, 4))
        recent, memory = stream.recent, stream.memory
    places = recent.positions
    heads, width = layout.keys
    keys, values = torch.randn(2, heads, 1, width).unbind()
    count = 5 * places.tokens
    visible = torch.ones(1, 1, dtype=torch.bool)
    centroids = Centroids(keys, values, torch.tensor([3.0]), torch.tensor([count]).log(), visible)
    context = MemoryContext(memory, recent, VisibleRange(0, 4, 4), 99, question=True)
    part = context.place(layout, Selection(centroids=centroids))[0]
    others = LayerRows(torch.randn(heads, 7, width), torch.randn(heads, 7, width))
    query = torch.randn(heads, 2, width)

    def attended(rows: list[LayerRows], bias: torch.Tensor) -> torch.Tensor:
        every = [torch.cat([getattr(part, side) for part in rows], 1) for side in ("keys", "values")]
        return torch.nn.functional.scaled_dot_product_attention(query, every[0], every[1], attn_mask=bias)

    once = attended([part.rows, others], torch.cat((part.bias, torch.zeros(1, 7)), 1))
    several = attended([part.rows] * count + [others], torch.zeros(1, count + 7))
    torch.testing.assert_close(once, several, rtol=1e-4, atol=1e-5)
    # It is in the middle of frame 3.
    assert layout.rotary is not None
    middle = places.corner(3) + places.offsets.float().mean(1).floor().long()
    book = PhaseBook(adapter.tables, middle[:, None])
    torch.testing.assert_close(part.rows.keys, rotate(keys, layout.rotary, book(layout.rotary)))
