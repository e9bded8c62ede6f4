"""Whose conditioning an operation made stale, and in which order to form it anew (Kamera, appendix E). Plain data."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A part in its place.

    Attributes:
        number: the part's.
        version: of its rows; None where there are none.
        behind: number and version of the parts that stood before it when its rows were written, in order.
    """

    number: int
    version: int | None = None
    behind: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Staleness:
    """How what stands before a part differs from what its rows were written behind; numbers of parts, in order.

    Attributes:
        number: the part's.
        added: stand before it now and did not, whether they came or moved.
        passed: stood before it and stand behind it now, with the same rows.
        gone: stood before it and do not stand in the window, or came back behind it since.
        rewritten: stand before it still, with other rows or none.
        reordered: whether those that still stand before it do so in another order.
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

    @property
    def same_set(self) -> bool:
        """Whether the same parts stand before it, perhaps in another order: what an orbit patch serves."""
        return not (self.added or self.passed or self.gone)


Cascade = Callable[[Staleness], bool]
"""Whether a part's rows are to be formed anew."""


def unseen(staleness: Staleness) -> bool:
    """The least: form anew what has never seen a part in front of it, or holds one that stands behind it now.

    A survivor of a slide keeps its rows (Kamera, section 5), though what left were recalled behind it; so does a part
    whose antecedents are only reordered, or were written anew themselves.
    """
    return bool(staleness.added or staleness.passed)


def changed(staleness: Staleness) -> bool:
    """Form anew whatever stands behind something else than it was written behind: exact, and the dearest.

    A survivor of a slide is served by a stored patch for what stands before it now, where there is one.
    """
    return staleness.stale


def measured(kinds: Mapping[int, Collection[str]], trusted: Callable[[str], bool]) -> Cascade:
    """The default: as `unseen`, and as `changed` for contents whose survivors are not trusted.

    Args:
        kinds: of every part, by number.
        trusted: whether survivors of a kind of content may stay as they are; asked once for each kind.
    """
    known: dict[str, bool] = {}

    def anew(staleness: Staleness) -> bool:
        if unseen(staleness) or not staleness.stale:
            return unseen(staleness)
        for kind in kinds[staleness.number]:
            if kind not in known:
                known[kind] = trusted(kind)
        return not all(known[kind] for kind in kinds[staleness.number])

    return anew


def never(staleness: Staleness) -> bool:
    """Keep every row as first written."""
    return False


def staleness(nodes: Sequence[Node]) -> tuple[Staleness, ...]:
    """What is stale, front to back; parts without rows are left out."""
    standing = {node.number: node.version for node in nodes}
    before: dict[int, None] = {}
    found: list[Staleness] = []
    for node in nodes:
        if node.version is not None:
            found.append(_compared(node, before, standing))
        before[node.number] = None
    return tuple(one for one in found if one.stale)


def _compared(node: Node, before: Mapping[int, None], standing: Mapping[int, int | None]) -> Staleness:
    kept, passed, gone, rewritten = [], [], [], []
    for number, version in node.behind:
        if number in before:
            kept.append(number)
            rewritten += [number] if standing[number] != version else []
        elif standing.get(number) == version:
            passed.append(number)
        else:
            gone.append(number)
    held = {number for number, _ in node.behind}
    added = tuple(number for number in before if number not in held)
    reordered = kept != [number for number in before if number in held]
    return Staleness(node.number, added, tuple(passed), tuple(gone), tuple(rewritten), reordered)


def forming_order(nodes: Sequence[Node], cascade: Cascade = unseen) -> tuple[int, ...]:
    """The parts whose rows are to be formed, those without rows among them: each behind all that it depends on.

    A part depends on those before it alone, so the order of the window is one; a single forward that computes them in
    it forms each behind rows that are there by then.
    """
    wanted = {one.number for one in staleness(nodes) if cascade(one)}
    return tuple(node.number for node in nodes if node.version is None or node.number in wanted)


def dependents(nodes: Sequence[Node], number: int) -> tuple[int, ...]:
    """The parts whose rows were written behind a part, directly or through others, in order."""
    reached = {number}
    waiting = [node for node in nodes if node.number != number]
    while found := [node for node in waiting if any(one in reached for one, _ in node.behind)]:
        reached.update(node.number for node in found)
        waiting = [node for node in waiting if node.number not in reached]
    return tuple(node.number for node in nodes if node.number in reached and node.number != number)
