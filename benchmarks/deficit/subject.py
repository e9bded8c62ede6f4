"""A chunk with antecedents, and a question about it that is answered from any KV that the chunk may be given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from benchmarks.deficit.recorder import Recording, recorded
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Patch, deficit, form_patch
from emblema.kv.rotation import PhaseBook, place, unplace
from emblema.link.executor import Executor
from emblema.link.plan import LIVE, ChunkOrigin, LinkPlan, PatchUse, PrefixOrigin, RowRange, RowSource
from emblema.link.prompt import ChunkPart, Prompt, Rows, Segment
from emblema.link.strategies.base import computed
from emblema.link.taken_rows import LinkJob, Resources
from emblema.models.adapter import Adapter
from emblema.models.table import KVTable
from emblema.store.keys import ArtifactKey

Deltas = Sequence[LayerRows | None]
"""Per layer, what is added to the position-free canonical rows; None adds nothing."""
NOTHING = Resources()


@dataclass(eq=False)
class Subject:
    """The last chunk of a prompt that has antecedents, with everything in front of it exact in a table.

    Attributes:
        front: the prompt up to the chunk's end.
        table: rows in front of the chunk, every one computed in context; slid antecedents are still in it.
        conditioned: per layer, the chunk's rows after its antecedents, position-free, float32.
        canonical: the same of the chunk prefilled alone.
        seen: attention and residual streams of the chunk's rows in the conditioned forward.
        pictures: the last antecedent and the chunk as [height, width, 3] arrays, where both are pictures.
        episode: what intervals are bootstrapped by.
    """

    adapter: Adapter
    front: Prompt
    table: KVTable
    conditioned: tuple[LayerRows, ...]
    canonical: tuple[LayerRows, ...]
    seen: Recording
    episode: str = ""
    pictures: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(cls, adapter: Adapter, prompt: Prompt, episode: str = "") -> "Subject":
        """Return the subject of a prompt.

        Raises:
            PromptError: no chunk of the prompt comes after another one and is still there for the question.
        """
        segment = subject_segment(prompt)
        front = prompt.until(segment.stop)
        conditioned, table, seen = in_context(adapter, front)
        return cls(adapter, front, table, conditioned, alone(adapter, chunk_of(segment)), seen, episode)

    @property
    def segment(self) -> Segment:
        return self.front.segments[-1]

    @property
    def chunk(self) -> Chunk:
        return chunk_of(self.segment)

    @property
    def antecedents(self) -> tuple[Rows, ...]:
        """Row ranges of the chunks in front."""
        return tuple(segment.rows for segment, _ in self.front.chunk_segments[:-1])

    @property
    def layers(self) -> int:
        return len(self.adapter.layouts)

    @cached_property
    def deficits(self) -> tuple[LayerRows, ...]:
        """Per layer, Kamera's equation 2."""
        return tuple(deficit(own, base) for own, base in zip(self.conditioned, self.canonical, strict=True))

    @cached_property
    def patch(self) -> Patch:
        """The full-rank patch of the deficits, in the model's dtype; cut to a rank where it is used."""
        return form_patch(self.deficits, self.full_rank, self.adapter.dtype)

    @property
    def full_rank(self) -> int:
        """The rank beyond which no slot of any layer has directions left."""
        layouts = self.adapter.layouts
        return min(self.chunk.tokens, max(h * w for layout in layouts for h, w in (layout.keys, layout.values)))


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """Logits [vocab] float32 of a question's answer, and the chunk's rows it was read from, position-free."""

    logits: np.ndarray
    rows: tuple[LayerRows, ...] | None = None


