"""A stream of 100,000 frames that is asked all the way, killed twice, and goes on (`python -m benchmarks soak`).

Three processes run one after the other. Each of the first two saves the stream after a third of the frames, asks fixed
questions, and goes on until it is killed. The next one loads the stream, asks them again, and goes on from there.
"""

import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from statistics import fmean, median
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.stream.running import ask_word, push_timed
from benchmarks.table import Bar, Table
from benchmarks.tasks.streams import (
    QUESTION_KINDS,
    STREAM_KINDS,
    GeneratedStream,
    TimedQuestion,
    questions_of,
    stream_of,
)
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.link.policy.policy import Policy
from emblema.stream.settings import StreamSettings
from emblema.stream.stream import Stream

SETTINGS = StreamSettings(positions="packed", host_bytes=1_000_000_000)
PROCESSES, NAME = 3, "soak"
FIXED = 2
"""Fixed questions of every kind, each asked of the whole stream and of its latest stretch."""
MEGA, LINES = 1e6, 20
NOISE = 1.1
"""By how much a ratio of times, or of bytes, may pass what it is held against."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """A soak: stretches of every kind of video in turns, and questions about them.

    Attributes:
        model, device: what is loaded, and where it runs.
        frames: frames of the stream, at least four rounds'; the processes share them out evenly.
        every: frames between one round of questions and the next.
        compare: frames between one comparison with a fresh stream and the next; the last round of each process is one.
        short, fresh: frames of the fresh stream at which it is asked, and up to which it is then encoded.
        stretch: frames of one kind, before those of the next begin.
        seed: of stretches and questions.
        minutes: end after about so long, wherever it is then; None for no such end. Loading does not count.
        settings: of the stream.
    """

    model: str
    device: str | None = None
    frames: int = 100_000
    every: int = 200
    compare: int = 5_000
    short: int = 256
    fresh: int = 1_000
    stretch: int = 500
    seed: int = 0
    minutes: float | None = None
    settings: StreamSettings = SETTINGS

    @property
    def latest(self) -> int:
        """Frames of a fresh stream that are timed: its last ones, as many as come between two rounds."""
        return min(self.every, self.fresh - self.short)

    def stop(self, process: int) -> int:
        """Return the frames after which a process is killed, or the last one ends."""
        return self.frames // self.every * (process + 1) // PROCESSES * self.every

    def stretch_of(self, frame: int) -> tuple[GeneratedStream, int]:
        """Return the stretch that a frame lies in, and the frame that it begins with."""
        item, begin = frame // self.stretch, frame - frame % self.stretch
        return stream_of(STREAM_KINDS[item % len(STREAM_KINDS)], self.stretch, self.seed, item), begin

    def questions(self, seen: int, each: int) -> tuple[int, tuple[TimedQuestion, ...]]:
        """Return, after so many frames, the latest stretch's frames so far, and `each` of every kind of question."""
        stream, begin = self.stretch_of(seen - 1)
        return seen - begin, questions_of(stream, (seen - begin,), dict.fromkeys(QUESTION_KINDS, each))

    def push(self, stream: Stream, stop: int, first: int = 0) -> float:
        """Push frames from frame `first` on until a stream has `stop`; return their CPU seconds, drawing them aside."""
        cpu = 0.0
        while (seen := stream.frames) < stop:
            stretch, begin = self.stretch_of(first + seen)
            end = min(first + stop, begin + len(stretch))
            cpu += push_timed(stream, list(stretch.frames(first + seen - begin, end - begin)))
        return cpu


@dataclass(frozen=True, slots=True)
class SoakRound:
    """The frames since the last round, and the questions after them; times are CPU seconds.

    Attributes:
        frames: seen so far.
        encoding: seconds of a frame since the last round.
        ttft: seconds to the first token over the whole stream, the median of the questions.
        device, host: bytes of the stream.
        resident, counted: bytes of the process in memory, and what the stream says that it holds of them.
        over_short, over_fresh: `ttft` and `encoding` over those of a fresh stream; None where not compared.
    """

    frames: int
    encoding: float
    ttft: float
    device: int
    host: int
    resident: int
    counted: int
    over_short: float | None = None
    over_fresh: float | None = None

    @property
    def uncounted(self) -> int:
        """Bytes of the process that the stream does not count: program, model, its own numbers of frames."""
        return self.resident - self.counted


FixedAnswers = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""The fixed questions' answers: token ids of each, and the frames that it was retrieved from."""


@dataclass
class SoakLog:
    """What counts of a soak: rounds that were not lost with a process; fixed questions before and after each kill."""

    rounds: list[SoakRound] = field(default_factory=list)
    before: list[FixedAnswers] = field(default_factory=list)
    after: list[FixedAnswers] = field(default_factory=list)


