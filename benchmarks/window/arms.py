"""The ways to serve a trace: a window under `auto`, full prefill, prefix caching, blind reuse; each with its store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from benchmarks.window.counting import RowCounter
from benchmarks.window.trace import Step, Trace
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk, EncodedChunk
from emblema.kv.layout import kv_bytes
from emblema.session.prompt_reader import PromptPart
from emblema.session.requests import Prefill
from emblema.store.store import Store
from emblema.window.parts import PartHandle

AUTO, FULL, PREFIX, BLIND, BROUGHT = "auto", "full", "prefix", "blind", "auto, as prompts"
ARMS = {"agent": (FULL, AUTO, PREFIX, BLIND), "novelty": (FULL, AUTO, BROUGHT)}


@dataclass(frozen=True, slots=True)
class Served:
    """One step by one arm.

    Attributes:
        logits: [vocab] float32 of the answer.
        seconds: from the new picture to the logits, its encoding included.
        rows: rows computed until then, a row that ran in some layers alone as that share of one.
        later: rows computed behind the answer.
        lane: what was taken.
        held: bytes kept for the steps to come: rows, patches, embeddings of what may be looked back at.
        new_rows: of the step's new picture, its text and question; `back_rows`: of a picture looked back at.
        checks: comparisons that the canary made so far; `skipped`: those that it could not make.
    """

    logits: Tensor
    seconds: float
    rows: float
    later: float
    lane: str
    held: int
    new_rows: int
    back_rows: int
    checks: int = 0
    skipped: int = 0


class Arm(Protocol):
    """Serves one step after another."""

    def follow(self, step: Step) -> None:
        """Let a step pass that was measured before."""

    def serve(self, step: Step) -> Served:
        """Answer a step's question."""

    def close(self) -> None:
        """Let go of everything."""


class WindowArm:
    """The window: told what leaves, what enters and what is looked back at; `auto` chooses."""

    def __init__(self, engine: Engine, trace: Trace, counter: RowCounter) -> None:
        self.engine, self.trace, self.counter = _behind(engine), trace, counter
        self.window = self.engine.window()
        self._handles: dict[int, PartHandle] = {}
        self._embeddings: dict[PartHandle, int] = {}

    def follow(self, step: Step) -> None:
        self._move(step)
        self.window.prefill(step.asked.text)
        self.engine.settle()

    def serve(self, step: Step) -> Served:
        before, began = self.counter.rows, time.perf_counter()
        new, back = self._move(step)
        prefill = self.window.prefill(step.asked.text)
        seconds, rows = time.perf_counter() - began, self.counter.rows - before
        self.engine.settle()
        later = self.counter.rows - before - rows
        new += prefill.prompt.tokens - self.window.tokens
        kept = sum(self._embeddings.get(handle, 0) for handle in self.window.evicted)
        held = self.window.bytes + kept + _stored(self.engine)
        canary = self.engine.policy_runtime.statistics.canary
        checks = canary.checks + canary.trials
        lane = prefill.usage.lane
        return Served(prefill.logits, seconds, rows, later, lane, held, new, back, checks, canary.skipped)

    def _move(self, step: Step) -> tuple[int, int]:
        """Slide and append; rows that are new, and those of what was looked back at."""
        window = self.window
        new = back = 0
        if step.index == 0:
            new += window.tokens
        if step.leaving:
            window.slide(2 * step.leaving)
        for shown in step.entering:
            new += window.append(shown.text).tokens
            if shown.back:
                handle = self._handles[shown.picture]
                window.recall(handle)
                back += handle.tokens
                continue
            (piece,) = self.engine.encode(self.trace.pages[shown.picture].image())
            handle = window.append(piece)
            self._handles[shown.picture], self._embeddings[handle] = handle, piece.bytes
            new += handle.tokens
        return new, back

    def close(self) -> None:
        self.window.close()
        self.engine.close()


