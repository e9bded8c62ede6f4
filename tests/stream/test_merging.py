"""Levels of clusters with a bound: what is merged where there are more, and what becomes of it."""

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from emblema.errors import StreamError
from emblema.stream.mosaic.centroids import CentroidIndex
from emblema.stream.mosaic.clusters import variance_of
from emblema.stream.mosaic.level import MaintenanceCounts
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.mosaic.merging import near_pairs
from emblema.stream.mosaic.visual import VisualLevel
from emblema.stream.settings import AblationSettings
from tests.engine.engines import engine, largest_error
from tests.families import words
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {
    "window": 2, "block": 4, "sinks": 1, "first": 6, "largest": 4, "budget": 5, "clusters": 3, "template": False,
}  # fmt: skip


def states(count: int, width: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def level_of(vectors: Tensor) -> VisualLevel:
    """Return a level with a cluster for each state."""
    level = VisualLevel(AblationSettings(), vectors.shape[1], [], MaintenanceCounts())
    level.add(range(len(vectors)), vectors, range(len(vectors)))
    for frame in range(len(vectors)):
        level.create([frame])
    return level


def test_pairs_are_each_others_nearest_and_in_one_group() -> None:
    means, one = torch.tensor([[0.0], [1.0], [10.0], [10.5], [30.0]]), numpy.ones(5)
    assert near_pairs(means, one, one) == [(2, 3), (0, 1)]
    # To merge large clusters adds more to the variance inside them.
    assert near_pairs(means, numpy.array([1.0, 1.0, 9.0, 9.0, 1.0]), one) == [(0, 1), (2, 3)]
    assert near_pairs(means, one, numpy.array([0.0, 1.0, 1.0, 0.0, 0.0])) == [(1, 2), (0, 3)]
    assert near_pairs(means, one, numpy.arange(5.0)) == []
    # Of states that are all alike the first two come first.
    assert near_pairs(torch.ones(4, 2), numpy.ones(4), numpy.zeros(4)) == [(0, 1)]


def test_all_ages_keep_as_many_clusters() -> None:
    """Of the frames of age 1, 2 to 3, 4 to 7, up to 64, none is merged where there are four or fewer of an age."""
    level = level_of(states(64))
    level.reduce(20, 64)
    ages = [64 - max(cluster.frames) for cluster in level.clusters.values()]
    assert [sum(low <= age < 2 * low for age in ages) for low in (1, 2, 4, 8, 16, 32, 64)] == [1, 2, 4, 4, 4, 4, 1]
    assert sorted(frame for cluster in level.clusters.values() for frame in cluster.frames) == list(range(64))
    assert all(
        max(cluster.frames).bit_length() and (64 - max(cluster.frames)).bit_length() == age.bit_length()
        for cluster in level.clusters.values()
        for age in (64 - frame for frame in cluster.frames)
        if age < 32
    )


def test_what_is_merged_has_the_statistics_of_its_members() -> None:
    level = level_of(states(200))
    level.reduce(7, 200)
    assert len(level.clusters) == len(level.index) == 7
    for cluster in level.clusters.values():
        vectors = level.vectors_of(cluster.frames)
        torch.testing.assert_close(level.index.mean(cluster.id), vectors.mean(0))
        assert cluster.variance == pytest.approx(variance_of(vectors), rel=1e-4)
        again = CentroidIndex(5, None)
        again.put(cluster.id, vectors.mean(0), cluster.frames, cluster.group)
        assert level.index.facts[level.index.slot(cluster.id), :5].equal(again.facts[0, :5])
        assert all(level.home[frame] == cluster.id for frame in cluster.frames)


def test_a_wide_cluster_takes_in_no_state_and_is_not_cut() -> None:
    level = level_of(torch.cat((states(6), torch.full((3, 5), 2.5))))
    level.reduce(2, 9)
    wide, narrow = sorted(level.clusters.values(), key=lambda cluster: -cluster.size)
    assert (wide.wide, narrow.wide) == (True, False) and narrow.frames == [6, 7, 8]
    vectors = torch.stack((level.index.mean(wide.id), level.index.mean(narrow.id)))
    level.add(range(9, 11), vectors, [])
    beside, inside = level.take(9), level.take(10)
    assert beside.frames == [9] and beside.parent is None
    assert inside is narrow and not wide.lazy
    level.refine(wide.id)
    assert len(level.clusters) == 3 and level.clusters[wide.id].size == 6
    for part in level.divide(wide, [([0, 1, 5], None), ([2, 3, 4], None)]):
        assert part.wide and bool(level.index.closed([part.id], None))
    wide = level.clusters[level.home[5]]
    # Forgetting may leave what is narrow.
    level.forget([0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10])
    assert not wide.wide and not bool(level.index.closed([wide.id], None))


def test_merged_clusters_are_restored_as_they_were() -> None:
    vectors = states(300).half().float()
    level, again = level_of(vectors[:200]), VisualLevel(AblationSettings(), 5, [], MaintenanceCounts())
    level.reduce(20, 200)
    again.restore(level.state(), 0, vectors[:200].half())
    assert sum(cluster.wide for cluster in again.clusters.values()) > 3
    for own in (level, again):
        own.add(range(200, 300), vectors[200:], range(200, 300))
        for frame in range(200, 300):
            own.take(frame)
        own.reduce(20, 300)
    assert again.index.facts.equal(level.index.facts) and again.index.means.equal(level.index.means)
    assert again.clusters == level.clusters


def test_a_cluster_that_is_merged_neither_waits_nor_is_waited_for() -> None:
    level = VisualLevel(AblationSettings(), 1, [], MaintenanceCounts())
    level.add(range(5), torch.tensor([[0.0], [0.1], [9.0], [9.1], [4.0]]), range(5))
    near, far = level.create([0, 1]), level.create([2, 3])
    waiting = level.take(4)
    assert waiting.parent == near.id and near.lazy
    level.reduce(2, 99)
    assert level.clusters == {near.id: near, far.id: far} and near.frames == [0, 1, 4]
    assert not near.lazy and not near.waiting and near.parent is None


def stream_of(
    count: int = 60, **changes: Any
) -> tuple[Tensor, dict[int, tuple[int, ...]], list[int], dict[str, float]]:
    """Return logits after a stream, its visual clusters, how many each level has, and what was counted."""
    with engine(NAME).stream("mosaic", **{**SMALL, **changes}) as stream:
        for frame in shown(NAME, count):
            stream.push(frame)
        memory = stream.memory
        assert isinstance(memory, Mosaic)
        levels = [len(level.clusters) for level in (memory.visual, *memory.layers)]
        return stream.prefill(QUESTION), stream.clusters, levels, stream.counts


@pytest.mark.slow
@pytest.mark.parametrize("retrieval", ["frames", "clusters"])
def test_an_endless_stream_has_few_clusters(retrieval: str) -> None:
    options: dict[str, Any] = {"retrieval": retrieval, "representatives": True}
    _, clusters, levels, counts = stream_of(**options)
    assert max(levels) <= 3 and counts["visual_merged"] > 0 and counts["semantic_merged"] > 0
    assert sorted(frame for frames in clusters.values() for frame in frames) == list(range(1, 58))
    assert min(stream_of(**options, clusters=None)[2]) > 20
    with pytest.raises(StreamError, match="clusters is 0"):
        stream_of(1, clusters=0)


@pytest.mark.slow
@pytest.mark.parametrize("splitting", ["deferred", pytest.param("eager", marks=pytest.mark.slow)])
def test_merging_changes_nothing_that_is_exact(splitting: str) -> None:
    options: dict[str, Any] = {"retrieval": "clusters", "splitting": splitting, "prefetch": False}
    every, clusters, _, _ = stream_of(**options, budget=None)
    with engine(NAME).stream("full", template=False, window=2, block=4, sinks=1) as full:
        full.push(shown(NAME, 60))
        assert largest_error(every, full.prefill(QUESTION)) < 1e-4
    apart, same, _, _ = stream_of(**options, budget=None, batched=False)
    assert same == clusters and largest_error(apart, every) < 1e-4
    asked = stream_of(**options)
    assert stream_of(**{**options, "prefetch": True})[0].equal(asked[0])


def test_a_cluster_larger_than_the_budget_is_retrieved_in_part() -> None:
    options = {**SMALL, "retrieval": "clusters", "retrieve_while_encoding": False, "clusters": 1}
    with engine(NAME).stream("mosaic", **options) as stream:
        stream.push(shown(NAME, 60))
        stream.prefill(QUESTION)
        assert stream.memory.retrieved() == dict.fromkeys((1, 12, 23, 35, 46), 1.0)
