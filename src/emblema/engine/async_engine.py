"""The engine for asyncio: the same methods, awaited; one thread of its own does the model's work."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self, TypeVar, overload

from emblema.engine.engine import Engine
from emblema.engine.generation import GenerateRequest, Generation
from emblema.engine.request_queue import SchedulerLimits
from emblema.engine.retrieval import Retrieval
from emblema.engine.scheduler import Scheduler
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import bounded
from emblema.link.strategies.base import Strategy
from emblema.media.given import GivenMedia
from emblema.media.load import LoadedMedia, load_media
from emblema.session.decoding import Sampling
from emblema.session.prompt_reader import PromptLike, load_named
from emblema.session.replies import Piece, Reply
from emblema.session.requests import Prefill, SurvivorChoice
from emblema.store.store import Store, TenantStore
from emblema.work_pool import PoolSize, WorkPool, run_alone

T = TypeVar("T")
BESIDE = PoolSize(8, 6)
"""Media that are read at once away from the model's thread, of all tenants and of one."""


class AsyncEngine:
    """Mirrors `Engine`. Prefills run in the order in which they come; the replies under way are decoded together.

    A cancelled request stops at the next block of its prefill's rows, or at the next token.

    Args:
        engine: the engine; from now on it is this one's thread that owns its model.
        limits: how much is taken on at once.

    Attributes:
        beside: threads for what is done for its requests away from the model's; all tenants share them.
    """

    def __init__(self, engine: Engine, limits: SchedulerLimits | None = None) -> None:
        self.engine = engine
        self.scheduler = Scheduler(engine, limits)
        self.beside = WorkPool("beside", BESIDE)
        self._owner = True
        self._closed = False
        engine.defer_idle(True)

    @classmethod
    async def load(
        cls, name: str | Path = "reference", *, scheduler: SchedulerLimits | None = None, **options: Any
    ) -> Self:
        """As `Engine.load`, without holding up the event loop."""
        return cls(await run_alone("load", partial(Engine.load, name, **options)), scheduler)

    def on(self, store: Store | TenantStore) -> "AsyncEngine":
        """Return an engine of another tenant on the same model and thread; closing it does nothing."""
        other = object.__new__(AsyncEngine)
        other.engine, other.scheduler, other.beside = self.engine.on(store), self.scheduler, self.beside
        other._owner, other._closed = False, False
        return other

    @property
    def store(self) -> TenantStore:
        """The tenant's store."""
        return self.engine.store

    async def add(self, source: Any = None, **options: Any) -> Chunk | Clip:
        """As `Engine.add`; a file is decoded on a thread of its own, and holds nobody up."""
        source = await self._loaded(source, options)
        return await self.run(lambda engine: engine.add(source, **options))

    async def _loaded(self, source: Any, options: Mapping[str, Any]) -> Any:
        """Return a source of media as it is decoded, away from the model's thread; any other as it is."""
        if source is None or isinstance(source, EncodedChunk):
            return source
        return await self._load(GivenMedia(source, options.get("kind")), options.get("fps", 1.0))

    async def _with_media(self, parts: PromptLike) -> PromptLike:
        """Return a prompt with what it names by path, address or bytes decoded, away from the model's thread."""
        return await load_named(parts, self._load)

    async def _load(self, item: GivenMedia, fps: float = 1.0) -> LoadedMedia:
        limits = self.engine.session.limits
        return await self.beside.run(self.store.owner, load_media, item.source, item.kind, fps, limits, item.settings)

    async def run(self, work: Callable[[Engine], T]) -> T:
        """Do something with the engine on its own thread, in its turn: `run(lambda engine: engine.files.list())`."""
        return await asyncio.wrap_future(self.scheduler.call(self.engine, lambda: work(self.engine)))

    async def encode(self, source: Any, **options: Any) -> tuple[EncodedChunk, ...]:
        """As `Engine.encode`; a file is decoded as by `add`."""
        source = await self._loaded(source, options)
        return await self.run(lambda engine: engine.encode(source, **options))

    async def prefill(self, parts: PromptLike, strategy: str | Strategy = "auto", **options: Any) -> Prefill:
        """As `Engine.prefill`; media are decoded as by `generate`."""
        parts = await self._with_media(parts)
        return await self.run(lambda engine: engine.prefill(parts, strategy, **options))

    @overload
    async def generate(
        self, parts: PromptLike, strategy: str | Strategy = ..., *, stream: Literal[False] = ..., **options: Any
    ) -> Reply: ...

    @overload
    async def generate(
        self, parts: PromptLike, strategy: str | Strategy = ..., *, stream: Literal[True], **options: Any
    ) -> AsyncIterator[Piece]: ...

    async def generate(
        self,
        parts: PromptLike,
        strategy: str | Strategy = "auto",
        *,
        stream: bool = False,
        template: bool = True,
        stop: str | Sequence[str] | None = None,
        retrieval: Retrieval | None = None,
        policy: Policy | None = None,
        keep: bool = False,
        survivors: SurvivorChoice = "drop",
        **knobs: Any,
    ) -> Reply | AsyncIterator[Piece]:
        """As `Engine.generate`; streamed, it gives an iterator: `async for piece in await engine.generate(…)`.

        Media that are named by path or address are fetched and decoded first, on a thread of their own: a slow one
        holds up this request alone.
        """
        chosen = bounded(strategy, policy, self.engine.policy if keep else None)
        request = GenerateRequest(parts, chosen, Sampling.of(stop=stop, **knobs), template, retrieval, survivors)
        pieces = self.pieces(replace(request, parts=await self._with_media(parts)))
        if stream:
            return (piece async for piece in pieces if piece or piece.reply is not None)
        reply = None
        async for piece in pieces:
            reply = piece.reply or reply
        if reply is None:
            raise PromptError("the stream ended without a reply")
        return reply

    def pieces(
        self, request: GenerateRequest, *, seconds: float | None = None, rows: int = 0, choices: int = 1
    ) -> AsyncIterator[Piece]:
        """Take a request on, and return its pieces, one for every token; one without text yet is empty.

        Args:
            request: what is asked. Media that it names are decoded on the model's thread: give decoded ones.
            seconds: after which the reply is given up; None for never.
            rows: rows that the prompt may have, for admission.
            choices: replies that are made of the prompt, which is prefilled once; each piece says whose it is.

        Raises:
            BusyError: too much waits already.
            DeadlineError: while pieces are read, the time is over.
            EmblemaError: the engine is closed.
        """
        loop = asyncio.get_running_loop()
        made: asyncio.Queue[Piece | Exception] = asyncio.Queue()
        deadline = None if seconds is None else perf_counter() + seconds

        def deliver(piece: Piece | Exception) -> None:
            loop.call_soon_threadsafe(made.put_nowait, piece)

        generation = Generation(request, deliver, deadline, rows, choices)
        self.scheduler.submit(self.engine, generation)
        return _read(generation, made)

    async def close(self, grace: float | None = None) -> None:
        """Take no more requests, finish the replies under way, then close the engine; a second call does nothing.

        Args:
            grace: seconds after which what is left is given up; None for never.
        """
        if self._closed or not self._owner:
            return
        self._closed = True
        await run_alone("close", self.scheduler.close, grace)
        await run_alone("close", self.engine.close)
        self.beside.close()
        self.engine.defer_idle(False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


async def _read(generation: Generation, made: "asyncio.Queue[Piece | Exception]") -> AsyncIterator[Piece]:
    """Yield the pieces of a request's replies; whoever leaves before the end cancels them.

    Raises:
        EmblemaError: what ended the reply.
    """
    left = generation.choices
    try:
        while left:
            piece = await made.get()
            if isinstance(piece, Exception):
                raise piece
            left -= piece.reply is not None
            yield piece
    finally:
        generation.cancel()
