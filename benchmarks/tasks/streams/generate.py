"""Streams by kind, length and seed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from benchmarks.tasks.streams.planning import make_stream
from benchmarks.tasks.streams.questions import KINDS, ask
from benchmarks.tasks.streams.world import Asked, Stream
from emblema.errors import PromptError

EACH = dict.fromkeys(KINDS, 3)
"""Questions of each kind about a whole stream."""


def random_of(kind: str, frames: int, seed: int, item: int) -> np.random.Generator:
    """The random numbers of one stream."""
    return np.random.default_rng([seed, zlib.crc32(kind.encode()), frames, item])


def generate(kind: str, frames: int, seed: int, items: int) -> Iterator[Stream]:
    """`items` fresh streams; the same seed gives the same streams, and fewer give the first of them.

    Raises:
        PromptError: as `make_stream`, or no stream is asked for.
    """
    if items < 1 or seed < 0:
        raise PromptError(f"{items} streams of seed {seed}: give one stream or more, and a seed of 0 or more")
    for item in range(items):
        yield make_stream(random_of(kind, frames, seed, item), kind, frames, seed, item)


def questions_of(stream: Stream, at: tuple[int, ...] = (), limits: dict[str, int] | None = None) -> tuple[Asked, ...]:
    """Questions about a generated stream, the same every time, asked when so many frames have been seen (at its end).

    Raises:
        PromptError: a time lies before the first frame or behind the last.
    """
    times = at or (len(stream),)
    if any(not 1 <= time <= len(stream) for time in times):
        raise PromptError(f"{stream.id} is asked at {times}: give frames from 1 to {len(stream)}")
    asked: list[Asked] = []
    for time in times:
        random = np.random.default_rng([stream.seed, zlib.crc32(stream.kind.encode()), len(stream), stream.item, time])
        asked += ask(random, stream, time, EACH if limits is None else limits)
    return tuple(asked)