def soak(plan: SoakPlan, notify: Callable[[SoakRound], object]) -> SoakLog:
    """Soak; the folder that the stream is saved in goes afterwards.

    Args:
        notify: called with every round that counts, as it comes.

    Raises:
        EmblemaError: a process ended by itself.
    """
    log = SoakLog()
    kept: dict[str, list[Any]] = {"round": log.rounds, "saved": log.before, "resumed": log.after}
    with tempfile.TemporaryDirectory(prefix="emblema-soak-") as folder:
        for number in range(PROCESSES):
            with _process(_soak_part, plan, folder, number) as pipe:
                for event, found in (events := _events(pipe)):
                    if event == "end":
                        break
                    kept[event].append(found)
                    if event == "round":
                        notify(found)
                    if event == "saved":
                        # It is killed in the middle of what comes after the next round: these frames are lost.
                        next(events)
                        break
    return log


@contextmanager
def _process(target: Callable[..., None], *given: object) -> Iterator[Connection]:
    """Run a process that is given a pipe, and yield the other end of it; it is killed when the block ends."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=target, args=(*given, theirs))
    process.start()
    theirs.close()
    try:
        yield pipe
    finally:
        process.kill()
        process.join()
        pipe.close()


def _events(pipe: Connection) -> Iterator[tuple[str, Any]]:
    while True:
        try:
            event, found = pipe.recv()
        except EOFError as error:
            raise EmblemaError("the soaking process ended by itself") from error
        if event == "failed":
            raise EmblemaError(f"the soaking process ended by itself: {found}")
        yield event, found


def _soak_part(plan: SoakPlan, store: str, process: int, pipe: Connection) -> None:
    """Soak in this process; what it finds goes into the pipe."""
    try:
        loaded = Engine.load(plan.model, device=plan.device, store=store, policy=Policy.quiet())
        with loaded as engine, _process(_serve_fresh, plan) as fresh:
            _Soaker(plan, engine, process, pipe, fresh).run()
    except EmblemaError as error:
        pipe.send(("failed", str(error)))


class _Soaker:
    """One process's part of a soak."""

    def __init__(self, plan: SoakPlan, engine: Engine, process: int, pipe: Connection, fresh: Connection) -> None:
        self.plan, self.engine, self.process, self.pipe, self.fresh = plan, engine, process, pipe, fresh
        self.stream = engine.load_stream(NAME) if process else engine.stream(settings=plan.settings)

    def run(self) -> None:
        """Go on with the stream up to its end, or until this process is killed."""
        plan, stream = self.plan, self.stream
        if self.process:
            self.pipe.send(("resumed", self.fixed()))
        seconds = math.inf if plan.minutes is None else 60 * plan.minutes / PROCESSES
        began, stop, compared = time.monotonic(), plan.stop(self.process), stream.frames
        while stream.frames < stop - plan.every and time.monotonic() - began < seconds:
            due = stream.frames + plan.every - compared >= plan.compare
            self.pipe.send(("round", self.round(due)))
            compared = stream.frames if due else compared
        self.pipe.send(("round", self.round(compare=True)))
        if self.process == PROCESSES - 1:
            self.pipe.send(("end", None))
            return
        stream.save(NAME)
        self.pipe.send(("saved", self.fixed()))
        while True:
            # Until it is killed: these frames are lost.
            self.pipe.send(("round", self.round()))

    def round(self, compare: bool = False) -> SoakRound:
        """Push the next frames, and ask the questions after them; with a fresh stream beside it, if wanted."""
        plan, stream, before = self.plan, self.stream, self.stream.frames
        encoding = plan.push(stream, before + plan.every) / (stream.frames - before)
        own, fresh, fresh_encoding = [], [], 0.0
        if compare:
            self._beside(stream.frames)
        for question in plan.questions(stream.frames, 1)[1]:
            own.append(ask_word(stream, question.text).cpu)
            if compare:
                fresh.append(self._beside(question.text))
        if compare:
            fresh_encoding = self._beside(None)
        ttft = median(own)
        device, host = (sum(held.values()) for held in (stream.bytes.device, stream.bytes.host))
        return SoakRound(
            frames=stream.frames,
            encoding=encoding,
            ttft=ttft,
            device=device,
            host=host,
            resident=psutil.Process().memory_info().rss,
            counted=host + (device if self.engine.adapter.device.type == "cpu" else 0),
            over_short=ttft / median(fresh) if fresh else None,
            over_fresh=encoding / fresh_encoding if fresh else None,
        )

    def _beside(self, step: int | str | None) -> float:
        self.fresh.send(step)
        return float(self.fresh.recv())

    def fixed(self) -> FixedAnswers:
        """Ask the fixed questions."""
        length, asked = self.plan.questions(self.stream.frames, FIXED)
        replies = [
            self.stream.ask(question.text, window=near, max_new_tokens=2)
            for question in asked
            for near in (None, length)
        ]
        return tuple((tuple(reply.token_ids), tuple(moment.frame for moment in reply.moments)) for reply in replies)


