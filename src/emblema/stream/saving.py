"""A stream in a file, and what has become of it afterwards: the same answers as before."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from emblema.errors import StreamError
from emblema.stream.local import Local
from emblema.stream.log import FrameLog
from emblema.stream.method import Method
from emblema.stream.saved import Saved, read_state, write_state
from emblema.stream.seam import Host
from emblema.stream.settings import StreamSettings, changed

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@runtime_checkable
class Savable(Protocol):
    """A memory that can be saved."""

    def saved(self) -> Saved:
        """Its state."""

    def resume(self, saved: Saved) -> None:
        """Go on from a state."""


def path_of(host: Host, name: str) -> Path:
    """Where a stream of a name is saved.

    Raises:
        StreamError: this is no name, or the engine has no folder.
    """
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise StreamError(f"{name!r} is no name for a stream: use letters, digits, dots, dashes and underscores")
    if host.folder is None:
        raise StreamError("the engine keeps nothing on disk: open it with store= and a folder")
    return host.folder / f"{name}.safetensors"


def save(host: Host, name: str, about: dict[str, Any], log: FrameLog, local: Local, method: Method) -> Path:
    """Write a stream's state.

    Args:
        about: the stream's own facts: its size of frames, what was dropped.

    Raises:
        StreamError: the method cannot be saved, or the name is none; StoreError: the folder cannot be written.
    """
    path = path_of(host, name)
    if not isinstance(method, Savable):
        raise StreamError(f"a stream with the method {method.name!r} cannot be saved: use mosaic")
    settings = asdict(local.settings)
    state = Saved({}, {**about, "model": host.adapter.fingerprint, "method": method.name, "settings": settings})
    state.facts["opening"] = list(host.opening())
    state.put("log", log.saved())
    state.put("local", local.saved())
    state.put("memory", method.saved())
    write_state(path, state)
    return path


def load(host: Host, name: str) -> tuple[Saved, StreamSettings]:
    """A stream's state and its settings.

    Raises:
        StreamError: there is none of that name, or it was another model's or another template's.
        StoreError: it is damaged.
    """
    state = read_state(path_of(host, name))
    if state.facts["model"] != host.adapter.fingerprint:
        raise StreamError(f"the stream {name!r} was saved with another model: load that one")
    if tuple(state.facts["opening"]) != host.opening():
        raise StreamError(f"the stream {name!r} was opened with another template or system text: give the same")
    return state, changed(StreamSettings(), state.facts["settings"])
