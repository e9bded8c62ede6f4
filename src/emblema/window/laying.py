"""A window laid out as a prompt, and the rows that a linked prompt holds read back as the window's own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.prompt import ChunkPart, RowState, TextPart
from emblema.link.prompt import Part as LinkPart
from emblema.models.table import KVTable
from emblema.session.chat_template import TokenIds
from emblema.window.graph import Node, staleness, unseen
from emblema.window.parts import Member, Part, Written

Serving = Literal["settled", "canonical", "fresh"]
"""How a part's rows come into a prompt: as written in this window, as a strategy says, or computed in their place."""


@dataclass(frozen=True, slots=True)
class Place:
    """A member's first row in a laid-out window, and the position that it is counted from."""

    row: int
    position: int


def laid(parts: Sequence[Part], serving: Mapping[int, Serving], closing: TokenIds) -> list[LinkPart]:
    """Parts of a prompt, with the question's tokens at its end; survivors are marked as such, for the policy."""
    survivors = _survivors(parts, serving)
    found: list[LinkPart] = []
    for part in parts:
        for index, member in enumerate(part.members):
            found.append(_served(part, index, member, serving[part.number], part.number in survivors))
    return [*found, TextPart(closing)]


def _served(part: Part, index: int, member: Member, serving: Serving, survivor: bool) -> LinkPart:
    piece = None if part.written is None else part.written.pieces[index]
    repair = None if part.written is None or not part.written.repairs else part.written.repairs[index]
    if serving == "settled" and piece is not None:
        return ChunkPart(piece, state=RowState.WRITTEN, source=member.source, survivor=survivor, repair=repair)
    written, repair = (piece, repair) if survivor else (None, None)
    if member.chunk is not None:
        state = RowState.CANONICAL if serving == "canonical" else RowState.MISSING
        return ChunkPart(member.chunk, state=state, distrusted=written, repair=repair)
    if written is not None:
        return ChunkPart(
            replace(written, rows=()), state=RowState.MISSING, source="", distrusted=written, repair=repair
        )
    return TextPart(member.token_ids)


def _survivors(parts: Sequence[Part], serving: Mapping[int, Serving]) -> frozenset[int]:
    """Numbers of the parts that have seen all that stands before them, and of it something has left or is anew.

    None where no part keeps its rows; nor where one keeps them that has not seen all that stands before it, as what it
    does to an answer is no survivor's fault.
    """
    kept = {part.number for part in parts if serving[part.number] == "settled"}
    as_served = {one.number: one for one in staleness([_node(part, part.number in kept) for part in parts])}
    as_written = {one.number: one for one in staleness([_node(part, True) for part in parts])}
    if not kept or any(unseen(one) for number, one in as_served.items() if number in kept):
        return frozenset()
    own = {number for number, one in as_written.items() if number not in kept and not unseen(one)}
    return frozenset(own.union(number for number in as_served if number in kept))


def _node(part: Part, held: bool) -> Node:
    written = part.written if held else None
    return Node(part.number) if written is None else Node(part.number, written.version, written.behind)


def settled(
    parts: Sequence[Part],
    wanted: Collection[int],
    table: KVTable,
    model: str,
    versions: Mapping[int, int],
) -> tuple[dict[int, Written], int]:
    """The rows of some parts, copied out of the linked table of a window; by number, and the bytes copied.

    Args:
        parts: the window's parts, which the table's first rows are.
        wanted: numbers of the parts to copy.
        table: the linked table.
        model: fingerprint of the model that wrote it.
        versions: a new version for each wanted number.
    """
    written: dict[int, Written] = {}
    behind: list[tuple[int, int]] = []
    absorbed: frozenset[str] = frozenset()
    row = position = 0
    for part in parts:
        pieces = []
        for member in part.members:
            if part.number in wanted:
                pieces.append(_piece(member, table, model, Place(row, position)))
            row, position = row + member.tokens, position + member.encoded.span
        held = part.written
        if part.number in wanted:
            own = absorbed.union(part.sources)
            held = Written(tuple(pieces), versions[part.number], tuple(behind), own)
            written[part.number] = held
        if held is not None:
            absorbed |= held.absorbed
            behind.append((part.number, held.version))
    return written, sum(one.bytes for one in written.values())


def _piece(member: Member, table: KVTable, model: str, place: Place) -> Chunk:
    layers = (table.read(layer, place.row, place.row + member.tokens) for layer in range(len(table.layouts)))
    rows = tuple(LayerRows(layer.keys.clone(), layer.values.clone()) for layer in layers)
    kind = "text" if member.chunk is None else member.chunk.kind
    return Chunk(uuid4().hex + uuid4().hex, kind, model, member.encoded, rows, base=place.position)
