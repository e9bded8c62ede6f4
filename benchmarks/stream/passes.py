"""Streams under their arms: all arms of a stream are open together, and each question goes to all of them in turn.

What a stream answered under an arm is a line of a file, so that a killed run goes on, and runs can be joined.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from rich.console import Console

from benchmarks.cost.timing import turned
from benchmarks.recordfile import RecordFile, digest
from benchmarks.stream.plan import ARMS, AccuracyOptions, StreamId, StreamPass
from benchmarks.stream.running import opened, push_timed, timed
from benchmarks.tasks.streams import QUESTION_KINDS, TimedQuestion, questions_of, stream_of
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """One question: its kind, the frames seen then, whether the answer is right, and seconds of the processor."""

    kind: str
    at: int
    right: bool
    cpu: float


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One stream under one arm.

    Attributes:
        key: see `key_of`.
        encode_cpu: seconds of the processor for all frames.
        answers: in the order of the questions.
    """

    key: str
    stream: StreamId
    arm: str
    encode_cpu: float
    answers: tuple[MemoryAnswer, ...]


PassResults = dict[StreamPass, PassRecord]


def key_of(fingerprint: str, wanted: StreamPass, options: AccuracyOptions) -> str:
    """Return what a record depends on: the model's weights, the stream, when and how much it is asked, the memory."""
    asked, arm = (options.times_of(wanted.stream.frames), options.each), ARMS[wanted.arm]
    return digest(fingerprint, asdict(wanted), asked, arm.method, asdict(arm.settings(options.settings)))


def run_passes(
    engine: Engine, part: str, options: AccuracyOptions, records: RecordFile[PassRecord], screen: Console
) -> PassResults:
    """Return the records of a part's passes; those on record are not measured again.

    Raises:
        EmblemaError: a stream does not fit the model, or the records cannot be written.
    """
    keys = {wanted: key_of(engine.adapter.fingerprint, wanted, options) for wanted in options.passes(part)}
    groups: dict[StreamId, list[StreamPass]] = {}
    for wanted, key in keys.items():
        if key not in records.held:
            groups.setdefault(wanted.stream, []).append(wanted)
    if groups:
        with steps(screen, f"{part}: {len(groups)} streams", len(groups)) as advance:
            for stream, own in groups.items():
                records.add(run_stream(engine, stream, own, options))
                advance()
    return {wanted: records.held[key] for wanted, key in keys.items()}


def run_stream(
    engine: Engine, stream: StreamId, passes: Sequence[StreamPass], options: AccuracyOptions
) -> list[PassRecord]:
    """Feed and ask one stream under some arms, which are asked in turns, so that a busy machine slows all alike."""
    drawn = stream_of(stream.kind, stream.frames, stream.seed, stream.item)
    times = options.times_of(stream.frames)
    asked = questions_of(drawn, times, dict.fromkeys(QUESTION_KINDS, options.each))
    answers: list[list[MemoryAnswer]] = [[] for _ in passes]
    with ExitStack() as stack:
        streams = [opened(stack, engine, own.arm, options.settings) for own in passes]
        encode_cpu = [0.0 for _ in streams]
        for seen, at in zip((0, *times), times, strict=False):
            frames = list(drawn.frames(seen, at))
            for place, own in enumerate(streams):
                encode_cpu[place] += push_timed(own, frames)
            for number, question in enumerate(question for question in asked if question.at == at):
                for place in turned(range(len(streams)), number):
                    answers[place].append(_answer(engine, streams[place], question))
    fingerprint = engine.adapter.fingerprint
    return [
        PassRecord(key_of(fingerprint, wanted, options), stream, wanted.arm, cpu, tuple(own))
        for wanted, cpu, own in zip(passes, encode_cpu, answers, strict=True)
    ]


def _answer(engine: Engine, stream: Stream, asked: TimedQuestion) -> MemoryAnswer:
    most = max(1, len(engine.tokenizer.encode(asked.answer, add_special_tokens=False)))
    reply, cpu = timed(lambda: stream.ask(asked.text, max_new_tokens=most))
    return MemoryAnswer(asked.kind, asked.at, reply.text.strip() == asked.answer, cpu)
