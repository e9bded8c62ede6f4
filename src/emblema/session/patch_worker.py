"""Patches formed after the answers, from rows that a request computed in context anyway, on a thread of their own.

Kamera forms a patch by one conditioned forward; here that forward is a request's own, so the patch costs no rows.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace

import torch

from emblema.errors import EmblemaError, LoadError
from emblema.kv.chunk import Chunk
from emblema.kv.device import beside_model
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows, LayerLayout, LayerRows, MappedRows, kv_bytes, rows_finite
from emblema.kv.patch import LEAST_KEPT, Patch, deficit, form_faithful_patch
from emblema.kv.rotation import PhaseBook, unplace
from emblema.latest import LatestDict
from emblema.link.policy.policy import Policy
from emblema.store.store import TenantStore

log = logging.getLogger(__name__)

MINUTE = 60.0
IDLE_SECONDS = 0.2
"""Seconds that the thread waits for another job before it ends."""
CLOSING_SECONDS = 30.0
"""Seconds that `close` waits for the queued jobs."""
REMEMBERED = 4096
"""Patches that held too little, at most, that are not formed again."""


@dataclass(frozen=True, slots=True, eq=False)
class PatchJob:
    """One chunk's rows as they were computed in context, with all that its patch is formed from.

    Attributes:
        store: the tenant's store that will hold the patch.
        key: what it will be found by.
        chunk: the chunk, with its canonical rows.
        rows: the conditioned rows, copied out of the table.
        layouts, dtype: of the model.
        source, target: phases of the canonical and of the conditioned rows, worked out already: no model is asked.
        rank: of the patch.
        least_kept: share of what is missing that it has to hold to be kept.
    """

    store: TenantStore
    key: ArtifactKey
    chunk: Chunk
    rows: KVRows
    layouts: tuple[LayerLayout, ...]
    dtype: torch.dtype
    source: PhaseBook
    target: PhaseBook
    rank: int
    least_kept: float = LEAST_KEPT

    @property
    def bytes(self) -> int:
        """Bytes of the conditioned rows."""
        return kv_bytes(self.rows)

    @torch.inference_mode()
    def form(self) -> Patch | None:
        """Return the patch, or None where it holds too little; algebra only, on any thread.

        On a GPU it is formed beside the model, and lies in memory of the model's stream.

        Raises:
            LoadError: the canonical rows are lost, or rows are not finite.
        """
        devices = dict.fromkeys(rows.keys.device for rows in self.rows)
        with ExitStack() as streams:
            for device in devices:
                streams.enter_context(beside_model(device))
            if not (rows_finite(self.rows) and rows_finite(self.chunk.rows)):
                raise LoadError(self.chunk.id, "its rows are not finite")
            deficits: list[LayerRows | None] = []
            for conditioned, canonical, layout in zip(self.rows, self.chunk.rows, self.layouts, strict=True):
                if isinstance(canonical, MappedRows):
                    deficits.append(None)
                    continue
                own = unplace(canonical.to(conditioned.keys.device), layout, self.source)
                deficits.append(deficit(unplace(conditioned, layout, self.target), own))
            patch = form_faithful_patch(deficits, self.rank, self.dtype, self.least_kept)
        return patch if patch is None or all(device.type == "cpu" for device in devices) else patch.copy()


@dataclass(frozen=True, slots=True)
class FormingStatistics:
    """Counts of the jobs that were submitted.

    Attributes:
        queued: submitted and not yet formed.
        formed: patches kept.
        refused: formed, but not kept: a chunk was deleted meanwhile, the patch is larger than a budget, or holds too
            little of what is missing.
        dropped: not formed: no room in the queue, no CPU time left in this minute, or closed.
        lost: not formed: the canonical rows could not be read, or are not finite.
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

    @property
    def taken(self) -> int:
        """Jobs that were queued so far, formed or not; dropped ones do not count."""
        return self.queued + self.formed + self.refused + self.lost + self.failed


