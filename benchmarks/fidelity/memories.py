"""Memories of pairs that are formed for a test: complete for one item at a time, on a basis made from other items."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.prompts import Piece
from emblema.engine.engine import Engine
from emblema.kv.artifacts import Artifact
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerLayout
from emblema.kv.pairs import width_of
from emblema.link.executor import Executor
from emblema.link.prompt import ChunkPart, Part, Prompt, Segment, TextPart
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.full import Full
from emblema.link.taken_rows import LinkJob, ShareSample
from emblema.session.pair_bases import PairBases
from emblema.session.pair_memory import PairMemory, PairSettings
from emblema.session.pair_rows import linked_rows
from emblema.session.requests import Prefill, Usage
from emblema.store.keys import ArtifactKey

EVERY_ROW = 1_000_000
DEFAULT, EXACT, SMALL = "", "exact", "small"
"""The engine's own settings; differences as they are; a given share of a chunk's bytes a pair."""
SMALL_SHARES = {"heads": 0.01, "latent": 0.04}
"""Share of a chunk's bytes that a pair of `SMALL` may take, by how rows are kept."""
PAIR_BYTES = 11
"""Bytes of a row of a pair beside its coefficients: scale, place, count, share and sightings."""
SMALLEST_PART = 2


def settings_of(name: str, layouts: Sequence[LayerLayout], itemsize: int) -> PairSettings:
    """Return the settings of a memory by name.

    Args:
        layouts: the model's.
        itemsize: bytes of a number of the model's rows.

    Raises:
        KeyError: there is no memory of that name.
    """
    made = {
        DEFAULT: PairSettings(),
        EXACT: PairSettings(exact=True),
        SMALL: PairSettings(rank=small_rank(layouts, itemsize), share=1.0),
    }
    return made[name]


def small_rank(layouts: Sequence[LayerLayout], itemsize: int) -> int:
    """Return the directions whose coefficients, with all that goes with them, fit `SMALL_SHARES`."""
    return int(SMALL_SHARES[layouts[0].kind] * width_of(layouts) * itemsize) - PAIR_BYTES


@dataclass(frozen=True, slots=True)
class ShownPrompts:
    """Prompts that a basis is made from: `draw` returns chunks of one item, of those in `items`, in some order."""

    items: Sequence[Sequence[Chunk]]
    seed: int

    def draw(self, number: int) -> Sequence[Chunk]:
        """Return some chunks of one item, half of them or more, in random order."""
        random = np.random.default_rng([self.seed, number])
        chunks = self.items[number % len(self.items)]
        count = int(random.integers(min(len(chunks), max(SMALLEST_PART, len(chunks) // 2)), len(chunks) + 1))
        return [chunks[int(place)] for place in random.permutation(len(chunks))[:count]]


class ItemMemories:
    """Memories of pairs of one model, by name; they know one item at a time.

    Each is taught by prompts that are computed in full: the model's rows are noted in the forward that computes them,
    and learnt from as an engine learns.

    Args:
        engine: whose model and store are used.
        names: of `DEFAULT`, `EXACT` and `SMALL`.
    """

    def __init__(self, engine: Engine, names: Iterable[str]) -> None:
        adapter, store = engine.adapter, engine.store
        self._executor, self._store = Executor(adapter), store
        self._knowledge = Knowledge(adapter.fingerprint, adapter.layouts, lambda key: None, lambda prompt: None)
        self._memories = {
            name: PairMemory(
                lambda: store,
                adapter.fingerprint,
                adapter.layouts,
                adapter.dtype,
                adapter.devices,
                PairBases(None),
                store.owner,
                settings_of(name, adapter.layouts, adapter.dtype.itemsize),
            )
            for name in names
        }

    def make_bases(self, shown: ShownPrompts, opening: Sequence[int]) -> int:
        """Show prompts of other items until every memory has its last basis; return how many were shown.

        Of each prompt as many rows are noted as an engine notes of an ordinary prompt. What is learnt of those items is
        of no use to any other, and goes with their chunks.

        Args:
            shown: the prompts.
            opening: token ids that each begins with.
        """
        wanted = len(PairSettings().basis_rows)
        learning = [memory for memory in self._memories.values() if not memory.settings.exact]
        number = 0
        while any(memory.statistics.bases < wanted for memory in learning):
            prompt = self._prompt(opening, shown.draw(number), opening[-1:])
            self._show(prompt, ShareSample(PairSettings().noted_rows, number), learning)
            number += 1
        return number

    def show_pairs(self, prompt: Prompt) -> int:
        """Show each chunk of a prompt after each single one before it; return how many prompts that were.

        A shown prompt is the tested one's opening text, the antecedent, the chunk, and one token of its question: the
        memory never sees more than two of the item's chunks together. Every row is learnt from.
        """
        first, last = prompt.segments[0].part, prompt.segments[-1].part
        opening = first.token_ids if isinstance(first, TextPart) else ()
        ending = last.token_ids[:1] if isinstance(last, TextPart) else opening[:1]
        chunks = [chunk for _, chunk in prompt.chunk_segments]
        pairs = dict.fromkeys(
            (before.id, chunk.id)
            for place, chunk in enumerate(chunks)
            for before in chunks[:place]
            if before is not chunk
        )
        own = {chunk.id: chunk for chunk in chunks}
        for number, (before, after) in enumerate(pairs):
            shown = self._prompt(opening, (own[before], own[after]), ending)
            self._show(shown, ShareSample(EVERY_ROW, number), self._memories.values())
        return len(pairs)

    def find(self, name: str) -> Callable[[ArtifactKey], Artifact | None]:
        """Return what a memory puts together for a key; nothing if there is no memory of that name."""
        memory = self._memories.get(name)
        return (lambda key: None) if memory is None else memory.find

    def shares(self, chunks: Iterable[Chunk]) -> Mapping[str, float]:
        """Return the bytes that each memory holds over those of the KV of the chunks that it is of."""
        held = sum(chunk.bytes for chunk in chunks)
        return {name: memory.statistics.bytes / held if held else 0.0 for name, memory in self._memories.items()}

    def _prompt(self, opening: Sequence[int], chunks: Sequence[Chunk], ending: Sequence[int]) -> Prompt:
        front, back = ([TextPart(tuple(text))] if text else [] for text in (opening, ending))
        parts: list[Part] = [*front, *(ChunkPart(chunk) for chunk in chunks), *back]
        return Prompt.of(parts, self._executor.adapter.axes)

    def _show(self, prompt: Prompt, sample: ShareSample, memories: Iterable[PairMemory]) -> None:
        plan = Full().plan(prompt, self._knowledge)
        linked = self._executor.run(LinkJob(plan, prompt, sample=sample))
        prefill = Prefill(prompt, plan, Usage(plan.strategy, prompt.tokens, 0, prompt.tokens, 0, 0, 0.0), linked)
        rows = linked_rows(self._executor.adapter, prefill, _canonical, lambda key: frozenset())
        if rows is not None:
            for memory in memories:
                memory.add(rows)
                memory.settle()


def chunks_of(made: Sequence[Piece]) -> list[Chunk]:
    """Return the chunks of an item's media, in order."""
    return [chunk for piece in made for chunk in piece]


def _canonical(segment: Segment) -> Chunk | None:
    return segment.part.chunk if isinstance(segment.part, ChunkPart) else None
