"""How antecedents changed, from their ids alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.policy.choosing import Change, drift_of, nearest
from emblema.store.keys import ArtifactKey, ArtifactKind

NAMES = st.lists(st.sampled_from("abcdef"), max_size=6)


@pytest.mark.parametrize(
    ("stored", "now", "change", "gone", "new", "ordered"),
    [
        ("abc", "abc", "same", 0, 0, True),
        ("", "", "same", 0, 0, True),
        ("abc", "cab", "reordered", 0, 0, False),
        ("abc", "bc", "dropped", 1, 0, True),
        ("abc", "cb", "dropped", 1, 0, False),
        ("abc", "", "dropped", 3, 0, True),
        ("aab", "ab", "dropped", 1, 0, True),
        ("abc", "aabc", "duplicated", 0, 1, True),
        ("abc", "abb", "dropped", 1, 1, True),
        ("abc", "abcd", "extended", 0, 1, True),
        ("abc", "dabc", "extended", 0, 1, True),
        ("", "a", "extended", 0, 1, True),
        ("abc", "abd", "replaced", 1, 1, True),
        ("abc", "def", "replaced", 3, 3, True),
    ],
)
def test_changes_by_name(stored: str, now: str, change: str, gone: int, new: int, ordered: bool) -> None:
    found = drift_of(tuple(stored), tuple(now))
    assert (found.change, found.gone, found.new, found.ordered) == (change, gone, new, ordered)


@given(NAMES, NAMES)
def test_a_drift_counts_every_place(stored: list[str], now: list[str]) -> None:
    drift, back = drift_of(stored, now), drift_of(now, stored)
    assert drift.kept + drift.gone == len(stored) and drift.kept + drift.new == len(now)
    assert (back.gone, back.new, back.kept, back.ordered) == (drift.new, drift.gone, drift.kept, drift.ordered)
    assert (drift.change is Change.SAME) == (stored == now)
    assert (drift.change is Change.REORDERED) == (stored != now and Counter(stored) == Counter(now))
    assert (drift.change in (Change.EXTENDED, Change.REPLACED)) == bool(set(now) - set(stored))


@given(NAMES, NAMES, st.floats(0, 1))
def test_a_small_drift_brings_nothing_strange_and_leaves_something(
    stored: list[str], now: list[str], share: float
) -> None:
    drift = drift_of(stored, now)
    if drift.small(share) and stored != now:
        assert set(now) <= set(stored) and now and drift.ordered
        assert max(drift.gone, drift.new) <= share * len(stored)
    assert drift_of(stored, stored).small(0)


def test_the_nearest_patch_comes_first_and_other_pieces_never() -> None:
    keys = [ArtifactKey("m", "x", tuple(names)) for names in ("d", "abcd", "ab", "abc")]
    others = [
        ArtifactKey("m", "x", ("a", "b", "c"), ArtifactKind.ORBIT),
        ArtifactKey("m", "x", kind=ArtifactKind.RESIDUAL, layer=2),
    ]
    found = nearest([*keys, *others], ("a", "b", "c"))
    assert ["".join(key.antecedents) for key, _ in found] == ["abc", "ab", "abcd", "d"]
