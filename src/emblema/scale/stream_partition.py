"""Streams placed on workers by data (Mosaic, section VIII-D): each stream is on one, and moves with its state."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, StreamError
from emblema.scale.hash_ring import HashRing
from emblema.scale.hash_ring import hash_of as key_of
from emblema.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """What a stream on some worker answers.

    Attributes:
        text: of the answer.
        worker: where the stream is.
        seconds: to the first token.
    """

    text: str
    worker: str
    seconds: float


class StreamWorker:
    """The streams of one worker, on an engine of its own over the folder that all workers share."""

    def __init__(self, model: str, folder: Path, **options: Any) -> None:
        self._engine = Engine.load(model, store=folder, **options)
        self._streams: dict[str, Stream] = {}

    def open(self, name: str, **changes: Any) -> None:
        """Begin a stream."""
        self._streams[name] = self._engine.stream(**changes)

    def push(self, name: str, frames: Sequence[Any], moments: Sequence[float]) -> int:
        """Encode frames (pictures that PIL or numpy made) of some moments in seconds; return how many it has now."""
        stream = self._streams[name]
        for frame, at in zip(frames, moments, strict=True):
            stream.push(frame, at=at)
        stream.advance()
        return stream.frames

    def ask(self, name: str, text: str, **asked: Any) -> tuple[str, float]:
        """Return a stream's answer and its seconds to the first token."""
        reply = self._streams[name].ask(text, **asked)
        return reply.text, reply.usage.ttft_seconds

    def give(self, name: str) -> None:
        """Save a stream for another worker, and let go of it."""
        stream = self._streams[name]
        stream.save(name)
        del self._streams[name]
        stream.close()

    def take(self, name: str) -> None:
        """Load a stream that another worker saved."""
        self._streams[name] = self._engine.load_stream(name)

    def save(self, name: str) -> None:
        """Save a stream and go on: what came until now outlives this worker."""
        self._streams[name].save(name)

    def close(self) -> None:
        """Close the streams and the engine."""
        for stream in self._streams.values():
            stream.close()
        self._engine.close()


class WorkerHandle(Protocol):
    """A worker, wherever it is: carries out one call after another."""

    def call(self, method: str, *arguments: Any, **named: Any) -> Future[Any]:
        """Call a method of `StreamWorker`."""

    def close(self) -> None:
        """End the worker."""


