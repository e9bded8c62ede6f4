"""From what a caller appends to a part of a window."""

from collections.abc import Mapping
from typing import Any

from emblema.errors import PromptError
from emblema.kv.chunk import Chunk
from emblema.session.chat_template import TokenIds
from emblema.session.turn_tokenizer import AFTER_CHUNK
from emblema.window.family import Family
from emblema.window.log import Entry
from emblema.window.parts import Handle, Member, Part
from emblema.window.seam import Host
from emblema.window.state import State


def part_of(
    host: Host[Any, Any],
    family: Family,
    state: State,
    given: Any,
    role: str | None,
    pinned: bool,
    options: Mapping[str, Any],
    entry: Entry,
) -> Part:
    """A part, spelled and encoded as it stands at the window's end; it keeps its tokens wherever it moves.

    Raises:
        PromptError: it is empty, or a role is given for what is no text.
        MediaError: a source cannot be read.
    """
    kind = "text"
    if role is not None:
        if not isinstance(given, str):
            raise PromptError(f"a turn of the role {role!r} has to be text, not a {type(given).__name__}")
        members = _text(host, host.turn(role, given), None)
    elif isinstance(given, str):
        members = _text(host, host.spell(state.run(), given), given)
    elif isinstance(given, list | tuple) and all(type(token) is int for token in given):
        members = _text(host, tuple(given), None)
    else:
        taken = host.take(given, lambda id: known(state, id), options)
        entry.encoder_runs += taken.encoder_runs
        entry.rows_recaptured += taken.rows
        kind, members = taken.kind, ()
        run = state.run()
        for one in taken.members:
            if isinstance(one, Chunk):
                members += (Member(one.encoded, chunk=one),)
                run = AFTER_CHUNK
            else:
                members += _text(host, host.spell(run, one), one)
    if not members:
        raise PromptError("the part is empty: give text, token ids or a source of media")
    return Part(family.handle(kind, sum(member.tokens for member in members)), members, pinned)


def known(state: State, id: str) -> Chunk | None:
    """The chunk of an id, where a part in the window, or one that has left it, has it encoded."""
    parts = (*state.parts, *state.departed)
    chunks = (member.chunk for part in parts for member in part.members if member.chunk is not None)
    return next((chunk for chunk in chunks if chunk.id == id), None)


def _text(host: Host[Any, Any], ids: TokenIds, text: str | None) -> tuple[Member, ...]:
    return (Member(host.encode_text(ids), text=text),) if ids else ()


def opening_part(host: Host[Any, Any]) -> Part | None:
    """The template's text in front of the first part."""
    ids = host.opening()
    return Part(Handle(0, "text", len(ids), ""), (Member(host.encode_text(ids)),), pinned=True) if ids else None
