import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StoreError
from emblema.store import ChunkSegment, PrefixStore, Segment, TextSegment
from emblema.store.prefixes import PrefixRegistry, join, shared_rows
from tests.store.pieces import rows

PAGE, MAP = ChunkSegment("p" * 64, 8), ChunkSegment("m" * 64, 6)


def opened(capacity_bytes: int | None = None) -> PrefixStore:
    return PrefixRegistry(capacity_bytes).of("tenant", "model")


def keep(store: PrefixStore, *segments: Segment) -> bool:
    return store.put(segments, rows(sum(segment.rows for segment in segments), layers=2))


def matched(store: PrefixStore, *segments: Segment, most: int | None = None) -> int:
    found = store.longest(segments, most)
    return 0 if found is None else found[0]


def test_the_longest_shared_front_is_found() -> None:
    store = opened()
    keep(store, TextSegment((1, 2)), PAGE, TextSegment((3, 4, 5)), MAP, TextSegment((6,)))
    assert matched(store, TextSegment((1, 2)), PAGE, TextSegment((3, 4, 5)), MAP, TextSegment((7, 8))) == 19
    assert matched(store, TextSegment((1, 2)), PAGE, TextSegment((3, 9))) == 11
    assert matched(store, TextSegment((1, 2)), PAGE, MAP) == 10
    assert matched(store, TextSegment((1, 2)), MAP) == 2
    assert matched(store, TextSegment((1,)), PAGE) == 1
    assert matched(store, PAGE, TextSegment((1, 2))) == 0
    assert store.longest([]) is None


def test_a_match_ends_behind_a_whole_chunk_only() -> None:
    store = opened()
    keep(store, TextSegment((1, 2)), PAGE, TextSegment((3, 4)))
    front = (TextSegment((1, 2)), PAGE, TextSegment((3, 4)))
    assert [matched(store, *front, most=most) for most in (12, 11, 10, 9, 3, 2, 1, 0)] == [12, 11, 10, 2, 2, 2, 1, 0]


def test_slid_and_visible_are_not_the_same() -> None:
    store = opened()
    keep(store, TextSegment((1,)), ChunkSegment(PAGE.chunk, 8, slid=True), MAP)
    assert matched(store, TextSegment((1,)), PAGE, MAP) == 1
    assert matched(store, TextSegment((1,)), ChunkSegment(PAGE.chunk, 8, slid=True), MAP) == 15


def test_ids_are_compared_whole() -> None:
    store = opened()
    keep(store, PAGE)
    assert matched(store, ChunkSegment("p" * 63 + "q", 8)) == 0


def test_how_text_is_cut_does_not_count() -> None:
    store = opened()
    keep(store, TextSegment((1,)), TextSegment(()), TextSegment((2, 3)), PAGE)
    assert matched(store, TextSegment((1, 2)), TextSegment((3,)), PAGE) == 11


def test_an_entry_swallows_the_shorter_ones() -> None:
    store = opened()
    keep(store, TextSegment((1, 2)))
    keep(store, TextSegment((1, 2)), PAGE)
    keep(store, TextSegment((1, 3)))
    assert len(store) == 2
    keep(store, TextSegment((1, 2)), PAGE)
    assert len(store) == 2


def test_the_least_recently_used_go_first() -> None:
    store = opened(2 * 2 * 16 * 10)
    keep(store, TextSegment(tuple(range(10))))
    keep(store, TextSegment(tuple(range(10, 20))))
    assert store.registry.bytes() == 640
    assert matched(store, TextSegment((0, 1))) == 2
    keep(store, TextSegment((30,)))
    assert matched(store, TextSegment((10,))) == 0
    assert matched(store, TextSegment((0,))) == 1
    assert not keep(store, TextSegment(tuple(range(21))))
    few = PrefixRegistry(entries=2).of("tenant", "model")
    for token in range(5):
        keep(few, TextSegment((token,)))
    assert len(few) == 2


def test_a_deleted_chunk_takes_its_entries_along() -> None:
    store = opened()
    keep(store, PAGE, TextSegment((1,)))
    keep(store, MAP)
    assert store.registry.forget("tenant", PAGE.chunk) and not store.registry.forget("other", MAP.chunk)
    assert matched(store, PAGE) == 0
    assert matched(store, MAP) == 6
    store.clear()
    assert len(store) == 0


def test_rows_have_to_agree() -> None:
    store = opened()
    with pytest.raises(StoreError, match="8 rows.*7"):
        store.put([PAGE], rows(7))
    with pytest.raises(StoreError):
        store.put([], rows(0))


pieces = st.one_of(
    st.lists(st.integers(0, 1), max_size=3).map(lambda ids: TextSegment(tuple(ids))),
    st.builds(ChunkSegment, st.sampled_from("xy"), st.just(2), st.booleans()),
)
prompts = st.lists(pieces, max_size=4)


def spelled(segments: list[Segment]) -> list[object]:
    """A prompt row by row: a token, or a chunk with the number of the row."""
    return [
        mark
        for segment in segments
        for mark in (
            segment.token_ids
            if isinstance(segment, TextSegment)
            else [(segment.chunk, segment.slid, row) for row in range(segment.rows)]
        )
    ]


@given(prompts, prompts, st.none() | st.integers(0, 12))
def test_shared_rows_are_what_spelling_out_says(left: list[Segment], right: list[Segment], most: int | None) -> None:
    one, other = spelled(left), spelled(right)
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    shared = shared if most is None else min(shared, most)
    while shared and isinstance(one[shared - 1], tuple) and one[shared - 1][2] != 1:
        shared -= 1
    assert shared_rows(join(left), join(right), most) == shared


@given(st.lists(prompts, min_size=1, max_size=4), prompts)
def test_the_store_finds_the_best_of_all(kept: list[list[Segment]], wanted: list[Segment]) -> None:
    store = opened()
    for prompt in kept:
        if spelled(prompt):
            keep(store, *prompt)
    best = max(shared_rows(join(prompt), join(wanted)) for prompt in kept)
    found = store.longest(wanted)
    assert (0 if found is None else found[0]) == best
    if found is not None:
        assert shared_rows(found[1].segments, join(wanted)) == best
