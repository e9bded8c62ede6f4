"""A window laid out as a prompt, and the rows that a linked prompt holds read back as the window's own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.prompt import ChunkPart, TextPart
from emblema.link.prompt import Part as LinkPart
from emblema.models.table import KVTable
from emblema.window.parts import Member, Part, Written
from emblema.window.seam import TokenIds

Serving = Literal["settled", "canonical", "fresh"]
"""How a part's rows come into a prompt: as written in this window, as a strategy says, or computed in their place."""


@dataclass(frozen=True, slots=True)
class Place:
    """A member's first row in a laid-out window, and the position that it is counted from."""

    row: int
    position: int


def laid(
    parts: Sequence[Part], serving: Mapping[int, Serving], closing: TokenIds, survivors: Collection[int] = ()
) -> list[LinkPart]:
    """Parts of a prompt, with the question's tokens at its end; `survivors`: numbers of those that are stale."""
    found: list[LinkPart] = []
    for part in parts:
        for index, member in enumerate(part.members):
            found.append(_served(part, index, member, serving[part.number], part.number in survivors))
    return [*found, TextPart(closing)]


def _served(part: Part, index: int, member: Member, serving: Serving, survivor: bool) -> LinkPart:
    if serving == "settled" and part.written is not None:
        piece, repairs = part.written.pieces[index], part.written.repairs
        repair = repairs[index] if repairs else None
        return ChunkPart(piece, state="settled", source=member.source, survivor=survivor, repair=repair)
    if member.chunk is None:
        return TextPart(member.token_ids)
    return ChunkPart(member.chunk, state="canonical" if serving == "canonical" else "fresh")


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
