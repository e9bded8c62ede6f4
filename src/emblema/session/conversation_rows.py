"""Rows of a tenant's latest conversations, for requests that ask for them; a conversation is known by its pictures."""

from collections import OrderedDict

import torch

from emblema.kv.chunk import Chunk, Encoded
from emblema.link.kept_rows import TEXT, KeptConversation, KeptRows, PromptRun, new_id, place_kept, runs_of
from emblema.link.prompt import Prompt, RowState
from emblema.models.adapter import Adapter
from emblema.models.tables import KVTable
from emblema.session.requests import Prefill
from emblema.store.store import TenantStore

CONVERSATIONS = 16
LARGEST = 256 * 2**20
"""Bytes of rows that are kept at most, of all conversations of a tenant."""


class ConversationRows:
    """The rows of one tenant's latest conversations. On the thread that owns the model."""

    def __init__(self, adapter: Adapter, store: TenantStore) -> None:
        self._adapter, self._store = adapter, store
        self._conversations: OrderedDict[int, KeptConversation] = OrderedDict()
        self._number = 0

    @property
    def bytes(self) -> int:
        """Bytes of all rows that are kept."""
        return sum(own.piece.bytes for kept in self._conversations.values() for _, own in kept.runs)

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
        deleted = self._store.deleted(kept.absorbed)
        kept = self._conversations[number] = kept.without(frozenset(deleted))
        return place_kept(prompt, kept, trusted)[0]

    def keep(self, prefill: Prefill) -> None:
        """Keep the rows of a linked prompt, in place of the conversation that it went on with.

        Where the logits were not finite at first, all rows were computed after all: rows that were taken and are not
        finite are dropped, and these kept.
        """
        prompt, number = prefill.prompt, self._nearest(prefill.prompt)
        earlier = KeptConversation(()) if number is None else self._conversations.pop(number)
        before = earlier.pictures
        runs, pictures, table = list[tuple[str, KeptRows]](), dict[str, KeptRows](), prefill.linked.table
        rows = table.rows[: prefill.linked.rows].tolist()
        slots = {row: slot for slot, row in enumerate(rows)}
        again = prefill.plan.recomputation

        def changed(run: PromptRun) -> bool:
            """Return whether some of its rows may have been computed again."""
            return again is not None and any(start < run.stop and run.start < stop for start, stop in again.candidates)

        for run in runs_of(prompt):
            first = slots.get(run.start)
            whole = first is not None and slots.get(run.stop - 1) == first + run.stop - run.start - 1
            if first is None or not whole or run.name in pictures:
                continue
            written = run.part is not None and run.part.state is RowState.WRITTEN and not changed(run)
            taken = before.get(run.name) if written else None
            if taken is None or not (prefill.usage.finite or taken.piece.finite):
                taken = self._copy(prompt, run, table, first, pictures)
            runs.append((run.name, taken))
            if run.name:
                pictures[run.name] = taken
        if pictures:
            self._number += 1
            self._conversations[self._number] = KeptConversation(tuple(runs), earlier.absorbed)
        while self._conversations and (len(self._conversations) > CONVERSATIONS or self.bytes > LARGEST):
            self._conversations.popitem(last=False)

    def _copy(
        self, prompt: Prompt, run: PromptRun, table: KVTable, first: int, pictures: dict[str, KeptRows]
    ) -> KeptRows:
        """Copy the rows of a run, from a slot on; `pictures` has those of the pictures before it."""
        rows = table.gather(torch.arange(first, first + run.stop - run.start))
        encoded = self._encoded(prompt, run)
        kind = TEXT if run.part is None else run.part.chunk.kind
        piece = Chunk(new_id(), kind, self._adapter.fingerprint, encoded, rows, base=run.position)
        earlier = (pictures[name].absorbed for name in run.antecedents if name in pictures)
        own = {run.name} if run.name else set()
        return KeptRows(piece, run.written_after, frozenset({*own, *run.antecedents}).union(*earlier))

    def _encoded(self, prompt: Prompt, run: PromptRun) -> Encoded:
        if run.part is not None:
            return run.part.chunk.encoded
        return self._adapter.encode_text(prompt.token_ids[run.start : run.stop])

    def _nearest(self, prompt: Prompt) -> int | None:
        """Return the number of the conversation with most of a prompt's pictures, the latest of several."""
        names = {part.name for part in prompt.chunk_parts if part.name}
        shared = {number: len(names & kept.pictures.keys()) for number, kept in self._conversations.items()}
        best = max(shared, key=lambda number: (shared[number], number), default=None)
        return best if best is not None and shared[best] else None
