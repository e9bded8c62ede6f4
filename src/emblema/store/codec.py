"""Chunks and patches as records and back; the names and the order of their tensors are in `docs/store-format.md`."""

from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from emblema.kv.artifacts import Artifact, KeyFactors, ResidualStream
from emblema.kv.chunk import Chunk, ChunkKind, Encoded
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.store.compression import Compression, check_compression, compress, restore
from emblema.store.keys import ArtifactKind, PatchKey, key_of_written
from emblema.store.record import Record, RecordHeader, RecordReader
from emblema.store.tensors import DTYPES, FLOATS, NAMES, checked, dtype_name, make_record, natural, require, to_tensor

SLOTS = ("keys", "values")
ENCODED = ("token_ids", "positions", "visual", "groups", "embeds")


def chunk_record(
    chunk: Chunk,
    owner: str,
    *,
    compression: Compression = "none",
    created: float,
) -> Record:
    """A chunk, whose rows are all here, as a record; tensors on the CPU are not copied.

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
        shapes = {}
        for slot, rows in zip(SLOTS, (layer.keys, layer.values), strict=True):
            stored, scales = compress(rows, compression)
            if scales is not None:
                tensors[f"layers.{index}.{slot}.scales"] = scales
            tensors[f"layers.{index}.{slot}"] = stored
            shapes[slot] = [rows.shape[0], rows.shape[2], dtype_name(rows)]
        layers.append(shapes)
    meta = {
        "media": chunk.kind,
        "tokens": encoded.tokens,
        "span": encoded.span,
        "compression": compression,
        "deepstack": len(encoded.deepstack),
        "layers": layers,
    }
    return make_record(chunk.id, "chunk", owner, chunk.model, (), created, meta, tensors)


def chunk_kind(header: RecordHeader) -> ChunkKind:
    """What the piece of a chunk is.

    Raises:
        LoadError: the record is no chunk.
    """
    return checked(header, _kind)


def layer_bytes(header: RecordHeader) -> tuple[int, ...]:
    """Bytes of each layer's rows of a chunk in memory, decompressed.

    Raises:
        LoadError: the record is no chunk.
    """

    def sizes(header: RecordHeader) -> tuple[int, ...]:
        rows = natural(header.meta["tokens"])
        return tuple(
            sum(_slot_bytes(header, f"layers.{index}.{slot}", rows, *_slot(layer, slot)) for slot in SLOTS)
            for index, layer in enumerate(_layers(header))
        )

    return checked(header, sizes)


def read_encoded(reader: RecordReader) -> Encoded:
    """What the decoder was fed for a chunk, on the CPU.

    Raises:
        LoadError: it is damaged, or the record is no chunk.
    """
    return checked(reader.header, lambda header: _encoded(reader, header))


def read_layer(reader: RecordReader, layer: int) -> LayerRows:
    """One layer's rows of a chunk, on the CPU, in the dtype that they were made in.

    Raises:
        LoadError: they are damaged, the chunk has no such layer, or the record is no chunk.
    """

    def rows(header: RecordHeader) -> LayerRows:
        layers = _layers(header)
        require(0 <= layer < len(layers), f"it has no layer {layer}")
        return _layer(reader, layer, layers[layer])

    return checked(reader.header, rows)


def read_layers(reader: RecordReader) -> Iterator[LayerRows]:
    """All layers' rows of a chunk, the first first, each read when it is asked for; as `read_layer`."""
    for index, layer in enumerate(checked(reader.header, _layers)):
        yield checked(reader.header, partial(_in_order, reader, index, layer))


def artifact_record(key: PatchKey, id: str, artifact: Artifact, owner: str, *, created: float) -> Record:
    """A patch, or another artifact of a chunk, as a record; tensors on the CPU are not copied.

    Raises:
        StoreError: a factor's dtype has no place in the format.
    """
    tensors: dict[str, Tensor] = {}
    patch = _as_patch(artifact)
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
    return make_record(id, "patch", owner, key.written_model, chunks, created, meta, tensors)


def read_artifact(reader: RecordReader) -> tuple[PatchKey, Artifact]:
    """A patch or another artifact, on the CPU, and the key that it is found by.

    Raises:
        LoadError: it is damaged, or the record is no patch.
    """
    return checked(reader.header, lambda header: _artifact(reader, header), kind="patch")


def patch_key(reader: RecordReader) -> PatchKey:
    """The key that a patch is found by, from its header alone.

    Raises:
        LoadError: the header is damaged, or the record is no patch.
    """
    return checked(reader.header, _key, kind="patch")


def _encoded(reader: RecordReader, header: RecordHeader) -> Encoded:
    _layers(header)
    count, span = natural(header.meta["tokens"]), natural(header.meta["span"])
    token_ids = to_tensor(reader, "token_ids", ("I64",), count)
    positions = to_tensor(reader, "positions", ("I64",), None, count)
    rows = to_tensor(reader, "visual", ("I64",), None)
    ordered = bool((rows[1:] > rows[:-1]).all()) and (len(rows) == 0 or (int(rows[0]) >= 0 and int(rows[-1]) < count))
    require(ordered, "visual does not name rows in their order")
    visual = torch.zeros(count, dtype=torch.bool)
    visual[rows] = True
    groups = to_tensor(reader, "groups", ("I64",), count)
    embeds = to_tensor(reader, "embeds", FLOATS, count, None)
    deepstack = tuple(
        to_tensor(reader, f"deepstack.{layer}", FLOATS, len(rows), embeds.shape[1])
        for layer in range(natural(header.meta["deepstack"]))
    )
    return Encoded(token_ids, embeds, positions, span, visual, deepstack, groups)


