"""Chunks and patches as records and back; the names and the order of their tensors are in `docs/store-format.md`."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from emblema.errors import LoadError, StoreError
from emblema.kv.chunk import Chunk, ChunkKind, Encoded
from emblema.kv.compact_map import CompactMap
from emblema.kv.device_copies import HostCopier
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.kv.layout import LayerRows, MappedRows, StateMap, StateShape
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.store.compression import Compression, check_compression, compress, restore
from emblema.store.record import Array, Record, RecordHeader, RecordKind, RecordReader

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "I64": torch.int64,
        "I32": torch.int32,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }
)
NAMES: Mapping[torch.dtype, str] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})
FLOATS = ("F64", "F32", "F16", "BF16")

Value = TypeVar("Value")
SLOTS = ("keys", "values")
MAP = ("own", "decay", "heads")
COMPACT_MAP = (*MAP, "own.scales", "decay.scales", "diagonal")
ENCODED = ("token_ids", "positions", "visual", "groups", "embeds")


def chunk_record(
    chunk: Chunk,
    owner: str,
    *,
    compression: Compression = "none",
    created: float,
) -> Record:
    """Return a chunk, whose rows are all here, as a record; tensors on the CPU are not copied.

    Args:
        chunk: its id has to be a digest, 64 hexadecimal digits.
        owner: digest of the tenant, or `shared`.
        compression: of the rows; what the decoder was fed is kept as it is.
        created: Unix time in seconds.

    Raises:
        StoreError: the compression is unknown, or a dtype has no place.
    """
    compression = check_compression(compression)
    encoded = chunk.encoded
    visual = encoded.visual.nonzero()[:, 0]
    fed = (encoded.token_ids, encoded.positions, visual, encoded.groups, encoded.embeds)
    tensors: dict[str, Tensor] = dict(zip(ENCODED, fed, strict=True))
    tensors |= {f"deepstack.{layer}": features for layer, features in enumerate(encoded.deepstack)}
    layers = []
    for index, layer in enumerate(chunk.rows):
        shapes: dict[str, Any] = {}
        for slot, rows in zip(SLOTS, (layer.keys, layer.values), strict=True):
            stored, scales = compress(rows, compression)
            if scales is not None:
                tensors[f"layers.{index}.{slot}.scales"] = scales
            tensors[f"layers.{index}.{slot}"] = stored
            shapes[slot] = [rows.shape[0], rows.shape[2], _dtype_name(rows)]
        if isinstance(layer, MappedRows):
            own, shapes["map"] = _map_tensors(layer, compression)
            tensors |= {f"layers.{index}.{name}": tensor for name, tensor in own.items()}
        layers.append(shapes)
    meta = {
        "media": chunk.kind,
        "tokens": encoded.tokens,
        "span": encoded.span,
        "compression": compression,
        "deepstack": len(encoded.deepstack),
        "layers": layers,
    }
    return make_record(RecordHeader(chunk.id, "chunk", owner, chunk.model, (), created, meta), tensors)


def _map_tensors(layer: MappedRows, compression: Compression) -> tuple[dict[str, Tensor], list[Any]]:
    """Return the tensors of a chunk's map as they are stored, and what the header says of it.

    Raises:
        StoreError: it is not one map that reaches to the chunk's end.
    """
    if len(layer.maps) != 1 or layer.maps[0].stop != layer.tokens:
        raise StoreError("rows that are kept as several maps of a state cannot be stored: store chunks one by one")
    held = layer.maps[0]
    number = held.diagonal if isinstance(held, CompactMap) else held.own
    said = [held.start, layer.edge, *held.own.shape, len(held.heads), _dtype_name(number)]
    if isinstance(held, CompactMap):
        return dict(zip(COMPACT_MAP, held.tensors, strict=True)), said
    # Never less: a map's error stays in the state.
    half = compression != "none" and held.dtype in (torch.float32, torch.float64)
    kept = [tensor.bfloat16() if half else tensor for tensor in (held.own, held.decay)]
    return dict(zip(MAP, (*kept, held.heads), strict=True)), said


def chunk_kind(header: RecordHeader) -> ChunkKind:
    """Return what the piece of a chunk is.

    Raises:
        LoadError: the record is no chunk.
    """
    return _checked(header, _kind)


def layer_bytes(header: RecordHeader) -> tuple[int, ...]:
    """Return the bytes of each layer's rows of a chunk in memory, decompressed.

    Raises:
        LoadError: the record is no chunk.
    """

    def sizes(header: RecordHeader) -> tuple[int, ...]:
        tokens = _natural(header.meta["tokens"])
        return tuple(
            sum(
                _slot_bytes(header, f"layers.{index}.{slot}", _held(layer, tokens), *_slot(layer, slot))
                for slot in SLOTS
            )
            + sum(
                _tensor_bytes(header, f"layers.{index}.{name}", *own)
                for name, own in _map_shapes(header, index, layer).items()
            )
            for index, layer in enumerate(_layers(header))
        )

    return _checked(header, sizes)


def read_encoded(reader: RecordReader) -> Encoded:
    """Return what the decoder was fed for a chunk, on the CPU.

    Raises:
        LoadError: it is damaged, or the record is no chunk.
    """
    return _checked(reader.header, lambda header: _encoded(reader, header))


def read_layers(reader: RecordReader) -> Iterator[LayerRows]:
    """Yield all layers' rows of a chunk, the first first, on the CPU, in the dtype that they were made in.

    Each is read when it is asked for.

    Raises:
        LoadError: it is damaged, or the record is no chunk.
    """
    for index, layer in enumerate(_checked(reader.header, _layers)):
        yield _checked(reader.header, partial(_layer, reader, index, layer))


def artifact_record(key: ArtifactKey, id: str, patch: Patch, owner: str, *, created: float) -> Record:
    """Return a patch as a record; tensors on the CPU are not copied.

    Raises:
        StoreError: a factor's dtype has no place in the format.
    """
    tensors: dict[str, Tensor] = {}
    for index, layer in enumerate(patch.layers):
        if layer is not None:
            for slot, factors in zip(SLOTS, (layer.keys, layer.values), strict=True):
                tensors[f"layers.{index}.{slot}.left"] = factors.left
                tensors[f"layers.{index}.{slot}.right"] = factors.right
    meta = {
        "chunk": key.chunk,
        "antecedents": list(key.antecedents),
        "orbit": key.orbit,
        "layers": [layer is not None for layer in patch.layers],
    }
    chunks = tuple(dict.fromkeys((key.chunk, *key.antecedents)))
    return make_record(RecordHeader(id, "patch", owner, key.model, chunks, created, meta), tensors)


def read_artifact(reader: RecordReader) -> tuple[ArtifactKey, Patch]:
    """Return a patch, on the CPU, and the key that it is found by.

    Raises:
        LoadError: it is damaged, or the record is no patch.
    """
    return _checked(reader.header, lambda header: _artifact(reader, header), kind="patch")


def artifact_key(reader: RecordReader) -> ArtifactKey:
    """Return the key that an artifact is found by, from its header alone.

    Raises:
        LoadError: the header is damaged, or the record is no patch.
    """
    return _checked(reader.header, _key, kind="patch")


def _encoded(reader: RecordReader, header: RecordHeader) -> Encoded:
    _layers(header)
    count, span = _natural(header.meta["tokens"]), _natural(header.meta["span"])
    token_ids = _to_tensor(reader, "token_ids", ("I64",), count)
    positions = _to_tensor(reader, "positions", ("I64",), None, count)
    rows = _to_tensor(reader, "visual", ("I64",), None)
    ordered = bool((rows[1:] > rows[:-1]).all()) and (len(rows) == 0 or (int(rows[0]) >= 0 and int(rows[-1]) < count))
    _require(ordered, "visual does not name rows in their order")
    visual = torch.zeros(count, dtype=torch.bool)
    visual[rows] = True
    groups = _to_tensor(reader, "groups", ("I64",), count)
    embeds = _to_tensor(reader, "embeds", FLOATS, count, None)
    deepstack = tuple(
        _to_tensor(reader, f"deepstack.{layer}", FLOATS, len(rows), embeds.shape[1])
        for layer in range(_natural(header.meta["deepstack"]))
    )
    return Encoded(token_ids, embeds, positions, span, visual, deepstack, groups)


def _layer(reader: RecordReader, index: int, layer: Any, header: RecordHeader) -> LayerRows:
    tokens, name = _natural(header.meta["tokens"]), f"layers.{index}"
    count = _held(layer, tokens)
    rows = [_rows(reader, index, slot, count, *_slot(layer, slot)) for slot in SLOTS]
    if "map" not in layer:
        return LayerRows(*rows)
    start, edge, *_ = layer["map"]
    tensors = [
        _map_tensor(reader, f"{name}.{part}", shape, dtype)
        for part, (shape, dtype) in _map_shapes(header, index, layer).items()
    ]
    kind = CompactMap if len(tensors) == len(COMPACT_MAP) else StateMap
    return MappedRows(rows[0], rows[1], (kind(start, tokens, *tensors),), edge)


def _map_tensor(reader: RecordReader, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor of a map in its dtype in memory; one of a floating dtype may be stored in bfloat16."""
    kept = (NAMES[dtype], "BF16") if dtype.is_floating_point else (NAMES[dtype],)
    return _to_tensor(reader, name, kept, *shape).to(dtype)


