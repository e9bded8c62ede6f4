"""Inline media: computed in their place in the prompt, and made into chunks when they come a second time."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from emblema.errors import CapacityError
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt, RowState
from emblema.models.adapter import Adapter
from emblema.session.patch_worker import PatchJob
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


class SeenMedia:
    """Remembers the media of one tenant's prompts. Used on the thread that owns the model."""

    def __init__(self, adapter: Adapter, store: TenantStore) -> None:
        self.adapter, self.store = adapter, store
        self.statistics = InlineMediaStatistics()
        self._seen: OrderedDict[str, None] = OrderedDict()
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
            self._seen.move_to_end(id)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
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
            if name in self.store or (name not in deleted and self._prefill(chunk)):
                self._seen.pop(name, None)
            else:
                self._count(dropped=1)
        for job, policy in jobs:
            form(job, policy)

    def _prefill(self, chunk: Chunk) -> bool:
        """Prefill a chunk alone and keep it; return whether it was kept."""
        rows = self.adapter.capture(chunk.encoded)
        self._rows -= chunk.tokens
        self._count(rows=chunk.tokens)
        try:
            made = self.store.put_unless_deleted(replace(chunk, rows=rows))
        except CapacityError:
            return False
        self._count(made=int(made))
        return made

    def _count(self, **more: int) -> None:
        changes = {name: getattr(self.statistics, name) + change for name, change in more.items()}
        self.statistics = replace(self.statistics, **changes)