def _in_order(reader: RecordReader, index: int, layer: Any, header: RecordHeader) -> LayerRows:
    return _layer(reader, index, layer)


def _layer(reader: RecordReader, index: int, layer: Any) -> LayerRows:
    count = natural(reader.header.meta["tokens"])
    return LayerRows(*(_rows(reader, index, slot, count, *_slot(layer, slot)) for slot in SLOTS))


def _rows(
    reader: RecordReader, layer: int, slot: str, count: int, heads: int, width: int, dtype: torch.dtype
) -> Tensor:
    name = f"layers.{layer}.{slot}"
    scaled = f"{name}.scales" in reader.header.sizes
    scales = to_tensor(reader, f"{name}.scales", ("F32",), heads, width) if scaled else None
    kept = ("F8_E4M3", "I8") if scaled else (NAMES[dtype], "BF16")
    return restore(to_tensor(reader, name, kept, heads, count, width), scales, dtype)


def _artifact(reader: RecordReader, header: RecordHeader) -> tuple[PatchKey, Artifact]:
    meta = header.meta
    key = _key(header)
    require(key.chunks == set(header.chunks), "its key is of other chunks")
    patched = meta["layers"]
    require(isinstance(patched, list) and all(isinstance(one, bool) for one in patched), "its layers are malformed")
    layers = [index for index, one in enumerate(patched) if one]
    names = {f"layers.{index}.{slot}.{side}" for index in layers for slot in SLOTS for side in ("left", "right")}
    require(header.sizes.keys() == names, "it lacks tensors or holds others")
    found = {index: LayerPatch(*(_factors(reader, f"layers.{index}.{slot}") for slot in SLOTS)) for index in layers}
    return key, _from_patch(key, Patch(tuple(found.get(index) for index in range(len(patched)))))


def _key(header: RecordHeader) -> PatchKey:
    meta = header.meta
    require(isinstance(meta["antecedents"], list) and isinstance(meta["orbit"], bool), "its key is malformed")
    return key_of_written(header.model, meta["chunk"], tuple(meta["antecedents"]), meta["orbit"])


def _as_patch(artifact: Artifact) -> Patch:
    """Return the patch that an artifact is written as: slots that it does not use have factors of no size."""
    if isinstance(artifact, KeyFactors):
        return Patch(tuple(LayerPatch(keys, _nothing(len(keys.left), torch.float32)) for keys in artifact.layers))
    if isinstance(artifact, ResidualStream):
        rows = artifact.rows
        layer = LayerPatch(Factors(rows, rows.new_empty(rows.shape[1], 0)), _nothing(len(rows), rows.dtype))
        return Patch(tuple(layer if index == artifact.layer else None for index in range(artifact.layers)))
    return artifact


def _from_patch(key: PatchKey, patch: Patch) -> Artifact:
    """Return what `_as_patch` was given for a key of its kind."""
    layers = [layer for layer in patch.layers if layer is not None]
    if key.kind is ArtifactKind.KEYS:
        require(len(layers) == len(patch.layers), "it lacks a layer")
        return KeyFactors(tuple(layer.keys for layer in layers))
    if key.kind is ArtifactKind.RESIDUAL:
        held = [index for index, layer in enumerate(patch.layers) if layer is not None]
        require(held == [key.layer], "it is not of its key's layer alone")
        return ResidualStream(layers[0].keys.left, held[0], len(patch.layers))
    return patch


def _nothing(tokens: int, dtype: torch.dtype) -> Factors:
    return Factors(torch.empty(tokens, 0, dtype=dtype), torch.empty(0, 0, dtype=dtype))


def _factors(reader: RecordReader, name: str) -> Factors:
    left = to_tensor(reader, f"{name}.left", FLOATS, None, None)
    return Factors(left, to_tensor(reader, f"{name}.right", FLOATS, left.shape[1], None))


def _kind(header: RecordHeader) -> ChunkKind:
    for kind in get_args(ChunkKind):
        if header.meta["media"] == kind:
            return kind  # type: ignore[no-any-return]
    raise ValueError(f"it is of the unknown kind {str(header.meta['media'])[:40]!r}")


def _layers(header: RecordHeader) -> list[Any]:
    """The chunk's layers, once its tensors are seen to be those that its header calls for, no more and no fewer."""
    layers, deepstack = header.meta["layers"], natural(header.meta["deepstack"])
    names = header.sizes.keys()
    require(isinstance(layers, list) and len(layers) + deepstack <= len(names), "it lacks tensors")
    slots = {f"layers.{index}.{slot}" for index in range(len(layers)) for slot in SLOTS}
    called = {*ENCODED, *slots, *(f"deepstack.{index}" for index in range(deepstack))}
    require(called <= names <= called | {f"{slot}.scales" for slot in slots}, "it lacks tensors or holds others")
    return list(layers)


def _slot(layer: Any, slot: str) -> tuple[int, int, torch.dtype]:
    heads, width, dtype = layer[slot]
    require(dtype in FLOATS, f"rows of {str(dtype)[:20]}")
    return natural(heads), natural(width), DTYPES[dtype]


def _slot_bytes(header: RecordHeader, name: str, rows: int, heads: int, width: int, dtype: torch.dtype) -> int:
    """Bytes of a slot in memory; what is stored bears them out, as no number takes less than one byte."""
    numbers = heads * rows * width
    require(numbers <= header.sizes[name], f"{name} is smaller than its shape")
    return numbers * dtype.itemsize
