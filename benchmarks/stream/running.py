"""Streams side by side: fed the same frames and asked the same questions, in turns, and what that took."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.cost.timing import turned
from benchmarks.intervals import Interval
from benchmarks.stream.methods import METHODS
from benchmarks.stream.plan import ARMS
from benchmarks.tasks.streams import (
    FRAME_SECONDS,
    STREAM_KINDS,
    GeneratedStream,
    TimedQuestion,
    questions_of,
    stream_of,
)
from emblema.engine.engine import Engine
from emblema.kv.device import wait_for
from emblema.stream.settings import StreamSettings
from emblema.stream.stream import Stream

QUICK_BUDGET = 16
RESAMPLES = 2000
Name = TypeVar("Name")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class SystemsOptions:
    """What the systems parts are measured on.

    Attributes:
        seed: of the streams.
        kinds: of the streams; parts that need one take the first.
        lengths: frames at which time is taken, rising.
        frames: frames of the streams whose bytes are counted.
        rounds: questions for every time that is reported.
        long: frames of the streams of a day.
        settings: of all streams; a memory without an end has native positions whatever these say.
    """

    seed: int = 0
    kinds: tuple[str, ...] = STREAM_KINDS
    lengths: tuple[int, ...] = (256, 1024, 4096)
    frames: int = 1024
    rounds: int = 16
    long: int = 20_000
    settings: StreamSettings = field(default_factory=StreamSettings)

    def film(self, kind: str, frames: int) -> GeneratedStream:
        """Return the generated stream of a kind."""
        return stream_of(kind, frames, self.seed, 0)

    @classmethod
    def quick(cls, seed: int = 0) -> "SystemsOptions":
        """Return enough to see that all of it works; the budget is small, so that short streams have to choose."""
        chosen = StreamSettings(budget=QUICK_BUDGET)
        return cls(seed, lengths=(64, 128), frames=128, rounds=3, long=128, settings=chosen)


@dataclass(frozen=True, slots=True)
class AskCost:
    """What one question cost: seconds to its first token, those of the processor, and what the memory counted."""

    ttft: float
    cpu: float
    counts: Mapping[str, float]


def timed(run: Callable[[], Made]) -> tuple[Made, float]:
    """Do something; return what it gave, and its seconds of the processor, with what it left to a GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wait_for(device)
    began = time.process_time()
    made = run()
    wait_for(device)
    return made, time.process_time() - began


def ratio(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Interval:
    """Return the median of ratios, pair by pair, with its 95 % bootstrap interval over the pairs."""
    ratios = np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    return Interval(float(np.median(ratios)), float(low), float(high))


def cost_ratio(name: str, asks: Sequence[AskCost], others: Sequence[AskCost]) -> Interval:
    """Return the ratio of a field of `AskCost`."""
    return ratio([getattr(ask, name) for ask in asks], [getattr(ask, name) for ask in others])


def questions(film: GeneratedStream, at: int) -> list[TimedQuestion]:
    """Return a question of each kind about the first `at` frames, then another of each, and so on; at least one."""
    kinds: dict[str, list[TimedQuestion]] = {}
    for question in questions_of(film, (at,)):
        kinds.setdefault(question.kind, []).append(question)
    most = max(map(len, kinds.values()))
    return [own[place] for place in range(most) for own in kinds.values() if place < len(own)]


def opened(stack: ExitStack, engine: Engine, arm: str, settings: StreamSettings) -> Stream:
    """Return a stream under an arm, which is closed with the stack."""
    return stack.enter_context(engine.stream(METHODS[ARMS[arm].method], ARMS[arm].settings(settings)))


def push_timed(stream: Stream, frames: Sequence[Any]) -> float:
    """Push frames at their times, and have them encoded; return the seconds of the processor."""
    seen, began = stream.frames, time.process_time()
    stream.push(list(frames), at=[FRAME_SECONDS * number for number in range(seen, seen + len(frames))])
    stream.advance()
    return time.process_time() - began


def feed(
    streams: Mapping[Name, Stream],
    film: GeneratedStream,
    begin: int,
    end: int,
    together: int,
    tick: Callable[[], object] = lambda: None,
) -> dict[Name, list[float]]:
    """Push frames `begin` to `end` to all streams, `together` at a time and in turns; return the seconds of each push.

    Drawing the frames is not counted.
    """
    spent: dict[Name, list[float]] = {name: [] for name in streams}
    for turn, start in enumerate(range(begin, end, together)):
        frames = list(film.frames(start, min(start + together, end)))
        for name in turned(list(streams), turn):
            stream = streams[name]
            spent[name].append(timed(lambda stream=stream, frames=frames: stream.push(frames))[1])  # type: ignore[misc]
        tick()
    return spent


def ask_word(stream: Stream, text: str) -> AskCost:
    """Ask for one word."""
    reply, spent = timed(lambda: stream.ask(text, max_new_tokens=1))
    return AskCost(reply.usage.ttft_seconds, spent, reply.usage.counts)


def ask_in_turns(
    streams: Mapping[Name, Stream], texts: Sequence[str], rounds: int, tick: Callable[[], object]
) -> dict[Name, list[AskCost]]:
    """Ask all streams the same question, in turns, round by round; a first round is not counted."""
    asks: dict[Name, list[AskCost]] = {name: [] for name in streams}
    for turn in range(-1, rounds):
        for name in turned(list(streams), turn):
            ask = ask_word(streams[name], texts[turn % len(texts)])
            if turn >= 0:
                asks[name].append(ask)
        tick()
    return asks
