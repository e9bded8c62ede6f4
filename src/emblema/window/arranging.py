"""A window as a placement: who may stand in it, what is held of them, and the window that comes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from emblema.errors import CapacityError, WindowError
from emblema.link.policy.policy import Lane as LinkLane
from emblema.store.keys import ArtifactKind
from emblema.window.budget import WindowBudget, weight
from emblema.window.graph import Cascade, Staleness, forming_order
from emblema.window.parts import Handle, Part
from emblema.window.placement import Candidate, Held, Lane, Limits, Placement, place
from emblema.window.seam import Host
from emblema.window.serving import AUTO
from emblema.window.state import State
from emblema.window.units import Layout, Prices, Unit

Worth = Callable[[Handle], float]
"""What it is worth to have a part in the window, in rows computed."""


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """A placement, and the window that it comes to.

    Attributes:
        placement: units by their names.
        parts: in order; those whose rows do not serve there without.
        left: parts that stood in the window and leave it.
    """

    placement: Placement
    parts: tuple[Part, ...]
    left: tuple[Part, ...]


def arranged(
    host: Host[Any, Any],
    state: State,
    wanted: Sequence[Part],
    budget: WindowBudget,
    worth: Worth | None,
    cascade: Cascade,
) -> Arranged:
    """The best placement of a window's parts, of those wanted that have left it, and of what else is worth it.

    Raises:
        WindowError: a text that has left is wanted: it has no place of its own.
        CapacityError: what has to stand there does not fit.
        PlanError: a worth is below zero.
    """
    layout = Layout.of(state)
    names = {part.handle for part in wanted}
    gone = [part for part in state.departed if part.handle in names or (worth is not None and part.sources)]
    lost = next((part for part in gone if not part.sources), None)
    if lost is not None:
        raise WindowError(f"part {lost.number} is text that has left, and has no place of its own: recall it")
    every = (*layout.units, *(Unit((part,)) for part in gone))
    prices = Prices.of((*layout.fixed, *every), host.rates, host.row_bytes)
    value = _recency(layout.units) if worth is None else worth

    def candidate(unit: Unit) -> Candidate:
        kept = any(part.pinned or part.handle in names for part in unit.parts)
        rows = inf if kept else sum(float(value(part.handle)) for part in unit.parts if part.sources)
        return Candidate(unit.name, *weight(unit.parts, host.row_bytes), worth=prices.computed(rows))

    able = [one for one in (candidate(unit) for unit in every) if one.required or one.worth != 0]
    front = [replace(candidate(unit), worth=inf) for unit in layout.fixed]
    held = _held(host, state, layout, every, cascade)
    placed = place(able, held.held, _limits(host, state, layout, budget), prices, front)
    return held.carried_out(placed, state, layout, every, prices, cascade)


def _recency(units: Sequence[Unit]) -> Worth:
    """What stands is worth more than computing it again, the latest most; what has left is worth nothing."""
    places = {unit.parts[-1].handle: (place + 1) / len(units) for place, unit in enumerate(units)}
    tokens = {unit.parts[-1].handle: unit.tokens for unit in units}
    return lambda handle: tokens[handle] * (1 + places[handle]) if handle in places else 0.0


def _limits(host: Host[Any, Any], state: State, layout: Layout, budget: WindowBudget) -> Limits:
    """What is left for media: texts that stay, and the template's opening, take theirs."""
    texts = [part for part in (*layout.front, *layout.tail) if not part.sources]
    opening = () if state.opening is None else (state.opening,)
    tokens, size = weight((*opening, *texts), host.row_bytes)
    left_tokens = None if budget.tokens is None else budget.tokens - tokens
    left_bytes = None if budget.bytes is None else budget.bytes - size
    if min(left_tokens or 0, left_bytes or 0) < 0:
        raise CapacityError(
            f"texts that stay take {tokens} tokens and {size} bytes, more than the budget to arrange by"
        )
    return Limits(left_bytes, left_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What placement is told, and the antecedents behind which rows serve that serve behind these alone."""

    held: Held
    strict: dict[str, tuple[str, ...]]

    def carried_out(
        self, placed: Placement, state: State, layout: Layout, every: Sequence[Unit], prices: Prices, cascade: Cascade
    ) -> Arranged:
        """The window of a placement, whose lanes are those that the cascade leaves it."""
        units = {unit.name: unit for unit in (*layout.fixed, *every)}
        lanes: list[Lane] = []
        parts: list[Part] = []
        for index, (name, lane) in enumerate(zip(placed.order, placed.lanes, strict=True)):
            lanes.append("settled" if self.strict.get(name) == placed.order[:index] else lane)
            if name not in {unit.name for unit in layout.fixed}:
                # Rows that do not serve are dropped, so that none counts as written behind what stands behind it now.
                own = units[name].parts
                parts += own if lanes[-1] == "settled" else (part.bare() for part in own)
        whole = (*layout.front, *parts, *layout.tail)
        numbers = {part.number for part in whole}
        left = tuple(part for part in state.parts if part.number not in numbers)
        forming = set(forming_order(replace(state, parts=whole).nodes(), cascade))
        for index, name in enumerate(placed.order):
            if lanes[index] == "settled" and any(part.number in forming for part in units[name].parts):
                lanes[index] = "fresh"
        cost = sum(
            prices(Candidate(name, units[name].tokens, 0), lane) for name, lane in zip(placed.order, lanes, strict=True)
        )
        exact = placed.exact and not cost > placed.cost
        return Arranged(replace(placed, lanes=tuple(lanes), cost=cost, exact=exact), whole, left)


def _held(host: Host[Any, Any], state: State, layout: Layout, every: Sequence[Unit], cascade: Cascade) -> _Held:
    units = (*layout.fixed, *every)
    standing = (*layout.fixed, *layout.units)
    settled: dict[str, frozenset[str]] = {}
    strict: dict[str, tuple[str, ...]] = {}
    survive = not any(cascade(Staleness(part.number, gone=(-1,))) for unit in standing for part in unit.parts)
    for unit in standing:
        absorbed = _absorbed(unit, standing, layout, state) if survive else None
        settled |= {} if absorbed is None else {unit.name: absorbed}
    if not survive:
        strict = _strict(layout, state)
    patches, orbits = _stored(host, units)
    for name, before in strict.items():
        patches.setdefault(name, set()).add(before)
    leads = state.opening is None and not layout.front
    canonical = {
        unit.name for unit in every if leads and unit.text == 0 and len(unit.sources) == 1 and host.held(unit.sources)
    }
    held = Held(
        {name: frozenset(found) for name, found in patches.items()},
        {name: frozenset(sets) for name, sets in orbits.items()},
        settled,
        frozenset(canonical),
    )
    return _Held(held, strict)


def _absorbed(unit: Unit, standing: Sequence[Unit], layout: Layout, state: State) -> frozenset[str] | None:
    """The units behind any of which a unit's rows serve; None where what stays in place has changed for them."""
    fixed = {part.number for part in (*layout.front, *(() if state.opening is None else (state.opening,)))}
    behind = {(part.number, part.written.version) for part in layout.tail if part.written is not None}
    seen: set[int] | None = None
    own: set[int] = set()
    for part in unit.parts:
        if part.written is None:
            return None
        before = {number for number, _ in part.written.behind}
        front = fixed if part not in layout.front else set()
        if not before >= front | own or behind.intersection(part.written.behind):
            return None
        seen = before if seen is None else seen & before
        own.add(part.number)
    known = seen or set()
    return frozenset(
        one.name for one in standing if one is not unit and known.issuperset(part.number for part in one.parts)
    )


def _strict(layout: Layout, state: State) -> dict[str, tuple[str, ...]]:
    """The order behind which each unit was written, where all of it stands with the rows that it had then."""
    opening = () if state.opening is None else (state.opening,)
    found: dict[str, tuple[str, ...]] = {}
    reached = [(tuple(one.name for one in layout.fixed), tuple(_mark(part) for part in (*opening, *layout.front)))]
    while reached:
        names, behind = reached.pop()
        for unit in layout.units:
            marks = tuple(_mark(part) for part in unit.parts)
            ahead = ((*behind, *marks[:index]) for index in range(len(marks)))
            own = [None if part.written is None else part.written.behind for part in unit.parts]
            if unit.name not in found and own == list(ahead):
                found[unit.name] = names
                reached.append(((*names, unit.name), (*behind, *marks)))
    return found


def _mark(part: Part) -> tuple[int, int]:
    return part.number, -1 if part.written is None else part.written.version


def _stored(
    host: Host[Any, Any], units: Sequence[Unit]
) -> tuple[dict[str, set[tuple[str, ...]]], dict[str, set[frozenset[str]]]]:
    """By unit, the orders and the sets of others behind which the store has patches that `auto` would take."""
    patches: dict[str, set[tuple[str, ...]]] = {}
    orbits: dict[str, set[frozenset[str]]] = {}
    for unit in units:
        if not host.held(unit.sources):
            continue
        kinds = unit.parts[-1].kinds - {"text"} or {"text"}
        keys = [{key for key in host.patch_keys(source) if key.model == host.model} for source in unit.sources]
        plain = [{key.antecedents for key in found if key.kind is ArtifactKind.PATCH} for found in keys]
        if all(host.trusts(kind, LinkLane.PATCH, AUTO) for kind in kinds):
            for first in plain[0]:
                before = _named(first, [one for one in units if one is not unit])
                whole = all((*first, *unit.sources[:index]) in plain[index] for index in range(len(plain)))
                if before is not None and whole:
                    patches.setdefault(unit.name, set()).add(before)
        if len(keys) == 1 and all(host.trusts(kind, LinkLane.ORBIT, AUTO) for kind in kinds):
            for key in keys[0]:
                if not key.orbit or key.held_out is not None:
                    continue
                others = _named(key.antecedents, [one for one in units if one is not unit])
                if others is not None:
                    orbits.setdefault(unit.name, set()).add(frozenset(others))
    return patches, orbits


def _named(antecedents: Sequence[str], units: Sequence[Unit]) -> tuple[str, ...] | None:
    """Antecedents by chunk as units, each at most once; None where they are not whole units."""
    found: list[Unit] = []
    rest = tuple(antecedents)
    while rest:
        one = next((unit for unit in units if unit not in found and rest[: len(unit.sources)] == unit.sources), None)
        if one is None:
            return None
        found.append(one)
        rest = rest[len(one.sources) :]
    return tuple(unit.name for unit in found)
