"""Between torch's tensors and a record's arrays, and the checks of what a header promises."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from emblema.errors import LoadError, StoreError
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


def make_record(
    id: str,
    kind: RecordKind,
    owner: str,
    model: str,
    chunks: tuple[str, ...],
    created: float,
    meta: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> Record:
    """A record of tensors by name; those on the CPU are not copied.

    Raises:
        StoreError: a tensor's dtype has no place in the format.
    """
    arrays = {name: _array(tensor) for name, tensor in tensors.items()}
    sizes = {name: array.data.nbytes for name, array in arrays.items()}
    return Record(RecordHeader(id, kind, owner, model, chunks, created, meta, sizes), arrays)


def dtype_name(tensor: Tensor) -> str:
    """A tensor's dtype as safetensors spells it.

    Raises:
        StoreError: it has no place in the format.
    """
    if tensor.dtype not in NAMES:
        raise StoreError(f"a tensor of {tensor.dtype} cannot be stored: convert it to one of {', '.join(DTYPES)}")
    return NAMES[tensor.dtype]


def to_tensor(reader: RecordReader, name: str, dtypes: tuple[str, ...], *shape: int | None) -> Tensor:
    """A record's tensor of one of `dtypes` and of `shape`, where None is any length.

    Raises:
        LoadError: it is damaged.
        ValueError: it is another dtype or shape.
    """
    array = reader.read(name)
    require(array.dtype in dtypes, f"{name} is {array.dtype}")
    fits = len(array.shape) == len(shape) and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    require(fits, f"{name} has shape {array.shape}")
    dtype = DTYPES[array.dtype]
    if array.data.nbytes == 0:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(array.data, dtype=dtype).reshape(array.shape)


def checked(header: RecordHeader, decode: Callable[[RecordHeader], Value], kind: RecordKind = "chunk") -> Value:
    """What `decode` makes of a header.

    Raises:
        LoadError: the record is of another kind, or its header is not what `decode` asks for.
    """
    try:
        require(header.kind == kind, f"it is a {header.kind}, not a {kind}")
        return decode(header)
    except (ValueError, TypeError, LookupError) as error:
        raise LoadError(header.id, f"its header does not fit: {error}") from error


def natural(value: Any) -> int:
    """A header's value as a whole number below 2^31; ValueError where it is none."""
    require(type(value) is int and 0 <= value < 2**31, "a number is malformed")
    return int(value)


def require(holds: bool, what: str) -> None:
    """ValueError where something does not hold."""
    if not holds:
        raise ValueError(what)


def _array(tensor: Tensor) -> Array:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return Array(dtype_name(tensor), tuple(tensor.shape), flat.view(torch.uint8).numpy().data)
