"""The algebra of clusters: running statistics, thresholds, cuts, the first partition, the index, retrieval."""

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from emblema.stream.method import Query
from emblema.stream.mosaic.centroids import KEY_MOST, UPWARD, VALUE_MOST, CentroidIndex, Summaries
from emblema.stream.mosaic.clusters import (
    RunningVariance,
    add_to_statistics,
    cut_in_two,
    partition,
    variance_of,
)
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.level import MaintenanceCounts, SemanticLevel
from emblema.stream.mosaic.retrieval import choose
from emblema.stream.mosaic.visual import VisualLevel
from emblema.stream.settings import AblationSettings

SEEDS = st.integers(0, 10_000)


def states(count: int, width: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@given(SEEDS, st.integers(1, 30))
def test_running_statistics_are_those_of_all_states(seed: int, count: int) -> None:
    vectors, spread = states(count, seed=seed) * 3 + 2, RunningVariance()
    for vector in vectors:
        spread.add(vector)
    assert spread.mean is not None
    torch.testing.assert_close(spread.mean, vectors.mean(0), rtol=1e-4, atol=1e-4)
    assert spread.variance == pytest.approx(variance_of(vectors), rel=1e-3, abs=1e-4)
    assert spread.count == count


def test_one_state_more_by_hand() -> None:
    """n = 1: the mean moves half of the way, the variance is a quarter of the squared distance."""
    mean, variance = add_to_statistics(torch.tensor([4.0, 0.0]), torch.tensor([0.0, 0.0]), 0.0, 1)
    assert mean.tolist() == [2.0, 0.0] and variance == 4.0


@given(st.integers(0, 500), st.floats(0.01, 0.5), st.floats(0.5, 2), st.floats(0.5, 50))
def test_the_threshold_goes_from_one_bound_to_the_other(size: int, small: float, large: float, scale: float) -> None:
    relaxing = AblationSettings(tau_small=small, tau_large=large, scale=scale, direction="relaxing")
    tightening = AblationSettings(tau_small=small, tau_large=large, scale=scale, direction="tightening")
    assert relaxing.threshold(0) == pytest.approx(small) and tightening.threshold(0) == pytest.approx(large)
    assert relaxing.threshold(size) <= relaxing.threshold(size + 1) <= large + 1e-12
    assert tightening.threshold(size) >= tightening.threshold(size + 1) >= small - 1e-12
    assert relaxing.threshold(10_000) == pytest.approx(large)


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


def test_two_heaps_are_two_clusters() -> None:
    heaps = torch.cat([states(6, seed=1) * 0.05 + torch.eye(5)[0], states(9, seed=2) * 0.05 + torch.eye(5)[3]])
    mixed = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    parts = partition(heaps[mixed], lambda vectors: variance_of(vectors) < 0.1)
    assert sorted(sorted(mixed[part].tolist()) for part in parts) == [list(range(6)), list(range(6, 15))]


@given(SEEDS, st.integers(1, 25), st.floats(0.0, 3.0))
def test_every_part_of_a_partition_fits(seed: int, count: int, bound: float) -> None:
    vectors = states(count, seed=seed)
    parts = partition(vectors, lambda part: variance_of(part) <= bound)
    assert sorted(index for part in parts for index in part) == list(range(count))
    assert all(len(part) == 1 or variance_of(vectors[part]) <= bound for part in parts)


@pytest.mark.slow
@given(SEEDS)
def test_an_index_holds_what_was_put_and_not_removed(seed: int) -> None:
    random, summaries = numpy.random.default_rng(seed), Summaries(2, (1, 2), (1, 1), torch.device("cpu"))
    index, held = CentroidIndex(5, summaries), {}
    for id in range(40):
        if held and random.random() < 0.4:
            gone = int(random.choice(list(held)))
            del held[gone]
            index.remove(gone)
        held[id] = states(1, seed=id)[0], [id, id + 4], id % 3
        if random.random() < 0.5:
            index.put(id, *held[id])
        else:
            index.put(id, states(1, seed=99)[0], [id + 4], id % 3)
            index.add_frame(id, held[id][0], id)
        summaries.put(index.slot(id), held[id][0])
        if random.random() < 0.2:
            held[id] = (*held[id][:2], 7)
            index.set_group(id, 7)
    assert sorted(index.ids) == sorted(held) and len(index) == len(held)
    probe = states(1, seed=seed)[0]
    every = dict(zip(index.ids, index.distances(probe, None).tolist(), strict=True))
    keys, values = summaries.keys(len(index)), summaries.values(len(index))
    for id, (mean, frames, group) in held.items():
        slot = index.slot(id)
        assert index.mean(id).equal(mean) and index.means[slot].equal(mean)
        most = float(mean.abs().max()) * UPWARD**2
        torch.testing.assert_close(keys[0, slot], mean[:4].view(2, 2).mean(0), rtol=0, atol=most / KEY_MOST)
        torch.testing.assert_close(values[0, slot], mean[4:], rtol=0, atol=most / VALUE_MOST)
        assert index.facts[slot].tolist() == [2, id + 2, *frames, group, 0]
        away = float((mean - probe).square().sum() - probe.square().sum())
        assert every[id] == pytest.approx(away, rel=1e-4, abs=1e-5)
        assert float(index.distances(probe, [id])) == pytest.approx(away, rel=1e-4, abs=1e-5)
    for group in (0, 1, 2, 7):
        assert sorted(index.group(group)) == sorted(id for id, facts in held.items() if facts[2] == group)


@given(SEEDS, st.integers(1, 3), st.sampled_from([1, 2]), st.integers(1, 5), st.floats(0, 100))
def test_few_bits_are_close_whatever_all_have_in_common(
    seed: int, parts: int, heads: int, width: int, common: float
) -> None:
    """Half a step of each head's largest distance from the centre, however far away the centre is."""
    run = heads * width
    shared = common * states(1, parts * run + 6, seed + 7)[0]
    shared[: parts * run] = shared[:run].repeat(parts)
    means = states(5, parts * run + 6, seed) + shared
    quantized = Summaries(parts, (heads, width), (2, 3), torch.device("cpu"))
    quantized.set_centre(shared[:run].view(heads, width), shared[parts * run :])
    quantized.reserve(5)
    away = torch.cat((shared[: parts * run], torch.zeros(6)))
    for slot, mean in enumerate(means):
        quantized.put(slot, mean - away)
    most, loose = float((means - shared).abs().max()) * UPWARD**2, 1e-5 * (1 + common)
    step = most / KEY_MOST
    exact = means[:, : parts * run].view(5, parts, heads, width)
    torch.testing.assert_close(quantized.keys(5), exact.mean(1).transpose(0, 1), rtol=0, atol=step / 2 + loose)
    exact_values = means[:, parts * run :].view(5, 2, 3).transpose(0, 1)
    torch.testing.assert_close(quantized.values(5), exact_values, rtol=0, atol=most / VALUE_MOST / 2 + loose)
    queries = states(12 * heads, width, seed + 1).view(2 * heads, 6, width)
    found = quantized.logits(queries, 5)
    products = torch.einsum("hrw,nphw->hrnp", queries, exact.repeat_interleave(2, dim=2))
    # Products with the centre, the same for all, are left out.
    away = (found - products) - (found - products).mean((2, 3), keepdim=True)
    assert float(away.abs().max()) <= 2 * float(queries.abs().sum(2).max()) * (step / 2 + loose)


def asking(queries: Tensor, key_heads: int) -> Query:
    return Query(queries, torch.zeros(queries.shape[1]).long(), 1, key_heads, "question")


@given(SEEDS)
def test_densities_are_the_most_attention_that_one_frame_would_get(seed: int) -> None:
    """Each cluster's mean keys as many times as it has frames, attended by hand; frames of one cluster get the same."""
    sizes, parts = torch.tensor([1, 4, 0, 2, 7]), 3
    queries, keys = states(12, 6, seed).reshape(4, 3, 6), states(5 * parts, 6, seed + 1)
    logits = (queries @ keys.T).unflatten(2, (5, parts))
    found = asking(queries, 2).score_by_attention(logits, sizes)[0]
    every = keys.view(5, parts, 6).repeat_interleave(sizes, dim=0).flatten(0, 1)
    given = [torch.softmax(queries[head] @ every.T, -1).unflatten(1, (-1, parts)) for head in range(4)]
    by_hand = torch.stack(given).sum(3).flatten(0, 1).amax(0)
    owner = torch.arange(5).repeat_interleave(sizes)
    for cluster in (0, 1, 3, 4):
        torch.testing.assert_close(found[cluster].expand(int(sizes[cluster])), by_hand[owner == cluster])
    assert found[2] == 0


@given(SEEDS)
def test_densities_of_several_who_ask_are_those_of_each(seed: int) -> None:
    queries, keys, groups = states(15, 6, seed).reshape(3, 5, 6), states(4, 6, seed + 1), torch.tensor([1, 0, -1, 1, 0])
    logits = queries @ keys.T
    found = Query(queries, groups, 2, 1, "frames").score_by_attention(logits[..., None], torch.ones(4).long())
    every = torch.softmax(logits, -1)
    for group in (0, 1):
        torch.testing.assert_close(found[group], every[:, groups == group].flatten(0, 1).amax(0))


@given(SEEDS)
def test_a_pooled_query_is_the_mean_of_all_products(seed: int) -> None:
    queries, means = states(12, 6, seed).reshape(4, 3, 6), states(5, 12, seed + 1)
    heads = means.reshape(5, 2, 6)
    found = asking(queries, 2).score_pooled(heads.transpose(0, 1))[0]
    by_hand = sum((queries[head] @ heads[:, head // 2].T).mean(0) for head in range(4)) / 2
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-5)


def chosen(scores: list[float], sizes: list[int], groups: list[int], budget: int | None, breadth: float) -> list[int]:
    return sorted(choose(numpy.array(scores), numpy.array(sizes), numpy.array(groups), budget, breadth))


def test_two_stages() -> None:
    scores, sizes, groups = [9.0, -9.0, 5.0, 4.0, 1.0], [1, 3, 2, 2, 2], [0, 0, 1, 1, 2]
    # By size, visual cluster 0 scores -4.5 in spite of its best part; 1 scores 4.5, 2 scores 1.
    assert chosen(scores, sizes, groups, 4, 1.0) == [2, 3]
    # With more breadth, 2 is chosen too, and 0 at last: then its best part comes first.
    assert chosen(scores, sizes, groups, 4, 3.0) == [0, 2]
    assert chosen(scores, sizes, groups, 5, 3.0) == [0, 2, 3]
    assert chosen(scores, sizes, groups, None, 1.0) == [0, 1, 2, 3, 4]
    assert chosen(scores, [0, 3, 0, 2, 2], groups, None, 1.0) == [1, 3, 4]


@given(SEEDS, st.integers(1, 40), st.integers(1, 60), st.floats(0.5, 4))
def test_a_budget_is_never_exceeded_nor_left_where_something_fits(
    seed: int, count: int, budget: int, breadth: float
) -> None:
    random = numpy.random.default_rng(seed)
    scores, sizes, groups = random.normal(size=count), random.integers(0, 9, count), random.integers(0, 5, count)
    found = choose(scores, sizes, groups, budget, breadth)
    left = budget - int(sizes[found].sum())
    assert left >= 0 and len(set(found)) == len(found) and all(sizes[found] > 0)
    assert not any(0 < sizes[row] <= left for row in range(count) if row not in found)


def clusters_of(vectors: Tensor, width: int = 8) -> tuple[int, int]:
    """Return how many visual clusters, and semantic ones in them, states [n, 2 x width] make, one after the other."""
    settings = AblationSettings(representatives=True)
    keys = FrameKeys(2, 1, width)
    level = SemanticLevel(settings, keys, (0, 0), MaintenanceCounts(), torch.device("cpu"))
    visual = VisualLevel(settings, 2 * width, [level], MaintenanceCounts())
    for start in range(0, len(vectors), 8):
        block = vectors[start : start + 8]
        frames = range(start, start + len(block))
        keys.add(frames, block.view(-1, 2, 1, width))
        visual.add(frames, block, list(frames))
        level.add(frames, torch.zeros(len(block), 0), list(frames))
        for frame in frames:
            level.take(frame, visual.take(frame).id)
            for own in (level, visual):
                own.refine(own.home[frame])
    return len(visual.clusters), len(level.clusters)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_nearly_equal_states_are_few_clusters(noise: float) -> None:
    scene = states(1, 16, seed=3)
    assert clusters_of(scene + noise * scene.std() * states(1200, 16, seed=4)) == (1, 3)
    # States that differ are told apart as before.
    visual, semantic = clusters_of(states(60, 16, seed=5))
    assert visual > 10 and semantic >= visual
