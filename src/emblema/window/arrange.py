"""Arranging a window: its parts as a placement problem, and the window that the solution gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from emblema.errors import CapacityError, WindowError
from emblema.link.policy.costs import MEGABYTE, Rates
from emblema.link.policy.policy import Lane
from emblema.session.session import Session
from emblema.store.keys import ArtifactKind
from emblema.window.budget import WindowBudget, weigh
from emblema.window.parts import PartHandle, WindowPart
from emblema.window.placement.problem import AvailableRows, Candidate, Placement, PlacementLimits
from emblema.window.placement.solver import solve_placement
from emblema.window.row_sources import AUTO, has_rows
from emblema.window.staleness import Cascade, Staleness, find_uncomputed
from emblema.window.state import WindowState

PATCH_SHARE = 0.25
"""Bytes of a stored patch over those of its rows, where prices count them."""

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


@dataclass(frozen=True, slots=True, eq=False)
class GroupedParts:
    """A window cut into what moves and what stays.

    Attributes:
        opening: the template's text, if any.
        front: pinned parts at the front.
        movable: groups that move, in order.
        recalled: groups of parts that have left and may come back.
        tail: texts after all media.
    """

    opening: tuple[WindowPart, ...]
    front: tuple[WindowPart, ...]
    movable: tuple[PartGroup, ...]
    recalled: tuple[PartGroup, ...]
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
        back = tuple(PartGroup((part,)) for part in recalled)
        return cls(opening, parts[:pinned], tuple(groups), back, tuple(texts))

    @property
    def fixed(self) -> tuple[PartGroup, ...]:
        """Pinned media at the front, which patches and rows are formed after."""
        return tuple(PartGroup((part,)) for part in self.front if part.sources)

    @property
    def every(self) -> tuple[PartGroup, ...]:
        return (*self.fixed, *self.movable, *self.recalled)


@dataclass(frozen=True, slots=True)
class GroupPrices:
    """What a group costs: seconds, where costs were measured on this machine, else rows computed."""

    rates: Rates | None
    row_bytes: int

    @classmethod
    def of(cls, rates: Rates | None, row_bytes: int) -> "GroupPrices":
        """Return prices by rates, if these say that computing a row costs more than taking one; else by rows."""
        usable = rates is not None and rates.computed > max(0.0, rates.taken)
        return cls(rates if usable else None, row_bytes)

    def of_rows(self, rows: float) -> float:
        """Return the price of rows that are computed."""
        return rows if self.rates is None else rows * self.rates.computed

    def of_group(self, group: PartGroup, lane: Lane) -> float:
        """Return the price of a group in a lane."""
        if lane is Lane.FRESH:
            return self.of_rows(group.tokens)
        text = 0 if lane is Lane.SETTLED else group.text_tokens
        if self.rates is None:
            return self.of_rows(text)
        taken = max(0.0, self.rates.taken) * (group.tokens - text)
        patched = lane in (Lane.PATCH, Lane.ORBIT)
        read = PATCH_SHARE * self.row_bytes * (group.tokens - text) / MEGABYTE if patched else 0.0
        return self.of_rows(text) + taken + max(0.0, self.rates.megabyte) * read


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
    named = {group.name: group for group in groups.every}
    prices = GroupPrices.of(session.policy_runtime.rates, session.row_bytes)
    value = _recency_worth(groups.movable) if worth is None else worth

    def candidate(group: PartGroup) -> Candidate:
        kept = any(part.pinned or part.handle in handles for part in group.parts)
        rows = inf if kept else sum(float(value(part.handle)) for part in group.parts if part.sources)
        return Candidate(group.name, *weigh(group.parts, session.row_bytes), worth=prices.of_rows(rows))

    def price(candidate: Candidate, lane: Lane) -> float:
        return prices.of_group(named[candidate.id], lane)

    candidates = [candidate(group) for group in (*groups.movable, *groups.recalled)]
    able = [chunk for chunk in candidates if chunk.required or chunk.worth != 0]
    front = [candidate(group) for group in groups.fixed]
    rows, exact_orders = _find_available(session, groups, cascade)
    placement = solve_placement(able, rows, _limits(groups, budget, session.row_bytes), price, front)
    lanes = [
        Lane.SETTLED if exact_orders.get(name) == placement.order[:place] else lane
        for place, (name, lane) in enumerate(zip(placement.order, placement.lanes, strict=True))
    ]
    # Rows that are not valid here are dropped, so that no other rows count as written after them.
    moved = [
        part if lane is Lane.SETTLED else part.without_rows()
        for name, lane in zip(placement.order[len(front) :], lanes[len(front) :], strict=True)
        for part in named[name].parts
    ]
    parts = (*groups.front, *moved, *groups.tail)
    # Lanes and cost are as the cascade will treat the parts.
    again = set(find_uncomputed((*groups.opening, *parts), cascade))
    for place, name in enumerate(placement.order):
        if lanes[place] is Lane.SETTLED and any(part.number in again for part in named[name].parts):
            lanes[place] = Lane.FRESH
    cost = sum(prices.of_group(named[name], lane) for name, lane in zip(placement.order, lanes, strict=True))
    exact = placement.exact and not cost > placement.cost
    return replace(placement, lanes=tuple(lanes), cost=cost, exact=exact), parts


def _recency_worth(groups: Sequence[PartGroup]) -> PartWorth:
    """Value a part in the window at more than computing it again, the latest most; one that has left at nothing."""
    places = {group.parts[-1].handle: (place + 1) / len(groups) for place, group in enumerate(groups)}
    tokens = {group.parts[-1].handle: group.tokens for group in groups}
    return lambda handle: tokens[handle] * (1 + places[handle]) if handle in places else 0.0


def _limits(groups: GroupedParts, budget: WindowBudget, row_bytes: int) -> PlacementLimits:
    """Return the budget left for media by the texts that stay and the template's opening."""
    texts = [part for part in (*groups.opening, *groups.front, *groups.tail) if not part.sources]
    tokens, size = weigh(texts, row_bytes)
    left_tokens = None if budget.tokens is None else budget.tokens - tokens
    left_bytes = None if budget.bytes is None else budget.bytes - size
    if min(left_tokens or 0, left_bytes or 0) < 0:
        raise CapacityError(
            f"texts that stay take {tokens} tokens and {size} bytes, more than the budget to arrange by"
        )
    return PlacementLimits(left_bytes, left_tokens)


