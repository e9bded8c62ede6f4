"""The frequency sketch: never below the truth before it ages, bounded, and what is long ago is forgotten."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from emblema.link.policy.frequency import LARGEST, ROWS, FrequencySketch

NAMES = st.lists(st.text("abc", max_size=3), max_size=3).map(tuple)


@given(st.lists(NAMES, max_size=79))
def test_an_estimate_is_never_too_low_before_the_counters_age(added: list[tuple[str, ...]]) -> None:
    sketch, truth = FrequencySketch(width=512), Counter[tuple[str, ...]]()
    for names in added:
        truth[names] += 1
        assert sketch.add(names) >= min(truth[names], LARGEST)
    for names, count in truth.items():
        assert min(count, LARGEST) <= sketch.estimate(names) <= min(len(added), LARGEST)


@given(st.lists(NAMES, min_size=1, max_size=60))
def test_what_was_added_is_what_is_estimated_then(added: list[tuple[str, ...]]) -> None:
    sketch = FrequencySketch(width=512)
    for names in added:
        before = sketch.estimate(names)
        assert sketch.add(names) == min(before + 1, LARGEST) == sketch.estimate(names)


@given(st.permutations(range(40)))
def test_few_lists_in_a_wide_sketch_are_counted_right(order: list[int]) -> None:
    sketch = FrequencySketch()
    for index in order:
        for _ in range(1 + index % 3):
            sketch.add((f"page {index}",))
    assert [sketch.estimate((f"page {index}",)) for index in range(40)] == [1 + index % 3 for index in range(40)]
    assert sketch.estimate(("another",)) == 0


def test_a_list_is_its_names_in_their_order() -> None:
    sketch = FrequencySketch()
    sketch.add(("a", "b"))
    assert sketch.estimate(("a", "b")) == 1
    assert sketch.estimate(("b", "a")) == sketch.estimate(("a",)) == sketch.estimate(("ab",)) == 0


def test_memory_is_bounded() -> None:
    sketch = FrequencySketch(width=64)
    for index in range(5000):
        sketch.add((str(index),))
    assert sketch.bytes == ROWS * 64
    assert max(sketch.estimate((str(index),)) for index in range(5000)) <= LARGEST


def test_counters_are_halved_after_ten_times_the_width() -> None:
    sketch = FrequencySketch(width=16)
    for _ in range(100):
        assert sketch.add(("often",)) <= LARGEST
    assert sketch.estimate(("often",)) == LARGEST
    for _ in range(60):
        sketch.add(("other",))
    assert sketch.estimate(("often",)) == LARGEST
    sketch.add(("other",))
    assert sketch.estimate(("often",)) <= LARGEST // 2, "after 160 additions"
    for _ in range(80):
        sketch.add(("other",))
    assert sketch.estimate(("often",)) <= LARGEST // 4, "and every 80 from then on, as half of them are forgotten"


def test_new_lists_do_not_fill_it() -> None:
    sketch = FrequencySketch(width=1024)
    wrong = sum(sketch.add((f"once {index}",)) > 1 for index in range(8000))
    assert wrong / 8000 < 0.005, "most lists never come again, however many there were"


def test_a_list_is_known_again_while_an_eighth_of_the_width_is_new() -> None:
    sketch = FrequencySketch(width=1024)
    for index in range(4000):
        sketch.add((f"once {index}",))
        if index % 128 == 0:
            assert sketch.add(("again",)) > 1 or index == 0


def test_what_came_long_ago_is_forgotten() -> None:
    sketch = FrequencySketch(width=1024)
    sketch.add(("old",))
    for index in range(10 * 1024):
        sketch.add((f"new {index % 7}",))
    assert sketch.estimate(("old",)) == 0
