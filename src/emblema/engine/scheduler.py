"""One thread that owns a model: calls and prefills in their turn, and all replies decoded as one batch."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar

from emblema.engine.engine import Engine
from emblema.engine.generation import Generation
from emblema.engine.reply_batch import ReplyBatch
from emblema.engine.request_queue import ModelCall, RequestQueue, SchedulerLimits, WaitingItem
from emblema.errors import DeadlineError, EmblemaError

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class _GivenUp(Exception):
    """Ends the prefill under way: nobody wants it any more, or its time is over."""


class Scheduler:
    """Runs everything of one model on a thread of its own.

    A prefill gives way to the replies under way after every `block_rows` rows. Engines of several tenants on the same
    model share one scheduler, and take turns. Any thread may submit and call.

    Args:
        engine: of any tenant on the model.
        limits: how much is taken on.
    """

    def __init__(self, engine: Engine, limits: SchedulerLimits | None = None) -> None:
        self.limits = limits or SchedulerLimits()
        self.adapter = engine.adapter
        self._changed = threading.Condition()
        self._queue = RequestQueue(self.limits)
        self._replies = ReplyBatch(engine.adapter, self.limits.batch_rows)
        self._current: Generation | None = None
        # Engines that may have idle work, which waits until nobody does.
        self._used: dict[int, Engine] = {}
        # Seconds of a prefill, as measured of late.
        self._seconds = 0.1
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="emblema-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Calls and requests that have not begun."""
        with self._changed:
            return len(self._queue)

    @property
    def running(self) -> int:
        """Replies under way."""
        return len(self._replies)

    def submit(self, engine: Engine, generation: Generation) -> None:
        """Take a request on; its pieces are delivered on the model's thread.

        Raises:
            BusyError: too much waits already.
            EmblemaError: the scheduler is closed.
        """
        self._put(WaitingItem(engine, generation))

    def call(self, engine: Engine, work: Callable[[], T]) -> "Future[T]":
        """Run something on the model's thread, in its tenant's turn.

        Raises:
            EmblemaError: the scheduler is closed.
        """
        future: Future[T] = Future()
        self._put(WaitingItem(engine, ModelCall(work, future)))
        return future

    def close(self, grace: float | None = None) -> None:
        """Take nothing more; end when all is done, or give up what is left after `grace` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(grace)
        if self._thread.is_alive():
            with self._changed:
                left = [*self._queue.generations, *self._replies.generations]
                left += [] if self._current is None else [self._current]
            for generation in left:
                generation.fail(EmblemaError("the engine closes: the reply was not finished in time"))
                generation.cancel()
            self._thread.join()

    def _put(self, item: WaitingItem) -> None:
        with self._changed:
            if self._closing:
                raise EmblemaError("the engine is closed: make another one")
            self._queue.put(item, self._seconds)
            self._changed.notify()

    def _work(self) -> None:
        """The thread: until it is closed and nothing is left."""
        while self._wait():
            self._give_up()
            if not self._replies.full:
                self._start()
            self._step(self._replies.step)

    def _wait(self) -> bool:
        """Wait for something to do, with the idle work meanwhile; return whether there is anything."""
        while True:
            with self._changed:
                if len(self._queue) or len(self._replies):
                    return True
                if self._closing:
                    return False
                engine = next((own for own in self._used.values() if own.policy_runtime.waiting), None)
                if engine is None:
                    self._used.clear()
                    self._changed.wait()
                    continue
            try:
                engine.idle()
            except Exception:
                _LOG.exception("the work between requests failed")
                self._used.pop(id(engine), None)

    def _start(self) -> None:
        """Do the next call, or begin the next request."""
        with self._changed:
            if not len(self._queue):
                return
            item = self._queue.take()
            self._used[id(item.engine)] = item.engine
            self._current = item.what if isinstance(item.what, Generation) else None
        began = perf_counter()
        try:
            with self._giving_way():
                if isinstance(item.what, ModelCall):
                    item.what.run()
                    return
                self._replies.begin(item.engine, item.what)
        except _GivenUp:
            self._end_unwanted([item.what] if isinstance(item.what, Generation) else [])
        except Exception as error:
            if isinstance(item.what, Generation):
                item.what.fail(error)
        finally:
            self._current = None
            self._seconds += 0.1 * (perf_counter() - began - self._seconds)
        self._make_media(item.engine)

    def _make_media(self, engine: Engine) -> None:
        """Make chunks of media that came again, if requests wait: they may show the same, and nobody is idle soon."""
        if not self.waiting:
            return
        try:
            with self._giving_way():
                engine.make_media()
        except Exception:
            _LOG.exception("media that came again could not be kept")

    @contextmanager
    def _giving_way(self) -> Iterator[None]:
        """Let the replies under way have their next token between blocks of rows."""
        adapter, rows = self.adapter, self.adapter.block_rows
        adapter.pause = self._pause
        adapter.block_rows = min(rows, self.limits.block_rows) if len(self._replies) else rows
        try:
            yield
        finally:
            adapter.pause = None
            adapter.block_rows = rows

    def _pause(self) -> None:
        current = self._current
        if current is not None and (current.cancelled or current.overdue):
            raise _GivenUp
        self._step(self._replies.step_batch)

    def _step(self, step: Callable[[], None]) -> None:
        """Run a step of the replies; one that fails ends all of them, and nothing else."""
        try:
            step()
        except Exception as error:
            _LOG.exception("a step of decoding failed")
            left = self._replies.generations
            for generation in left:
                generation.fail(error)
            self._replies.remove(left)

    def _give_up(self) -> None:
        """Let go of what nobody wants any more, and of what is over its time."""
        with self._changed:
            waiting = [each for each in self._queue.generations if each.cancelled or each.overdue]
            self._queue.remove(waiting)
        running = [each for each in self._replies.generations if each.cancelled or each.overdue]
        self._replies.remove(running)
        self._end_unwanted([*waiting, *running])

    def _end_unwanted(self, generations: list[Generation]) -> None:
        for generation in generations:
            if generation.overdue:
                generation.fail(
                    DeadlineError("the reply was not finished by its deadline: ask for less, or allow more time")
                )
