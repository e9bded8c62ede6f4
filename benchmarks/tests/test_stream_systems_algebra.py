"""The figures of the systems parts, on weights and times made by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.stream.systems.attention import frames_for, likeness, things, wordings
from benchmarks.stream.systems.costs import (
    StreamBytes,
    bytes_bars,
    growth_bars,
    lengths_to,
    local_bytes,
    memory_bytes,
    shorter,
)
from benchmarks.stream.systems.running import (
    AskCost,
    RunTime,
    SystemsOptions,
    film_of,
    median_ms,
    questions,
    ratio,
    timed,
    turned,
)
from benchmarks.stream.systems.structure import TOPS, largest_share, look_of
from benchmarks.tasks.streams import seen
from emblema.stream.method import MemoryBytes

WEIGHTS = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12).filter(lambda own: sum(own) > 0.1)


@settings(max_examples=50, deadline=None)
@given(WEIGHTS, st.floats(0.1, 1.0))
def test_the_fewest_frames_that_hold_a_share(weights: list[float], share: float) -> None:
    count = int(frames_for(torch.tensor(weights), share))
    ordered = sorted(weights, reverse=True)
    assert sum(ordered[:count]) >= share * sum(weights) - 1e-6
    assert count == 1 or sum(ordered[: count - 1]) < share * sum(weights) + 1e-6


@settings(max_examples=50, deadline=None)
@given(WEIGHTS)
def test_likeness_is_one_with_itself_and_the_same_both_ways(weights: list[float]) -> None:
    other = weights[::-1]
    assert likeness(weights, weights) == 1.0
    assert likeness(weights, other) == pytest.approx(likeness(other, weights)) and 0 <= likeness(weights, other) <= 1


def test_likeness_of_sets_is_their_overlap() -> None:
    assert likeness([1, 1, 1, 0], [0, 1, 1, 1]) == 0.5
    assert likeness([1, 0], [0, 1]) == likeness([0, 0], [0, 0]) == 0.0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=9), st.floats(0.1, 10))
def test_a_ratio_knows_what_one_costs_more(below: list[float], factor: float) -> None:
    found = ratio([factor * time for time in below], below)
    assert found.value == pytest.approx(factor) and found.low == pytest.approx(factor) == found.high


def test_a_ratio_goes_pair_by_pair() -> None:
    # One slow pair moves neither the middle nor both ends.
    found = ratio([2.0, 4.0, 200.0, 2.0, 4.0], [1.0, 2.0, 1.0, 1.0, 2.0])
    assert found.value == 2.0 and found.low == 2.0 and found.high > 2.0


def test_turns_and_times() -> None:
    assert [turned("abc", turn) for turn in (-1, 0, 1, 3)] == [
        list(letters) for letters in ("cab", "abc", "bca", "abc")
    ]
    made, spent = timed(lambda: sum(range(10)))
    assert made == 45 and isinstance(spent, RunTime) and spent.wall > 0 <= spent.cpu
    assert median_ms([0.001, 0.5, 0.002]) == 2.0


def test_heads_count_by_what_they_give_to_frames() -> None:
    # Two heads over 100 frames of one row: one gives all it has to one frame, the other nothing to any.
    weights = torch.zeros(1, 2, 100, 1)
    weights[0, 0, 7, 0] = 0.8
    look = look_of("film", weights)
    assert look.held[0] == pytest.approx([1.0] * len(TOPS))
    assert look.on[0] == pytest.approx(0.4) and look.heads[0] == pytest.approx(1) and look.layers[0] == 1
    even = look_of("film", torch.full((1, 2, 100, 1), 0.01))
    assert even.held[0] == pytest.approx([top / 100 for top in TOPS])
    assert even.heads[0] == pytest.approx(90) and even.layers[0] == 90


def test_frames_in_one_cluster() -> None:
    homes = {0: 5, 1: 5, 2: 5, 3: 9}
    assert largest_share(homes, [0, 1, 2, 3]) == 0.75 and largest_share(homes, [3]) == 1.0


def held(kind: str, frames: int, memory: int, clusters: int, rekv: int) -> StreamBytes:
    device = {"local": 7, "index": memory, "fetched": 99}
    return StreamBytes(kind, "mosaic", frames, MemoryBytes(device, {"rows": 3}), 0, clusters, rekv)


def test_the_bars_on_bytes_go_by_the_worst_kind() -> None:
    narrow = [held("ego", 256, 1000, 10, 4000), held("ego", 1024, 4000, 40, 16000)]
    half, host, steady = bytes_bars(narrow)
    assert (
        host.value == 1.0 and host.holds and half.value == 0.25 and half.holds and steady.value == 1.0 and steady.holds
    )
    wide = [held("live", 256, 1000, 10, 4000), held("live", 1024, 9000, 60, 16000)]
    half, _, steady = bytes_bars([*narrow, *wide])
    assert half.value == 9 / 16 and not half.holds and half.count == 2
    assert steady.value == 1.5 and not steady.holds
    assert bytes_bars(narrow[:1]) == (), "nothing was measured at 1,024 frames"
    assert memory_bytes(narrow[0].bytes) == 1000 and local_bytes(narrow[0].bytes) == 7 and narrow[0].each == 100


def test_the_bars_on_time_go_by_the_worst_kind() -> None:
    def asks(long: float, cpu: float) -> dict[tuple[str, int], list[AskCost]]:
        short = [AskCost("", 0.1, 0.1, {}), AskCost("", 0.2, 0.2, {})]
        return {
            ("mosaic", 256): short,
            ("mosaic", 4096): [AskCost("", long * ask.ttft, cpu * ask.cpu, {}) for ask in short],
        }

    wall, cpu = growth_bars({"ego": asks(1.1, 1.0), "live": asks(1.25, 1.4)})
    assert wall.value == pytest.approx(1.25) and wall.holds and wall.count == 4
    assert cpu.value == pytest.approx(1.4) and not cpu.holds
    assert growth_bars({"ego": {("mosaic", 256): []}}) == ()
    assert shorter((64, 256, 1024)) == 256 and shorter((24, 40)) == 24


def test_lengths_double_to_the_last() -> None:
    assert lengths_to(300) == (64, 128, 256, 300) and lengths_to(128) == (64, 128) and lengths_to(8) == (8,)


def test_questions_are_of_every_kind_first() -> None:
    film = film_of("ego", 128, SystemsOptions())
    asked = questions(film, 128)
    kinds = {question.kind for question in asked}
    assert len({question.kind for question in asked[: len(kinds)]}) == len(kinds) == 5 and all(
        question.at == 128 for question in asked
    )


def test_things_came_once_and_are_asked_about_in_two_wordings() -> None:
    film = film_of("movie", 128, SystemsOptions())
    once = sum(len(views) == 1 for views in seen(film, 128).views.values())
    for most in (1, 4, once, 2 * once):
        names = things(film, 128, most)
        assert len(set(names)) == len(names) == min(most, once)
    assert all(name in text for name in names for text in wordings(name)) and len(set(wordings("key"))) == 2
