"""Records of chosen sizes, made without torch."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from emblema.store.disk import DiskTier
from emblema.store.record import Array, Record, RecordHeader, RecordReader, Terms

MEBIBYTE = 2**20
ALICE = "a" * 64
BOB = "b" * 64


def id_of(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def contents(id: str, bytes: int, version: int = 0) -> bytes:
    """What a piece of this id and version holds: known from them alone."""
    return hashlib.shake_128(f"{id} {version}".encode()).digest(bytes)


def record(
    name: object,
    bytes: int = 1000,
    owner: str = ALICE,
    *,
    chunks: Sequence[str] = (),
    created: float = 1000.0,
    version: int = 0,
    id: str | None = None,
) -> Record:
    """A chunk, or a patch over `chunks`, in two tensors."""
    id = id_of(name) if id is None else id
    data = contents(id, bytes, version)
    half = bytes // 2
    arrays = {"first": _array(data[:half]), "second": _array(data[half:])}
    header = RecordHeader(
        id, "patch" if chunks else "chunk", owner, "model", tuple(chunks), created, {"version": version, "bytes": bytes}
    )
    return Record(header, arrays)


def check(reader: RecordReader | None, id: str, version: int | None = None) -> int:
    """Close a reader that must hold exactly what `record` put in, of this version if one is given; the version."""
    assert reader is not None
    try:
        assert reader.header.id == id
        meta = dict(reader.header.meta)
        data = bytes(reader.read("first").data) + bytes(reader.read("second").data)
    finally:
        reader.close()
    assert set(meta) == {"version", "bytes"}
    assert data == contents(id, meta["bytes"], meta["version"])
    assert version is None or meta["version"] == version
    found: int = meta["version"]
    return found


def piece_files(folder: Path) -> dict[str, int]:
    """Ids of the files in a store's folder, with their bytes."""
    return {path.stem: path.stat().st_size for path in (folder / "pieces").glob("*/*.safetensors")}


def piece_path(folder: Path, id: str) -> Path:
    return folder / "pieces" / id[:2] / f"{id}.safetensors"


def remove_catalogue(folder: Path) -> None:
    """Delete a folder's catalogue, which nobody may have open."""
    for path in folder.glob("catalogue.sqlite*"):
        path.unlink()


def temporary_files(folder: Path) -> list[str]:
    return os.listdir(folder / "temporary")


def _array(data: bytes) -> Array:
    return Array("U8", (len(data),), memoryview(data))


class Clock:
    """A clock that shows the same time until it is set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def there(tier: DiskTier) -> set[str]:
    """Names, of those that tests use, whose pieces are here; the files say the same."""
    names = {id_of(name): name for name in [*"abcdefgh", "chunk", "patch", "other", "shared", *map(str, range(50))]}
    files = piece_files(tier.path)
    assert {entry.id: entry.bytes for entry in tier.entries()} == files
    assert tier.bytes == sum(files.values())
    return {names[id] for id in files}


def put(tier: DiskTier, name: str, terms: Terms | None = None, bytes: int = 1000, created: float = 1000.0) -> None:
    tier.write(record(name, bytes, created=created), terms or Terms())
