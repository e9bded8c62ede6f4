"""The files of the bases that pairs are kept on: small, written whole and moved into place, never trusted."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from blake3 import blake3
from torch import Tensor

from emblema.errors import StoreError
from emblema.kv.pairs import ChunkPairs, PairBasis, turned
from emblema.store.files import hold_lock, make_folder, write_whole

log = logging.getLogger(__name__)

FOLDER = "pairs"
"""In a store's folder."""
LARGEST = 256 * 2**20
"""Bytes of a file that is read."""
VERSION = 1
LOCK = "lock"
LOCK_SECONDS = 1.0
"""How long to wait for another process that writes; what waits longer is written the next time."""


@dataclass(frozen=True, slots=True)
class KeptBasis:
    """A basis as it is kept.

    Attributes:
        basis: the basis.
        made: how many bases were made, this one included.
        earlier: id of the basis before it, of which pairs may still be; None for none.
        turn: [M, M'] products of the directions of both, which carry its coefficients over.
    """

    basis: PairBasis
    made: int
    earlier: str | None = None
    turn: Tensor | None = None

    def hold(self, pairs: ChunkPairs) -> ChunkPairs | None:
        """Return pairs on this basis; None where they belong to an unknown one."""
        if pairs.basis == self.basis.id:
            return pairs
        if pairs.basis == self.earlier and self.turn is not None:
            return turned(pairs, self.turn, self.basis.id)
        return None


class PairBases:
    """Keeps one basis for each tenant and model, which all processes on the folder use.

    Args:
        folder: of the files; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def shared(self) -> bool:
        """Whether other processes may use them too."""
        return self._folder is not None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold what keeps other processes from writing bases, and pairs on them; it falls when the process ends.

        Raises:
            OSError: another process holds it too long (`TimeoutError`), or the folder cannot be written.
        """
        if self._folder is None:
            yield
            return
        make_folder(self._folder, mode=0o700)
        path = self._folder / LOCK
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with hold_lock(descriptor, path, seconds=LOCK_SECONDS):
                yield
        finally:
            os.close(descriptor)

    def load(self, owner: str, model: str, width: int) -> KeptBasis | None:
        """Return a tenant's basis for rows of so many features, or None; a damaged file is removed.

        A file that cannot be read is left: the folder may answer again, and other processes may read it.
        """
        path = self._path(owner, model)
        try:
            return None if path is None else _load(path, width)
        except OSError as error:
            log.warning("%s: the basis of pairs was not read: %s", path, error)
            return None

    def save(self, owner: str, model: str, kept: KeptBasis) -> KeptBasis:
        """Write a basis, unless another process has made as many meanwhile; return the one that is kept.

        A failure is only reported, as no answer depends on it.
        """
        try:
            with self.held():
                return self.keep(owner, model, kept)
        except OSError as error:
            log.warning("the basis of pairs of %s was not saved: %s", owner[:12], error)
        return kept

    def keep(self, owner: str, model: str, kept: KeptBasis) -> KeptBasis:
        """Do what `save` does, within `held`.

        Raises:
            OSError: it cannot be written, or the file that is there cannot be read.
        """
        path = self._path(owner, model)
        if path is None or kept.basis.exact:
            return kept
        there = _load(path, kept.basis.directions.shape[1])
        if there is not None and there.made >= kept.made:
            return there
        turn = torch.empty(0, 0) if kept.turn is None else kept.turn
        head = {
            "version": VERSION,
            "made": kept.made,
            "earlier": kept.earlier,
            "directions": list(kept.basis.directions.shape),
            "turn": list(turn.shape),
        }
        tensors = [tensor.contiguous().numpy().astype("<f4").tobytes() for tensor in (kept.basis.directions, turn)]
        body = b"\n".join((json.dumps(head).encode(), b"".join(tensors)))
        write_whole(path, [blake3(body).hexdigest().encode(), b"\n", body])
        return kept

    def _path(self, owner: str, model: str) -> Path | None:
        name = blake3(model.encode()).hexdigest(16)
        return None if self._folder is None else self._folder / f"{owner}-{name}.basis"


def _load(path: Path, width: int) -> KeptBasis | None:
    """Read a file, or return None; a damaged one is removed.

    Raises:
        OSError: it cannot be read, or removed.
    """
    if not path.exists():
        return None
    try:
        return _read(path, width)
    except (ValueError, KeyError, TypeError, StoreError) as error:
        log.warning("%s: the basis of pairs is made again: %s", path, error)
        path.unlink(missing_ok=True)
        return None


def _read(path: Path, width: int) -> KeptBasis:
    """Read a file.

    Raises:
        StoreError, ValueError, KeyError, TypeError: it is damaged, or of rows of another width.
        OSError: it cannot be read.
    """
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
        raise StoreError("this is no file of a basis")
    digest, _, body = path.read_bytes().partition(b"\n")
    if blake3(body).hexdigest().encode() != digest:
        raise StoreError("its checksum differs")
    text, _, numbers = body.partition(b"\n")
    head = json.loads(text)
    (rank, features), (before, after) = head["directions"], head["turn"]
    if head["version"] != VERSION or features != width or len(numbers) != 4 * (rank * features + before * after):
        raise StoreError("it is of another version, or of another model")
    values = torch.from_numpy(numpy.frombuffer(numbers, "<f4").copy())
    directions, turn = values.split([rank * features, before * after])
    earlier = None if head["earlier"] is None else str(head["earlier"])
    return KeptBasis(
        PairBasis(directions.reshape(rank, features)),
        int(head["made"]),
        earlier,
        turn.reshape(before, after) if earlier is not None else None,
    )
