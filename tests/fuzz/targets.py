"""What is fuzzed: functions that take any bytes and raise nothing, each with inputs to begin from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

FOUND = Path(__file__).with_name("found")
"""Inputs that failed once, in a folder for each target: they stay tested."""

MODULES = {
    "file": "stored_files",
    "header": "stored_files",
    "index": "stored_index",
    "messages": "requests",
    "chat": "served",
    "upload": "served",
    "picture": "pictures",
    "address": "pictures",
}
"""The module of each target, imported alone: some take seconds."""


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """One function to fuzz.

    Attributes:
        run: takes any bytes; what it raises is a bug.
        seeds: inputs to begin from.
        largest: bytes of the largest input.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    largest: int = 4096


def target_of(name: str) -> FuzzTarget:
    """Return a target by its name."""
    found: FuzzTarget = import_module(f"tests.fuzz.{MODULES[name]}").TARGETS[name]
    return found


def inputs_of(name: str) -> Iterator[bytes]:
    """Yield the inputs that a target begins from, and those that once failed."""
    yield from target_of(name).seeds()
    yield from (path.read_bytes() for path in sorted((FOUND / name).glob("*")))
