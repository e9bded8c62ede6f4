"""Rows that a worker computes beside those that vLLM scheduled: virtual requests on pages of their own."""

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData

from emblema.vllm.step_metadata import ChunkCapture


@dataclass(frozen=True, slots=True)
class SideRun:
    """A run of rows of one prompt, computed in one step.

    Attributes:
        data: the virtual request: its prompt and pages; the rows before the run count as computed.
        rows: how many rows the run has.
        features: indices of the pictures that are to be encoded for it.
    """

    data: NewRequestData
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


def virtual_request(data: NewRequestData, name: str, start: int) -> NewRequestData:
    """Return a request of the same prompt and pages whose rows before `start` count as computed, for one step."""
    return NewRequestData(
        req_id=name,
        prompt_token_ids=data.prompt_token_ids,
        mm_features=data.mm_features,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
        pooling_params=None,
        block_ids=tuple(list(group) for group in data.block_ids),
        num_computed_tokens=start,
        lora_request=None,
        prefill_token_ids=data.prefill_token_ids or list(data.prompt_token_ids or ()),
    )


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
            tokens = capture.chunk.tokens
            count = min(rows, tokens - self._row)
            self._count += 1
            features: list[Any] = [] if capture.feature is None else [capture.feature]
            # One more token than the chunk has: a prompt that is not complete gives no token.
            prompt = [*capture.chunk.encoded.token_ids.tolist(), 0]
            data = NewRequestData(
                req_id="", prompt_token_ids=prompt, mm_features=features, sampling_params=None, pooling_params=None,
                block_ids=(list(capture.blocks),), num_computed_tokens=0, lora_request=None,
            )  # fmt: skip
            run = virtual_request(data, f"emblema\0capture-{self._count}", self._row)
            encode = bool(features) and capture.identifier not in encoded and capture.identifier not in given
            given.add(capture.identifier)
            made.append(SideRun(run, count, (0,) if encode else ()))
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