class PromptArm:
    """The whole window as a prompt, at every step.

    Args:
        alone: whether pictures are prefilled alone when they are added, and that counts; else only the encoder runs for
            a new picture, as in an engine that knows no pieces.
    """

    def __init__(self, engine: Engine, trace: Trace, counter: RowCounter, strategy: str, alone: bool) -> None:
        self.engine, self.trace, self.counter = _behind(engine), trace, counter
        self.strategy, self.alone = strategy, alone
        self._pieces: dict[int, EncodedChunk] = {}
        self._chunks: dict[int, Chunk] = {}

    def follow(self, step: Step) -> None:
        if self.alone or self.strategy == PREFIX:
            self.serve(step)
        else:
            self._encode(step)

    def serve(self, step: Step) -> Served:
        before, began = self.counter.rows, time.perf_counter()
        self._encode(step)
        ready = time.perf_counter()
        self._prefill_alone(step)
        if not self.alone:
            # Not a cost of this arm: its plan computes every row, and only needs the pieces' names.
            before, began = self.counter.rows, began + time.perf_counter() - ready
        parts: list[PromptPart] = []
        for shown in step.window:
            parts += [shown.text, self._chunks[shown.picture]]
        prefill = self.engine.prefill([*parts, step.asked.text], self.strategy)
        seconds, rows = time.perf_counter() - began, self.counter.rows - before
        self.engine.settle()
        later = self.counter.rows - before - rows
        held = self._held(prefill)
        if not self.alone and self.strategy != PREFIX:
            self.engine.forget_prompts()
        return Served(prefill.logits, seconds, rows, later, prefill.usage.lane, held, 0, 0)

    def _held(self, prefill: Prefill) -> int:
        if self.alone:
            return _stored(self.engine)
        embeddings = sum(piece.bytes for piece in self._pieces.values())
        # An engine keeps several prompts; the last is what the next step of this trace can begin from.
        return embeddings + (kv_bytes(prefill.kv) if self.strategy == PREFIX else 0)

    def _encode(self, step: Step) -> None:
        for shown in step.entering:
            if shown.picture not in self._pieces:
                (self._pieces[shown.picture],) = self.engine.encode(self.trace.pages[shown.picture].image())

    def _prefill_alone(self, step: Step) -> None:
        for shown in step.window:
            if shown.picture not in self._chunks:
                made = self.engine.add(self._pieces[shown.picture])
                assert isinstance(made, Chunk)
                self._chunks[shown.picture] = made

    def close(self) -> None:
        self.engine.close()


class PicturesArm:
    """The whole window as a prompt of pictures as they are, at every step: no window, and nothing added before."""

    def __init__(self, engine: Engine, trace: Trace, counter: RowCounter) -> None:
        self.engine, self.trace, self.counter = _behind(engine), trace, counter

    def follow(self, step: Step) -> None:
        self.serve(step)

    def serve(self, step: Step) -> Served:
        before, began = self.counter.rows, time.perf_counter()
        parts: list[PromptPart] = []
        for shown in step.window:
            parts += [shown.text, self.trace.pages[shown.picture].image()]
        prefill = self.engine.prefill([*parts, step.asked.text])
        seconds, rows = time.perf_counter() - began, self.counter.rows - before
        self.engine.settle()
        later = self.counter.rows - before - rows
        return Served(prefill.logits, seconds, rows, later, prefill.usage.lane, _stored(self.engine), 0, 0)

    def close(self) -> None:
        self.engine.close()


def arm_of(name: str, engine: Engine, plain: Engine, trace: Trace, counter: RowCounter) -> Arm:
    """An arm by its name; `plain`: the same model, which forms nothing behind answers."""
    made: dict[str, Callable[[], Arm]] = {
        AUTO: lambda: WindowArm(engine, trace, counter),
        FULL: lambda: PromptArm(plain, trace, counter, "full", alone=False),
        PREFIX: lambda: PromptArm(plain, trace, counter, "prefix", alone=False),
        BLIND: lambda: PromptArm(plain, trace, counter, "blind", alone=True),
        BROUGHT: lambda: PicturesArm(engine, trace, counter),
    }
    return made[name]()


def _behind(engine: Engine) -> Engine:
    """The engine on a store of its own; what it does behind answers waits for `settle`, where it is counted."""
    own = engine.on(Store())
    own.defer_idle(True)
    return own


def _stored(engine: Engine) -> int:
    held = engine.store.statistics
    return held.bytes + held.prefix_bytes
