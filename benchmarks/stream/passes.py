"""Streams under their arms: all arms of a stream are open together, and each question goes to all of them in turn.

What a stream answered under an arm is a line of a file, so that a killed run goes on, and runs can be joined.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console

from benchmarks.recordfile import RecordFile, digest
from benchmarks.stream.plan import ARMS, AccuracyOptions, StreamId, StreamPass
from benchmarks.tasks.streams import FRAME_SECONDS, QUESTION_KINDS, TimedQuestion, questions_of, stream_of
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """One question.

    Attributes:
        kind: of the question.
        at: frames seen when it was asked.
        right: whether the answer is the right one; `token`: its first token.
        ttft, cpu: seconds to the first token, by the clock and of the processor.
        retrieved: frames outside the window that one layer or more was handed.
    """

    kind: str
    at: int
    right: bool
    token: int
    ttft: float
    cpu: float
    retrieved: int


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One stream under one arm.

    Attributes:
        key: see `key_of`.
        model: its name.
        kind, seed, item, frames: of the stream.
        arm, method, budget: what it was asked under.
        encode_seconds, encode_cpu: for all frames, by the clock and of the processor.
        counts: what the memory counted.
        device, host: bytes at the end, by what they are for.
        answers: in the order of the questions.
    """

    key: str
    model: str
    kind: str
    seed: int
    item: int
    frames: int
    arm: str
    method: str
    budget: int
    encode_seconds: float
    encode_cpu: float
    counts: dict[str, float]
    device: dict[str, int]
    host: dict[str, int]
    answers: tuple[MemoryAnswer, ...]

    @property
    def stream(self) -> str:
        """The stream's name: questions about one stream are not independent of one another."""
        return f"{self.kind}-{self.frames}-{self.seed}-{self.item}"


PassResults = dict[StreamPass, PassRecord]


def key_of(fingerprint: str, wanted: StreamPass, options: AccuracyOptions) -> str:
    """Return what a record depends on: the model's weights, the stream, when and how much it is asked, the memory."""
    asked = (options.times_of(wanted.stream.frames), options.each)
    memory = ARMS[wanted.arm].identity(options.settings, wanted.budget)
    return digest(fingerprint, asdict(wanted.stream), asked, memory)


def run_passes(
    engine: Engine, label: str, part: str, options: AccuracyOptions, records: RecordFile[PassRecord], screen: Console
) -> PassResults:
    """Return the records of a part's passes; those on record are not measured again.

    Raises:
        EmblemaError: a stream does not fit the model, or the records cannot be written.
    """
    keys = {wanted: key_of(engine.adapter.fingerprint, wanted, options) for wanted in options.passes(part)}
    missing = {key: wanted for wanted, key in keys.items() if key not in records.held}
    groups: dict[StreamId, list[StreamPass]] = {}
    for wanted in missing.values():
        groups.setdefault(wanted.stream, []).append(wanted)
    if groups:
        with steps(screen, f"{label}: {len(missing)} passes over {len(groups)} streams", len(groups)) as advance:
            for number, (stream, own) in enumerate(groups.items(), 1):
                began = time.process_time()
                records.add(run_stream(engine, label, stream, own, options))
                advance()
                if not screen.is_terminal:
                    about = f"{stream.kind} {stream.frames} frames, seed {stream.seed}.{stream.item}"
                    spent = time.process_time() - began
                    screen.print(f"{number}/{len(groups)}  {about}: {len(own)} arms, {spent:.1f} s of CPU")
    return {wanted: records.held[key] for wanted, key in keys.items()}


def run_stream(
    engine: Engine, label: str, stream: StreamId, passes: Sequence[StreamPass], options: AccuracyOptions
) -> tuple[PassRecord, ...]:
    """Feed and ask one stream under some arms.

    Arms are asked one after another, question by question, so that a busy machine slows all of them alike; which of
    them comes first goes round.
    """
    drawn = stream_of(stream.kind, stream.frames, stream.seed, stream.item)
    times = options.times_of(stream.frames)
    asked = questions_of(drawn, times, dict.fromkeys(QUESTION_KINDS, options.each))
    runs: list[_OpenPass] = []
    try:
        for wanted in passes:
            settings = ARMS[wanted.arm].settings(options.settings, wanted.budget)
            runs.append(_OpenPass(engine, wanted, engine.stream(ARMS[wanted.arm].method, settings)))
        seen = 0
        for at in times:
            frames, when = list(drawn.frames(seen, at)), [FRAME_SECONDS * number for number in range(seen, at)]
            for run in runs:
                run.push(frames, when)
            seen = at
            for number, question in enumerate(question for question in asked if question.at == at):
                turn = number % len(runs)
                for run in (*runs[turn:], *runs[:turn]):
                    run.ask(question)
        keys = (key_of(engine.adapter.fingerprint, wanted, options) for wanted in passes)
        return tuple(run.record(key, label) for key, run in zip(keys, runs, strict=True))
    finally:
        for run in runs:
            run.stream.close()


@dataclass
class _OpenPass:
    """One arm under way."""

    engine: Engine
    wanted: StreamPass
    stream: Stream
    seconds: float = 0.0
    cpu: float = 0.0
    answers: list[MemoryAnswer] = field(default_factory=list)

    def push(self, frames: Iterable[object], when: Iterable[float]) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        self.stream.push(list(frames), at=list(when))
        self.stream.advance()
        self.seconds += time.perf_counter() - began
        self.cpu += time.process_time() - cpu

    def ask(self, asked: TimedQuestion) -> None:
        most = max(1, len(self.engine.tokenizer.encode(asked.answer, add_special_tokens=False)))
        cpu = time.process_time()
        reply = self.stream.ask(asked.text, max_new_tokens=most)
        cpu = time.process_time() - cpu
        right, token = reply.text.strip() == asked.answer, reply.token_ids[0] if reply.token_ids else -1
        usage = reply.usage
        self.answers.append(MemoryAnswer(asked.kind, asked.at, right, token, usage.ttft_seconds, cpu, usage.retrieved))

    def record(self, key: str, label: str) -> PassRecord:
        held = self.stream.bytes
        return PassRecord(
            key=key,
            model=label,
            **asdict(self.wanted.stream),
            arm=self.wanted.arm,
            method=ARMS[self.wanted.arm].method,
            budget=self.wanted.budget,
            encode_seconds=self.seconds,
            encode_cpu=self.cpu,
            counts=self.stream.counts,
            device=dict(held.device),
            host=dict(held.host),
            answers=tuple(self.answers),
        )
