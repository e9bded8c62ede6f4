"""Rows that earlier requests computed in context, taken again where a request asks for survivors.

Such rows are memory: they hold what they absorbed of pictures that the present request may not show any more (Kamera,
section 5). A window does the same for its parts; here a conversation is recognised by its pictures' ids.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from emblema.errors import PromptError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.models.tables import KVTable
from emblema.session.requests import Prefill
from emblema.store.store import TenantStore

SurvivorChoice = Literal["drop", "keep"]

CONVERSATIONS = 16
LARGEST = 256 * 2**20
"""Bytes of rows that are kept at most, of all conversations of a tenant."""


@dataclass(frozen=True, slots=True, eq=False)
class SurvivingRows:
    """One picture's rows as an earlier request had them.

    Attributes:
        piece: a chunk that holds them; its `base` is the position that they were written at.
        antecedents: ids of the pictures before it then.
        absorbed: ids of every picture that the rows may hold something of, the picture's own included.
    """

    piece: Chunk
    antecedents: tuple[str, ...]
    absorbed: frozenset[str]


def keeps_survivors(choice: str) -> bool:
    """Return whether a request asks for survivors.

    Raises:
        PromptError: the choice is unknown.
    """
    if choice not in ("drop", "keep"):
        raise PromptError(f"survivors is {choice!r}: choose drop or keep")
    return choice == "keep"


class SurvivorCache:
    """The rows of one tenant's latest conversations. On the thread that owns the model."""

    def __init__(self, store: TenantStore) -> None:
        self._store = store
        self._conversations: OrderedDict[int, dict[str, SurvivingRows]] = OrderedDict()
        self._number = 0

    @property
    def bytes(self) -> int:
        """Bytes of all rows that are kept."""
        rows = (rows for kept in self._conversations.values() for rows in kept.values())
        return sum(rows.piece.bytes for rows in rows)

    def place(self, prompt: Prompt, trusted: frozenset[str]) -> Prompt:
        """Return the prompt with the rows of the conversation that has most of its pictures.

        Args:
            prompt: what is asked.
            trusted: kinds of content whose survivors may be taken; rows after the same pictures as then always may.
        """
        kept = self._found(prompt)
        if not kept:
            return prompt
        taken: set[str] = set()

        def placed(segment: Segment) -> Segment:
            part = segment.part
            if not isinstance(part, ChunkPart) or part.slid or part.state is RowState.WRITTEN or part.name in taken:
                return segment
            rows = kept.get(part.name)
            survivor = rows is not None and rows.antecedents != prompt.antecedents(segment)
            if rows is None or (survivor and part.chunk.kind not in trusted):
                return segment
            taken.add(part.name)
            return replace(segment, part=ChunkPart(rows.piece, False, RowState.WRITTEN, part.name, survivor))

        return Prompt(tuple(placed(segment) for segment in prompt.segments), prompt.axes, prompt.next_position)

    def keep(self, prefill: Prefill) -> None:
        """Keep the rows of a linked prompt's pictures, in place of the conversation that it went on with.

        Where the logits were not finite at first, all rows were computed after all: rows that were taken and are not
        finite are dropped, and these kept.
        """
        prompt, number = prefill.prompt, self._nearest(prefill.prompt)
        before = {} if number is None else self._conversations.pop(number)
        kept: dict[str, SurvivingRows] = {}
        for segment, slots in _held(prefill):
            part = segment.part
            if not isinstance(part, ChunkPart) or not part.name or part.name in kept:
                continue
            antecedents = prompt.antecedents(segment)
            taken = before.get(part.name) if part.state is RowState.WRITTEN else None
            if taken is not None and (prefill.usage.finite or taken.piece.finite):
                kept[part.name] = taken
                continue
            absorbed = {part.name, *antecedents}
            for name in antecedents:
                absorbed |= kept[name].absorbed if name in kept else set()
            piece = _copied(part.chunk, prefill.linked.table, slots, segment.position)
            kept[part.name] = SurvivingRows(piece, antecedents, frozenset(absorbed))
        if kept:
            self._number += 1
            self._conversations[self._number] = kept
        while self._conversations and (len(self._conversations) > CONVERSATIONS or self.bytes > LARGEST):
            self._conversations.popitem(last=False)

    def _found(self, prompt: Prompt) -> dict[str, SurvivingRows]:
        """Return the nearest conversation's rows, without those that hold something of a deleted picture."""
        number = self._nearest(prompt)
        if number is None:
            return {}
        kept = self._conversations[number]
        deleted = self._store.deleted({name for rows in kept.values() for name in rows.absorbed})
        left = {name: rows for name, rows in kept.items() if rows.absorbed.isdisjoint(deleted)}
        self._conversations[number] = left
        return left

    def _nearest(self, prompt: Prompt) -> int | None:
        """Return the number of the conversation with most of a prompt's pictures, the latest of several."""
        names = {part.name for part in prompt.chunk_parts if part.name}
        shared = {number: len(names & kept.keys()) for number, kept in self._conversations.items()}
        best = max(shared, key=lambda number: (shared[number], number), default=None)
        return best if best is not None and shared[best] else None


def _held(prefill: Prefill) -> Iterator[tuple[Segment, slice]]:
    """Yield the chunks whose rows are all in the linked table, with their slots."""
    rows = prefill.linked.table.rows[: prefill.linked.rows].tolist()
    first = {row: slot for slot, row in enumerate(rows)}
    for segment, chunk in prefill.prompt.chunk_segments:
        slot = first.get(segment.start)
        if slot is not None and first.get(segment.stop - 1) == slot + chunk.tokens - 1:
            yield segment, slice(slot, slot + chunk.tokens)


def _copied(chunk: Chunk, table: KVTable, slots: slice, position: int) -> Chunk:
    layers = (table.read(layer, slots.start, slots.stop) for layer in range(len(table.layouts)))
    rows = tuple(LayerRows(layer.keys.clone(), layer.values.clone()) for layer in layers)
    return Chunk(uuid4().hex + uuid4().hex, chunk.kind, chunk.model, chunk.encoded, rows, base=position)