def _rows(
    reader: RecordReader, layer: int, slot: str, count: int, heads: int, width: int, dtype: torch.dtype
) -> Tensor:
    name = f"layers.{layer}.{slot}"
    scaled = f"{name}.scales" in reader.header.sizes
    scales = _to_tensor(reader, f"{name}.scales", ("F32",), heads, width) if scaled else None
    kept = ("F8_E4M3", "I8") if scaled else (NAMES[dtype], "BF16")
    return restore(_to_tensor(reader, name, kept, heads, count, width), scales, dtype)


def _artifact(reader: RecordReader, header: RecordHeader) -> tuple[ArtifactKey, Patch]:
    meta = header.meta
    key = _key(header)
    _require(key.chunks == set(header.chunks), "its key is of other chunks")
    patched = meta["layers"]
    _require(isinstance(patched, list) and all(isinstance(held, bool) for held in patched), "its layers are malformed")
    layers = [index for index, held in enumerate(patched) if held]
    names = {f"layers.{index}.{slot}.{side}" for index in layers for slot in SLOTS for side in ("left", "right")}
    _require(header.sizes.keys() == names, "it lacks tensors or holds others")
    found = {index: LayerPatch(*(_factors(reader, f"layers.{index}.{slot}") for slot in SLOTS)) for index in layers}
    return key, Patch(tuple(found.get(index) for index in range(len(patched))))


