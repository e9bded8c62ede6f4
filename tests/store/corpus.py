"""Small stored pieces of every kind, from seeds, and their files taken apart and put together."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from xxhash import xxh3_128_hexdigest

from emblema.errors import LoadError
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.store import format
from emblema.store.codec import (
    artifact_record,
    chunk_kind,
    chunk_record,
    layer_bytes,
    read_artifact,
    read_encoded,
    read_layers,
)
from emblema.store.compression import COMPRESSIONS
from emblema.store.record import Record, RecordReader

OWNER = "0f" * 32
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["F32", "I64", "chunk"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def identity(number: int) -> str:
    return f"{number:064x}"


def chunk(
    seed: int, length: int = 6, layers: int = 2, dtype: torch.dtype = torch.float32, deepstack: int = 1, width: int = 4
) -> Chunk:
    """A chunk of random numbers, most of its tokens visual."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    visual = torch.arange(length) % 3 > 0
    encoded = Encoded(
        torch.randint(0, 1000, (length,), generator=generator),
        numbers(length, 8),
        torch.arange(length).repeat(3, 1),
        length + 1,
        visual,
        tuple(numbers(int(visual.sum()), 8) for _ in range(deepstack)),
        torch.where(visual, 0, -1),
    )
    rows = tuple(LayerRows(numbers(2, length, width), numbers(2, length, width)) for _ in range(layers))
    return Chunk(identity(seed), "image", "a model", encoded, rows)


def patch(seed: int, length: int = 6, rank: int = 2) -> tuple[ArtifactKey, Patch]:
    """A patch of two layers, the first of them unpatched."""
    generator = torch.Generator().manual_seed(seed)

    def factors() -> Factors:
        return Factors(torch.randn(length, rank, generator=generator), torch.randn(rank, 8, generator=generator))

    key = ArtifactKey("a model", identity(seed + 1), (identity(seed + 2), identity(seed + 3)))
    return key, Patch((None, LayerPatch(factors(), factors())))


def record(seed: int) -> Record:
    """The corpus' piece of a seed: chunks of each compression and a patch, in turn."""
    kind = seed % 6
    if kind == 5:
        return artifact_record(patch(seed)[0], identity(seed), patch(seed)[1], OWNER, created=float(seed))
    made = chunk(seed, dtype=torch.bfloat16 if kind == 4 else torch.float32, deepstack=seed % 2)
    made_record = chunk_record(made, OWNER, compression=COMPRESSIONS[kind % 4], created=float(seed))
    # A field that no reader knows.
    header = replace(made_record.header, meta={**made_record.header.meta, "name": "café"})
    return replace(made_record, header=header)


@cache
def file_bytes(seed: int) -> bytes:
    return b"".join(format.buffers(record(seed)))


def open_bytes(data: bytes, id: str | None = None) -> format.Reader:
    """Open a file's bytes."""

    def fill(offset: int, target: memoryview) -> None:
        if offset + target.nbytes > len(data):
            raise ValueError(f"it is cut short at byte {len(data)}")
        target[:] = data[offset : offset + target.nbytes]

    return format.open_source(fill, len(data), id)


def read_all(reader: RecordReader) -> None:
    """Everything that the store ever reads of a piece."""
    for name in reader.header.sizes:
        reader.read(name)
    if reader.header.kind == "patch":
        read_artifact(reader)
        return
    chunk_kind(reader.header)
    assert read_encoded(reader).tokens == reader.header.meta["tokens"]
    assert tuple(layer.bytes for layer in read_layers(reader)) == layer_bytes(reader.header)


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A file's header, and its tensors' bytes."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: str | bytes, tensors: bytes) -> bytes:
    """A file of any header."""
    head = header.encode() if isinstance(header, str) else header
    return len(head).to_bytes(8, "little") + head + tensors


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def signed(description: Any, entries: Mapping[str, Any], tensors: bytes) -> bytes:
    """A file whose description, whatever it says, has the right checksum."""
    text = description if isinstance(description, str) else compact(description)
    checksum = xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
    return join(compact({"__metadata__": {"emblema": text, "xxh3_128": checksum}, **entries}), tensors)


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """A file's description, its header's entries and its tensors' bytes."""
    header, tensors = split(data)
    return json.loads(header.pop("__metadata__")["emblema"]), header, tensors


def refused(data: bytes, id: str | None = None) -> bool:
    """Whether a file's bytes are refused in the one way that is allowed; any other error goes through."""
    try:
        with open_bytes(data, id) as reader:
            read_all(reader)
    except LoadError:
        return True
    return False
