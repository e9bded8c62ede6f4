"""Media that come with prompts and are not in the store: what is made of them, and what is kept of their rows.

They are computed in their place. What comes a second time is prefilled alone after the answer, and stored. In a prompt
most of whose media are known, that is done before it is linked, if a second pass over all of them pays then.

A request may ask for the rows that an earlier one of its conversation computed. Such rows are memory: they hold what
they absorbed of pictures that the present request may not show any more (Kamera, section 5). A window does the same for
its parts; here a conversation is recognised by its pictures' ids.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import torch

from emblema.errors import CapacityError
from emblema.kv.chunk import Chunk
from emblema.latest import LatestDict
from emblema.link.policy.decide import worth_capturing
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge
from emblema.models.adapter import Adapter
from emblema.session.patch_worker import PatchJob
from emblema.session.requests import LinkRequest, Prefill
from emblema.store.store import TenantStore

REMEMBERED = 4096
"""Ids of media seen once, at most."""
CONVERSATIONS = 16
LARGEST = 256 * 2**20
"""Bytes of rows that are kept at most, of all conversations of a tenant."""


@dataclass(frozen=True, slots=True)
class InlineMediaStatistics:
    """Counts of media that came with prompts and were not in the store.

    Attributes:
        seen: pieces computed in their place.
        made: pieces that came again and were made into chunks after the answer.
        dropped: pieces that came again and were not made: deleted meanwhile, or no room in the queue, in the store,
            or in the share of rows.
        rows: rows prefilled alone for that.
    """

    seen: int = 0
    made: int = 0
    dropped: int = 0
    rows: int = 0


class NewMedia:
    """Remembers the new media of one tenant's prompts. Used on the thread that owns the model."""

    def __init__(self, adapter: Adapter, store: TenantStore) -> None:
        self.adapter, self.store = adapter, store
        self.statistics = InlineMediaStatistics()
        self._seen: LatestDict[str, None] = LatestDict(REMEMBERED)
        self._waiting: dict[str, Chunk] = {}
        self._jobs: list[tuple[PatchJob, Policy]] = []
        # Rows that the share has given so far and nothing has used up.
        self._rows = 0.0

    @property
    def waiting(self) -> bool:
        """Whether there are chunks to be made."""
        return bool(self._waiting)

    def has_seen(self, chunk: str) -> bool:
        """Return whether media of this id came before."""
        return chunk in self._seen

    def capture(self, request: LinkRequest, knowledge: Knowledge) -> tuple[LinkRequest, int]:
        """Prefill alone, before a prompt is linked, the new media of which a second pass pays then.

        Args:
            request: what is asked, with its strategy as it was parsed.
            knowledge: what it will be planned with.

        Returns:
            The request with the rows that are kept now, and how many rows ran for that.
        """
        strategy, prompt = request.strategy, request.prompt
        if not isinstance(strategy, Auto) or strategy.trial is not None or not request.inline_media:
            return request, 0
        policy = strategy.policy or knowledge.policy
        if not policy.forming or all(part.state is not RowState.MISSING for part in prompt.chunk_parts):
            return request, 0
        prefix = knowledge.find_prefix(prompt)
        new = worth_capturing(prompt, knowledge, knowledge.costs, policy, 0 if prefix is None else prefix.rows)
        made = {id: replace(chunk, rows=self.adapter.capture(chunk.encoded)) for id, chunk in new.items()}
        stored = {id: chunk for id, chunk in made.items() if self._store(chunk)}

        def with_rows(segment: Segment, part: ChunkPart) -> ChunkPart:
            chunk = stored.get(part.chunk.id)
            return part if chunk is None else replace(part, chunk=chunk, state=RowState.CANONICAL)

        rows = sum(chunk.tokens for chunk in new.values())
        return replace(request, prompt=prompt.map_chunks(with_rows)) if stored else request, rows

    def due(self, prompt: Prompt, policy: Policy) -> dict[str, Chunk]:
        """Return pieces of a prompt that came before, to be made into chunks; the others are remembered.

        Under `Policy.inline_media_at_once` all of them are.
        """
        parts = (part for part in prompt.chunk_parts if part.state is RowState.MISSING and part.name)
        fresh = {part.chunk.id: part.chunk for part in parts}
        met = fresh if policy.inline_media_at_once else self._seen
        again = {id: chunk for id, chunk in fresh.items() if id in met and id not in self._waiting}
        self._count(seen=len(fresh))
        for id in fresh:
            self._seen[id] = None
        return again if policy.forming else {}

    def keep(self, due: Mapping[str, Chunk], jobs: Sequence[PatchJob], computed: int, policy: Policy) -> None:
        """Queue chunks to be made, with the jobs that form patches after it; what does not fit is counted.

        Args:
            due: the chunks.
            jobs: patches whose keys hold one of them.
            computed: rows that were computed for the answer.
            policy: bounds of the request.
        """
        self._rows += policy.inline_media_rows * computed
        rows = sum(chunk.tokens for chunk in (*self._waiting.values(), *due.values()))
        size = sum(job.bytes for job in jobs) + sum(job.bytes for job, _ in self._jobs)
        if rows > self._rows or size > policy.forming_bytes:
            self._count(dropped=len(due))
            return
        self._waiting.update(due)
        self._jobs += [(job, policy) for job in jobs]

    def make(self, form: Callable[[PatchJob, Policy], object]) -> None:
        """Prefill alone the chunks that wait, keep them, and have the patches formed."""
        waiting, jobs = self._waiting, self._jobs
        self._waiting, self._jobs = {}, []
        deleted = self.store.deleted(waiting)
        for name, chunk in waiting.items():
            stored = name in self.store
            if not stored and name not in deleted:
                self._rows -= chunk.tokens
                stored = self._store(replace(chunk, rows=self.adapter.capture(chunk.encoded)))
                self._count(rows=chunk.tokens, made=int(stored))
            if stored:
                self._seen.pop(name, None)
            else:
                self._count(dropped=1)
        for job, policy in jobs:
            form(job, policy)

    def _store(self, chunk: Chunk) -> bool:
        """Store a chunk; return whether the store has it now."""
        try:
            return self.store.put_unless_deleted(chunk)
        except CapacityError:
            return False

    def _count(self, **more: int) -> None:
        changes = {name: getattr(self.statistics, name) + change for name, change in more.items()}
        self.statistics = replace(self.statistics, **changes)


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """One picture's rows as an earlier request computed them.

    Attributes:
        piece: a chunk that holds them; its `base` is the position that they were written at.
        antecedents: ids of the pictures before it then.
        absorbed: ids of every picture that the rows may hold something of, the picture's own included.
    """

    piece: Chunk
    antecedents: tuple[str, ...]
    absorbed: frozenset[str]


