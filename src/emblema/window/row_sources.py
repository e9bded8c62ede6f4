"""Which rows each part takes in a prompt: its written ones first, and stored ones before computing."""

from collections.abc import Mapping, Sequence

from emblema.link.prompt import RowState
from emblema.session.session import Session
from emblema.window.parts import WindowPart
from emblema.window.staleness import Cascade, find_stale
from emblema.window.state import WindowState

AUTO = "auto"
EXACT = ("full", "prefix")
"""Strategies that take no rows of a window."""


def question_sources(session: Session, state: WindowState, cascade: Cascade, strategy: str) -> dict[int, RowState]:
    """Return which rows each part takes for a question, by number.

    Rows that the window wrote are taken, but for those that the cascade computes again. The other parts are given to
    the strategy where the store has their canonical rows, so that it may take a stored patch, and are computed in
    their place where it has not.
    """
    if strategy in EXACT:
        return {part.number: RowState.MISSING for part in state.all_parts}
    stale = {staleness.number: staleness for staleness in find_stale(state.all_parts)}
    sources: dict[int, RowState] = {}
    for part in state.all_parts:
        staleness = stale.get(part.number)
        again = staleness is not None and cascade(staleness)
        if part.rows is not None and not again:
            sources[part.number] = RowState.WRITTEN
        elif part.sources and (strategy != AUTO or has_rows(session, part.sources)):
            sources[part.number] = RowState.CANONICAL
        else:
            sources[part.number] = RowState.MISSING
    return sources


def clean_sources(state: WindowState) -> dict[int, RowState]:
    """Return canonical rows for every chunk; text is computed over them."""
    return {part.number: RowState.CANONICAL if part.sources else RowState.MISSING for part in state.all_parts}


def find_broken(parts: Sequence[WindowPart], sources: Mapping[int, RowState]) -> set[int]:
    """Return numbers of the parts whose written rows were taken, and hold numbers that are NaN or infinite."""
    taken = ((part.number, part.rows) for part in parts if sources[part.number] == RowState.WRITTEN)
    return {number for number, rows in taken if rows is not None and not rows.finite}


def has_rows(session: Session, chunks: Sequence[str]) -> bool:
    """Return whether the store has the canonical rows of all chunks."""
    return all(id in session.store for id in chunks)
