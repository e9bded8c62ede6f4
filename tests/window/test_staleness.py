"""Staleness against plain histories of windows: which parts are stale, and the order of computing them."""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from emblema.window.parts import PartHandle, WindowPart, WrittenRows
from emblema.window.staleness import (
    Staleness,
    changed,
    find_dependents,
    find_stale,
    find_uncomputed,
    measured_cascade,
    unseen,
)


@dataclass
class History:
    """Numbers in order, and for each the number and version of those before it when it was written."""

    order: list[int] = field(default_factory=list)
    written: dict[int, tuple[int, list[tuple[int, int]]]] = field(default_factory=dict)
    versions: int = 0

    def parts(self) -> list[WindowPart]:
        found = [WindowPart(PartHandle(number, "image", 1, ""), ()) for number in self.order]
        return [replace(part, rows=self.rows(part.number)) for part in found]

    def rows(self, number: int) -> WrittenRows | None:
        if number not in self.written:
            return None
        version, before = self.written[number]
        return WrittenRows((), version, tuple(before), frozenset())

    def write(self, wanted: set[int]) -> None:
        """Write the wanted, front to back."""
        before: list[tuple[int, int]] = []
        for number in self.order:
            if number in wanted:
                self.versions += 1
                self.written[number] = (self.versions, list(before))
            if number in self.written:
                before.append((number, self.written[number][0]))


MOVES = ["come", "leave", "move", "write", "again"]
steps = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 5)), max_size=25)


def history(moves: list[tuple[str, int]]) -> History:
    """A window's life: parts come, leave, move, are written where they have no rows, or are written again."""
    made = History()
    for index, (move, at) in enumerate(moves):
        if move == "come":
            made.order.insert(min(at, len(made.order)), index)
        elif move == "write":
            made.write(set(made.order) - set(made.written))
        elif made.order:
            part = made.order[at % len(made.order)]
            if move == "again":
                made.write({part} & set(made.written))
            else:
                made.order.remove(part)
                if move == "move":
                    made.order.insert(at % (len(made.order) + 1), part)
                else:
                    made.written.pop(part, None)
    return made


@given(steps)
def test_staleness_is_the_difference_to_what_was_before(moves: list[tuple[str, int]]) -> None:
    made = history(moves)
    found = {change.number: change for change in find_stale(made.parts())}
    assert list(found) == [number for number in made.order if number in found], "front to back"
    for place, number in enumerate(made.order):
        if number not in made.written:
            assert number not in found
            continue
        before, seen = made.order[:place], dict(made.written[number][1])
        change = found.get(number, Staleness(number))
        assert set(change.added) == set(before) - seen.keys()
        # Every part that it saw is one of: before it still, after it with the same rows, or gone.
        parts = [set(change.gone), set(change.passed), set(before) & seen.keys()]
        assert set.union(*parts) == seen.keys() and sum(map(len, parts)) == len(seen)
        for part in change.passed:
            assert part in made.order[place:] and made.written[part][0] == seen[part]
        versions = {part: made.written.get(part, (None,))[0] for part in before}
        assert set(change.rewritten) == {part for part in before if part in seen and versions[part] != seen[part]}
        shared = [part for part in seen if part in before]
        assert change.reordered == (shared != [part for part in before if part in seen])
        assert (number in found) == change.stale


@given(steps)
def test_one_forward_in_order_leaves_nothing_to_compute(moves: list[tuple[str, int]]) -> None:
    made = history(moves)
    order = find_uncomputed(made.parts())
    assert list(order) == [number for number in made.order if number in order]
    made.write(set(order))
    after = made.parts()
    assert find_uncomputed(after) == ()
    assert not any(map(unseen, find_stale(after)))
    assert find_uncomputed(after, lambda change: change.stale) == tuple(change.number for change in find_stale(after))


@given(steps)
def test_dependents_hold_something_of_a_part_and_others_do_not(moves: list[tuple[str, int]]) -> None:
    made = history(moves)
    for part in made.order:
        assert find_dependents(made.parts(), part) == tuple(
            number for number in made.order if number != part and holds(made, number, part)
        )


def holds(made: History, holder: int, part: int) -> bool:
    """Whether rows reach a part over rows in the window."""
    reached, waiting = set(), [holder]
    while waiting:
        for other, _ in made.written.get(waiting.pop(), (0, []))[1]:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return part in reached


@given(steps, st.sets(st.sampled_from(["image", "text"])))
def test_survivors_are_computed_again_where_a_kind_of_theirs_is_not_trusted(
    moves: list[tuple[str, int]], trusted: set[str]
) -> None:
    made = history(moves)
    kinds = {number: [("image",), ("text",), ("image", "text")][number % 3] for number in made.order}
    asked: list[str] = []

    def trusts(kind: str) -> bool:
        asked.append(kind)
        return kind in trusted

    cascade = measured_cascade(kinds, trusts)
    for change in find_stale(made.parts()):
        kept = trusted.issuperset(kinds[change.number])
        assert cascade(change) == (unseen if kept else changed)(change)
    assert len(asked) == len(set(asked)), "each kind is asked for once"
    assert not cascade(Staleness(-1)), "nothing has changed: nobody is asked"
