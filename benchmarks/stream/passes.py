"""Streams under their arms: all arms of a stream are open together, and each question goes to all of them in turn."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from benchmarks.recordfile import RecordFile
from benchmarks.stream.records import Answer, PassRecord, key_of
from benchmarks.stream.wanted import Pass, Place, Wanted
from benchmarks.tasks.streams import FRAME_SECONDS, TimedQuestion, make_stream, questions_of, random_of
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.stream import Stream

Results = dict[Pass, PassRecord]


def run_passes(
    engine: Engine, label: str, passes: Iterable[Pass], wanted: Wanted, records: RecordFile[PassRecord], screen: Console
) -> Results:
    """The records of passes; those that are held are not measured anew.

    Raises:
        EmblemaError: a stream does not fit the model, or the records cannot be written.
    """
    keys = {one: key_of(engine.adapter.fingerprint, one, wanted) for one in passes}
    missing = {key: one for one, key in keys.items() if key not in records.held}
    groups: dict[Place, list[Pass]] = {}
    for one in missing.values():
        groups.setdefault(one.place, []).append(one)
    if groups:
        with steps(screen, f"{label}: {len(missing)} passes over {len(groups)} streams", len(groups)) as advance:
            for number, (place, own) in enumerate(groups.items(), 1):
                began = time.process_time()
                records.add(run_stream(engine, label, place, own, wanted))
                advance()
                if not screen.is_terminal:
                    told = f"{number}/{len(groups)}  {place.kind} {place.frames} frames, seed {place.seed}.{place.item}"
                    screen.print(f"{told}: {len(own)} arms, {time.process_time() - began:.1f} s of CPU")
    return {one: records.held[key] for one, key in keys.items()}


def run_stream(
    engine: Engine, label: str, place: Place, passes: Sequence[Pass], wanted: Wanted
) -> tuple[PassRecord, ...]:
    """One stream under some arms.

    Arms are asked one after another, question by question, so that a busy machine slows all of them alike; which of
    them comes first goes round.
    """
    random = random_of(place.kind, place.frames, place.seed, place.item)
    drawn = make_stream(random, place.kind, place.frames, place.seed, place.item)
    times = wanted.times_of(place.frames)
    asked = questions_of(drawn, times, wanted.limits)
    runs = [_Run(engine, one, wanted) for one in passes]
    try:
        seen = 0
        for at in times:
            frames, when = list(drawn.frames(seen, at)), [FRAME_SECONDS * number for number in range(seen, at)]
            for run in runs:
                run.push(frames, when)
            seen = at
            for number, question in enumerate(one for one in asked if one.at == at):
                turn = number % len(runs)
                for run in (*runs[turn:], *runs[:turn]):
                    run.ask(question)
        return tuple(run.record(label) for run in runs)
    finally:
        for run in runs:
            run.stream.close()


@dataclass
class _Run:
    """One arm under way."""

    engine: Engine
    one: Pass
    wanted: Wanted
    stream: Stream = field(init=False)
    seconds: float = 0.0
    cpu: float = 0.0
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        arm = self.wanted.arm(self.one.arm)
        self.stream = self.engine.stream(arm.method, arm.settings(self.wanted.settings, self.one.budget))

    def push(self, frames: Sequence[object], when: Sequence[float]) -> None:
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
        self.answers.append(
            Answer(
                kind=asked.kind,
                at=asked.at,
                right=reply.text.strip() == asked.answer,
                token=reply.token_ids[0] if reply.token_ids else -1,
                ttft=reply.usage.ttft_seconds,
                cpu=cpu,
                retrieved=reply.usage.retrieved,
            )
        )

    def record(self, label: str) -> PassRecord:
        place, arm = self.one.place, self.wanted.arm(self.one.arm)
        held = self.stream.bytes
        return PassRecord(
            key=key_of(self.engine.adapter.fingerprint, self.one, self.wanted),
            model=label,
            kind=place.kind,
            seed=place.seed,
            item=place.item,
            frames=place.frames,
            arm=arm.name,
            method=arm.method,
            budget=self.one.budget,
            encode_seconds=self.seconds,
            encode_cpu=self.cpu,
            counts=self.stream.counts,
            device=dict(held.device),
            host=dict(held.host),
            answers=tuple(self.answers),
        )
