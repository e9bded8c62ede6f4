"""Records of chosen bytes, and what both tiers are asked in the same way."""

import hashlib
import time
from collections.abc import Sequence

import numpy

from emblema.store.format import buffers
from emblema.store.record import Array, Record, RecordHeader, RecordReader
from emblema.store.remote.tier import Found, ServerTier


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


ALICE, BOB = digest("alice"), digest("bob")


def record(
    name: str,
    owner: str = ALICE,
    *,
    layers: int = 3,
    layer_bytes: int = 5000,
    chunks: Sequence[str] = (),
    created: float | None = None,
) -> Record:
    """A chunk, or a patch where chunks are named; its bytes follow from its name."""
    random = numpy.random.default_rng(list(digest(name).encode()))
    arrays = {"token_ids": Array("I64", (3,), memoryview(numpy.arange(3)).cast("B"))}
    for layer in range(layers):
        data = random.integers(0, 256, layer_bytes, numpy.uint8)
        arrays[f"layers.{layer}.keys"] = Array("U8", (layer_bytes,), memoryview(data))
    header = RecordHeader(
        id=digest(name),
        kind="patch" if chunks else "chunk",
        owner=owner,
        model="0" * 64,
        chunks=tuple(chunks),
        created=time.time() if created is None else created,
        meta={"name": name},
    )
    return Record(header, arrays)


def size(record: Record) -> int:
    """Bytes of its file."""
    return sum(map(len, buffers(record)))


class Counted:
    """What a tier asks of its server from now on."""

    def __init__(self, tier: ServerTier) -> None:
        self.puts = self.bytes_read = 0
        server = tier._server
        get, put = server.get, server.put

        def counted_get(key: str, start: int, stop: int) -> Found | None:
            found = get(key, start, stop)
            self.bytes_read += 0 if found is None else len(found.data)
            return found

        def counted_put(*given: object) -> None:
            self.puts += 1
            put(*given)

        server.get, server.put = counted_get, counted_put


def same(reader: RecordReader | None, expected: Record) -> bool:
    """Whether every tensor of an open record is the expected one, byte for byte."""
    return reader is not None and all(
        bytes(reader.read(name).data) == bytes(array.data) for name, array in expected.arrays.items()
    )