@dataclass(eq=False)
class Case:
    """One question about a subject, in one setting.

    Attributes:
        hop: `multi-hop` or `single-hop`.
        expected: token of the right answer; None where it is not known.
    """

    subject: Subject
    prompt: Prompt
    setting: str = "visible"
    hop: str = "multi-hop"
    expected: int | None = None

    def run(self, ranges: Sequence[RowRange], resources: Resources = NOTHING, *, read: bool = False) -> CaseAnswer:
        """Answer with the chunk's rows as `ranges` say; all rows in front are exact, and so is the question's mask."""
        subject, layers = self.subject, self.subject.layers
        start, stop, last = *subject.segment.rows, self.prompt.tokens
        front = RowRange(0, start, RowSource.TAKEN, (0, layers), PrefixOrigin(LIVE))
        question = computed(self.prompt, layers, stop, last)
        plan = LinkPlan("deficit", last, layers, (front, *ranges, *question))
        executor = Executor(subject.adapter)
        try:
            linked = executor.run(LinkJob(plan, self.prompt, resources, start), table=subject.table)
            rows = read_rows(subject.adapter, linked.table, subject.front, subject.segment) if read else None
        finally:
            subject.table.truncate(start)
        return CaseAnswer(linked.logits.cpu().numpy(), rows)

    def conditioned(self, hidden: tuple[Rows, ...] = (), *, read: bool = False) -> CaseAnswer:
        """Return the chunk computed at its place, blind to the rows `hidden`; to none of them: re-prefill."""
        return self.run([self._computed(hidden)], read=read)

    def blind(self, *, relocated: bool = True) -> CaseAnswer:
        """Return canonical rows, relocated or with the phase that they were written with."""
        return self.run([self._taken(ChunkOrigin(self.subject.chunk.id, 0, relocated))])

    def patched(self, patch: Patch, rank: int) -> CaseAnswer:
        """Return relocated rows with a patch cut to a rank, as a strategy would use it."""
        key = ArtifactKey("deficit", self.subject.chunk.id, ())
        part = replace(self._taken(ChunkOrigin(self.subject.chunk.id)), patch=PatchUse(key, rank))
        return self.run([part], Resources({key: patch}))

    def ask(self, deltas: Deltas, *, read: bool = False) -> CaseAnswer:
        """Return relocated rows with something added to them in the position-free frame."""
        rows = substitute(self.subject, deltas)
        chunk = self.subject.chunk
        return self.run([self._taken(ChunkOrigin(chunk.id))], Resources(rows={chunk.id: rows}), read=read)

    def _taken(self, origin: ChunkOrigin) -> RowRange:
        return RowRange(*self.subject.segment.rows, RowSource.TAKEN, (0, self.subject.layers), origin)

    def _computed(self, hidden: tuple[Rows, ...]) -> RowRange:
        return RowRange(*self.subject.segment.rows, RowSource.COMPUTED, (0, self.subject.layers), hidden=hidden)


def chunk_of(segment: Segment) -> Chunk:
    """Return the chunk of a segment.

    Raises:
        PromptError: it is text.
    """
    if not isinstance(segment.part, ChunkPart):
        raise PromptError("there is text where a chunk is looked for")
    return segment.part.chunk


def subject_segment(prompt: Prompt) -> Segment:
    """Return the last chunk that has antecedents and has not slid.

    Raises:
        PromptError: there is none, or nothing comes after it.
    """
    kept = [segment for segment, _ in prompt.chunk_segments[1:] if segment.rows not in prompt.slid_rows]
    if not kept or kept[-1].stop == prompt.tokens:
        raise PromptError("the prompt needs a chunk after another one, and a question after both")
    return kept[-1]


def in_context(
    adapter: Adapter, front: Prompt, hidden: tuple[Rows, ...] = ()
) -> tuple[tuple[LayerRows, ...], KVTable, Recording]:
    """Compute the chunk at the end of `front` in context: its position-free rows, the table before it, what it saw.

    Args:
        hidden: row ranges that the chunk may not attend.
    """
    layers, segment = len(adapter.layouts), front.segments[-1]
    ranges = computed(front, layers, 0, front.tokens)
    plan = LinkPlan("deficit", front.tokens, layers, (*ranges[:-1], replace(ranges[-1], hidden=hidden)))
    with recorded(adapter, *segment.rows) as seen:
        table = Executor(adapter).run(LinkJob(plan, front)).table
    rows = read_rows(adapter, table, front, segment)
    table.truncate(segment.start)
    return rows, table, seen


def read_rows(adapter: Adapter, table: KVTable, prompt: Prompt, segment: Segment) -> tuple[LayerRows, ...]:
    """Return a segment's rows of a table that holds the whole prompt: copies, position-free, float32."""
    book = PhaseBook(adapter.tables, prompt.positions[:, segment.start : segment.stop].to(adapter.device))
    rows = (
        unplace(table.read(layer, segment.start, segment.stop), layout, book)
        for layer, layout in enumerate(adapter.layouts)
    )
    return tuple(LayerRows(layer.keys.clone(), layer.values.clone()) for layer in rows)


def alone(adapter: Adapter, chunk: Chunk) -> tuple[LayerRows, ...]:
    """Return a chunk's canonical rows, position-free, float32."""
    book = PhaseBook(adapter.tables, chunk.encoded.positions.to(adapter.device))
    return tuple(
        unplace(chunk.rows[layer].to(adapter.device), layout, book) for layer, layout in enumerate(adapter.layouts)
    )


def substitute(subject: Subject, deltas: Deltas) -> KVRows:
    """Return canonical rows with something added, set back to the chunk's own positions; float32, to be cast once."""
    adapter = subject.adapter
    book = PhaseBook(adapter.tables, subject.chunk.encoded.positions.to(adapter.device))
    rows = []
    for layout, base, delta in zip(adapter.layouts, subject.canonical, deltas, strict=True):
        moved = base if delta is None else LayerRows(base.keys + delta.keys, base.values + delta.values)
        rows.append(place(moved, layout, book, moved.keys.dtype))
    return tuple(rows)


def masked(deficits: Sequence[LayerRows], rows: Tensor) -> list[LayerRows]:
    """Return deficits of some rows alone; `rows` [tokens] bool."""
    mask = rows.to(deficits[0].keys.device)[None, :, None]
    return [LayerRows(layer.keys * mask, layer.values * mask) for layer in deficits]
