"""Rows that a conversation's requests had for their pictures and texts, for requests that ask for them.

A request that sends a conversation again without some of its pictures takes the rows of what stays, as a window does
(Kamera, section 5). Such rows are memory: they hold what they absorbed of pictures that are not shown any more. A
conversation is recognised by its pictures' ids, and a text by the pictures around it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import torch

from emblema.kv.chunk import Chunk, ChunkKind, Encoded
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, Segment, TextPart
from emblema.models.adapter import Adapter
from emblema.models.tables import KVTable
from emblema.session.requests import Prefill
from emblema.store.store import TenantStore

CONVERSATIONS = 16
LARGEST = 256 * 2**20
"""Bytes of rows that are kept at most, of all conversations of a tenant."""
TEXT: ChunkKind = "text"
SHORTEST = 4
"""Rows of the shortest text that is taken: fewer are computed as fast."""
START = ""
"""Stands for the picture before the first text."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """Rows of a picture, or of the text between two pictures, as an earlier request had them.

    Attributes:
        piece: a chunk that holds them; its `base` is the position that they were written at.
        antecedents: ids of the pictures before it then.
        absorbed: ids of every picture that the rows may hold something of, a picture's own included.
    """

    piece: Chunk
    antecedents: tuple[str, ...]
    absorbed: frozenset[str]

    def cut(self, start: int, stop: int) -> "KeptRows":
        """Return rows `start` to `stop` of a text."""
        piece, encoded = self.piece, self.piece.encoded
        own = replace(
            encoded,
            token_ids=encoded.token_ids[start:stop],
            embeds=encoded.embeds[start:stop],
            positions=encoded.positions[:, : stop - start],
            span=stop - start,
            visual=encoded.visual[start:stop],
            groups=encoded.groups[start:stop],
        )
        rows = tuple(layer.slice(start, stop) for layer in piece.rows)
        return replace(self, piece=Chunk(_new_id(), TEXT, piece.model, own, rows, base=piece.base + start))


@dataclass(frozen=True, slots=True, eq=False)
class KeptConversation:
    """What is kept of a conversation.

    Attributes:
        pictures: by id.
        texts_before, texts_after: texts by the id of the picture after them, and before them.
    """

    pictures: dict[str, KeptRows]
    texts_before: dict[str, KeptRows]
    texts_after: dict[str, KeptRows]

    @property
    def all(self) -> tuple[KeptRows, ...]:
        """All of it, each once."""
        # A text that nothing comes after is found by what is before it alone, and all others by both.
        return (*self.pictures.values(), *self.texts_after.values())

    def without(self, deleted: frozenset[str]) -> "KeptConversation":
        """Return what holds nothing of some pictures."""

        def clean(held: dict[str, KeptRows]) -> dict[str, KeptRows]:
            return {name: own for name, own in held.items() if own.absorbed.isdisjoint(deleted)}

        return KeptConversation(clean(self.pictures), clean(self.texts_before), clean(self.texts_after))


@dataclass(frozen=True, slots=True)
class _Run:
    """A picture of a prompt, or all the text between two.

    Attributes:
        part: of the picture; None for text.
        before, after: ids of the pictures around it; None after the last.
        antecedents: ids of all pictures before it.
        start, stop: its rows.
        position: that its first row is counted from.
    """

    part: ChunkPart | None
    before: str
    after: str | None
    antecedents: tuple[str, ...]
    start: int
    stop: int
    position: int

    @property
    def name(self) -> str:
        return "" if self.part is None else self.part.name


class ConversationRows:
    """The rows of one tenant's latest conversations. On the thread that owns the model."""

    def __init__(self, adapter: Adapter, store: TenantStore) -> None:
        self._adapter, self._store = adapter, store
        self._conversations: OrderedDict[int, KeptConversation] = OrderedDict()
        self._number = 0

    @property
    def bytes(self) -> int:
        """Bytes of all rows that are kept."""
        return sum(own.piece.bytes for kept in self._conversations.values() for own in kept.all)

    def place(self, prompt: Prompt, trusted: frozenset[str]) -> Prompt:
        """Return the prompt with the rows of the conversation that has most of its pictures.

        Args:
            prompt: what is asked.
            trusted: kinds of content whose rows may be taken after other pictures; after the same ones they always may.
        """
        number = self._nearest(prompt)
        if number is None:
            return prompt
        kept = self._conversations[number]
        deleted = self._store.deleted({name for own in kept.all for name in own.absorbed})
        kept = self._conversations[number] = kept.without(frozenset(deleted))
        left, parts = dict(kept.pictures), list[Part]()
        for run in _runs(prompt):
            if run.part is None:
                parts += _placed_text(tuple(prompt.token_ids[run.start : run.stop].tolist()), run, kept, trusted)
                continue
            own, part = left.get(run.name), run.part
            if own is None or part.slid or part.state is RowState.WRITTEN or not _may_take(own, run, part, trusted):
                parts.append(part)
                continue
            del left[run.name]
            parts.append(_written(own, run, run.name))
        return Prompt.of(parts, prompt.axes)

    def keep(self, prefill: Prefill) -> None:
        """Keep the rows of a linked prompt, in place of the conversation that it went on with.

        Where the logits were not finite at first, all rows were computed after all: rows that were taken and are not
        finite are dropped, and these kept.
        """
        prompt, number = prefill.prompt, self._nearest(prefill.prompt)
        before = {} if number is None else self._conversations.pop(number).pictures
        kept, table = KeptConversation({}, {}, {}), prefill.linked.table
        rows = table.rows[: prefill.linked.rows].tolist()
        slots = {row: slot for slot, row in enumerate(rows)}
        for run in _runs(prompt):
            first = slots.get(run.start)
            whole = first is not None and slots.get(run.stop - 1) == first + run.stop - run.start - 1
            if first is None or not whole or run.name in kept.pictures:
                continue
            taken = before.get(run.name) if run.part is not None and run.part.state is RowState.WRITTEN else None
            if taken is None or not (prefill.usage.finite or taken.piece.finite):
                taken = self._copy(prompt, run, table, first, kept)
            if run.part is not None:
                if run.name:
                    kept.pictures[run.name] = taken
                continue
            kept.texts_after[run.before] = taken
            if run.after is not None:
                kept.texts_before[run.after] = taken
        if kept.pictures:
            self._number += 1
            self._conversations[self._number] = kept
        while self._conversations and (len(self._conversations) > CONVERSATIONS or self.bytes > LARGEST):
            self._conversations.popitem(last=False)

    def _copy(self, prompt: Prompt, run: _Run, table: KVTable, first: int, kept: KeptConversation) -> KeptRows:
        """Copy the rows of a run, from a slot on; `kept` has those of the pictures before it."""
        rows = table.gather(torch.arange(first, first + run.stop - run.start))
        encoded = self._encoded(prompt, run)
        kind = TEXT if run.part is None else run.part.chunk.kind
        piece = Chunk(_new_id(), kind, self._adapter.fingerprint, encoded, rows, base=run.position)
        earlier = (kept.pictures[name].absorbed for name in run.antecedents if name in kept.pictures)
        own = {run.name} if run.name else set()
        return KeptRows(piece, run.antecedents, frozenset({*own, *run.antecedents}).union(*earlier))

    def _encoded(self, prompt: Prompt, run: _Run) -> Encoded:
        if run.part is not None:
            return run.part.chunk.encoded
        return self._adapter.encode_text(prompt.token_ids[run.start : run.stop])

    def _nearest(self, prompt: Prompt) -> int | None:
        """Return the number of the conversation with most of a prompt's pictures, the latest of several."""
        names = {part.name for part in prompt.chunk_parts if part.name}
        shared = {number: len(names & kept.pictures.keys()) for number, kept in self._conversations.items()}
        best = max(shared, key=lambda number: (shared[number], number), default=None)
        return best if best is not None and shared[best] else None


