"""From what a caller appends to a part of a window."""

from collections.abc import Mapping
from typing import Any

from emblema.errors import PromptError
from emblema.kv.chunk import Chunk
from emblema.session.chat_template import TokenIds
from emblema.session.turn_tokenizer import AFTER_CHUNK
from emblema.window.log import LogEntry
from emblema.window.parts import PartHandle, PartMember, WindowPart
from emblema.window.seam import Host
from emblema.window.state import WindowFamily, WindowState


def read_part(
    host: Host[Any, Any],
    family: WindowFamily,
    state: WindowState,
    given: Any,
    role: str | None,
    pinned: bool,
    options: Mapping[str, Any],
    entry: LogEntry,
) -> WindowPart:
    """Return a part, spelled and encoded for the window's end; it keeps its tokens wherever it moves.

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
        members = _text(host, host.spell(state.last_text(), given), given)
    elif isinstance(given, list | tuple) and all(type(token) is int for token in given):
        members = _text(host, tuple(given), None)
    else:
        taken = host.take(given, lambda id: _known_chunk(state, id), options)
        entry.encoder_runs += taken.encoder_runs
        entry.rows_recaptured += taken.rows
        kind, members = taken.kind, ()
        run = state.last_text()
        for member in taken.members:
            if isinstance(member, Chunk):
                members += (PartMember(member.encoded, chunk=member),)
                run = AFTER_CHUNK
            else:
                members += _text(host, host.spell(run, member), member)
    if not members:
        raise PromptError("the part is empty: give text, token ids or a source of media")
    return WindowPart(family.new_handle(kind, sum(member.tokens for member in members)), members, pinned)


def read_opening(host: Host[Any, Any]) -> WindowPart | None:
    """Return the template's text before the first part; None without a template."""
    ids = host.opening()
    if not ids:
        return None
    return WindowPart(PartHandle(0, "text", len(ids), ""), _text(host, ids, None), pinned=True)


def _text(host: Host[Any, Any], ids: TokenIds, text: str | None) -> tuple[PartMember, ...]:
    return (PartMember(host.encode_text(ids), text=text),) if ids else ()


def _known_chunk(state: WindowState, id: str) -> Chunk | None:
    """Return the chunk of an id, where a part in the window, or one that has left it, has it encoded."""
    parts = (*state.parts, *state.evicted)
    chunks = (member.chunk for part in parts for member in part.members if member.chunk is not None)
    return next((chunk for chunk in chunks if chunk.id == id), None)
