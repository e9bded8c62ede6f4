"""Which rows an operation made stale, and which of them to compute again (Kamera, appendix E). Plain data."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from emblema.window.parts import WindowPart, WrittenRows


@dataclass(frozen=True, slots=True)
class Staleness:
    """How the parts before a part differ from those its rows were written after; numbers of parts, in order.

    Attributes:
        number: the part's.
        added: parts that are before it now and were not then, new or moved.
        passed: parts that were before it and are after it now, with the same rows.
        gone: parts that were before it and have left the window, even if they were recalled after it.
        rewritten: parts that are still before it, with other rows or none.
        reordered: whether the parts that are still before it are in another order.
    """

    number: int
    added: tuple[int, ...] = ()
    passed: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    rewritten: tuple[int, ...] = ()
    reordered: bool = False

    @property
    def stale(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.passed or self.gone or self.rewritten or self.reordered)


Cascade = Callable[[Staleness], bool]
"""Whether to compute a stale part's rows again."""


def unseen(staleness: Staleness) -> bool:
    """Compute again what has never seen a part before it, or holds something of a part that is after it now.

    A survivor of a slide keeps its rows (Kamera, section 5), even if the part that left was recalled after it; so does
    a part whose antecedents are only reordered, or were computed again themselves.
    """
    return bool(staleness.added or staleness.passed)


def changed(staleness: Staleness) -> bool:
    """Compute again whatever is stale: exact, and the most expensive.

    A survivor of a slide takes a stored patch for the parts before it now, where there is one.
    """
    return staleness.stale


def never(staleness: Staleness) -> bool:
    """Keep every row as first written."""
    return False


def measured_cascade(kinds: Mapping[int, Collection[str]], trusts: Callable[[str], bool]) -> Cascade:
    """Return the default cascade: as `unseen`, and as `changed` for contents whose survivors are not trusted.

    Args:
        kinds: kinds of content of every part, by number.
        trusts: whether survivors of a kind may keep their rows; asked once for each kind.
    """
    known: dict[str, bool] = {}

    def cascade(staleness: Staleness) -> bool:
        if unseen(staleness) or not staleness.stale:
            return unseen(staleness)
        for kind in kinds[staleness.number]:
            if kind not in known:
                known[kind] = trusts(kind)
        return not all(known[kind] for kind in kinds[staleness.number])

    return cascade


def find_stale(parts: Sequence[WindowPart]) -> tuple[Staleness, ...]:
    """Return what is stale, front to back; parts without rows are left out."""
    versions = {part.number: None if part.rows is None else part.rows.version for part in parts}
    before: dict[int, int | None] = {}
    found: list[Staleness] = []
    for part in parts:
        if part.rows is not None:
            found.append(compare_rows(part.number, part.rows, before, versions))
        before[part.number] = None
    return tuple(staleness for staleness in found if staleness.stale)


def compare_rows(
    number: int, rows: WrittenRows, before: Mapping[int, int | None], versions: Mapping[int, int | None]
) -> Staleness:
    """Return how the parts before a part differ from those its rows were written after.

    Args:
        number: the part's.
        rows: the part's.
        before: numbers of the parts before it, in order.
        versions: of the rows of all parts in the window, by number; None for parts without rows.
    """
    kept, passed, gone, rewritten = [], [], [], []
    for other, version in rows.preceding:
        if other in before:
            kept.append(other)
            rewritten += [other] if versions[other] != version else []
        elif versions.get(other) == version:
            passed.append(other)
        else:
            gone.append(other)
    seen = {other for other, _ in rows.preceding}
    added = tuple(other for other in before if other not in seen)
    reordered = kept != [other for other in before if other in seen]
    return Staleness(number, added, tuple(passed), tuple(gone), tuple(rewritten), reordered)


def find_uncomputed(parts: Sequence[WindowPart], cascade: Cascade = unseen) -> tuple[int, ...]:
    """Return numbers of the parts to compute, front to back: those without rows, and those that the cascade names.

    A part depends only on those before it, so that a single forward in the window's order computes all of them.
    """
    again = {staleness.number for staleness in find_stale(parts) if cascade(staleness)}
    return tuple(part.number for part in parts if part.rows is None or part.number in again)


def find_dependents(parts: Sequence[WindowPart], number: int) -> tuple[int, ...]:
    """Return numbers of the parts whose rows were written after a part, directly or through others, in order."""
    reached = {number}
    waiting = {part.number: part.rows.preceding for part in parts if part.rows is not None and part.number != number}
    while found := [name for name, preceding in waiting.items() if any(before in reached for before, _ in preceding)]:
        reached.update(found)
        waiting = {name: preceding for name, preceding in waiting.items() if name not in reached}
    return tuple(part.number for part in parts if part.number in reached and part.number != number)