def _find_available(
    session: Session, groups: GroupedParts, cascade: Cascade
) -> tuple[AvailableRows, dict[str, tuple[str, ...]]]:
    """Return the rows that are available, and by group the one order after which its own rows are valid.

    Such orders are found only where the cascade takes no survivors: rows are then valid after exactly what they were
    written after, and are given to the solver as patches.
    """
    inside = (*groups.fixed, *groups.movable)
    survive = not any(cascade(Staleness(part.number, gone=(-1,))) for group in inside for part in group.parts)
    written: dict[str, frozenset[str]] = {}
    for group in inside if survive else ():
        absorbed = _absorbed(group, groups)
        written |= {} if absorbed is None else {group.name: absorbed}
    exact_orders = {} if survive else _exact_orders(groups)
    patches, orbits = _find_patches(session, groups.every)
    for name, before in exact_orders.items():
        patches.setdefault(name, set()).add(before)
    leads = not (groups.opening or groups.front)
    canonical = {
        group.name
        for group in (*groups.movable, *groups.recalled)
        if leads and group.text_tokens == 0 and len(group.sources) == 1 and has_rows(session, group.sources)
    }
    rows = AvailableRows(
        {name: frozenset(found) for name, found in patches.items()},
        {name: frozenset(sets) for name, sets in orbits.items()},
        written,
        frozenset(canonical),
    )
    return rows, exact_orders


def _absorbed(group: PartGroup, groups: GroupedParts) -> frozenset[str] | None:
    """Return the groups after any of which a group's rows are valid; None where what stays has changed for them."""
    fixed = {part.number for part in (*groups.opening, *groups.front)}
    after = {(part.number, part.rows.version) for part in groups.tail if part.rows is not None}
    seen: set[int] | None = None
    own: set[int] = set()
    for part in group.parts:
        if part.rows is None:
            return None
        before = {number for number, _ in part.rows.preceding}
        front = fixed if part not in groups.front else set()
        if not before >= front | own or after.intersection(part.rows.preceding):
            return None
        seen = before if seen is None else seen & before
        own.add(part.number)
    known = seen or set()
    others = (other for other in (*groups.fixed, *groups.movable) if other.name != group.name)
    return frozenset(other.name for other in others if known.issuperset(part.number for part in other.parts))


def _exact_orders(groups: GroupedParts) -> dict[str, tuple[str, ...]]:
    """Return the order that each group was written after, where all of that order is there with the same rows."""
    found: dict[str, tuple[str, ...]] = {}
    front = tuple(_name_rows(part) for part in (*groups.opening, *groups.front))
    reached = [(tuple(group.name for group in groups.fixed), front)]
    while reached:
        names, before = reached.pop()
        for group in groups.movable:
            own = tuple(_name_rows(part) for part in group.parts)
            expected = [(*before, *own[:index]) for index in range(len(own))]
            preceding = [None if part.rows is None else part.rows.preceding for part in group.parts]
            if group.name not in found and preceding == expected:
                found[group.name] = names
                reached.append(((*names, group.name), (*before, *own)))
    return found


def _name_rows(part: WindowPart) -> tuple[int, int]:
    return part.number, -1 if part.rows is None else part.rows.version


def _find_patches(
    session: Session, groups: Sequence[PartGroup]
) -> tuple[dict[str, set[tuple[str, ...]]], dict[str, set[frozenset[str]]]]:
    """Return, by group, the orders and the sets of other groups after which the store has patches `auto` would take."""
    patches: dict[str, set[tuple[str, ...]]] = {}
    orbits: dict[str, set[frozenset[str]]] = {}
    model = session.adapter.fingerprint
    for group in groups:
        if not has_rows(session, group.sources):
            continue
        others = [other for other in groups if other is not group]
        kinds = group.parts[-1].kinds - {"text"} or {"text"}
        keys = [{key for key in session.store.artifact_keys(source) if key.model == model} for source in group.sources]
        plain = [{key.antecedents for key in found if key.kind is ArtifactKind.PATCH} for found in keys]
        if all(session.trusts(kind, Lane.PATCH, AUTO) for kind in kinds):
            for first in plain[0]:
                before = _name_groups(first, others)
                whole = all((*first, *group.sources[:index]) in plain[index] for index in range(len(plain)))
                if before is not None and whole:
                    patches.setdefault(group.name, set()).add(before)
        if len(keys) == 1 and all(session.trusts(kind, Lane.ORBIT, AUTO) for kind in kinds):
            for key in keys[0]:
                named = _name_groups(key.antecedents, others) if key.orbit and key.held_out is None else None
                if named is not None:
                    orbits.setdefault(group.name, set()).add(frozenset(named))
    return patches, orbits


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
