"""Untrusted media are decoded in processes of their own: bounded in number, memory and time, and killed when late.

A caller sends an open file and the limits over a socket, and gets messages back: a header in JSON, and raw pixels or
samples. Nothing is unpickled. A process is a fresh interpreter that imports the decoders and nothing else: not the
caller's `__main__`, and no torch. (Pools built on multiprocessing import `__main__` again, which a script without a
guard does not survive, and unpickle what a process sends.)
"""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing.spawn
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from emblema.errors import EmblemaError, MediaError
from emblema.media.limits import MediaLimits

START_SECONDS = 60.0
"""A process that does not answer so long after its start never will."""

IDLE_SECONDS = 60.0
"""A process that has waited so long for a task ends."""

TASKS_A_PROCESS = 1000
"""Tasks after which a process is replaced by a fresh one."""

LENGTHS = struct.Struct("<IQ")
"""What a message begins with: bytes of its header and of its payload."""

_HEADER_BYTES = 65_536
_SCRIPT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from emblema.media import decoder; decoder.main()"
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
# One thread and one heap for libraries that would take one for each core: each counts against the memory limit.
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """One file to be decoded.

    Attributes:
        kind: what is wanted of it.
        file: the file, open, with a descriptor; it is read from its start.
        name: the file's, for messages.
        limits: bounds on it.
        item_bytes: the largest payload that may come back at once.
        options: what the decoder of this kind takes beside these.
        lazy: whether the items are taken one at a time, for as long as the caller likes. Such a task has a process of
            its own, and a time limit for each item alone.
    """

    kind: Literal["picture", "count", "pages", "frames", "sound", "container", "live"]
    file: BinaryIO
    name: str
    limits: MediaLimits
    item_bytes: int = 0
    options: Mapping[str, float | str] = field(default_factory=dict)
    lazy: bool = False

    @property
    def is_short(self) -> bool:
        """Whether it is over as soon as one picture would be."""
        return self.kind in ("picture", "count", "container")

    @property
    def item_seconds(self) -> float:
        """Seconds until the next item."""
        return self.limits.picture_seconds if self.is_short or self.kind == "pages" else self.limits.media_seconds

    @property
    def seconds(self) -> float:
        """Seconds for all items together."""
        if self.lazy:
            return math.inf
        return self.limits.picture_seconds if self.is_short else self.limits.media_seconds


@dataclass(frozen=True, slots=True)
class DecodedItem:
    """One picture, frame, page or piece of sound as it came back: its fields, to be checked, and its payload."""

    fields: Mapping[str, Any]
    data: bytearray


def decode(task: DecodeTask) -> Iterator[DecodedItem]:
    """Yield what a process decodes of a file.

    Raises:
        MediaError: the file cannot be decoded, is outside the limits, takes too long, or ends its process.
        EmblemaError: a package is missing, or no process can be started.
    """
    with _making:
        pool = _decoder_pool(os.getpid())
    return pool.decode(task)


_making = threading.Lock()


def decoding_places() -> int:
    """Return how many pictures, and as many long media, this process has decoded at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, min(4, cores)) + 1


@cache
def _decoder_pool(owner: int) -> DecoderPool:
    """Return the pool of a process; a fork does not share its parent's."""
    return DecoderPool(owner, size=decoding_places())


_TAKE: ContextVar[Callable[[int], None] | None] = ContextVar("take", default=None)


@contextmanager
def counting_decoded(take: Callable[[int], None]) -> Iterator[None]:
    """Have `take` called with the bytes of each item that this thread has decoded, before there is room made for it.

    What `take` raises ends the decoding.
    """
    token = _TAKE.set(take)
    try:
        yield
    finally:
        _TAKE.reset(token)


class DecoderPool:
    """The decoding processes of one process: at most `size` for pictures and as many for long media.

    Long media (documents, videos, sound) wait for each other and never hold up pictures.
    """

    def __init__(self, owner: int, size: int) -> None:
        self._owner, self._size = owner, size
        self._short, self._long = threading.BoundedSemaphore(size), threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[DecoderProcess] = []
        self._all: set[DecoderProcess] = set()
        atexit.register(self.close)

    def decode(self, task: DecodeTask) -> Iterator[DecodedItem]:
        """Yield the items of a task; errors as the function `decode`."""
        slot = nullcontext() if task.lazy else self._short if task.is_short else self._long
        with slot, self._process() as process:
            yield from process.run(task)

    def close(self) -> None:
        """End all processes; what they were decoding fails."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            resting, running = self._idle, self._all.difference(self._idle)
            self._all, self._idle = set(), []
        for process in running:
            process.kill()
        for process in resting:
            process.kill()
            process.close()

    @contextmanager
    def _process(self) -> Iterator[DecoderProcess]:
        """Give out a process that waits, or a fresh one; it is kept if its task came to an end, and killed if not."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is not None and not process.is_usable:
            self._end(process)
            process = None
        if process is None:
            process = DecoderProcess()
            with self._lock:
                self._all.add(process)
        try:
            yield process
        finally:
            with self._lock:
                keeps = process.is_usable and process in self._all and len(self._idle) < self._size
                if keeps:
                    self._idle.append(process)
            if not keeps:
                self._end(process)

    def _end(self, process: DecoderProcess) -> None:
        with self._lock:
            self._all.discard(process)
        process.kill()
        process.close()


