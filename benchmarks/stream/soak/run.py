"""Processes one after the other: each but the last is killed, and the next goes on from what it had saved.

`python -m benchmarks.stream.soak.run PLAN STORE SECONDS PROCESS` is one of them. It prints a line whenever there is
something to report. At the end of its part it saves the stream, asks the fixed questions, and goes on until it is
killed; the next one loads the stream, asks them again, and goes on. The last one ends by itself.
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

from benchmarks.stream.soak.fresh import FreshStream, timed_answer, timed_push
from benchmarks.stream.soak.plan import (
    FixedAnswers,
    SoakEvent,
    SoakLog,
    SoakPlan,
    SoakRound,
    event_line,
    read_event,
)
from benchmarks.tasks.streams import QUESTION_KINDS, TimedQuestion
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
        for number in range(plan.kills + 1):
            with _process(plan, folder, number) as events:
                saved = None
                for event, found in events:
                    if event == "end":
                        break
                    if event == "resumed":
                        log.after.append(found)
                    elif event == "saved":
                        saved = found
                        log.before.append(found)
                    elif saved is not None:
                        # It is in the middle of what comes next by now: these frames are lost.
                        log.lost += found.frames - saved.frames
                        break
                    else:
                        keep(found)
            if number < plan.kills:
                log.saved_bytes = sum(path.stat().st_size for path in Path(folder).glob("streams/*/*"))
    log.seconds = time.perf_counter() - began
    return log


@contextmanager
def _process(plan: SoakPlan, folder: str, number: int) -> Iterator[Iterator[tuple[SoakEvent, Any]]]:
    """Run a process and yield what it prints; it is killed when the block ends."""
    seconds = math.inf if plan.minutes is None else 60 * plan.minutes / (plan.kills + 1)
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

    def __init__(self, plan: SoakPlan, engine: Engine, stream: Stream, process: int, fresh: FreshStream) -> None:
        self.plan, self.engine, self.stream, self.process, self.fresh = plan, engine, stream, process, fresh

    def push(self, stop: int) -> float:
        """Push frames up to `stop`; return the CPU seconds that they took, drawing them aside."""
        cpu = 0.0
        while self.stream.frames < stop:
            seen = self.stream.frames
            stretch, begin = self.plan.stretch_of(seen)
            end = min(stop, begin + len(stretch))
            cpu += timed_push(self.stream, list(stretch.frames(seen - begin, end - begin)))
        return cpu

    def round(self, compare: bool = False) -> SoakRound:
        """Push the next frames, and ask the questions after them.

        Args:
            compare: with a fresh stream.
        """
        before = self.stream.frames
        cpu = self.push(before + self.plan.every)
        kind, length, asked = self.plan.questions(self.stream.frames, 1)
        times, short, fresh_cpu = [], [], 0.0
        if compare:
            self.fresh.begin(self.stream.frames)
        for question in asked:
            times.append(timed_answer(self.stream, question.text))
            if compare:
                short.append(self.fresh.ask(question.text))
        if compare:
            fresh_cpu = self.fresh.finish()
        right: dict[str, bool | None] = dict.fromkeys(QUESTION_KINDS)
        right |= {question.kind: self._right(question, length) for question in asked}
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
            ttft_cpu=tuple(times),
            device=dict(held.device),
            host=dict(held.host),
            visual=int(counts["visual_clusters"]),
            resident=resident_bytes(),
            counted=counted,
            gaps=free_bytes(),
            right=right,
            short_cpu=tuple(short),
            fresh_encoded=self.plan.latest if compare else 0,
            fresh_cpu=fresh_cpu,
        )

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
    loaded = Engine.load(plan.model, device=plan.device, store=store, policy=Policy.quiet())
    with loaded as engine, FreshStream(plan) as fresh:
        first = process == 0
        stream = engine.stream(settings=plan.settings) if first else engine.load_stream(NAME)
        soaker, began = Soaker(plan, engine, stream, process, fresh), time.monotonic()
        if not first:
            report_event("resumed", soaker.fixed())
        stop, compared = plan.stop(process), stream.frames
        while stream.frames < stop - plan.every and time.monotonic() - began < seconds:
            due = stream.frames + plan.every - compared >= plan.compare
            report_event("round", soaker.round(due))
            compared = stream.frames if due else compared
        report_event("round", soaker.round(compare=True))
        if process < plan.kills:
            stream.save(NAME)
            report_event("saved", soaker.fixed())
            while True:
                # Until it is killed: these frames are lost.
                report_event("round", soaker.round())
        report_event("end")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
