"""The media that items were made from, kept so that a lost chunk can be made again."""

import io
import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy
from blake3 import blake3
from PIL import Image

from emblema.errors import StoreError
from emblema.library.items import SourceNote
from emblema.media.source import is_address
from emblema.store.files import delete_durably, make_folder, write_whole
from emblema.store.record import is_id

_LOG = logging.getLogger(__name__)
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
STRAY_SECONDS = 3600.0
"""A file that no entry names is left alone so long: its entry may be about to be written."""


class Sources:
    """Media by scope and digest, in a folder or in memory, within a budget for each scope.

    Args:
        folder: where they are kept; None keeps them in memory.
        capacity_bytes: of each scope; what does not fit is not kept, and cannot be made again when it is lost.
    """

    def __init__(self, folder: Path | None, capacity_bytes: int) -> None:
        self.folder, self.capacity_bytes = folder, capacity_bytes
        self._held: dict[tuple[str, str], bytes] = {}

    def keep(self, scope: str, source: Any, options: Mapping[str, Any], held: Mapping[str, int]) -> SourceNote | None:
        """Keep a source; return a note by which it is found again, or None where it cannot be kept.

        Args:
            scope: whose it is.
            source: what a library is given; None with options that hold everything, such as a text.
            options: what it is added with.
            held: digests kept for the scope, with their bytes.

        Raises:
            StoreError: it could not be written.
        """
        try:
            options = json.loads(json.dumps(dict(options), allow_nan=False))
        except (TypeError, ValueError):
            return None
        if source is None:
            return SourceNote(options=options) if options else None
        if is_address(source):
            return SourceNote(address=str(source), options=options)
        data = self._bytes(source)
        if data is None:
            return None
        digest = blake3(data).hexdigest()
        if digest not in held:
            if sum(held.values()) + len(data) > self.capacity_bytes:
                _LOG.warning("a source of %d bytes is not kept: %d is the budget", len(data), self.capacity_bytes)
                return None
            self._write(scope, digest, data)
        return SourceNote(digest, len(data), options=options)

    def read(self, scope: str, note: SourceNote) -> Any:
        """Read the source of a note; None is a source too, where the options hold everything.

        Raises:
            StoreError: it is gone, or not what was kept.
        """
        if note.address or not note.digest:
            return note.address or None
        try:
            data = (
                self._held[scope, note.digest] if self.folder is None else self._path(scope, note.digest).read_bytes()
            )
        except (KeyError, OSError) as error:
            raise StoreError(f"the media of digest {note.digest[:12]} are gone") from error
        if blake3(data).hexdigest() != note.digest:
            self.forget(scope, note.digest)
            raise StoreError(f"the media of digest {note.digest[:12]} are damaged")
        return data

    def forget(self, scope: str, digest: str) -> None:
        """Delete a source, durably."""
        self._held.pop((scope, digest), None)
        if self.folder is not None:
            delete_durably(self._path(scope, digest))

    def sweep(self, scope: str, held: Collection[str]) -> int:
        """Delete files that no entry names, old enough that none will; how many."""
        if self.folder is None or not (self.folder / scope).is_dir():
            return 0
        before, count = time.time() - STRAY_SECONDS, 0
        for path in (self.folder / scope).iterdir():
            if path.name not in held and path.lstat().st_mtime < before:
                delete_durably(path)
                count += 1
        return count

    def _bytes(self, source: Any) -> bytes | None:
        if isinstance(source, bytes | bytearray | memoryview):
            return bytes(source) if len(source) <= self.capacity_bytes else None
        if isinstance(source, str | os.PathLike):
            path = Path(os.fsdecode(source))
            return path.read_bytes() if path.is_file() and path.stat().st_size <= self.capacity_bytes else None
        if isinstance(source, numpy.ndarray) and source.dtype == numpy.uint8 and source.ndim in (2, 3):
            source = Image.fromarray(source)
        if not isinstance(source, Image.Image) or source.mode not in _MODES:
            return None
        file = io.BytesIO()
        source.save(file, "PNG")
        return file.getvalue()

    def _write(self, scope: str, digest: str, data: bytes) -> None:
        if self.folder is None:
            self._held[scope, digest] = data
            return
        path = self._path(scope, digest)
        try:
            make_folder(path.parent, mode=0o700)
            write_whole(path, [data])
        except OSError as error:
            raise StoreError(f"a source could not be kept in {path.parent}: {error.strerror or error}") from error

    def _path(self, scope: str, digest: str) -> Path:
        if self.folder is None or not is_id(digest):
            raise StoreError(f"{digest[:12]!r} is no digest of a kept source")
        return self.folder / scope / digest
