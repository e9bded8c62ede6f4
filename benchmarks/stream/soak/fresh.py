"""A fresh stream, that the long one is held against; in a process of its own, so that memory is not mixed."""

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Literal, Self

from PIL import Image

from benchmarks.stream.soak.plan import SoakPlan
from benchmarks.tasks.streams import FRAME_SECONDS
from emblema.engine.engine import Engine
from emblema.link.policy.policy import Policy
from emblema.stream.stream import Stream

StreamStep = Literal["begin", "ask", "finish"]


class FreshStream:
    """A process in which streams are begun, one after another."""

    def __init__(self, plan: SoakPlan) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        # It ends when this process does, however that ends: its pipe is closed then.
        self._process = context.Process(target=_serve, args=(plan, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, before: int) -> None:
        """Begin a stream over the frames before frame `before`, encode it up to where it is asked, and ask it once."""
        self._done("begin", str(before))

    def ask(self, text: str) -> float:
        """Ask for one token; return the CPU seconds to it."""
        return self._done("ask", text)

    def finish(self) -> float:
        """Encode the rest of the stream and close it; return the CPU seconds that the latest frames took."""
        return self._done("finish", "")

    def _done(self, step: StreamStep, text: str) -> float:
        self._pipe.send((step, text))
        return float(self._pipe.recv())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()


def _serve(plan: SoakPlan, pipe: Connection) -> None:
    with Engine.load(plan.model, device=plan.device, policy=Policy.quiet()) as engine:
        while True:
            try:
                _, text = pipe.recv()
            except EOFError:
                return
            before = int(text)
            with engine.stream(settings=replace(plan.settings, host_bytes=None)) as stream:
                _push_latest(plan, stream, before, plan.short)
                timed_answer(stream, plan.questions(before, 1)[2][-1].text)
                pipe.send(0)
                while (asked := pipe.recv())[0] == "ask":
                    pipe.send(timed_answer(stream, asked[1]))
                _push_latest(plan, stream, before, plan.fresh - plan.latest)
                pipe.send(_push_latest(plan, stream, before, plan.fresh))


def _push_latest(plan: SoakPlan, stream: Stream, before: int, stop: int) -> float:
    """Push frames of the latest ones before frame `before` up to `stop`; return the CPU seconds that they took."""
    cpu = 0.0
    while stream.frames < stop:
        number = max(0, before - plan.fresh) + stream.frames
        stretch, begin = plan.stretch_of(number)
        end = min(number + stop - stream.frames, begin + len(stretch))
        cpu += timed_push(stream, list(stretch.frames(number - begin, end - begin)))
    return cpu


def timed_push(stream: Stream, frames: Sequence[Image.Image]) -> float:
    """Push frames and encode them; return the CPU seconds that they took."""
    seen, busy = stream.frames, time.process_time()
    stream.push(frames, at=[FRAME_SECONDS * number for number in range(seen, seen + len(frames))])
    stream.advance()
    return time.process_time() - busy


def timed_answer(stream: Stream, text: str) -> float:
    """Ask for one token; return the CPU seconds to it."""
    busy = time.process_time()
    stream.ask(text, max_new_tokens=1)
    return time.process_time() - busy
