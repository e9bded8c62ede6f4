"""Fuzz target: a file as it is (first byte 0), or a description under a right checksum (else), read to its end.

python tests/store/fuzz_reader.py -runs=100000 CORPUS_FOLDER
"""

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["emblema.store", "json"]):
    from emblema.errors import LoadError
    from tests.store.corpus import file_bytes, open_bytes, opened, read_all, signed


def read(data: bytes) -> None:
    if data[:1] != b"\0":
        _, entries, tensors = opened(file_bytes(1))
        data = b"\0" + signed(data[1:].decode("utf-8", "replace"), entries, tensors)
    with suppress(LoadError):
        read_all(open_bytes(data[1:]))


if __name__ == "__main__":
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
