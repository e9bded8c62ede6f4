"""Pictures by their cells: the nearest usable one is found, whatever is compared, within the bound and its bytes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emblema.session.known_pictures import KnownPictures

SHAPE = b"shape"
Cells = st.lists(st.integers(0, 3), min_size=12, max_size=12)


def digests(cells: list[int]) -> np.ndarray:
    """Cells of few values, so that pictures share some."""
    return np.array([[cell, 7] for cell in cells], dtype=np.uint64)


@given(st.lists(Cells, max_size=6), Cells, st.floats(0, 1), st.sets(st.integers(0, 5)))
def test_the_nearest_usable_picture_is_found_with_what_differs(
    known: list[list[int]], new: list[int], bound: float, gone: set[int]
) -> None:
    pictures = KnownPictures(bound)
    for number, cells in enumerate(known):
        pictures.note(str(number), SHAPE, digests(cells))
    found = pictures.nearest("new", SHAPE, digests(new), lambda id: int(id) not in gone)
    differing = [sum(a != b for a, b in zip(cells, new, strict=True)) for cells in known]
    within = [number for number, count in enumerate(differing) if count / 12 <= bound]
    usable = [number for number in within if number not in gone]
    if not usable:
        assert found is None and pictures.is_alike("new") == bool(within)
        return
    assert found is not None and not pictures.is_alike("new")
    chosen = int(found.id)
    assert differing[chosen] == min(differing[number] for number in usable)
    assert chosen == max(number for number in usable if differing[number] == differing[chosen])
    assert found.changed == tuple(at for at in range(12) if known[chosen][at] != new[at])
    assert found.share == differing[chosen] / 12


def test_pictures_of_another_shape_are_not_compared_nor_is_one_with_itself() -> None:
    pictures = KnownPictures(1.0)
    pictures.note("a", b"other", digests([0] * 12))
    pictures.note("new", SHAPE, digests([0] * 12))
    assert pictures.nearest("new", SHAPE, digests([0] * 12), lambda id: True) is None


def test_digests_are_bounded_by_bytes_and_the_oldest_go() -> None:
    pictures = KnownPictures(1.0, most_bytes=3 * 12 * 16)
    for number in range(9):
        pictures.note(str(number % 5), SHAPE, digests([number] * 12))
    assert pictures.kept_bytes == 3 * 12 * 16
    asked: list[str] = []
    assert pictures.nearest("new", SHAPE, digests([9] * 12), lambda id: bool(asked.append(id))) is None
    assert asked == ["3", "2", "1"]


def test_a_picture_larger_than_all_room_is_not_kept() -> None:
    pictures = KnownPictures(1.0, most_bytes=16)
    pictures.note("a", SHAPE, digests([0] * 12))
    assert pictures.kept_bytes == 0 and pictures.nearest("b", SHAPE, digests([0] * 12), lambda id: True) is None
