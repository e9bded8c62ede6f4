"""The engine for asyncio: the same methods, awaited; one thread of its own does the model's work."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

from emblema.engine.engine import Engine
from emblema.engine.retrieval import Retrieval
from emblema.errors import EmblemaError, PromptError
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import bounded
from emblema.link.strategies.base import Strategy
from emblema.session.decoding import Sampling
from emblema.session.prompt_reader import PromptLike
from emblema.session.replies import Piece, Reply
from emblema.session.requests import Prefill
from emblema.session.survivors import SurvivorChoice
from emblema.store.store import TenantStore

log = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncEngine:
    """Mirrors `Engine`. Calls run in the order in which they come; concurrent replies take turns, token by token.

    A cancelled request stops after its prefill, or after the token that is being made.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="emblema")
        self._closing = self._closed = False
        self._waiting: set[asyncio.Future[Any]] = set()
        # Calls and replies in progress; at 0 the engine does its idle work.
        self._busy = 0
        engine.defer_idle(True)

    @classmethod
    async def load(cls, name: str | Path = "reference", **options: Any) -> Self:
        """As `Engine.load`, without holding up the event loop."""
        return cls(await asyncio.to_thread(partial(Engine.load, name, **options)))

    @property
    def store(self) -> TenantStore:
        """The tenant's store."""
        return self.engine.store

    async def add(self, source: Any = None, **options: Any) -> Chunk | Clip:
        """As `Engine.add`."""
        return await self.run(lambda engine: engine.add(source, **options))

    async def run(self, work: Callable[[Engine], T]) -> T:
        """Do something with the engine on its own thread, in its turn: `run(lambda engine: engine.files.list())`."""
        self._refuse_if_closing()
        return await self._run(lambda: work(self.engine))

    async def encode(self, source: Any, **options: Any) -> tuple[EncodedChunk, ...]:
        """As `Engine.encode`."""
        return await self.run(lambda engine: engine.encode(source, **options))

    async def prefill(self, parts: PromptLike, strategy: str | Strategy = "auto", **options: Any) -> Prefill:
        """As `Engine.prefill`."""
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
        self, parts: PromptLike, strategy: str | Strategy = "auto", *, stream: bool = False, **options: Any
    ) -> Reply | AsyncIterator[Piece]:
        """As `Engine.generate`; streamed, it gives an iterator: `async for piece in await engine.generate(…)`."""
        pieces = self._pieces(parts, strategy, **options)
        if stream:
            self._refuse_if_closing()
            return pieces
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        try:
            reply = None
            async for piece in pieces:
                reply = piece.reply or reply
        finally:
            self._waiting.discard(done)
            done.set_result(None)
        if reply is None:
            raise PromptError("the stream ended without a reply")
        return reply

    async def _pieces(
        self,
        parts: PromptLike,
        strategy: str | Strategy,
        *,
        template: bool = True,
        stop: str | Sequence[str] | None = None,
        retrieval: Retrieval | None = None,
        policy: Policy | None = None,
        keep: bool = False,
        survivors: SurvivorChoice = "drop",
        **knobs: Any,
    ) -> AsyncIterator[Piece]:
        self._refuse_if_closing()
        sampling = Sampling.of(stop=stop, **knobs)
        chosen = bounded(strategy, policy, self.engine.policy if keep else None)
        with self._counted():
            pieces = await self._run(
                lambda: self.engine.steps(
                    parts, chosen, sampling, template=template, retrieval=retrieval, survivors=survivors
                )
            )
            while (piece := await self._run(partial(next, pieces, None))) is not None:
                if piece or piece.reply is not None:
                    yield piece

    async def close(self) -> None:
        """Take no more requests, finish the replies under way, then close the engine; a second call does nothing.

        A stream that nobody reads to its end is not waited for: it ends with an error.
        """
        if self._closing:
            return
        self._closing = True
        if self._waiting:
            await asyncio.wait(self._waiting)
        await self._run(self.engine.close)
        self.engine.defer_idle(False)
        self._closed = True
        self._thread.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise EmblemaError("the engine is closed: make another one")

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise EmblemaError("the engine is closed: make another one")
        with self._counted():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if self._busy == 0 and not self._closing and self.engine.policy_runtime.waiting:
                self._thread.submit(self._idle)

    def _idle(self) -> None:
        """Run `Engine.idle` on the model's thread; a failure is logged."""
        try:
            self.engine.idle()
        except Exception:
            log.exception("the work between requests failed")
