"""The dependency graph against plain histories of windows: who is stale, and the order of forming anew."""

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
    """Numbers in order, and for each the number and version of those that stood before it as it was written."""

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
        for one in self.order:
            if one in wanted:
                self.versions += 1
                self.written[one] = (self.versions, list(before))
            if one in self.written:
                before.append((one, self.written[one][0]))


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
            one = made.order[at % len(made.order)]
            if move == "again":
                made.write({one} & set(made.written))
            else:
                made.order.remove(one)
                if move == "move":
                    made.order.insert(at % (len(made.order) + 1), one)
                else:
                    made.written.pop(one, None)
    return made


@given(steps)
def test_staleness_is_the_difference_to_what_stood_before(moves: list[tuple[str, int]]) -> None:
    made = history(moves)
    found = {one.number: one for one in find_stale(made.parts())}
    assert list(found) == [one for one in made.order if one in found], "front to back"
    for place, number in enumerate(made.order):
        if number not in made.written:
            assert number not in found
            continue
        before, seen = made.order[:place], dict(made.written[number][1])
        change = found.get(number, Staleness(number))
        assert set(change.added) == set(before) - seen.keys()
        # Every part that it saw is one of: before it still, behind it with the same rows, or gone.
        parts = [set(change.gone), set(change.passed), set(before) & seen.keys()]
        assert set.union(*parts) == seen.keys() and sum(map(len, parts)) == len(seen)
        for one in change.passed:
            assert one in made.order[place:] and made.written[one][0] == seen[one]
        versions = {one: made.written.get(one, (None,))[0] for one in before}
        assert set(change.rewritten) == {one for one in before if one in seen and versions[one] != seen[one]}
        shared = [one for one in seen if one in before]
        assert change.reordered == (shared != [one for one in before if one in seen])
        assert change.same_set == (set(before) == seen.keys())
        assert (number in found) == change.stale


@given(steps)
def test_one_forward_in_the_forming_order_leaves_nothing_to_form(moves: list[tuple[str, int]]) -> None:
    made = history(moves)
    order = find_uncomputed(made.parts())
    assert list(order) == [one for one in made.order if one in order]
    made.write(set(order))
    after = made.parts()
    assert find_uncomputed(after) == ()
    assert not any(map(unseen, find_stale(after)))
    assert find_uncomputed(after, lambda one: one.stale) == tuple(one.number for one in find_stale(after))


@given(steps)
def test_dependents_hold_something_of_a_part_and_others_do_not(moves: list[tuple[str, int]]) -> None:
    made = history(moves)
    for part in made.order:
        assert find_dependents(made.parts(), part) == tuple(
            one for one in made.order if one != part and holds(made, one, part)
        )


def holds(made: History, one: int, part: int) -> bool:
    """Whether rows reach a part over rows that stand in the window."""
    reached, waiting = set(), [one]
    while waiting:
        for other, _ in made.written.get(waiting.pop(), (0, []))[1]:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return part in reached


@given(steps, st.sets(st.sampled_from(["image", "text"])))
def test_survivors_are_formed_anew_where_one_of_their_kinds_is_not_trusted(
    moves: list[tuple[str, int]], trusted: set[str]
) -> None:
    made = history(moves)
    kinds = {one: [("image",), ("text",), ("image", "text")][one % 3] for one in made.order}
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
