"""A dictionary of what came last, against a list of the keys as they were set."""

from hypothesis import given
from hypothesis import strategies as st

from emblema.latest import LatestDict


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans())))
def test_the_keys_that_were_set_last_are_kept(most: int, steps: list[tuple[str, bool]]) -> None:
    held: LatestDict[str, int] = LatestDict(most)
    order: list[str] = []
    for number, (key, made) in enumerate(steps):
        known = held.get(key)
        if made:
            assert held.latest(key, lambda number=number: number) == (number if known is None else known)
        else:
            held[key] = number
        order = [*(other for other in order if other != key), key][-most:]
        assert list(held) == order