class PatchWorker:
    """Forms patches on a thread of its own, which begins with the first job and ends when there are no more.

    Any number of tenants use one worker; a patch belongs to the store that its rows were computed for. The thread never
    uses the model. It does not keep the process alive: at exit the current job is finished and the others are dropped.
    """

    def __init__(self) -> None:
        self._reset()
        atexit.register(_finish, weakref.ref(self))

    def _reset(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[PatchJob] = deque()
        self._keys: set[tuple[str, ArtifactKey]] = set()
        self._bytes = 0
        self._thread: threading.Thread | None = None
        # Threads that found no more jobs, of which one may still be about to end: the process must not end before it.
        self._ending: list[threading.Thread] = []
        self._closed = False
        self._current: PatchJob | None = None
        self._counts = FormingStatistics()
        # Patches that held too little of what is missing, the latest last: forming them again would give the same.
        self._useless: LatestDict[tuple[str, ArtifactKey, int, float], None] = LatestDict(REMEMBERED)
        # Moments and CPU seconds of the last minute.
        self._spent: deque[tuple[float, float]] = deque()

    @property
    def _lock(self) -> threading.Condition:
        """This process's lock; after a fork a new one, as the thread and its locks are the parent's."""
        if self._process != os.getpid():
            self._reset()
        return self._changed

    @property
    def statistics(self) -> FormingStatistics:
        """Plain counters, for metrics."""
        with self._lock:
            return replace(self._counts, queued=len(self._keys))

    def wants(self, owner: str, key: ArtifactKey, size: int, policy: Policy) -> bool:
        """Return whether a patch is not queued yet and the bounds leave room for its rows; no room is counted."""
        with self._lock:
            if (owner, key) in self._keys:
                return False
            over = self._bytes + size > policy.forming_bytes
            late = policy.forming_seconds is not None and self._recent() >= policy.forming_seconds
            if self._closed or over or late:
                self._count(dropped=1)
                return False
            return True

    def found_useless(self, owner: str, key: ArtifactKey, rank: int, least_kept: float) -> bool:
        """Return whether a patch of this rank was formed lately, and held less than this of what is missing."""
        with self._lock:
            return (owner, key, rank, least_kept) in self._useless

    def submit(self, job: PatchJob, policy: Policy) -> bool:
        """Queue a job; return False where it is not wanted. Never waits for the thread."""
        with self._lock:
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

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued is formed; return whether it is."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._queue and self._current is None, timeout)

    def close(self, store: TenantStore | None = None, seconds: float = CLOSING_SECONDS) -> None:
        """Finish what is queued, of one tenant's store or of all, and take no more where it is all.

        Args:
            store: the tenant's store; None for all.
            seconds: how long to wait; what is still queued then is dropped.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            if store is None:
                self._closed = True

            def left() -> list[PatchJob]:
                jobs = [*self._queue, *([] if self._current is None else [self._current])]
                return [job for job in jobs if store is None or job.store is store]

            self._changed.wait_for(lambda: not left(), max(0.0, deadline - time.monotonic()))
            dropped = [job for job in self._queue if store is None or job.store is store]
            for job in dropped:
                self._queue.remove(job)
                self._forget(job)
            self._count(dropped=len(dropped))
            threads = [*self._ending, *([] if self._thread is None else [self._thread])] if store is None else []
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CLOSING_SECONDS)

    def _run(self) -> None:
        _lower_priority()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed, IDLE_SECONDS)
                if not self._queue:
                    # Decided under the lock: a job that is submitted after this begins another thread.
                    self._ending.append(threading.current_thread())
                    self._thread = None
                    return
                job = self._current = self._queue.popleft()
            began, outcome = time.thread_time(), "failed"
            try:
                outcome = self._form_and_keep(job)
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

    def _form_and_keep(self, job: PatchJob) -> str:
        """Form and keep a patch; return the counter of `FormingStatistics` to raise."""
        try:
            if not all(chunk in job.store for chunk in job.key.chunks):
                return "refused"
            patch = job.form()
            if patch is None:
                with self._changed:
                    self._useless[job.store.owner, job.key, job.rank, job.least_kept] = None
                return "refused"
            return "formed" if job.store.put_artifact(job.key, patch) else "refused"
        except EmblemaError as error:
            level = logging.DEBUG if isinstance(error, LoadError) else logging.WARNING
            log.log(level, "the %s was not formed: %s", job.key, error)
            return "lost"

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


def _lower_priority() -> None:
    """Give this thread a lower priority than the model's, where threads have priorities."""
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _finish(reference: "weakref.ref[PatchWorker]") -> None:
    """End a worker's thread as the process ends."""
    worker = reference()
    if worker is not None:
        worker.close(seconds=0.0)
