"""A stream's state as tensors and plain facts, in one file that is written whole and checked when it is read.

What every frame has for itself is not in it but in a file of frames (`frame_file.py`).
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import xxhash
from safetensors import SafetensorError
from torch import Tensor

from emblema.errors import StoreError, StreamError
from emblema.store.files import make_folder, write_whole

VERSION = 8
FACTS = "facts"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""What a saved stream may be called."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """Named tensors, and facts that JSON can hold."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def put(self, name: str, part: "StreamState") -> None:
        """Add the state of a part under a name."""
        self.tensors.update({f"{name}.{key}": tensor for key, tensor in part.tensors.items()})
        self.facts[name] = part.facts

    def part(self, name: str) -> "StreamState":
        """Return the state of a part that was put under a name."""
        front = f"{name}."
        tensors = {key[len(front) :]: tensor for key, tensor in self.tensors.items() if key.startswith(front)}
        return StreamState(tensors, self.facts[name])


def state_path(folder: Path | None, name: str) -> Path:
    """Return the file of a saved stream.

    Args:
        folder: of saved streams; None if the engine has none.

    Raises:
        StreamError: the name is not allowed, or there is no folder.
    """
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise StreamError(f"{name!r} is no name for a stream: use letters, digits, dots, dashes and underscores")
    if folder is None:
        raise StreamError("the engine keeps nothing on disk: open it with store= and a folder")
    return folder / f"{name}.safetensors"


def write_state(path: Path, state: StreamState) -> None:
    """Write a state so that a crash leaves the earlier file or the new one.

    Raises:
        StoreError: the folder cannot be written.
    """
    tensors = {f"tensor.{name}": tensor.contiguous().cpu() for name, tensor in state.tensors.items()}
    described = json.dumps({"version": VERSION, "facts": state.facts, "checksum": _checksum(tensors)}).encode()
    tensors[FACTS] = torch.frombuffer(bytearray(described), dtype=torch.uint8)
    try:
        make_folder(path.parent, mode=0o700)
        write_whole(path, [safetensors.torch.save(tensors)])
    except OSError as error:
        raise StoreError(f"the stream could not be written to {path}: {error.strerror or error}") from error


def read_state(path: Path) -> StreamState:
    """Read a state that `write_state` wrote.

    Raises:
        StreamError: there is no such file.
        StoreError: it is damaged, or written by a later version.
    """
    try:
        tensors = safetensors.torch.load(path.read_bytes())
        described = json.loads(bytes(tensors.pop(FACTS).tolist()))
        if described["version"] != VERSION:
            raise StoreError(
                f"{path} was saved by another version of the program: load it there, or watch the video again"
            )
        if described["checksum"] != _checksum(tensors):
            raise ValueError("its checksum differs")
        named = {name.removeprefix("tensor."): tensor for name, tensor in tensors.items()}
        return StreamState(named, described["facts"])
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
