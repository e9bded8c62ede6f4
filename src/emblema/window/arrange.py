"""Arranging a window: its parts as a placement problem, and the window that the solution gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from emblema.errors import CapacityError, WindowError
from emblema.kv.keys import ArtifactKind
from emblema.link.lanes import Lane
from emblema.session.session import Session
from emblema.window.budget import WindowBudget, weigh
from emblema.window.parts import PartHandle, WindowPart
from emblema.window.placement import Candidate, Placement, solve_placement
from emblema.window.row_sources import AUTO, has_rows
from emblema.window.staleness import Cascade, compare_rows, find_uncomputed
from emblema.window.state import WindowState

PartWorth = Callable[[PartHandle], float]
"""What it is worth to have a part in the window, in rows computed."""


@dataclass(frozen=True, slots=True, eq=False)
class PartGroup:
    """A part of media, after the texts right before it: they move together, and are named by the part's number."""

    parts: tuple[WindowPart, ...]

    @property
    def name(self) -> str:
        return str(self.parts[-1].number)

    @property
    def sources(self) -> tuple[str, ...]:
        return self.parts[-1].sources

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def text_tokens(self) -> int:
        return self.tokens - sum(member.tokens for member in self.parts[-1].members if member.chunk is not None)

    def price(self, lane: Lane) -> float:
        """Return what the group costs in a lane: rows computed."""
        return self.tokens if lane is Lane.FRESH else 0 if lane is Lane.SETTLED else self.text_tokens


@dataclass(frozen=True, slots=True, eq=False)
class GroupedParts:
    """A window cut into what moves and what stays.

    Attributes:
        opening: the template's text, if any.
        front: pinned parts at the front.
        movable: groups that move, in order, then parts that have left and may come back.
        tail: texts after all media.
    """

    opening: tuple[WindowPart, ...]
    front: tuple[WindowPart, ...]
    movable: tuple[PartGroup, ...]
    tail: tuple[WindowPart, ...]

    @classmethod
    def of(cls, state: WindowState, recalled: Sequence[WindowPart]) -> "GroupedParts":
        """Group the parts of a window, and parts that may come back to it."""
        parts = state.parts
        pinned = next((place for place, part in enumerate(parts) if not part.pinned), len(parts))
        groups: list[PartGroup] = []
        texts: list[WindowPart] = []
        for part in parts[pinned:]:
            texts.append(part)
            if part.sources:
                groups.append(PartGroup(tuple(texts)))
                texts = []
        opening = () if state.opening is None else (state.opening,)
        return cls(opening, parts[:pinned], (*groups, *(PartGroup((part,)) for part in recalled)), tuple(texts))

    @property
    def fixed(self) -> tuple[PartGroup, ...]:
        """Pinned media at the front, which patches and rows are formed after."""
        return tuple(PartGroup((part,)) for part in self.front if part.sources)


