"""A stream's state as tensors and plain facts, in one file that is written whole and checked as it is read."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import xxhash
from safetensors import SafetensorError
from torch import Tensor

from emblema.errors import StoreError, StreamError
from emblema.store.files import write_whole

VERSION = 1
FACTS = "facts"


@dataclass(frozen=True, slots=True)
class Saved:
    """Named tensors, and facts that JSON can hold."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def put(self, name: str, part: "Saved") -> None:
        """Take in a part under a name."""
        self.tensors.update({f"{name}.{key}": tensor for key, tensor in part.tensors.items()})
        self.facts[name] = part.facts

    def part(self, name: str) -> "Saved":
        """A part that was put under a name."""
        front = f"{name}."
        tensors = {key[len(front) :]: tensor for key, tensor in self.tensors.items() if key.startswith(front)}
        return Saved(tensors, self.facts[name])


def write_state(path: Path, state: Saved) -> None:
    """Write a state so that a crash leaves the file that was there, or the new one.

    Raises:
        StoreError: the folder cannot be written.
    """
    tensors = {f"tensor.{name}": tensor.contiguous().cpu() for name, tensor in state.tensors.items()}
    described = json.dumps({"version": VERSION, "facts": state.facts, "checksum": _checksum(tensors)}).encode()
    tensors[FACTS] = torch.frombuffer(bytearray(described), dtype=torch.uint8)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, [safetensors.torch.save(tensors)])
    except OSError as error:
        raise StoreError(f"the stream could not be written to {path}: {error.strerror or error}") from error


def read_state(path: Path) -> Saved:
    """A state that `write_state` wrote.

    Raises:
        StreamError: there is no such file.
        StoreError: it is damaged, or written by a later version.
    """
    try:
        tensors = safetensors.torch.load(path.read_bytes())
        described = json.loads(bytes(tensors.pop(FACTS).tolist()))
        if described["version"] != VERSION:
            raise StoreError(f"{path} was written by another version of the program: open it there")
        if described["checksum"] != _checksum(tensors):
            raise ValueError("its checksum differs")
        return Saved({name.removeprefix("tensor."): one for name, one in tensors.items()}, described["facts"])
    except FileNotFoundError as error:
        raise StreamError(f"there is no saved stream {path.stem!r} in {path.parent}") from error
    except OSError as error:
        raise StoreError(f"the stream in {path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the stream in {path} is damaged: {error}") from error


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        digest.update(repr((name, tuple(tensors[name].shape), str(tensors[name].dtype))).encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest())
