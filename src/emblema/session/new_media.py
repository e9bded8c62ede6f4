"""Media that come with prompts and are not in the store: what is made of them, and what is kept of their rows.

They are computed in their place. What comes a second time is prefilled alone after the answer, and stored. In a prompt
most of whose media are known, that is done before it is linked, if a second pass over all of them pays then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
from emblema.session.requests import LinkRequest
from emblema.store.store import TenantStore

REMEMBERED = 4096
"""Ids of media seen once, at most."""


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

    def expect(self, chunk: str) -> None:
        """Have media of an id count as seen before."""
        self._seen[chunk] = None

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
        made = {id: self._captured(chunk) for id, chunk in new.items()}
        stored = {id: chunk for id, chunk in made.items() if self._store(chunk)}

        def with_rows(segment: Segment, part: ChunkPart) -> ChunkPart:
            chunk = stored.get(part.chunk.id)
            return part if chunk is None else replace(part, chunk=chunk, state=RowState.CANONICAL, changed=None)

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
                stored = self._store(self._captured(chunk))
                self._count(rows=chunk.tokens, made=int(stored))
            if stored:
                self._seen.pop(name, None)
            else:
                self._count(dropped=1)
        for job, policy in jobs:
            form(job, policy)

    def _captured(self, chunk: Chunk) -> Chunk:
        """Return a chunk with its rows, prefilled alone."""
        encoded = chunk.encoded.made
        return replace(chunk, encoded=encoded, rows=self.adapter.capture(encoded))

    def _store(self, chunk: Chunk) -> bool:
        """Store a chunk; return whether the store has it now."""
        try:
            return self.store.put_unless_deleted(chunk)
        except CapacityError:
            return False

    def _count(self, **more: int) -> None:
        changes = {name: getattr(self.statistics, name) + change for name, change in more.items()}
        self.statistics = replace(self.statistics, **changes)