class GroupPrices:
    """What groups cost after others, in rows computed.

    Args:
        session: says which rows and patches are stored.
        groups: of the window.
        cascade: says which written rows are valid after others.
    """

    def __init__(self, session: Session, groups: GroupedParts, cascade: Cascade) -> None:
        self._cascade = cascade
        self._named = {group.name: group for group in groups.movable}
        self._fixed = tuple(group.name for group in groups.fixed)
        self._tail = {part.number: part.rows.version for part in groups.tail if part.rows is not None}
        self._front: dict[int, int | None] = {}
        for part in (*groups.opening, *groups.front):
            self._front[part.number] = self._version(part, self._front)
        self._patches = _find_patches(session, (*groups.fixed, *groups.movable))
        opening = tuple(token for part in groups.opening for member in part.members for token in member.token_ids)
        leads = not groups.front and opening == session.adapter.anchor
        self._canonical = {
            group.name
            for group in groups.movable
            if leads and group.text_tokens == 0 and len(group.sources) == 1 and has_rows(session, group.sources)
        }
        # By group with rows, the groups that were before all of it when they were written.
        self._known: dict[str, frozenset[str]] = {}
        for group in groups.movable:
            rows = [part.rows for part in group.parts if part.rows is not None]
            if len(rows) == len(group.parts):
                seen = frozenset.intersection(*(frozenset(number for number, _ in each.preceding) for each in rows))
                numbers = ((other.name, [part.number for part in other.parts]) for other in groups.movable)
                self._known[group.name] = frozenset(name for name, own in numbers if seen.issuperset(own))
        self._placed = lru_cache(maxsize=4096)(self._place)

    def cheapest(self, id: str, before: tuple[str, ...]) -> tuple[float, Lane]:
        group, lanes = self._named[id], [Lane.FRESH]
        if (*self._fixed, *before) in self._patches.get(id, ()):
            lanes.insert(0, Lane.PATCH)
        if self._settled(group, self._placed(before)):
            lanes.insert(0, Lane.SETTLED)
        if not before and id in self._canonical:
            lanes.insert(0, Lane.LEADING)
        lane = min(lanes, key=group.price)
        return group.price(lane), lane

    def least(self, id: str, before: tuple[str, ...]) -> float:
        group, whole = self._named[id], (*self._fixed, *before)
        if id in self._known and self._known[id].issuperset(before):
            return group.price(Lane.SETTLED)
        stored = any(order[: len(whole)] == whole for order in self._patches.get(id, ()))
        return group.price(Lane.PATCH if stored else Lane.FRESH)

    def _place(self, before: tuple[str, ...]) -> dict[int, int | None]:
        """Return the parts of placed groups after those that stay: number, and version of the rows that it keeps."""
        if not before:
            return self._front
        earlier, group = self._placed(before[:-1]), self._named[before[-1]]
        kept = self._settled(group, earlier)
        return earlier | {part.number: part.rows.version if kept and part.rows else None for part in group.parts}

    def _settled(self, group: PartGroup, before: dict[int, int | None]) -> bool:
        """Return whether all rows of a group are valid after other parts."""
        seen = dict(before)
        for part in group.parts:
            seen[part.number] = self._version(part, seen)
        return all(seen[part.number] is not None for part in group.parts)

    def _version(self, part: WindowPart, before: dict[int, int | None]) -> int | None:
        """Return the version of a part's rows where they are valid after other parts, and those at the end follow."""
        if part.rows is None:
            return None
        staleness = compare_rows(part.number, part.rows, before, self._tail | before)
        return None if staleness.stale and self._cascade(staleness) else part.rows.version


def arrange_parts(
    session: Session,
    state: WindowState,
    wanted: Sequence[WindowPart],
    budget: WindowBudget,
    worth: PartWorth | None,
    cascade: Cascade,
) -> tuple[Placement, tuple[WindowPart, ...]]:
    """Place a window's parts, wanted parts that have left, and others worth recalling; see `Window.arrange`.

    Returns:
        The best placement, of groups by their names, and the window's parts in its order, without rows that are not
        valid there.

    Raises:
        WindowError: a text that has left is wanted: it moves only with media.
        CapacityError: the parts that have to be there do not fit.
        PlanError: a worth is below zero.
    """
    handles = {part.handle for part in wanted}
    recalled = [part for part in state.evicted if part.handle in handles or (worth is not None and part.sources)]
    text = next((part for part in recalled if not part.sources), None)
    if text is not None:
        raise WindowError(f"part {text.number} is text that has left, and has no place of its own: recall it")
    groups = GroupedParts.of(state, recalled)
    value = _recency_worth(groups.movable, state) if worth is None else worth

    def candidate(group: PartGroup) -> Candidate:
        kept = any(part.pinned or part.handle in handles for part in group.parts)
        rows = inf if kept else sum(float(value(part.handle)) for part in group.parts if part.sources)
        return Candidate(group.name, *weigh(group.parts, session.row_bytes), worth=rows)

    able = [chunk for chunk in map(candidate, groups.movable) if chunk.worth != 0]
    found = solve_placement(able, GroupPrices(session, groups, cascade), _left(groups, budget, session.row_bytes))
    named = {group.name: group for group in groups.movable}
    # Rows that are not valid here are dropped, so that no other rows count as written after them.
    moved = [
        part if lane is Lane.SETTLED else part.without_rows()
        for name, lane in zip(found.order, found.lanes, strict=True)
        for part in named[name].parts
    ]
    parts = (*groups.front, *moved, *groups.tail)
    # Lanes and cost are as the cascade will treat the parts.
    again = set(find_uncomputed((*groups.opening, *parts), cascade))
    placed = [
        *((group, Lane.SETTLED) for group in groups.fixed),
        *((named[name], lane) for name, lane in zip(found.order, found.lanes, strict=True)),
    ]
    lanes = [
        Lane.FRESH if lane is Lane.SETTLED and any(part.number in again for part in group.parts) else lane
        for group, lane in placed
    ]
    cost = sum(group.price(lane) for (group, _), lane in zip(placed, lanes, strict=True))
    return replace(found, order=tuple(group.name for group, _ in placed), lanes=tuple(lanes), cost=cost), parts