class DecoderProcess:
    """One process that decodes one file at a time.

    Raises:
        EmblemaError: it cannot be started.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            package = str(Path(__file__).parents[2])
            # Standard modules come first, so that nothing in the folder of the package stands in for them.
            path = [os.path.abspath(folder) for folder in sys.path if folder]
            path += [package] if package not in path else []
            variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
            try:
                self._process = subprocess.Popen(
                    [_python(), "-I", "-B", "-c", _SCRIPT, str(theirs.fileno()), json.dumps(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd="/",
                    env=variables | _SETTINGS,
                )
            except OSError as error:
                self._socket.close()
                raise EmblemaError(f"no process for decoding media can be started ({error})") from error
        self._tasks = 0
        self._busy = False
        self._rests_since = time.monotonic()
        try:
            self._receive(1, time.monotonic() + START_SECONDS)
        except (OSError, EOFError) as error:
            self.kill()
            self.close()
            raise EmblemaError(
                f"the process for decoding media did not start ({_python()}, exit status {self._process.returncode}): "
                "what it wrote to standard error says why"
            ) from error

    @property
    def is_usable(self) -> bool:
        """Whether it can take a task: alive, nothing half done, and not about to end by itself."""
        resting = time.monotonic() - self._rests_since
        fresh = self._tasks < TASKS_A_PROCESS and resting < IDLE_SECONDS / 2
        return not self._busy and fresh and self._process.poll() is None

    def run(self, task: DecodeTask) -> Iterator[DecodedItem]:
        """Yield the items of a task. Time counts while an item is waited for."""
        self._tasks += 1
        self._busy = True
        left = task.seconds
        limits = asdict(task.limits) | {"allowed_hosts": ()}
        request = {"kind": task.kind, "name": task.name, "limits": limits, "options": dict(task.options)}
        try:
            self._send(json.dumps(request | {"seconds": left}).encode(), task.file.fileno())
            while True:
                began = time.monotonic()
                fields, data = self._message(began + min(left, task.item_seconds), task.item_bytes)
                left -= time.monotonic() - began
                outcome = fields.pop("outcome", None)
                if outcome != "item":
                    break
                yield DecodedItem(fields, data)
        except TimeoutError as error:
            raise self._late(task) from error
        except (OSError, EOFError) as error:
            self.kill()
            if self._process.returncode == -signal.SIGXCPU:
                raise self._late(task) from error
            raise MediaError(
                f"{task.name} ended the process that decoded it (exit status {self._process.returncode}): it is "
                f"broken, or needs more than {task.limits.decoder_bytes} bytes of memory (the limit decoder_bytes)."
            ) from error
        self._busy = False
        self._rests_since = time.monotonic()
        if outcome != "end":
            text = str(fields.get("message"))[:2000]
            raise EmblemaError(text) if outcome == "unavailable" else MediaError(text)

    def kill(self) -> None:
        """End the process at once; a thread that waits for it gets an error."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the socket; the process has to be dead."""
        self._socket.close()

    def _late(self, task: DecodeTask) -> MediaError:
        name = "picture_seconds" if task.is_short else "media_seconds"
        if task.kind == "pages":
            return MediaError(
                f"{task.name} takes longer than {task.item_seconds:g} s a page (the limit picture_seconds) or "
                f"{task.seconds:g} s in all (the limit media_seconds) to decode."
            )
        return MediaError(f"{task.name} takes longer than {task.item_seconds:g} s to decode (the limit {name}).")

    def _send(self, header: bytes, descriptor: int) -> None:
        message = LENGTHS.pack(len(header), 0) + header
        self._socket.settimeout(START_SECONDS)
        sent = socket.send_fds(self._socket, [message], [descriptor])
        self._socket.sendall(message[sent:])

    def _message(self, deadline: float, most: int) -> tuple[dict[str, Any], bytearray]:
        """Return the fields and payload of the next message.

        Raises:
            EOFError: there is none, or it is not one that the decoder sends.
            TimeoutError: it did not come in time.
        """
        header, payload = LENGTHS.unpack(self._receive(LENGTHS.size, deadline))
        if header > _HEADER_BYTES or payload > most:
            raise EOFError("a message is larger than any that the decoder sends")
        try:
            fields = json.loads(self._receive(header, deadline))
        except (ValueError, RecursionError) as error:
            raise EOFError("a message's header cannot be read") from error
        if not isinstance(fields, dict):
            raise EOFError("a message's header cannot be read")
        take = _TAKE.get()
        if take is not None:
            take(payload)
        return fields, self._receive(payload, deadline)

    def _receive(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(min(left, threading.TIMEOUT_MAX))
            count = self._socket.recv_into(rest)
            if count == 0:
                raise EOFError
            rest = rest[count:]
        return data


def _python() -> str:
    """Return the interpreter to start: a program that embeds Python may be named as `sys.executable`."""
    told = os.fsdecode(multiprocessing.spawn.get_executable() or "")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = [told, *(str(Path(prefix) / "bin" / version) for prefix in (sys.exec_prefix, sys.base_exec_prefix))]
    for place in places:
        if Path(place).name.startswith(("python", "pypy")) and os.access(place, os.X_OK):
            return place
    raise EmblemaError(
        "no Python interpreter is found for decoding media in a process of its own: name one with "
        "multiprocessing.set_executable, or pass pictures that you have decoded (Pillow images or arrays)"
    )
