"""The thread that forms patches after the answers: bounded, counted, and gone when there is nothing to do."""

import logging
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from emblema.errors import EmblemaError, LoadError
from emblema.link.policy.policy import Policy
from emblema.session.patch_job import PatchJob
from emblema.store.keys import PatchKey
from emblema.store.store import TenantStore

log = logging.getLogger(__name__)

MINUTE = 60.0
IDLE_SECONDS = 0.2
"""How long the thread waits for more before it ends."""
CLOSING_SECONDS = 30.0
"""How long `close` waits for what is queued."""


@dataclass(frozen=True, slots=True)
class FormingStatistics:
    """What became of the rows that were handed over.

    Attributes:
        queued: chunks handed over and not yet formed.
        formed: patches kept.
        refused: formed, but not kept: a chunk was deleted meanwhile, or the patch is larger than a budget.
        dropped: not formed: no room in the queue, no CPU time left in this minute, or closed.
        lost: not formed: the canonical rows could not be had.
        failed: forming raised an error, which is logged.
        seconds: CPU time spent.
    """

    queued: int = 0
    formed: int = 0
    refused: int = 0
    dropped: int = 0
    lost: int = 0
    failed: int = 0
    seconds: float = 0.0


class PatchWorker:
    """Forms patches on a thread of its own, which begins with the first and ends when it is idle.

    Any number of views use one; a patch belongs to the view that its rows were computed for. The thread never touches
    the model. It does not keep the process alive: at exit what is under way is finished and the rest dropped.
    """

    def __init__(self) -> None:
        self._work = _Work()
        self._finalizer = weakref.finalize(self, _Work.close, self._work, None, 0.0)

    def wants(self, owner: str, key: PatchKey, size: int, policy: Policy) -> bool:
        """Whether a patch is not under way yet and the bounds leave room for its rows; no room is counted."""
        return self._own().wants(owner, key, size, policy)

    def submit(self, job: PatchJob, policy: Policy) -> bool:
        """Queue a chunk; False where it is not wanted. Never waits for the thread."""
        return self._own().submit(job, policy)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued is formed; whether it is."""
        return self._own().settle(timeout)

    def close(self, store: TenantStore | None = None) -> None:
        """Finish what is queued, of one view or of all, and take no more of it."""
        self._own().close(store, CLOSING_SECONDS)

    @property
    def statistics(self) -> FormingStatistics:
        return self._own().statistics()

    def _own(self) -> "_Work":
        """This process's work: after a fork the thread, and whatever it held, stayed behind."""
        if self._work.process != os.getpid():
            self._finalizer.detach()
            self._work = _Work()
            self._finalizer = weakref.finalize(self, _Work.close, self._work, None, 0.0)
        return self._work


class _Work:
    """The queue and the thread; apart from `PatchWorker`, so that one that is dropped ends its thread."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[PatchJob] = deque()
        self._keys: set[tuple[str, PatchKey]] = set()
        self._bytes = 0
        self._thread: threading.Thread | None = None
        # Threads that have gone idle, of which one may still be about to end: the process must not end before it.
        self._ending: list[threading.Thread] = []
        self._closed = False
        self._current: PatchJob | None = None
        self._counts = FormingStatistics()
        # Moments and CPU seconds of the last minute.
        self._spent: deque[tuple[float, float]] = deque()

    def wants(self, owner: str, key: PatchKey, size: int, policy: Policy) -> bool:
        with self._changed:
            if (owner, key) in self._keys:
                return False
            over = self._bytes + size > policy.forming_bytes
            late = policy.forming_seconds is not None and self._recent() >= policy.forming_seconds
            if self._closed or over or late:
                self._count(dropped=1)
                return False
            return True

    def submit(self, job: PatchJob, policy: Policy) -> bool:
        with self._changed:
            if not self.wants(job.store.owner, job.key, job.bytes, policy):
                return False
            self._queue.append(job)
            self._keys.add((job.store.owner, job.key))
            self._bytes += job.bytes
            if self._thread is None or not self._thread.is_alive():
                self._ending = [thread for thread in self._ending if thread.is_alive()]
                self._thread = threading.Thread(target=self._run, name="emblema-forming", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def settle(self, timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and self._current is None, timeout)

    def close(self, store: TenantStore | None, seconds: float) -> None:
        if self.process != os.getpid():
            # A fork's copy: the thread stayed behind, and may have held the lock.
            return
        deadline = time.monotonic() + seconds
        with self._changed:
            if store is None:
                self._closed = True

            def left() -> list[PatchJob]:
                own = [*self._queue, *([] if self._current is None else [self._current])]
                return [job for job in own if store is None or job.store is store]

            self._changed.wait_for(lambda: not left(), max(0.0, deadline - time.monotonic()))
            gone = [job for job in self._queue if store is None or job.store is store]
            for job in gone:
                self._queue.remove(job)
                self._forget(job)
            self._count(dropped=len(gone))
            threads = [*self._ending, *([] if self._thread is None else [self._thread])] if store is None else []
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CLOSING_SECONDS)

    def statistics(self) -> FormingStatistics:
        with self._changed:
            return replace(self._counts, queued=len(self._keys))

    def _run(self) -> None:
        _step_back()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed, IDLE_SECONDS)
                if not self._queue:
                    # Decided under the lock: whoever queues after this begins another thread.
                    self._ending.append(threading.current_thread())
                    self._thread = None
                    return
                job = self._current = self._queue.popleft()
            began, outcome = time.thread_time(), "failed"
            try:
                outcome = _formed(job)
            except Exception:
                log.exception("forming the %s failed", job.key)
            finally:
                seconds = time.thread_time() - began
                with self._changed:
                    self._current = None
                    self._forget(job)
                    self._spent.append((time.monotonic(), seconds))
                    self._count(**{outcome: 1}, seconds=seconds)
                    # Its rows are let go here, and not when the next job comes or the thread ends.
                    del job
                    self._changed.notify_all()

    def _forget(self, job: PatchJob) -> None:
        self._keys.discard((job.store.owner, job.key))
        self._bytes -= job.bytes

    def _count(self, **more: float) -> None:
        held = asdict(self._counts)
        self._counts = replace(self._counts, **{name: held[name] + change for name, change in more.items()})

    def _recent(self) -> float:
        while self._spent and self._spent[0][0] < time.monotonic() - MINUTE:
            self._spent.popleft()
        return sum(seconds for _, seconds in self._spent)


def _formed(job: PatchJob) -> str:
    """Form and keep a patch; what became of it."""
    try:
        if not all(chunk in job.store for chunk in job.key.chunks):
            return "refused"
        return "formed" if job.store.put_patch(job.key, job.form()) else "refused"
    except LoadError:
        return "lost"
    except EmblemaError as error:
        log.warning("the %s was not formed: %s", job.key, error)
        return "lost"


def _step_back() -> None:
    """Let the thread give way to the model's, where the system has priorities of threads."""
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
