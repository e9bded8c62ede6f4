"""The vector indexes of every scope and embedder, each with the file that it is kept in."""

import logging
import os
import threading
from collections.abc import Collection
from pathlib import Path

from blake3 import blake3

from emblema.errors import StoreError
from emblema.library.embedder import Vectors
from emblema.library.vectorfile import read_vectors, write_vectors
from emblema.library.vectors import VectorIndex

_LOG = logging.getLogger(__name__)
UNSAVED_CHUNKS = 64
"""So many chunks may change, or an eighth of all, before the file is written again; the rest waits for `flush`."""


class SavedIndex:
    """A vector index and its file. What the file lacks is made again from the chunks, so it may be lost or lag behind.

    Attributes:
        damaged: files that could not be trusted.
    """

    def __init__(self, path: Path | None, about: str) -> None:
        self.path, self.about = path, about
        self.index = VectorIndex()
        self.damaged = 0
        self._lock = threading.Lock()
        self._unsaved = 0
        self._seen: tuple[int, int, int] | None = None

    def refresh(self) -> None:
        """Take over what the file has and memory lacks, if the file is another than before."""
        with self._lock:
            stamp = None if self.path is None else _stamp(self.path)
            if self.path is None or stamp is None or stamp == self._seen:
                return
            self._seen = stamp
            try:
                found = read_vectors(self.path, self.about)
            except FileNotFoundError:
                return
            except StoreError as error:
                _LOG.warning("%s; they are made again", error)
                self.damaged += 1
                return
            for chunk, vectors in found.items():
                if chunk not in self.index:
                    self.index.add(chunk, vectors)

    def add(self, chunk: str, vectors: Vectors) -> None:
        """Keep a chunk's vectors; written to the file with others."""
        self.index.add(chunk, vectors)
        self._changed(1)

    def remove(self, chunks: Collection[str]) -> None:
        """Forget chunks' vectors."""
        self._changed(self.index.remove(chunks))

    def flush(self) -> None:
        """Write what has changed. StoreError where the folder cannot be written."""
        with self._lock:
            if self.path is not None and self._unsaved:
                write_vectors(self.path, self.about, self.index.snapshot())
                self._unsaved, self._seen = 0, _stamp(self.path)

    def _changed(self, count: int) -> None:
        with self._lock:
            self._unsaved += count
            many = self._unsaved >= max(UNSAVED_CHUNKS, len(self.index) // 8)
        if many:
            try:
                self.flush()
            except StoreError as error:
                # They stay in memory and can be made again; `flush` says so to whoever asks.
                _LOG.warning("%s", error)


class Indexes:
    """Every index of one folder, or of memory where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], SavedIndex] = {}

    def of(self, scope: str, embedder: str) -> SavedIndex:
        """The index of one scope's chunks under one embedder."""
        with self._lock:
            if (scope, embedder) not in self._made:
                about = f"{scope} {embedder}"
                name = f"{blake3(about.encode()).hexdigest()}.safetensors"
                self._made[scope, embedder] = SavedIndex(None if self.folder is None else self.folder / name, about)
            return self._made[scope, embedder]

    def forget(self, scope: str, chunks: Collection[str]) -> None:
        """Forget chunks of a scope, under every embedder in use."""
        with self._lock:
            saved = [one for (owner, _), one in self._made.items() if owner == scope]
        for one in saved:
            one.remove(chunks)

    @property
    def damaged(self) -> int:
        """Files that could not be trusted."""
        with self._lock:
            return sum(one.damaged for one in self._made.values())

    def flush(self) -> None:
        """Write what has changed. StoreError where the folder cannot be written."""
        with self._lock:
            saved = list(self._made.values())
        for one in saved:
            one.flush()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
