"""Two processes one after the other: the first is killed, the second goes on from what the first had saved.

`python -m benchmarks.stream.soak.run PLAN STORE SECONDS PROCESS` is one of them. It prints a line whenever there is
something to report. The first saves the stream at half, asks the fixed questions, and goes on until it is killed; the
second loads it, asks them again, and goes on to the end.
"""

import ctypes
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stream.soak.plan import (
    FixedAnswers,
    SoakEvent,
    SoakLog,
    SoakPlan,
    SoakRound,
    event_line,
    read_event,
)
from benchmarks.tasks.streams import FRAME_SECONDS, TimedQuestion
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.link.policy.policy import Policy
from emblema.stream.stream import Stream

NAME = "soak"
FIXED = 2
"""Fixed questions of every kind, each asked of the whole stream and of its latest stretch."""


def soak(plan: SoakPlan, notify: Callable[[SoakRound], None]) -> SoakLog:
    """Soak; the folder that the stream is saved in goes afterwards.

    Args:
        notify: called with every round that counts, as it comes.

    Raises:
        EmblemaError: a process ended by itself, with the last line of its errors.
    """
    log, began = SoakLog(), time.perf_counter()

    def keep(found: SoakRound) -> None:
        log.rounds.append(found)
        notify(found)

    with tempfile.TemporaryDirectory(prefix="emblema-soak-") as folder:
        with _process(plan, folder, 0) as events:
            for event, found in events:
                if event == "saved":
                    log.before = found
                elif log.before.frames:
                    # It is in the middle of what comes next by now: these frames are lost.
                    log.lost = found.frames - log.before.frames
                    break
                else:
                    keep(found)
        log.saved_bytes = sum(path.stat().st_size for path in Path(folder).glob("streams/*/*.safetensors"))
        with _process(plan, folder, 1) as events:
            for event, found in events:
                if event == "end":
                    break
                if event == "resumed":
                    log.after = found
                else:
                    keep(found)
    log.seconds = time.perf_counter() - began
    return log


@contextmanager
def _process(plan: SoakPlan, folder: str, number: int) -> Iterator[Iterator[tuple[SoakEvent, Any]]]:
    """Run a process and yield what it prints; it is killed when the block ends."""
    seconds = math.inf if plan.minutes is None else 30 * plan.minutes
    command = [sys.executable, "-m", "benchmarks.stream.soak.run", plan.line(), folder, str(seconds), str(number)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield _events(process, errors)
        finally:
            process.kill()
            process.communicate()


def _events(process: "subprocess.Popen[str]", errors: Any) -> Iterator[tuple[SoakEvent, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield read_event(line)
    code = process.wait()
    errors.seek(0)
    last = next((line.strip() for line in reversed(errors.read().splitlines()) if line.strip()), "")
    raise EmblemaError(f"the soaking process ended by itself with {code}: {last or 'it printed nothing'}")


class Soaker:
    """One process's part of a soak."""

    def __init__(self, plan: SoakPlan, engine: Engine, stream: Stream, process: int) -> None:
        self.plan, self.engine, self.stream, self.process = plan, engine, stream, process

    def push(self, stop: int) -> tuple[float, float]:
        """Push frames up to `stop`; return the CPU and wall seconds that they took, drawing them aside."""
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

    def round(self) -> SoakRound:
        """Push the next frames, and ask the questions after them."""
        before = self.stream.frames
        cpu, wall = self.push(before + self.plan.every)
        kind, length, asked = self.plan.questions(self.stream.frames, 1)
        times = [self._timed(question.text) for question in asked]
        right = {question.kind: self._right(question, length) for question in asked}
        held, counts = self.stream.bytes, self.stream.counts
        counted = sum(held.host.values())
        if self.engine.adapter.device.type == "cpu":
            counted += sum(held.device.values())
        return SoakRound(
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
            resident=resident_bytes(),
            counted=counted,
            gaps=free_bytes(),
            right=right,
        )

    def _timed(self, text: str) -> tuple[float, float]:
        busy = time.process_time()
        reply = self.stream.ask(text, max_new_tokens=1)
        return time.process_time() - busy, reply.usage.ttft_seconds

    def _right(self, question: TimedQuestion, length: int) -> bool:
        most = max(1, len(self.engine.tokenizer.encode(question.answer, add_special_tokens=False)))
        return self.stream.ask(question.text, window=length, max_new_tokens=most).text.strip() == question.answer

    def fixed(self) -> FixedAnswers:
        """Ask the fixed questions."""
        _, length, asked = self.plan.questions(self.stream.frames, FIXED)
        replies = [
            self.stream.ask(question.text, window=near, max_new_tokens=2)
            for question in asked
            for near in (None, length)
        ]
        moments = tuple(tuple(moment.frame for moment in reply.moments) for reply in replies)
        return FixedAnswers(self.stream.frames, tuple(reply.token_ids for reply in replies), moments)


def resident_bytes() -> int:
    """Return bytes of this process in memory now; where the system does not say, the most that there have been."""
    status = Path("/proc/self/statm")
    if status.is_file():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


class _AllocatorState(ctypes.Structure):
    """What glibc says of its heap, in the order of `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def free_bytes() -> int:
    """Return bytes that the allocator keeps free in its heap; 0 where the system does not say."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return 0
    ask.restype = _AllocatorState
    return int(ask().fordblks)


def report_event(event: SoakEvent, found: SoakRound | FixedAnswers | None = None) -> None:
    """Print a line at once."""
    print(event_line(event, found), flush=True)


def main(plan_line: str, store: str, seconds: float, process: int) -> None:
    """Soak in this process."""
    plan = SoakPlan.read(plan_line)
    with Engine.load(plan.model, device=plan.device, store=store, policy=Policy.quiet()) as engine:
        first = process == 0
        stream = engine.stream(settings=plan.settings) if first else engine.load_stream(NAME)
        soaker, began = Soaker(plan, engine, stream, process), time.monotonic()
        if not first:
            report_event("resumed", soaker.fixed())
        stop = plan.half if first else plan.frames - plan.frames % plan.every
        while stream.frames < stop and time.monotonic() - began < seconds:
            report_event("round", soaker.round())
        if first:
            stream.save(NAME)
            report_event("saved", soaker.fixed())
            while True:
                # Until it is killed: these frames are lost.
                report_event("round", soaker.round())
        report_event("end")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
