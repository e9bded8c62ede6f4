"""A reply under way: decoding, and linking what the model asks for in between."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from emblema.engine.decoding import Sampler, decode
from emblema.engine.linker import Linker, LiveTable
from emblema.engine.replies import Prefill
from emblema.engine.retrieval import Answered, RequestReader, Retrieval, Search
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip
from emblema.link.prompt import ChunkPart, Part, Prompt, TextPart
from emblema.link.strategies.base import Strategy
from emblema.models.adapter import Adapter


class Replying:
    """The tokens of one reply. `usage` and `found` grow while they are made.

    Args:
        prefill: the linked prompt.
        strategy: how what is found is linked.
        ends: tokens that end the reply.
        retrieval: who answers the model's requests; None lets it ask in vain.
        reader: says when a request is complete; given where `retrieval` is.
        around: what stands in front of everything that was found, and behind it.
    """

    def __init__(
        self,
        adapter: Adapter,
        linker: Linker,
        prefill: Prefill,
        strategy: str | Strategy,
        sampler: Sampler,
        ends: Collection[int],
        retrieval: Retrieval | None = None,
        reader: RequestReader | None = None,
        around: tuple[TextPart, TextPart] = (TextPart(()), TextPart(())),
    ) -> None:
        self.adapter, self.linker, self.strategy, self.sampler, self.ends = adapter, linker, strategy, sampler, ends
        self.retrieval, self.reader, self.around = retrieval, reader, around
        self.plan, self.usage = prefill.plan, prefill.usage
        self.found: tuple[Answered, ...] = ()
        self._prompt, self._linked = prefill.prompt, prefill.linked

    def tokens(self) -> Iterator[int]:
        """New tokens, up to an end token or the most that the sampling allows; what was found is not among them."""
        if self.retrieval is None:
            yield from self._tokens(None)
            return
        with self.retrieval.opened() as search:
            yield from self._tokens(search)

    def _tokens(self, search: Search | None) -> Iterator[int]:
        made, most = 0, self.sampler.sampling.max_new_tokens
        while True:
            asked: str | None = None
            since: list[int] = []
            for token in decode(self.adapter, self._linked, self._prompt, self.sampler, self.ends, most - made):
                since.append(token)
                yield token
                asked = self._asked(token)
                if asked is not None:
                    break
            made += len(since)
            if asked is None or search is None or made >= most:
                return
            self._answer(list(search(asked)), asked, since, most - made)

    def _asked(self, token: int) -> str | None:
        if self.retrieval is None or self.reader is None or len(self.found) >= self.retrieval.most:
            return None
        return self.reader.push(token)

    def _answer(self, pieces: list[Chunk | Clip], query: str, since: list[int], left: int) -> None:
        """Link what was found behind the tokens made so far; the last of them has no row yet."""
        chunks = [chunk for piece in pieces for chunk in _chunks(piece)]
        front: list[Part] = [*(segment.part for segment in self._prompt.segments), TextPart(tuple(since))]
        before, after = self.around
        found: list[Part] = [before, *map(ChunkPart, chunks), after] if chunks else []
        prompt = Prompt.of([*front, *found], self.adapter.axes)
        if max(prompt.tokens, prompt.next_position) + left > self.adapter.context_length:
            self.usage = replace(self.usage, fallback=f"what was found for {query!r} is longer than the context's rest")
            prompt, chunks = Prompt.of(front, self.adapter.axes), []
        live = LiveTable(self._linked, self._prompt.tokens + len(since) - 1)
        outcome = self.linker.link(prompt, self.strategy, live=live)
        self.found += (Answered(query, tuple(chunk.id for chunk in chunks)),)
        self._prompt, self._linked = prompt, outcome.linked
        self.usage = replace(
            self.usage,
            linked_tokens=self.usage.linked_tokens + sum(chunk.tokens for chunk in chunks),
            forming_tokens=self.usage.forming_tokens + outcome.forming,
            recaptured_tokens=self.usage.recaptured_tokens + outcome.recaptured,
            fallback=self.usage.fallback or outcome.fallback,
        )


def _chunks(piece: Chunk | Clip) -> tuple[Chunk, ...]:
    if isinstance(piece, Chunk):
        return (piece,)
    if isinstance(piece, Clip):
        return piece.chunks
    raise PromptError(f"a search found a {type(piece).__name__}: it gives chunks and clips")