def _key(header: RecordHeader) -> ArtifactKey:
    meta = header.meta
    _require(isinstance(meta["antecedents"], list) and isinstance(meta["orbit"], bool), "its key is malformed")
    model, _, former = header.model.partition("/")
    _require(not former, f"it holds {former[:40]!r}, for a strategy that is no longer offered")
    kind = ArtifactKind.ORBIT if meta["orbit"] else ArtifactKind.PATCH
    return ArtifactKey(model, meta["chunk"], tuple(meta["antecedents"]), kind)


def _factors(reader: RecordReader, name: str) -> Factors:
    left = _to_tensor(reader, f"{name}.left", FLOATS, None, None)
    return Factors(left, _to_tensor(reader, f"{name}.right", FLOATS, left.shape[1], None))


def _kind(header: RecordHeader) -> ChunkKind:
    for kind in get_args(ChunkKind):
        if header.meta["media"] == kind:
            return kind  # type: ignore[no-any-return]
    raise ValueError(f"it is of the unknown kind {str(header.meta['media'])[:40]!r}")


def _layers(header: RecordHeader) -> list[Any]:
    """Return the chunk's layers; ValueError where its tensors are not exactly those that its header calls for."""
    layers, deepstack = header.meta["layers"], _natural(header.meta["deepstack"])
    names = header.sizes.keys()
    _require(isinstance(layers, list) and len(layers) + deepstack <= len(names), "it lacks tensors")
    slots = {f"layers.{index}.{slot}" for index in range(len(layers)) for slot in SLOTS}
    maps = {
        f"layers.{index}.{name}"
        for index, layer in enumerate(layers)
        if "map" in layer
        for name in _map_names(header, index)
    }
    called = {*ENCODED, *slots, *maps, *(f"deepstack.{index}" for index in range(deepstack))}
    _require(called <= names <= called | {f"{slot}.scales" for slot in slots}, "it lacks tensors or holds others")
    return list(layers)


def _held(layer: Any, tokens: int) -> int:
    """Return how many rows of a chunk's layer are stored as rows; ValueError where what it says of its map is wrong."""
    if "map" not in layer:
        return tokens
    start, edge, heads, keys, values, kept, dtype = layer["map"]
    for number in (heads, keys, values):
        _natural(number)
    _require(0 <= _natural(edge) <= _natural(start) <= tokens - edge, "a map is of no rows")
    _require(_natural(kept) <= heads and dtype in FLOATS, "a map is malformed")
    return int(start + edge)


def _map_names(header: RecordHeader, index: int) -> tuple[str, ...]:
    """Return the names of the tensors of a layer's map; those of a compact one where it has any of them."""
    compact = any(f"layers.{index}.{name}" in header.sizes for name in COMPACT_MAP[len(MAP) :])
    return COMPACT_MAP if compact else MAP


