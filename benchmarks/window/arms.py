"""The ways to serve a trace: a window under `auto`, full prefill, prefix caching, blind reuse; each with its store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from benchmarks.window.trace import Trace, TraceStep
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.kv.layout import kv_bytes
from emblema.models.adapter import Adapter
from emblema.session.requests import Prefill
from emblema.store.store import Store
from emblema.window.parts import PartHandle

AUTO, FULL, PREFIX, BLIND = "auto", "full", "prefix", "blind"
ARMS = {"agent": (FULL, AUTO, PREFIX, BLIND), "novelty": (FULL, AUTO)}


class RowCounter:
    """Rows that entered a decoder layer, summed over layers, whichever part of the engine ran them."""

    def __init__(self, layers: int) -> None:
        self.layers, self.row_layers = layers, 0

    @property
    def rows(self) -> float:
        """Rows computed, a row that ran in some layers alone as that share of one."""
        return self.row_layers / self.layers

    def see(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Count a layer's rows; a hook before its forward."""
        hidden = args[0] if args else named["hidden_states"]
        self.row_layers += hidden.shape[0] * hidden.shape[1]


@contextmanager
def counted_rows(adapter: Adapter) -> Iterator[RowCounter]:
    """Count what an adapter's decoder runs; the model is left as it was."""
    counter = RowCounter(len(adapter.layers))
    hooks = [layer.register_forward_pre_hook(counter.see, with_kwargs=True) for layer in adapter.layers]
    try:
        yield counter
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step by one arm.

    Attributes:
        logits: [vocab] float32 of the answer.
        seconds: from the new picture to the logits, its encoding included.
        rows: rows computed for the step, those after its answer included.
        held: bytes kept for the steps to come: rows, patches, embeddings of what may be looked back at.
        new_rows: of the step's new picture, its text and question; `back_rows`: of a picture looked back at.
    """

    logits: Tensor
    seconds: float
    rows: float
    held: int = 0
    new_rows: int = 0
    back_rows: int = 0


def answered(engine: Engine, counter: RowCounter, rows: float, began: float, prefill: Prefill) -> StepResult:
    """Return what an answer took from some rows and a moment on; waits for what the engine does after it."""
    seconds = time.perf_counter() - began
    engine.settle()
    return StepResult(prefill.logits, seconds, counter.rows - rows)


class WindowArm:
    """The window, which is told what leaves, what enters and what is looked back at; `auto` chooses."""

    def __init__(self, engine: Engine, trace: Trace, counter: RowCounter) -> None:
        self.engine, self.trace, self.counter = engine, trace, counter
        self.window = self.engine.window()
        self._handles: dict[int, PartHandle] = {}
        self._embeddings: dict[PartHandle, int] = {}

    def serve(self, step: TraceStep) -> StepResult:
        rows, began = self.counter.rows, time.perf_counter()
        new, back = self._move(step)
        prefill = self.window.prefill(step.question.text)
        result = answered(self.engine, self.counter, rows, began, prefill)
        new += prefill.prompt.tokens - self.window.tokens
        kept = sum(self._embeddings.get(handle, 0) for handle in self.window.evicted)
        return replace(result, held=self.window.bytes + kept + _stored(self.engine), new_rows=new, back_rows=back)

    def _move(self, step: TraceStep) -> tuple[int, int]:
        """Slide and append; return rows that are new, and those of what was looked back at."""
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


class PromptArm:
    """The whole window as a prompt, at every step.

    Under `blind`, pictures are prefilled alone when they are added, and that counts; else only the encoder runs for a
    new picture, as in an engine that knows no pieces.
    """

    def __init__(self, engine: Engine, trace: Trace, counter: RowCounter, strategy: str) -> None:
        self.engine, self.trace, self.counter, self.strategy = engine, trace, counter, strategy
        self._pieces: dict[int, Chunk | Clip | EncodedChunk] = {}
        self._embeddings = 0

    def serve(self, step: TraceStep) -> StepResult:
        rows, began = self.counter.rows, time.perf_counter()
        for shown in step.entering:
            if shown.picture not in self._pieces:
                (piece,) = self.engine.encode(self.trace.pages[shown.picture].image())
                self._embeddings += piece.bytes
                self._pieces[shown.picture] = self.engine.add(piece) if self.strategy == BLIND else piece
        pictures = [part for each in step.window for part in (each.text, self._pieces[each.picture])]
        prefill = self.engine.prefill([*pictures, step.question.text], self.strategy)
        result = answered(self.engine, self.counter, rows, began, prefill)
        if self.strategy == FULL:
            self.engine.forget_prompts()
        return replace(result, held=self._held(prefill))

    def _held(self, prefill: Prefill) -> int:
        if self.strategy == BLIND:
            return _stored(self.engine)
        # An engine keeps several prompts; the last is what the next step of this trace can begin from.
        return self._embeddings + (kv_bytes(prefill.kv) if self.strategy == PREFIX else 0)


def arm_of(name: str, engine: Engine, plain: Engine, trace: Trace, counter: RowCounter) -> WindowArm | PromptArm:
    """Return an arm by its name, on a store of its own; `plain`: the same model, which forms nothing after answers."""
    own = (engine if name == AUTO else plain).on(Store())
    # What it does after answers waits for `settle`, where it is counted.
    own.defer_idle(True)
    return WindowArm(own, trace, counter) if name == AUTO else PromptArm(own, trace, counter, name)


def _stored(engine: Engine) -> int:
    held = engine.store.statistics
    return held.bytes + held.prefix_bytes
