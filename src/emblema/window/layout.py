"""A window laid out as a prompt, and the rows of the linked prompt read back as the window's own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.prompt import ChunkPart, Part, RowState, TextPart
from emblema.models.table import KVTable
from emblema.window.parts import PartMember, WindowPart, WrittenRows
from emblema.window.staleness import PartVersion, find_stale, unseen


def lay_out(parts: Sequence[WindowPart], sources: Mapping[int, RowState], closing: tuple[int, ...]) -> list[Part]:
    """Return parts of a prompt; survivors are marked as such, for the policy.

    Args:
        parts: the window's.
        sources: for each part's number, which rows it takes.
        closing: token ids after the parts, the question's.
    """
    survivors = _survivors(parts, sources)
    found: list[Part] = []
    for part in parts:
        for index in range(len(part.members)):
            found.append(_prompt_part(part, index, sources[part.number], part.number in survivors))
    return [*found, TextPart(closing)]


def _prompt_part(part: WindowPart, index: int, source: RowState, survivor: bool) -> Part:
    member, rows = part.members[index], part.rows
    piece = None if rows is None else rows.pieces[index]
    repair = None if rows is None or not rows.repairs else rows.repairs[index]
    if source == RowState.WRITTEN and piece is not None:
        return ChunkPart(piece, state=source, source=member.source, survivor=survivor, repair=repair)
    distrusted, repair = (piece, repair) if survivor else (None, None)
    if member.chunk is not None:
        state = RowState.CANONICAL if source == RowState.CANONICAL else RowState.MISSING
        return ChunkPart(member.chunk, state=state, distrusted=distrusted, repair=repair)
    if distrusted is not None:
        bare = replace(distrusted, rows=())
        return ChunkPart(bare, state=RowState.MISSING, source="", distrusted=distrusted, repair=repair)
    return TextPart(member.token_ids)


def _survivors(parts: Sequence[WindowPart], sources: Mapping[int, RowState]) -> frozenset[int]:
    """Return numbers of the parts that have seen all parts before them, some of which have left or are computed again.

    None where no part keeps its rows. None either where a part keeps its rows without having seen all parts before it:
    what that does to an answer must not be blamed on survivors.
    """
    kept = {part.number for part in parts if sources[part.number] == RowState.WRITTEN}
    as_taken = find_stale([part.version if part.number in kept else PartVersion(part.number) for part in parts])
    if not kept or any(unseen(staleness) for staleness in as_taken if staleness.number in kept):
        return frozenset()
    as_written = find_stale([part.version for part in parts])
    again = {staleness.number for staleness in as_written if staleness.number not in kept and not unseen(staleness)}
    return frozenset(again.union(staleness.number for staleness in as_taken if staleness.number in kept))


def copy_rows(
    parts: Sequence[WindowPart], wanted: Mapping[int, int], table: KVTable, model: str
) -> dict[int, WrittenRows]:
    """Copy the rows of some parts out of the linked table of a window; return them by number.

    Args:
        parts: the window's parts, whose rows are the table's first.
        wanted: a new version for the number of each part to copy.
        table: the linked table.
        model: fingerprint of the model that wrote it.
    """
    written: dict[int, WrittenRows] = {}
    preceding: list[tuple[int, int]] = []
    absorbed: frozenset[str] = frozenset()
    row = position = 0
    for part in parts:
        pieces = []
        for member in part.members:
            if part.number in wanted:
                pieces.append(_copy_member(member, table, model, row, position))
            row, position = row + member.tokens, position + member.encoded.span
        rows = part.rows
        if part.number in wanted:
            own = absorbed.union(part.sources)
            rows = written[part.number] = WrittenRows(tuple(pieces), wanted[part.number], tuple(preceding), own)
        if rows is not None:
            absorbed |= rows.absorbed
            preceding.append((part.number, rows.version))
    return written


def _copy_member(member: PartMember, table: KVTable, model: str, row: int, position: int) -> Chunk:
    layers = (table.read(layer, row, row + member.tokens) for layer in range(len(table.layouts)))
    rows = tuple(LayerRows(layer.keys.clone(), layer.values.clone()) for layer in layers)
    kind = "text" if member.chunk is None else member.chunk.kind
    return Chunk(uuid4().hex + uuid4().hex, kind, model, member.encoded, rows, base=position)
