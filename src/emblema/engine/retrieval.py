"""Linking while decoding: the model asks, what is found is linked at the current position, and decoding goes on.

MPIC, section 3.1: the retriever is called by the model during decoding, as a program calls into a dynamic library.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Protocol, runtime_checkable

from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip
from emblema.library.dynamic import DynamicLibrary, search_snapshots
from emblema.library.items import Hit
from emblema.link.prompt import ChunkPart, Part, Prompt, TextPart
from emblema.link.strategies.base import Strategy
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.prompt_reader import PromptLike
from emblema.session.replies import AnsweredRequest, Piece, TextDecoder
from emblema.session.requests import LinkRequest, Prefill
from emblema.session.session import Session
from emblema.session.vocabulary import texts_of

Found = Chunk | Clip | Hit
Search = Callable[[str], Sequence[Found]]


@runtime_checkable
class Searchable(Protocol):
    """A library: the chunks nearest to a query, the nearest first."""

    def search(self, query: str, count: int = ..., /) -> Sequence[Hit]: ...


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How a model asks for more, how its requests are told from other text, and who answers.

    Attributes:
        library: where to look: `engine.files`, a collection, a snapshot of one, several collections that are searched
            as one, or a function that finds chunks or clips for a query. A reply keeps the versions of collections that
            it began with.
        before, after: text put around what was found, before decoding goes on: the turn of a tool's answer, say. It is
            the operator's, never a user's: control tokens may be spelled.
        count: how many chunks of a library are linked for one request, the nearest first.
        end: text that completes a request, special tokens included; a tool call's end, or a special token of its own.
        start: text that begins a request: the query is the text between both. None: the query is the question, that is
            the prompt's last text, followed by the reply so far.
        most: how many requests of one reply are answered.

    Raises:
        PromptError: an attribute is not right.
    """

    library: Searchable | Search | tuple[DynamicLibrary, ...]
    before: str = ""
    after: str = ""
    _: KW_ONLY
    count: int = 1
    end: str = "</search>"
    start: str | None = "<search>"
    most: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.end, str) or not self.end:
            raise PromptError(f"retrieval: end is {self.end!r}: give the text that ends a request")
        if not isinstance(self.start, str | None) or self.start == "":
            raise PromptError(f"retrieval: start is {self.start!r}: give the text that begins a request, or None")
        for name, number in (("count", self.count), ("most", self.most)):
            if type(number) is not int or number < 1:
                raise PromptError(f"retrieval: {name} is {number!r}: give a number from 1")

    def query(self, request: str, question: str, before: str) -> str | None:
        """Return the query of a completed request, or None where none had begun.

        Args:
            request: the reply since the last request, without `end`.
            question: the prompt's last text.
            before: the reply up to the last request.
        """
        if self.start is None:
            return f"{question} {before}{request}".strip()
        _, begun, query = request.rpartition(self.start)
        return query.strip() if begun else None

    @contextmanager
    def opened(self) -> Iterator[Search]:
        """Open the search of a reply: a collection stays at the version it has now until the reply is over."""
        library = self.library
        if isinstance(library, DynamicLibrary):
            library = (library,)
        if isinstance(library, tuple):
            with ExitStack() as held:
                versions = [held.enter_context(each.snapshot()) for each in library]
                yield lambda query: search_snapshots(versions, query, self.count) if query else []
        elif isinstance(library, Searchable):
            searched = library
            yield lambda query: searched.search(query, self.count) if query else []
        else:
            yield library


class RequestReader:
    """Reads tokens as they are made and finds completed requests."""

    def __init__(self, retrieval: Retrieval, tokenizer: Any, question: str) -> None:
        self._retrieval, self._question = retrieval, question
        self._decoder = TextDecoder(tokenizer, skip_special_tokens=False)
        # The reply up to the last request, and since.
        self._before = self._since = ""

    def push(self, token: int) -> str | None:
        """Take a token and return the query if it completes a request."""
        self._since += self._decoder.push(token)
        request, end, rest = self._since.partition(self._retrieval.end)
        if not end:
            return None
        before = self._before
        self._before, self._since = before + request + end, rest
        return self._retrieval.query(request, self._question, before)


