"""Streams side by side: fed the same frames and asked the same questions, in turns, and what that took."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.intervals import Interval
from benchmarks.tasks.streams import STREAM_KINDS, GeneratedStream, TimedQuestion, questions_of, stream_of
from emblema.engine.engine import Engine
from emblema.stream.methods import METHODS
from emblema.stream.settings import StreamSettings, change_settings
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
        long, drawn: frames of the streams of a day: encoded ones, and ones whose rows are drawn.
        settings: of all streams; a memory without an end has native positions whatever these say.
    """

    seed: int = 0
    kinds: tuple[str, ...] = STREAM_KINDS
    lengths: tuple[int, ...] = (256, 1024, 4096)
    frames: int = 1024
    rounds: int = 16
    long: int = 20_000
    drawn: int = 100_000
    settings: StreamSettings = field(default_factory=StreamSettings)

    @classmethod
    def quick(cls, seed: int = 0) -> "SystemsOptions":
        """Return enough to see that all of it works; the budget is small, so that short streams have to choose."""
        chosen = StreamSettings(budget=QUICK_BUDGET)
        return cls(seed, lengths=(64, 128), frames=128, rounds=3, long=128, drawn=512, settings=chosen)


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds on the clock, and seconds of processor time of the whole process, its threads included."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class AskCost:
    """What one question cost.

    Attributes:
        ttft: seconds to it.
        cpu: seconds of processor time of the whole call.
        counts: what the memory counted for it.
    """

    ttft: float
    cpu: float
    counts: Mapping[str, float]


def timed(run: Callable[[], Made]) -> tuple[Made, RunTime]:
    """Do something; return what it gave, and what it took, with what it left to a GPU."""
    _synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    made = run()
    _synchronize()
    return made, RunTime(time.perf_counter() - wall, time.process_time() - cpu)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def turned(names: Sequence[Made], turn: int) -> list[Made]:
    """Return the names, beginning with another one each turn, so that none always comes first."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def ratio(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Interval:
    """Return the median of ratios, pair by pair, with its 95 % bootstrap interval over the pairs."""
    ratios = np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    return Interval(float(np.median(ratios)), float(low), float(high))


def ttft_ratio(asks: Sequence[AskCost], others: Sequence[AskCost]) -> Interval:
    """Return the ratio of times to the first token."""
    return ratio([ask.ttft for ask in asks], [ask.ttft for ask in others])


def cpu_ratio(asks: Sequence[AskCost | RunTime], others: Sequence[AskCost | RunTime]) -> Interval:
    """Return the ratio of processor times."""
    return ratio([ask.cpu for ask in asks], [ask.cpu for ask in others])


def film_of(kind: str, frames: int, options: SystemsOptions, item: int = 0) -> GeneratedStream:
    """Return a generated stream."""
    return stream_of(kind, frames, options.seed, item)


def questions(film: GeneratedStream, at: int) -> list[TimedQuestion]:
    """Return a question of each kind about the first `at` frames, then another of each, and so on; at least one."""
    kinds: dict[str, list[TimedQuestion]] = {}
    for question in questions_of(film, (at,)):
        kinds.setdefault(question.kind, []).append(question)
    most = max(map(len, kinds.values()))
    return [own[place] for place in range(most) for own in kinds.values() if place < len(own)]


def settings_for(method: str, settings: StreamSettings, **changes: Any) -> StreamSettings:
    """Return settings that a method can have: frames keep their native positions where everything is seen."""
    given = change_settings(settings, changes)
    return given if METHODS[method].bounded else replace(given, positions="native")


def opened(stack: ExitStack, engine: Engine, method: str, settings: StreamSettings, **changes: Any) -> Stream:
    """Return a stream that is closed with the stack."""
    return stack.enter_context(engine.stream(method, settings_for(method, settings, **changes)))


def feed(
    streams: Mapping[Name, Stream],
    film: GeneratedStream,
    begin: int,
    end: int,
    together: int,
    tick: Callable[[], object] = lambda: None,
) -> dict[Name, list[RunTime]]:
    """Push frames `begin` to `end` to all streams, `together` at a time and in turns; return what each push took.

    Drawing the frames is not counted.
    """
    spent: dict[Name, list[RunTime]] = {name: [] for name in streams}
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
    return AskCost(reply.usage.ttft_seconds, spent.cpu, reply.usage.counts)


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
