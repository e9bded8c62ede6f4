"""How each part's rows come into a prompt: kept ones first, and what is stored before what has to be computed."""

from collections.abc import Sequence
from typing import Any

from emblema.link.orderings import orbit_key
from emblema.window.graph import Cascade, Staleness
from emblema.window.laying import Serving
from emblema.window.parts import Part
from emblema.window.seam import Host
from emblema.window.state import State

AUTO = "auto"
EXACT = ("full", "prefix")
"""Strategies that take no rows of a window."""


def clean_serving(state: State) -> dict[int, Serving]:
    """Every piece as it is alone; text is computed over the pieces."""
    return {part.number: "canonical" if part.sources else "fresh" for part in state.all}


def served(
    host: Host[Any, Any], state: State, changes: Sequence[Staleness], cascade: Cascade, strategy: str
) -> dict[int, Serving]:
    """How each part is served to a strategy of some name.

    Rows that the window wrote stay, but those that the cascade forms anew, and those that an orbit patch serves in
    the order as it is now. The others are handed to the strategy where the store has their canonical rows, so that it
    may take a stored patch, and computed where they stand where it has not.
    """
    if strategy in EXACT:
        return dict.fromkeys((part.number for part in state.all), "fresh")
    changed = {one.number: one for one in changes}
    before: list[str] = []
    found: dict[int, Serving] = {}
    for part in state.all:
        change = changed.get(part.number)
        anew = change is not None and (cascade(change) or _averaged(host, part, change, before, strategy))
        if part.written is not None and not anew:
            found[part.number] = "settled"
        elif part.sources and (strategy != AUTO or host.held(part.sources)):
            found[part.number] = "canonical"
        else:
            found[part.number] = "fresh"
        before += part.sources
    return found


def _averaged(host: Host[Any, Any], part: Part, change: Staleness, before: Sequence[str], strategy: str) -> bool:
    """Whether the store has orbit patches for a part whose antecedents stand in another order."""
    if strategy != AUTO or not (part.sources and change.reordered and change.same_set and host.held(part.sources)):
        return False
    keys = [
        orbit_key(host.model, source, (*before, *part.sources[:index])) for index, source in enumerate(part.sources)
    ]
    return all(host.stored(key) for key in keys)