class RetrievingReply:
    """A reply in which the model's requests are answered: what is found is linked, and decoding goes on.

    Args:
        session: links and decodes.
        prefill: the linked prompt.
        strategy: how what is found is linked.
        sampling: how tokens are chosen.
        retrieval: answers the requests.
        question: the prompt's last text.
    """

    def __init__(
        self,
        session: Session,
        prefill: Prefill,
        strategy: str | Strategy,
        sampling: Sampling,
        retrieval: Retrieval,
        question: str,
    ) -> None:
        self.prefill, self._writer = prefill, session.writer(prefill, sampling, 0.0)
        self._session, self._strategy, self._retrieval = session, strategy, retrieval
        self._sampler = Sampler(sampling)
        self._reader = RequestReader(retrieval, session.tokenizer, question)
        reader = session.prompt_reader
        self._before, self._after = reader.operator_text(retrieval.before), reader.operator_text(retrieval.after)

    def pieces(self, began: float) -> Iterator[Piece]:
        """Make the first token, and return the reply's pieces; see `Session.decode`."""
        self._writer.began = began
        return self._writer.pieces(self.tokens())

    def tokens(self) -> Iterator[int]:
        """Yield new tokens, up to an end token or the most that the sampling allows; those found are not among them."""
        session, made, most = self._session, 0, self._sampler.sampling.max_new_tokens
        with self._retrieval.opened() as search:
            while True:
                query: str | None = None
                since: list[int] = []
                start = DecodeStart.after(self.prefill.prompt, self.prefill.linked)
                for token in decode(session.adapter, start, self._sampler, session.end_tokens, most - made):
                    since.append(token)
                    yield token
                    if len(self._writer.found) < self._retrieval.most:
                        query = self._reader.push(token)
                    if query is not None:
                        break
                made += len(since)
                if query is None or made >= most:
                    return
                self._answer(query, list(search(query)), since, most - made)

    def _answer(self, query: str, found: Sequence[Found], since: Sequence[int], left: int) -> None:
        """Link what was found after the tokens made so far; the last of them has no row yet."""
        session, writer, prompt = self._session, self._writer, self.prefill.prompt
        chunks = [chunk for piece in found for chunk in _chunks(piece)]
        names = tuple(piece.name for piece in found if isinstance(piece, Hit))
        front: list[Part] = [*(segment.part for segment in prompt.segments), TextPart(tuple(since))]
        linked: list[Part] = [self._before, *map(ChunkPart, chunks), self._after] if chunks else []
        longer = Prompt.of([*front, *linked], session.adapter.axes)
        fallback = writer.usage.fallback
        if max(longer.tokens, longer.next_position) + left > session.adapter.context_length:
            fallback = f"what was found for {query!r} is longer than the context's rest"
            longer, chunks, names = Prompt.of(front, session.adapter.axes), [], ()
        table, reused_rows = self.prefill.linked.table, prompt.tokens + len(since) - 1
        self.prefill = session.link(LinkRequest(longer, self._strategy, table=table, reused_rows=reused_rows))
        usage = self.prefill.usage
        writer.found += (AnsweredRequest(query, tuple(chunk.id for chunk in chunks), names),)
        writer.usage = replace(
            writer.usage,
            linked_tokens=writer.usage.linked_tokens + sum(chunk.tokens for chunk in chunks),
            forming_tokens=writer.usage.forming_tokens + usage.forming_tokens,
            recaptured_tokens=writer.usage.recaptured_tokens + usage.recaptured_tokens,
            finite=writer.usage.finite and usage.finite,
            fallback=fallback or usage.fallback,
        )


def _chunks(piece: Found) -> tuple[Chunk, ...]:
    if isinstance(piece, Hit):
        return (piece.chunk,)
    if isinstance(piece, Chunk):
        return (piece,)
    if isinstance(piece, Clip):
        return piece.chunks
    raise PromptError(f"a search found a {type(piece).__name__}: it gives chunks and clips")


def question_of(parts: PromptLike) -> str:
    """Return the last text of a prompt, as the caller wrote it; empty if there is none."""
    return next(filter(None, reversed(list(texts_of(parts)))), "")
