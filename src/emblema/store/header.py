"""The header of a stored piece's file: what it says and where the tensors lie, see `docs/store-format.md`.

Nothing of a header is believed before its checksum holds, and no memory is set aside for a tensor before the header
agrees with the file's real length. What is wrong is a ValueError here; `format` makes it a LoadError or StoreError.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from xxhash import xxh3_128

from emblema.store.record import SHARED, RecordHeader, RecordKind, is_id

FORMAT_VERSION = 1
MAX_HEADER = 2**20
MAX_TENSOR = 2**36
MAX_AXES = 8
ALIGNMENT = 64
ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "BOOL": 1}
)

_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_FIELDS = {"version", "id", "kind", "owner", "model", "chunks", "created", "meta", "tensors"}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor of a file: dtype, shape, checksum (32 hexadecimal digits); its place in bytes from the first tensor."""

    dtype: str
    shape: tuple[int, ...]
    checksum: str
    start: int
    stop: int


Parsed = tuple[RecordHeader, Mapping[str, TensorPlace]]


def read_length(prefix: bytes | bytearray, file_bytes: int) -> int:
    """Bytes of the header, of a file's first 8 bytes and its length.

    Raises:
        ValueError: the file or the limit ends before it.
    """
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= min(MAX_HEADER, file_bytes - 8):
        raise ValueError(f"its header of {length} bytes is beyond its end or the limit of {MAX_HEADER}")
    return length


def parse(head: bytes | bytearray, data_bytes: int) -> Parsed:
    """What a header says, for a file that has `data_bytes` bytes after it.

    Raises:
        ValueError: anything is not as the format says.
        RecursionError: it is nested too deeply.
    """
    text = head.decode()
    outer = _loads(text)
    if _dumps(outer) != text.rstrip(" "):
        raise ValueError("its header is not compact JSON, padded by spaces")
    metadata = outer.pop("__metadata__", None) if isinstance(outer, dict) else None
    if not isinstance(metadata, dict) or set(metadata) != {"emblema", "xxh3_128"}:
        raise ValueError("it is not a stored piece: __metadata__ must hold emblema and xxh3_128")
    inner = metadata["emblema"]
    if not isinstance(inner, str) or xxh3_128(inner.encode()).hexdigest() != metadata["xxh3_128"]:
        raise ValueError("the checksum of its header differs")
    fields = _loads(inner)
    version = fields.get("version") if isinstance(fields, dict) else None
    if type(version) is not int or version not in VERSIONS:
        raise ValueError(f"its format version is {str(version)[:20]}, this program reads {[*VERSIONS]}")
    header, places = VERSIONS[version](fields)
    # As text, since in Python true equals 1 and 1.0.
    if _dumps(outer, sort_keys=True) != _dumps(_safetensors(places), sort_keys=True):
        raise ValueError("its tensors do not lie as its header says")
    if data_bytes != header.bytes:
        raise ValueError(f"its tensors have {data_bytes} bytes in place of {header.bytes}")
    return header, places


def build(header: RecordHeader, places: Mapping[str, TensorPlace]) -> bytes:
    """The file's bytes before the first tensor: 8 of length and the header, padded to a multiple of `ALIGNMENT`.

    Raises:
        ValueError, TypeError, RecursionError: the header could not be read again, or not as it is.
    """
    fields = {
        "version": FORMAT_VERSION,
        "id": header.id,
        "kind": header.kind,
        "owner": header.owner,
        "model": header.model,
        "chunks": list(header.chunks),
        "created": header.created,
        "meta": dict(header.meta),
        "tensors": [[name, place.dtype, list(place.shape), place.checksum] for name, place in places.items()],
    }
    inner = _dumps(fields)
    metadata = {"emblema": inner, "xxh3_128": xxh3_128(inner.encode()).hexdigest()}
    text = _dumps({"__metadata__": metadata, **_safetensors(places)}).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise ValueError(f"its header of {len(text)} bytes is beyond the limit of {MAX_HEADER}")
    parse(text, sum(place.stop - place.start for place in places.values()))
    return len(text).to_bytes(8, "little") + text


def _version_1(fields: dict[str, Any]) -> Parsed:
    _require(set(fields) == _FIELDS, "fields")
    _require(is_id(fields["id"]), "id")
    _require(fields["kind"] in ("chunk", "patch"), "kind")
    _require(fields["owner"] == SHARED or is_id(fields["owner"]), "owner")
    _require(isinstance(fields["model"], str) and 0 < len(fields["model"]) <= 256, "model")
    chunks = fields["chunks"]
    _require(isinstance(chunks, list) and all(map(is_id, chunks)), "chunks")
    _require(bool(chunks) == (fields["kind"] == "patch"), "chunks")
    _require(type(fields["created"]) in (int, float) and math.isfinite(fields["created"]), "created")
    _require(isinstance(fields["meta"], dict), "meta")
    # Neither NaN nor a lone surrogate could be written again.
    _dumps(fields["meta"]).encode()
    _require(isinstance(fields["tensors"], list), "tensors")
    places: dict[str, TensorPlace] = {}
    start = 0
    for item in fields["tensors"]:
        name, place = _tensor_place(item, start)
        _require(name not in places, f"tensors: {name} twice")
        places[name], start = place, place.stop
    header = RecordHeader(
        id=fields["id"],
        kind=cast(RecordKind, fields["kind"]),
        owner=fields["owner"],
        model=fields["model"],
        chunks=tuple(chunks),
        created=float(fields["created"]),
        meta=fields["meta"],
        sizes={name: place.stop - place.start for name, place in places.items()},
    )
    return header, places


VERSIONS: Mapping[int, Callable[[dict[str, Any]], Parsed]] = MappingProxyType({1: _version_1})
"""Per version that is read, how its description becomes a header and the places of the tensors."""


def _tensor_place(item: object, start: int) -> tuple[str, TensorPlace]:
    _require(isinstance(item, list) and len(item) == 4, "tensors")
    name, dtype, shape, checksum = cast(list[Any], item)
    _require(isinstance(name, str) and _NAME.fullmatch(name) is not None, "tensors: a name")
    _require(isinstance(dtype, str) and dtype in ITEM_BYTES, f"tensors: the dtype of {name}")
    _require(isinstance(shape, list) and len(shape) <= MAX_AXES, f"tensors: the shape of {name}")
    _require(all(type(length) is int and 0 <= length <= MAX_TENSOR for length in shape), f"tensors: {name}'s shape")
    # An empty axis counts as one: no axis may be beyond what an index can address.
    _require(ITEM_BYTES[dtype] * math.prod(length or 1 for length in shape) <= MAX_TENSOR, f"tensors: {name} too large")
    _require(isinstance(checksum, str) and _CHECKSUM.fullmatch(checksum) is not None, f"tensors: {name}'s checksum")
    return name, TensorPlace(dtype, tuple(shape), checksum, start, start + ITEM_BYTES[dtype] * math.prod(shape))


def _safetensors(places: Mapping[str, TensorPlace]) -> dict[str, dict[str, Any]]:
    """What safetensors itself keeps of each tensor."""
    return {
        name: {"dtype": place.dtype, "shape": list(place.shape), "data_offsets": [place.start, place.stop]}
        for name, place in places.items()
    }


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"its header is malformed: {what}")


def _dumps(value: object, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)


def _loads(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header holds a key twice")
    return found
