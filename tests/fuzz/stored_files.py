"""Stored pieces of any bytes: as they are, or a description of any text under its right checksum."""

from collections.abc import Iterator
from contextlib import suppress

from emblema.errors import LoadError
from tests.fuzz.targets import FuzzTarget
from tests.store.corpus import compact, file_bytes, open_bytes, opened, read_all, signed


def read_file(data: bytes) -> None:
    """Read a file to its end, or have it refused."""
    with suppress(LoadError):
        read_all(open_bytes(data))


def files() -> Iterator[bytes]:
    yield from (file_bytes(seed) for seed in range(1, 13))


def read_header(data: bytes) -> None:
    """Read a file whose description is this text, under the right checksum."""
    _, entries, tensors = opened(file_bytes(1))
    with suppress(LoadError):
        read_all(open_bytes(signed(data.decode("utf-8", "replace"), entries, tensors)))


def headers() -> Iterator[bytes]:
    yield from (compact(opened(file_bytes(seed))[0]).encode() for seed in range(1, 13))


TARGETS = {"file": FuzzTarget(read_file, files, 16_384), "header": FuzzTarget(read_header, headers)}
