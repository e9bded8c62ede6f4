"""Available rows of a placement problem, from keys as a store lists them."""

from collections.abc import Iterable, Mapping

from emblema.store.keys import ArtifactKey, ArtifactKind
from emblema.window.placement.problem import AvailableRows


def available(
    keys: Iterable[ArtifactKey],
    written: Mapping[str, Iterable[str]] | None = None,
    canonical: Iterable[str] | None = None,
) -> AvailableRows:
    """Return the rows that artifact keys say; other artifacts are passed over."""
    patches: dict[str, set[tuple[str, ...]]] = {}
    orbits: dict[str, set[frozenset[str]]] = {}
    for key in keys:
        if key.orbit and key.held_out is None:
            orbits.setdefault(key.chunk, set()).add(frozenset(key.antecedents))
        elif key.kind is ArtifactKind.PATCH:
            patches.setdefault(key.chunk, set()).add(key.antecedents)
    return AvailableRows(
        {chunk: frozenset(orders) for chunk, orders in patches.items()},
        {chunk: frozenset(sets) for chunk, sets in orbits.items()},
        {chunk: frozenset(before) for chunk, before in (written or {}).items()},
        None if canonical is None else frozenset(canonical),
    )
