"""What docs/store-format.md says is so: its code reads and writes the files, its example is true."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
import safetensors.numpy
import torch
from xxhash import xxh3_128_hexdigest

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows
from emblema.store import format
from emblema.store.codec import chunk_record
from emblema.store.format import ITEM_BYTES, MAX_HEADER
from emblema.store.record import SHARED
from tests.store.corpus import compact, file_bytes, identity, opened, split

DOCUMENT = Path(__file__).parents[2] / "docs" / "store-format.md"


def blocks(language: str) -> list[str]:
    """The document's code of one language."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def documented(name: str) -> Callable[..., Any]:
    """A function that the document gives in full."""
    (source,) = [block for block in blocks("python") if f"def {name}(" in block]
    found: dict[str, Any] = {}
    exec(compile(source, str(DOCUMENT), "exec"), found)
    function: Callable[..., Any] = found[name]
    return function


def test_plain_safetensors_and_xxhash_read_it_as_documented(tmp_path: Path) -> None:
    read_piece = documented("read_piece")
    for seed in range(1, 13):
        path = tmp_path / "piece.safetensors"
        path.write_bytes(file_bytes(seed))
        piece, tensors = read_piece(path)
        with format.open_file(path, identity(seed)) as reader:
            assert (piece["id"], piece["kind"], piece["meta"]) == (
                identity(seed),
                reader.header.kind,
                reader.header.meta,
            )
            assert list(tensors) == list(reader.header.sizes)
            for name, (dtype, shape, data) in tensors.items():
                array = reader.read(name)
                assert (array.dtype, list(array.shape), bytes(array.data)) == (dtype, shape, data)
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
        with pytest.raises(ValueError, match="damaged"):
            read_piece(path)


def test_torch_reads_the_tensors_through_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "piece.safetensors"
    path.write_bytes(file_bytes(4))
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.get_tensor("layers.0.keys").dtype == torch.bfloat16
        assert file.get_tensor("token_ids").tolist()


def test_a_file_written_as_documented_is_read(tmp_path: Path) -> None:
    path = tmp_path / "piece.safetensors"
    for seed in range(1, 7):
        path.write_bytes(file_bytes(seed))
        piece, tensors = documented("read_piece")(path)
        del piece["tensors"]
        documented("write_piece")(path, piece, tensors)
        assert path.read_bytes() == file_bytes(seed), "the document's writer gives the same file, byte for byte"


def test_a_file_written_by_the_safetensors_library_is_read(tmp_path: Path) -> None:
    description, _, _ = opened(file_bytes(6))
    tensors = {"a": numpy.arange(5), "c": numpy.ones(3, numpy.uint8), "b": numpy.ones((2, 3), numpy.float32)}
    kinds = {"a": "I64", "b": "F32", "c": "U8"}
    table = [[name, kinds[name], list(tensors[name].shape), xxh3_128_hexdigest(tensors[name].data)] for name in "abc"]
    inner = compact({**description, "tensors": table})
    path = tmp_path / "piece.safetensors"
    safetensors.numpy.save_file(tensors, path, {"emblema": inner, "xxh3_128": xxh3_128_hexdigest(inner.encode())})
    with format.open_file(path, identity(6)) as reader:
        format.verify(reader)
        assert list(reader.header.sizes.values()) == [40, 24, 3]


def worked_example() -> bytes:
    """The piece of the document's example."""
    encoded = Encoded(
        torch.tensor([7, 9]),
        torch.tensor([[0.5, -1.0], [2.0, 0.25]]),
        torch.tensor([[0, 1]]),
        2,
        torch.zeros(2, dtype=torch.bool),
        (),
        torch.tensor([-1, -1]),
    )
    keys, values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[-1.0, 0.0], [0.5, 8.0]]])
    chunk = Chunk("0123456789abcdef" * 4, "text", "example", encoded, (LayerRows(keys, values),))
    return b"".join(format.buffers(chunk_record(chunk, SHARED, created=1795000000.5)))


def test_the_documents_worked_example_is_true() -> None:
    (description,) = blocks("json")
    description = description.strip()
    document = DOCUMENT.read_text()
    example = document[document.index("## A worked example") :]
    data = worked_example()
    header, tensors = split(data)
    assert header["__metadata__"]["emblema"] == description
    assert tensors[:16].hex(" ") in example
    assert f"with the checksum `{xxh3_128_hexdigest(tensors[:16])}`" in example
    assert f"with the checksum `{xxh3_128_hexdigest(description.encode())}`" in example
    length = len(data) - len(tensors) - 8
    assert f"the {len(description)} bytes" in example and f"{length} bytes long" in example
    assert f"the file has {len(data)} bytes" in example
    assert f"`{xxh3_128_hexdigest(b'')}`" in document


def test_the_document_names_the_limits_and_dtypes() -> None:
    document = DOCUMENT.read_text()
    assert f"{MAX_HEADER:,}" in document
    assert all(f"`{dtype}`" in document for dtype in ITEM_BYTES)
    assert f"version {format.FORMAT_VERSION}" in document.splitlines()[0]


def test_the_header_is_json_that_any_program_reads() -> None:
    header, _ = split(file_bytes(1))
    description = json.loads(header["__metadata__"]["emblema"])
    assert description["meta"]["name"] == "café"
    assert set(header["__metadata__"]) == {"emblema", "xxh3_128"}