def _serve_fresh(plan: SoakPlan, pipe: Connection) -> None:
    """Begin fresh streams, one after another, in a process of their own, so that memory is not mixed.

    A number begins one over the frames before that frame, which is asked once; a text is asked, in turns with the
    soaked stream, and answered with its CPU seconds; None ends it, and is answered with those of a latest frame.
    """
    with Engine.load(plan.model, device=plan.device, policy=Policy.quiet()) as engine, suppress(EOFError):
        while True:
            before: int = pipe.recv()
            first = max(0, before - plan.fresh)
            with engine.stream(settings=replace(plan.settings, host_bytes=None)) as stream:
                plan.push(stream, plan.short, first)
                # What runs for the first time is slower.
                pipe.send(ask_word(stream, plan.questions(before, 1)[1][-1].text).cpu)
                while (text := pipe.recv()) is not None:
                    pipe.send(ask_word(stream, text).cpu)
                plan.push(stream, plan.fresh - plan.latest, first)
                pipe.send(plan.push(stream, plan.fresh, first) / plan.latest)


def quarters(rounds: Sequence[SoakRound]) -> tuple[list[SoakRound], list[SoakRound]]:
    """Return the second quarter of a soak, and its last one."""
    end = rounds[-1].frames
    second = [found for found in rounds if end < 4 * found.frames <= 2 * end]
    return second, [found for found in rounds if 4 * found.frames > 3 * end]


def soak_bars(log: SoakLog) -> tuple[Bar, ...]:
    """Return everything that has to hold: the last quarter against the second and fresh streams, and the answers.

    What is known to miss its bound is an aim, and held to the bar after it, up to where it is known to miss. Those of
    the first token and of encoding hold on an idle machine, and miss where it is busy or slower at the end than before.
    The others miss on some machines by gaps of the allocator.
    """
    rounds = log.rounds
    second, last = quarters(rounds)
    asked = sum(map(len, log.before))
    both = zip(log.before, log.after, strict=True)
    same = sum(own == other for before, after in both for own, other in zip(before, after, strict=False))
    bars = [Bar("same answers from the same frames after each kill", same / asked if asked else None, 1, count=asked)]

    def hold(name: str, value: float | None, count: int, bound: float, known: float | None = None) -> None:
        bars.append(Bar(name, value, bound, least=False, count=count, aim=known is not None))
        if known is not None:
            bars.append(Bar(f"{name}, as far as it is known to miss", value, known, least=False, count=count))

    def hold_growth(name: str, figure: Callable[[SoakRound], float], bound: float, known: float | None = None) -> None:
        before, after = (fmean(map(figure, quarter)) for quarter in (second, last))
        value = after / before if before else math.nan
        hold(f"{name}, last quarter to the second", value, len(second) + len(last), bound, known)

    def hold_over(name: str, found: Sequence[float | None], bound: float, known: float | None = None) -> None:
        compared = [value for value in found if value is not None]
        hold(name, median(compared) if compared else None, len(compared), bound, known)

    ttft, encoding = "time to first token", "CPU seconds to encode a frame"
    hold_over(f"{ttft}, last quarter, over that of a fresh stream", [found.over_short for found in last], 1.5, 2.0)
    hold_over(f"{encoding}, last quarter, over those of a fresh stream", [found.over_fresh for found in last], 1.3)
    hold_growth(ttft, lambda found: found.ttft, NOISE, 1.4)
    hold_growth(encoding, lambda found: found.encoding, NOISE, 1.3)
    hold_growth("device bytes", lambda found: found.device, 1.01)
    hold_growth("host bytes of a frame", lambda found: found.host / found.frames, NOISE)
    hold_growth("bytes of the process that the stream does not count", lambda found: found.uncounted, NOISE, 1.25)
    # What the stream counts at that time, and what the first round took beside it, which is program and model.
    most = max(found.resident / (rounds[0].uncounted + found.counted) for found in rounds)
    name = "memory of the process in any round, to what the stream counts and the first round's rest"
    hold(name, most, len(rounds), NOISE, 1.2)
    return tuple(bars)


def soak_table(log: SoakLog) -> Table:
    """Return the soak, each line the mean over some rounds, with its bars."""
    rounds = log.rounds
    size = -(-len(rounds) // LINES)
    lines = [rounds[start : start + size] for start in range(0, len(rounds), size)]
    rows = tuple(
        (
            line[-1].frames,
            1000 * fmean(found.ttft for found in line),
            _mean([found.over_short for found in line]),
            1 / fmean(found.encoding for found in line),
            _mean([found.over_fresh for found in line]),
            *(fmean(getattr(found, name) for found in line) / MEGA for name in ("host", "resident", "uncounted")),
        )
        for line in lines
    )
    columns = (
        "frames", "TTFT ms", "over fresh", "frames a second", "encoding over fresh", "host MB", "resident MB",
        "uncounted MB",
    )  # fmt: skip
    note = f"CPU times. Over fresh: over those of a stream that is begun beside it. Killed {PROCESSES - 1} times."
    return Table("soak", f"{rounds[-1].frames:,} frames, asked all the way", note, columns, rows, (), soak_bars(log))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
