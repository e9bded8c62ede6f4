"""Streams side by side: fed the same frames and asked the same questions, in turns."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from benchmarks.stream.systems.clock import Spent, timed, turned
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.tasks.streams import GeneratedStream, TimedQuestion, make_stream, questions_of, random_of
from emblema.engine.engine import Engine
from emblema.stream.methods import METHODS
from emblema.stream.settings import StreamSettings, change_settings
from emblema.stream.stream import Stream

Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class Ask:
    """What one question cost.

    Attributes:
        text: the answer's first word.
        ttft: seconds to it.
        cpu: seconds of processor time of the whole call.
        counts: what the memory counted for it.
    """

    text: str
    ttft: float
    cpu: float
    counts: Mapping[str, float]


def film_of(kind: str, frames: int, wanted: SystemsWanted, item: int = 0) -> GeneratedStream:
    """A generated stream."""
    return make_stream(random_of(kind, frames, wanted.seed, item), kind, frames, wanted.seed, item)


def questions(film: GeneratedStream, at: int) -> list[TimedQuestion]:
    """A question of each kind about the first `at` frames, then another of each, and so on; at least one."""
    kinds: dict[str, list[TimedQuestion]] = {}
    for one in questions_of(film, (at,)):
        kinds.setdefault(one.kind, []).append(one)
    most = max(len(own) for own in kinds.values())
    return [own[place] for place in range(most) for own in kinds.values() if place < len(own)]


def settings_for(method: str, settings: StreamSettings, **changes: Any) -> StreamSettings:
    """Settings that a method can have: what sees everything stands where it came."""
    given = change_settings(settings, changes)
    return given if METHODS[method].bounded else replace(given, positions="native")


def opened(stack: ExitStack, engine: Engine, method: str, settings: StreamSettings, **changes: Any) -> Stream:
    """A stream that is closed with the stack."""
    return stack.enter_context(engine.stream(method, settings_for(method, settings, **changes)))


def feed(
    streams: Mapping[Name, Stream], film: GeneratedStream, begin: int, end: int, together: int, tick: Callable[[], None]
) -> dict[Name, list[Spent]]:
    """Push frames `begin` to `end` to all streams, `together` at a time and in turns; what each of these pushes took.

    Drawing them is not counted.
    """
    spent: dict[Name, list[Spent]] = {name: [] for name in streams}
    for turn, start in enumerate(range(begin, end, together)):
        frames = list(film.frames(start, min(start + together, end)))
        for name in turned(list(streams), turn):
            stream = streams[name]
            spent[name].append(timed(lambda stream=stream, frames=frames: stream.push(frames))[1])  # type: ignore[misc]
        tick()
    return spent


def ask_one(stream: Stream, text: str) -> Ask:
    """Ask for one word."""
    reply, spent = timed(lambda: stream.ask(text, max_new_tokens=1))
    return Ask(reply.text, reply.usage.ttft_seconds, spent.cpu, reply.usage.counts)


def ask_in_turns(
    streams: Mapping[Name, Stream], texts: Sequence[str], rounds: int, tick: Callable[[], None]
) -> dict[Name, list[Ask]]:
    """Ask all streams the same question, in turns, round by round; a first round is not counted."""
    asks: dict[Name, list[Ask]] = {name: [] for name in streams}
    for turn in range(-1, rounds):
        for name in turned(list(streams), turn):
            one = ask_one(streams[name], texts[turn % len(texts)])
            if turn >= 0:
                asks[name].append(one)
        tick()
    return asks
