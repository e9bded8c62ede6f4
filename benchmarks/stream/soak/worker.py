"""The process that soaks, and is killed: `python -m benchmarks.stream.soak.worker PLAN STORE SECONDS PROCESS`.

It prints a line whenever there is something to say. The first process saves the stream at half, asks the fixed
questions, and goes on until it is killed; the second loads it, asks them again, and goes on to the end.
"""

import resource
import sys
import time
from pathlib import Path

from benchmarks.stream.soak.plan import SoakPlan
from benchmarks.stream.soak.records import Answered, Event, Round, line_of
from benchmarks.tasks.streams import FRAME_SECONDS, TimedQuestion
from emblema.engine.engine import Engine
from emblema.link.policy.policy import Policy
from emblema.stream.stream import Stream

NAME = "soak"
FIXED = 2
"""Fixed questions of every kind, each asked of the whole stream and of its latest stretch."""


class Soaker:
    """One process's part."""

    def __init__(self, plan: SoakPlan, engine: Engine, stream: Stream, process: int) -> None:
        self.plan, self.engine, self.stream, self.process = plan, engine, stream, process

    def push(self, stop: int) -> tuple[float, float]:
        """Frames up to `stop`; the CPU and wall seconds that they took, drawing them aside."""
        cpu = wall = 0.0
        while self.stream.frames < stop:
            seen = self.stream.frames
            stretch, begin = self.plan.stretch_of(seen)
            end = min(stop, begin + len(stretch))
            frames = list(stretch.frames(seen - begin, end - begin))
            began, busy = time.perf_counter(), time.process_time()
            self.stream.push(frames, at=[FRAME_SECONDS * number for number in range(seen, end)])
            self.stream.advance()
            wall, cpu = wall + time.perf_counter() - began, cpu + time.process_time() - busy
        return cpu, wall

    def round(self) -> Round:
        """The next frames, and questions behind them."""
        before = self.stream.frames
        cpu, wall = self.push(before + self.plan.every)
        kind, length, asked = self.plan.questions(self.stream.frames, 1)
        times = [self._timed(question.text) for question in asked]
        right = {question.kind: self._right(question, length) for question in asked}
        held, counts = self.stream.bytes, self.stream.counts
        counted = sum(held.host.values())
        if self.engine.adapter.device.type == "cpu":
            counted += sum(held.device.values())
        return Round(
            process=self.process,
            frames=self.stream.frames,
            kind=kind,
            encoded=self.stream.frames - before,
            encode_cpu=cpu,
            encode_wall=wall,
            ttft_cpu=tuple(cpu for cpu, _ in times),
            ttft_wall=tuple(wall for _, wall in times),
            device=dict(held.device),
            host=dict(held.host),
            clusters=counts["clusters"] / len(self.engine.adapter.layouts),
            visual=int(counts["visual_clusters"]),
            resident=resident(),
            counted=counted,
            right=right,
        )

    def _timed(self, text: str) -> tuple[float, float]:
        busy = time.process_time()
        reply = self.stream.ask(text, max_new_tokens=1)
        return time.process_time() - busy, reply.usage.ttft_seconds

    def _right(self, question: TimedQuestion, length: int) -> bool:
        most = max(1, len(self.engine.tokenizer.encode(question.answer, add_special_tokens=False)))
        return self.stream.ask(question.text, window=length, max_new_tokens=most).text.strip() == question.answer

    def fixed(self) -> Answered:
        """The fixed questions."""
        _, length, asked = self.plan.questions(self.stream.frames, FIXED)
        replies = [self.stream.ask(one.text, window=near, max_new_tokens=2) for one in asked for near in (None, length)]
        moments = tuple(tuple(moment.frame for moment in reply.moments) for reply in replies)
        return Answered(self.stream.frames, tuple(reply.token_ids for reply in replies), moments)


def resident() -> int:
    """Bytes of this process in memory now; where the system does not say, the most that there have been."""
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def say(event: Event, said: Round | Answered | None = None) -> None:
    """Print a line at once."""
    print(line_of(event, said), flush=True)


def main(written: str, store: str, seconds: float, process: int) -> None:
    """Soak."""
    plan = SoakPlan.read(written)
    with Engine.load(plan.model, device=plan.device, store=store, policy=Policy.quiet()) as engine:
        first = process == 0
        stream = engine.stream(settings=plan.settings) if first else engine.load_stream(NAME)
        soaker, began = Soaker(plan, engine, stream, process), time.monotonic()
        if not first:
            say("resumed", soaker.fixed())
        stop = plan.half if first else plan.frames - plan.frames % plan.every
        while stream.frames < stop and time.monotonic() - began < seconds:
            say("round", soaker.round())
        if first:
            stream.save(NAME)
            say("saved", soaker.fixed())
            while True:
                # Until it is killed: these frames are lost.
                say("round", soaker.round())
        say("end")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