def _runs(prompt: Prompt) -> Iterator[_Run]:
    """Yield a prompt's pictures and the texts between them, in order; parts without a name are text."""
    before, text = START, list[Segment]()

    def joined(after: str | None) -> Iterator[_Run]:
        if text:
            first = text[0]
            antecedents = prompt.antecedents(first)
            yield _Run(None, before, after, antecedents, first.start, text[-1].stop, first.position)
            text.clear()

    for segment in prompt.segments:
        part = segment.part
        if isinstance(part, TextPart) or not part.name:
            text.append(segment)
            continue
        yield from joined(part.name)
        yield _Run(part, before, None, prompt.antecedents(segment), *segment.rows, segment.position)
        before = part.name
    yield from joined(None)


def _placed_text(token_ids: tuple[int, ...], run: _Run, kept: KeptConversation, trusted: frozenset[str]) -> list[Part]:
    """Return a text as parts: what the text after the same picture began with, the rest, and what the one before the
    same picture ended with."""
    parts, start, stop = list[Part](), 0, len(token_ids)
    own = kept.texts_after.get(run.before)
    if own is not None and _may_take(own, run, None, trusted):
        start = _shared(token_ids, own.piece.encoded.token_ids.tolist())
        if start >= SHORTEST:
            parts.append(_written(own.cut(0, start), run, ""))
        else:
            start = 0
    own = None if run.after is None else kept.texts_before.get(run.after)
    tail = None
    if own is not None and _may_take(own, run, None, trusted):
        ids = own.piece.encoded.token_ids.tolist()
        count = _shared(token_ids[start:][::-1], ids[::-1])
        if count >= SHORTEST:
            stop, tail = stop - count, _written(own.cut(len(ids) - count, len(ids)), run, "")
    parts.append(TextPart(token_ids[start:stop]))
    return parts if tail is None else [*parts, tail]


def _may_take(own: KeptRows, run: _Run, part: ChunkPart | None, trusted: frozenset[str]) -> bool:
    kind = TEXT if part is None else part.chunk.kind
    return own.antecedents == run.antecedents or kind in trusted


def _written(own: KeptRows, run: _Run, name: str) -> ChunkPart:
    """Return kept rows as a part of a prompt in the place of a run."""
    moved = own.antecedents != run.antecedents
    return ChunkPart(own.piece, False, RowState.WRITTEN, name, kept_after_slide=moved)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many equal tokens two texts begin."""
    most = min(len(one), len(other))
    return next((place for place in range(most) if one[place] != other[place]), most)


def _new_id() -> str:
    return uuid4().hex + uuid4().hex
