"""Rows that a worker computes beside those that vLLM scheduled: virtual requests on pages of their own."""

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from emblema.served.captures import ChunkCapture
from emblema.vllm.step_metadata import SidePrompt


@dataclass(frozen=True, slots=True)
class SideRun:
    """A run of rows of one prompt, computed in one step as a virtual request.

    Attributes:
        prompt: its prompt and pages.
        name: of the virtual request.
        start: rows before it count as computed.
        rows: how many rows the run has.
        features: numbers of the pictures that are to be encoded for it.
    """

    prompt: SidePrompt
    name: str
    start: int
    rows: int
    features: tuple[int, ...] = ()


class SideRows(Protocol):
    """Work that goes along with steps. The worker's thread calls it once a step."""

    def runs(self, rows: int, slots: int, encoded: Container[str]) -> Sequence[SideRun]:
        """Return what to compute in this step.

        Args:
            rows, slots: rows, and places in the batch, that the step has for it.
            encoded: names of pictures whose encoder outputs the model's runner has.
        """

    def finish_step(self) -> Iterable[str]:
        """Take what the forward made, and return names of pictures whose encoder outputs are not needed any more."""


class CaptureRuns:
    """Prefills chunks alone, one after another, in as many steps as it takes.

    Attributes:
        finished: chunks whose rows are all in their pages; taken by whoever reads them.
    """

    def __init__(self) -> None:
        self._waiting: deque[ChunkCapture] = deque()
        self._row = 0
        self._count = 0
        self.finished: list[ChunkCapture] = []

    def add(self, captures: Iterable[ChunkCapture]) -> None:
        """Take chunks that are to be prefilled."""
        self._waiting.extend(captures)

    def drop(self) -> list[ChunkCapture]:
        """Forget all chunks that are not finished, and return them."""
        dropped = list(self._waiting)
        self._waiting.clear()
        self._row = 0
        return dropped

    def runs(self, rows: int, slots: int, encoded: Container[str]) -> list[SideRun]:
        made: list[SideRun] = []
        given: set[str] = set()
        while self._waiting and rows > 0 and slots > 0:
            capture = self._waiting[0]
            tokens = capture.tokens
            count = min(rows, tokens - self._row)
            self._count += 1
            # One more token than there are rows: a prompt that is not complete gives no token.
            prompt = SidePrompt([*capture.token_ids, 0], (capture.feature,), capture.blocks)
            encode = capture.identifier not in encoded and capture.identifier not in given
            given.add(capture.identifier)
            name = f"emblema\0capture-{self._count}"
            made.append(SideRun(prompt, name, self._row, count, (0,) if encode else ()))
            rows, slots, self._row = rows - count, slots - 1, self._row + count
            if self._row == tokens:
                self.finished.append(self._waiting.popleft())
                self._row = 0
        return made

    def finish_step(self) -> list[str]:
        """Return the names of the pictures whose chunks are finished; their rows are read by then."""
        done = [capture.identifier for capture in self.finished]
        self.finished = []
        return done