def _map_shapes(header: RecordHeader, index: int, layer: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype in memory of each tensor of a layer's map; none where it has none."""
    if "map" not in layer:
        return {}
    *shape, kept, dtype = layer["map"][2:]
    number, names, state = DTYPES[dtype], _map_names(header, index), StateShape(*shape)
    shapes, dtypes = StateMap.shapes(state, kept), [number, number, torch.int64]
    if names == COMPACT_MAP:
        scale = torch.float32
        shapes, dtypes = CompactMap.shapes(state, kept), [torch.int8, torch.int8, torch.int64, scale, scale, number]
    return dict(zip(names, zip(shapes, dtypes, strict=True), strict=True))


def _slot(layer: Any, slot: str) -> tuple[int, int, torch.dtype]:
    heads, width, dtype = layer[slot]
    _require(dtype in FLOATS, f"rows of {str(dtype)[:20]}")
    return _natural(heads), _natural(width), DTYPES[dtype]


def _slot_bytes(header: RecordHeader, name: str, rows: int, heads: int, width: int, dtype: torch.dtype) -> int:
    """Return the bytes of a slot in memory; ValueError where fewer numbers are stored, as each takes a byte or more."""
    return _tensor_bytes(header, name, (heads, rows, width), dtype)


def _tensor_bytes(header: RecordHeader, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return a tensor's bytes in memory; ValueError where fewer numbers are stored, as each takes a byte or more."""
    numbers = math.prod(shape)
    _require(numbers <= header.sizes[name], f"{name} is smaller than its shape")
    return numbers * dtype.itemsize


def make_record(header: RecordHeader, tensors: Mapping[str, Tensor]) -> Record:
    """Return a record of tensors by name, their sizes in its header; those on the CPU are not copied.

    Those on a GPU are copied beside what it computes meanwhile, in page-locked memory.

    Raises:
        StoreError: a tensor's dtype has no place in the format.
    """
    arrays = {name: _array(tensor) for name, tensor in _in_host_memory(tensors).items()}
    sizes = {name: array.data.nbytes for name, array in arrays.items()}
    return Record(replace(header, sizes=sizes), arrays)


def _in_host_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    devices = {tensor.device for tensor in tensors.values()} - {torch.device("cpu")}
    found = dict(tensors)
    for device in devices:
        there = [name for name, tensor in tensors.items() if tensor.device == device]
        copies = HostCopier.of(device).copy([tensors[name].detach().contiguous() for name in there])
        found.update(zip(there, copies.take(), strict=True))
    return found


def _dtype_name(tensor: Tensor) -> str:
    """Return a tensor's dtype as safetensors spells it.

    Raises:
        StoreError: it has no place in the format.
    """
    if tensor.dtype not in NAMES:
        raise StoreError(f"a tensor of {tensor.dtype} cannot be stored: convert it to one of {', '.join(DTYPES)}")
    return NAMES[tensor.dtype]


def _to_tensor(reader: RecordReader, name: str, dtypes: tuple[str, ...], *shape: int | None) -> Tensor:
    """Return a record's tensor of one of `dtypes` and of `shape`, where None is any length.

    Raises:
        LoadError: it is damaged.
        ValueError: it is another dtype or shape.
    """
    array = reader.read(name)
    if array.dtype not in dtypes:
        raise ValueError(f"{name} is {array.dtype}")
    if array.shape != shape and (
        len(array.shape) != len(shape)
        or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True))
    ):
        raise ValueError(f"{name} has shape {array.shape}")
    dtype = DTYPES[array.dtype]
    if array.data.nbytes == 0:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(array.data, dtype=dtype).reshape(array.shape)


def _checked(header: RecordHeader, decode: Callable[[RecordHeader], Value], kind: RecordKind = "chunk") -> Value:
    """Return what `decode` makes of a header.

    Raises:
        LoadError: the record is of another kind, or its header is not what `decode` asks for.
    """
    try:
        _require(header.kind == kind, f"it is a {header.kind}, not a {kind}")
        return decode(header)
    except (ValueError, TypeError, LookupError) as error:
        raise LoadError(header.id, f"its header does not fit: {error}") from error


def _natural(value: Any) -> int:
    """Return a header's value as a whole number below 2^31; ValueError where it is none."""
    _require(type(value) is int and 0 <= value < 2**31, "a number is malformed")
    return int(value)


def _require(holds: bool, what: str) -> None:
    """Raise ValueError where something does not hold."""
    if not holds:
        raise ValueError(what)


def _array(tensor: Tensor) -> Array:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return Array(_dtype_name(tensor), tuple(tensor.shape), flat.view(torch.uint8).numpy().data)