def _recency_worth(groups: Sequence[PartGroup], state: WindowState) -> PartWorth:
    """Value a part in the window at more than computing it again, the latest most; one that has left at nothing."""
    evicted = {part.handle for part in state.evicted}
    held = [group for group in groups if group.parts[-1].handle not in evicted]
    worth = {group.parts[-1].handle: group.tokens * (1 + place / len(held)) for place, group in enumerate(held, 1)}
    return lambda handle: worth.get(handle, 0.0)


def _left(groups: GroupedParts, budget: WindowBudget, row_bytes: int) -> WindowBudget:
    """Return the budget left for what moves by the parts that stay and the template's opening."""
    tokens, size = weigh((*groups.opening, *groups.front, *groups.tail), row_bytes)
    left_tokens = None if budget.tokens is None else budget.tokens - tokens
    left_bytes = None if budget.bytes is None else budget.bytes - size
    if min(left_tokens or 0, left_bytes or 0) < 0:
        raise CapacityError(f"what stays takes {tokens} tokens and {size} bytes, more than the budget to arrange by")
    return WindowBudget(left_tokens, left_bytes)


def _find_patches(session: Session, groups: Sequence[PartGroup]) -> dict[str, set[tuple[str, ...]]]:
    """Return, by group, the orders of other groups after which the store has patches that `auto` would take."""
    patches: dict[str, set[tuple[str, ...]]] = {}
    model = session.adapter.fingerprint
    for group in groups:
        kinds = group.parts[-1].kinds - {"text"} or {"text"}
        if not has_rows(session, group.sources) or not all(session.trusts(kind, Lane.PATCH, AUTO) for kind in kinds):
            continue
        keys = [session.store.artifact_keys(source) for source in group.sources]
        plain = [
            {key.antecedents for key in own if (key.model, key.kind) == (model, ArtifactKind.PATCH)} for own in keys
        ]
        for first in plain[0]:
            before = _name_groups(first, [other for other in groups if other is not group])
            if before is not None and all((*first, *group.sources[:index]) in own for index, own in enumerate(plain)):
                patches.setdefault(group.name, set()).add(before)
    return patches


def _name_groups(antecedents: Sequence[str], groups: Sequence[PartGroup]) -> tuple[str, ...] | None:
    """Return antecedents by chunk as groups, each at most once; None where they are not whole groups."""
    found: list[PartGroup] = []
    rest = tuple(antecedents)
    while rest:
        matches = (group for group in groups if group not in found and rest[: len(group.sources)] == group.sources)
        group = next(matches, None)
        if group is None:
            return None
        found.append(group)
        rest = rest[len(group.sources) :]
    return tuple(group.name for group in found)