class LocalWorker:
    """A worker in this process; calls are carried out at once."""

    def __init__(self, model: str, folder: Path, **options: Any) -> None:
        self._worker = StreamWorker(model, folder, **options)

    def call(self, method: str, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(self._worker, method)(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        self._worker.close()


class ProcessWorker:
    """A worker in a process of its own on this machine."""

    def __init__(self, model: str, folder: Path, **options: Any) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run_worker, args=(theirs, model, folder, options), daemon=True)
        self._process.start()
        theirs.close()
        # One call after another, in the order in which they were made.
        self._calls = ThreadPoolExecutor(1, "emblema-stream-worker")

    def call(self, method: str, *arguments: Any, **named: Any) -> Future[Any]:
        return self._calls.submit(self._call, method, arguments, named)

    def _call(self, method: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        try:
            self._pipe.send((method, arguments, named))
            good, found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise StreamError("the worker has ended: load its streams on another") from error
        if not good:
            raise found
        return found

    def close(self) -> None:
        with suppress(StreamError):
            self.call("close").result()
        self._calls.shutdown()
        self._pipe.close()
        self._process.join(60)


def _run_worker(pipe: Any, model: str, folder: Path, options: Mapping[str, Any]) -> None:
    """Carry out calls from a pipe until the worker is closed, or whoever made it has ended."""
    worker: StreamWorker | None = None
    method = ""
    while method != "close":
        try:
            method, arguments, named = pipe.recv()
        except EOFError:
            return
        try:
            worker = worker or StreamWorker(model, folder, **options)
            found = True, getattr(worker, method)(*arguments, **named)
        except EmblemaError as error:
            found = False, StreamError(str(error))
        except Exception as error:
            found = False, StreamError(f"{type(error).__name__}: {error}")
        pipe.send(found)


class StreamPartition:
    """Streams by name over workers. Of the two that consistent hashing names for a stream, the less busy one takes it.

    One thread uses a partition. Workers work at once; the calls of one stream keep their order.

    Args:
        workers: by name.
        options: of every stream, as of `Engine.stream`.
    """

    def __init__(self, workers: Mapping[str, WorkerHandle], **options: Any) -> None:
        if not workers:
            raise StreamError("a partition needs a worker or more")
        self._workers, self._options = dict(workers), options
        self._ring = HashRing(sorted(self._workers))
        self._homes: dict[str, str] = {}

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers."""
        return tuple(self._workers)

    @property
    def homes(self) -> dict[str, str]:
        """The worker of each stream."""
        return dict(self._homes)

    def open(self, name: str) -> str:
        """Begin a stream; return its worker."""
        if name in self._homes:
            raise StreamError(f"there is a stream {name!r} already")
        home = self._place(name)
        self._workers[home].call("open", name, **self._options).result()
        self._homes[name] = home
        return home

    def push(self, name: str, frames: Sequence[Any], moments: Sequence[float]) -> Future[int]:
        """Send frames to a stream's worker; the result is how many it has encoded then."""
        return self._of(name).call("push", name, frames, moments)

    def ask(self, text: str, names: Sequence[str] | None = None, **asked: Any) -> dict[str, PartitionAnswer]:
        """Ask some streams, or all, the same question at once; return the answers by name, in their order.

        Raises:
            StreamError: there is no such stream, or none of them had seen anything.
        """
        chosen = list(self._homes) if names is None else list(names)
        pending = {name: self._of(name).call("ask", name, text, **asked) for name in chosen}
        answers: dict[str, PartitionAnswer] = {}
        unseen: EmblemaError | None = None
        for name, future in pending.items():
            try:
                reply, seconds = future.result()
            except StreamError as error:
                unseen = error
                continue
            answers[name] = PartitionAnswer(reply, self._homes[name], seconds)
        if not answers:
            raise unseen or StreamError("there is no stream: open one before the question")
        return answers

    def move(self, name: str, worker: str) -> None:
        """Move a stream to another worker, with all that it remembers.

        Raises:
            StreamError: there is no such stream or worker, or the stream cannot be saved; it is where it was then.
        """
        if worker not in self._workers:
            raise StreamError(f"there is no worker {worker!r}: choose of {', '.join(self._workers)}")
        if self._homes.get(name) == worker:
            return
        self._of(name).call("give", name).result()
        self._workers[worker].call("take", name).result()
        self._homes[name] = worker

    def add(self, worker: str, handle: WorkerHandle) -> list[str]:
        """Add a worker and move to it the streams whose home it is now; return their names."""
        self._workers[worker] = handle
        self._ring = HashRing(sorted(self._workers))
        moved = [name for name in self._homes if next(self._ring.after(key_of(name))) == worker]
        for name in moved:
            self.move(name, worker)
        return moved

    def remove(self, worker: str) -> list[str]:
        """Move a worker's streams to others and end it; return their names."""
        if self._workers.keys() == {worker}:
            raise StreamError(f"{worker!r} is the last worker: add another before")
        leaving = self._workers[worker]
        others = {name: handle for name, handle in self._workers.items() if name != worker}
        moved = [name for name, home in self._homes.items() if home == worker]
        self._ring = HashRing(sorted(others))
        for name in moved:
            target = self._place(name, set(others))
            self.move(name, target)
        self._workers = others
        leaving.close()
        return moved

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.close()

    def _place(self, name: str, among: set[str] | None = None) -> str:
        """Return the less busy of a name's first two workers on the ring."""
        counts = dict.fromkeys(self._workers, 0)
        for home in self._homes.values():
            counts[home] += 1
        candidates = [worker for worker in self._ring.after(key_of(name)) if among is None or worker in among][:2]
        return min(candidates, key=lambda worker: counts[worker])

    def _of(self, name: str) -> WorkerHandle:
        if name not in self._homes:
            raise StreamError(f"there is no stream {name!r}: open it first")
        return self._workers[self._homes[name]]


def partition(make: Callable[[], WorkerHandle], count: int, **options: Any) -> StreamPartition:
    """Return a partition over so many new workers."""
    return StreamPartition({f"worker-{number}": make() for number in range(count)}, **options)
