"""One thread that owns a model: calls and prefills in their turn, and all replies decoded as one batch."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(slots=True)
class _ModelTurn:
    """What is begun now, and the turn of another tenant inside whose pause it is.

    Attributes:
        began: `time.perf_counter`.
        lent: seconds of it that went to others.
    """

    item: WaitingItem
    outer: "_ModelTurn | None"
    began: float
    lent: float = 0.0

    @property
    def generation(self) -> Generation | None:
        """The request, unless it is a call."""
        return self.item.what if isinstance(self.item.what, Generation) else None

    @property
    def may_lend(self) -> bool:
        """Whether others may begin meanwhile: they have had less of its time than it had itself."""
        return self.outer is None and 2 * self.lent < perf_counter() - self.began


class Scheduler:
    """Runs everything of one model on a thread of its own.

    Engines of several tenants on the same model share one scheduler, and take turns. A prefill gives way after every
    `block_rows` rows: to the replies under way, and to requests of other tenants, for half of its time at most. Any
    thread may submit and call.

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
        self._turn: _ModelTurn | None = None
        # Engines that may have idle work, which waits until nobody does.
        self._used: dict[int, Engine] = {}
        # Seconds of a prefill, as measured of late.
        self._seconds = 0.1
        self._closing = False
        self._ended: EmblemaError | None = None
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
                turns = [] if self._turn is None else [self._turn, self._turn.outer]
                left += [turn.generation for turn in turns if turn is not None and turn.generation is not None]
            for generation in left:
                generation.fail(EmblemaError("the engine closes: the reply was not finished in time"))
                generation.cancel()
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether requests are answered; False once an error has ended the thread."""
        return self._ended is None

    def _put(self, item: WaitingItem) -> None:
        with self._changed:
            if self._ended is not None:
                raise self._ended
            if self._closing:
                raise EmblemaError("the engine is closed: make another one")
            self._queue.put(item, self._seconds)
            self._changed.notify()

    def _work(self) -> None:
        """The thread: until it is closed and nothing is left. Whatever ends it otherwise ends all that waits."""
        try:
            while self._wait():
                self._give_up()
                if not self._replies.full:
                    self._start()
                self._step(self._replies.step)
        except BaseException as error:
            _LOG.critical("the model's thread has ended, no request is answered any more", exc_info=error)
            self._fail_all(EmblemaError(f"the model's thread has ended ({error}): start the program again"))

    def _fail_all(self, error: EmblemaError) -> None:
        """Take nothing more, and end with an error what waits and what is under way."""
        with self._changed:
            self._ended = error
            items = [self._queue.take().what for _ in range(len(self._queue))]
        for what in [*self._replies.generations, *items]:
            what.fail(error)

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
        self._begin(item)
        self._make_media(item.engine)

    def _begin(self, item: WaitingItem) -> None:
        """Do a call, or link the prompt of a request; what is wrong with it ends it alone."""
        turn = _ModelTurn(item, self._turn, perf_counter())
        with self._changed:
            self._used[id(item.engine)] = item.engine
            self._turn = turn
        try:
            with self._giving_way():
                if isinstance(item.what, ModelCall):
                    item.what.run()
                    return
                self._replies.begin(item.engine, item.what)
        except _GivenUp:
            self._end_unwanted([item.what] if isinstance(item.what, Generation) else [])
        except BaseException as error:
            told = error if isinstance(error, Exception) else EmblemaError(f"the model's thread has ended ({error})")
            if isinstance(item.what, Generation):
                item.what.fail(told)
            fatal = told is not error
            # An error holds this frame, which must not hold the error.
            del told
            if fatal:
                raise
        finally:
            self._turn = turn.outer
            self._seconds += 0.1 * (perf_counter() - turn.began - turn.lent - self._seconds)

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
        """Let the replies under way have their next token between blocks of rows, and others begin."""
        adapter, rows, pause = self.adapter, self.adapter.block_rows, self.adapter.pause
        adapter.pause = self._pause
        adapter.block_rows = min(rows, self.limits.block_rows) if len(self._replies) or len(self._used) > 1 else rows
        try:
            yield
        finally:
            adapter.pause = pause
            adapter.block_rows = rows

    def _pause(self) -> None:
        turn = self._turn
        if turn is not None and turn.generation is not None and (turn.generation.cancelled or turn.generation.overdue):
            raise _GivenUp
        self._step(self._replies.step_batch)
        if turn is not None:
            self._lend(turn)

    def _lend(self, turn: _ModelTurn) -> None:
        """Begin requests of other tenants in the midst of a turn."""
        while turn.may_lend and not self._replies.full:
            with self._changed:
                item = self._queue.take_other(turn.item.engine.store.owner)
            if item is None:
                return
            began = perf_counter()
            self._begin(item)
            turn.lent += perf_counter() - began
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