class ConversationRows:
    """The rows of one tenant's latest conversations. On the thread that owns the model."""

    def __init__(self, store: TenantStore) -> None:
        self._store = store
        self._conversations: OrderedDict[int, dict[str, KeptRows]] = OrderedDict()
        self._number = 0

    @property
    def bytes(self) -> int:
        """Bytes of all rows that are kept."""
        return sum(rows.piece.bytes for kept in self._conversations.values() for rows in kept.values())

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
        deleted = self._store.deleted({name for rows in kept.values() for name in rows.absorbed})
        kept = {name: rows for name, rows in kept.items() if rows.absorbed.isdisjoint(deleted)}
        self._conversations[number] = kept
        left = dict(kept)

        def placed(segment: Segment, part: ChunkPart) -> ChunkPart:
            rows = left.get(part.name)
            if rows is None or part.slid or part.state is RowState.WRITTEN:
                return part
            moved = rows.antecedents != prompt.antecedents(segment)
            if moved and part.chunk.kind not in trusted:
                return part
            del left[part.name]
            return ChunkPart(rows.piece, False, RowState.WRITTEN, part.name, kept_after_slide=moved)

        return prompt.map_chunks(placed)

    def keep(self, prefill: Prefill) -> None:
        """Keep the rows of a linked prompt's pictures, in place of the conversation that it went on with.

        Where the logits were not finite at first, all rows were computed after all: rows that were taken and are not
        finite are dropped, and these kept.
        """
        prompt, number = prefill.prompt, self._nearest(prefill.prompt)
        before = {} if number is None else self._conversations.pop(number)
        kept: dict[str, KeptRows] = {}
        rows = prefill.linked.table.rows[: prefill.linked.rows].tolist()
        slots = {row: slot for slot, row in enumerate(rows)}
        for (segment, chunk), part in zip(prompt.chunk_segments, prompt.chunk_parts, strict=True):
            name, first = part.name, slots.get(segment.start)
            whole = first is not None and slots.get(segment.stop - 1) == first + chunk.tokens - 1
            if first is None or not whole or not name or name in kept:
                continue
            taken = before.get(name) if part.state is RowState.WRITTEN else None
            if taken is not None and (prefill.usage.finite or taken.piece.finite):
                kept[name] = taken
                continue
            antecedents = prompt.antecedents(segment)
            earlier = (kept[name].absorbed for name in antecedents if name in kept)
            copied = prefill.linked.table.gather(torch.arange(first, first + chunk.tokens))
            piece = Chunk(
                uuid4().hex + uuid4().hex, chunk.kind, chunk.model, chunk.encoded, copied, base=segment.position
            )
            kept[name] = KeptRows(piece, antecedents, frozenset({name, *antecedents}).union(*earlier))
        if kept:
            self._number += 1
            self._conversations[self._number] = kept
        while self._conversations and (len(self._conversations) > CONVERSATIONS or self.bytes > LARGEST):
            self._conversations.popitem(last=False)

    def _nearest(self, prompt: Prompt) -> int | None:
        """Return the number of the conversation with most of a prompt's pictures, the latest of several."""
        names = {part.name for part in prompt.chunk_parts if part.name}
        shared = {number: len(names & kept.keys()) for number, kept in self._conversations.items()}
        best = max(shared, key=lambda number: (shared[number], number), default=None)
        return best if best is not None and shared[best] else None
