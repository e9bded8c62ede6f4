"""What questions attend, noted while the runner runs a step; and the hidden rows that say if their answers stand."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.link.prompt import Rows
from emblema.models.attention import BLOCK, QuestionAttention, QuestionReadings, attention_weights
from emblema.vllm import internals
from emblema.vllm.pages import Pages, RowPlaces
from emblema.vllm.pair_learner import NotedShares

_log = logging.getLogger(__name__)
MOST_WEIGHTS = 2**26
"""Attention weights that are worked out at once."""


class NotedQuestion:
    """What one question attends, over as many steps as it takes.

    Args:
        question: its rows of the prompt.
        layers: how many layers are noted.
        device: of the pages.
    """

    def __init__(self, question: Rows, layers: int, device: torch.device) -> None:
        self.question = question
        self._attention = QuestionAttention(question[1] - question[0], question[1], device)
        # How many rows each layer noted: each has to have noted all of them.
        self._noted = [0] * layers

    def add(self, layer: int, start: int, weights: Tensor) -> None:
        """Add what rows from `start` on attend in a layer: weights [heads, queries, rows] over the first rows."""
        count = weights.shape[1]
        places = torch.arange(start - self.question[0], start - self.question[0] + count)
        self._attention.add(layer, places, weights)
        self._noted[layer] += count

    @property
    def readings(self) -> QuestionReadings | None:
        """What was noted, on the CPU; None where a layer missed any of the question's rows."""
        rows = self.question[1] - self.question[0]
        if any(noted != rows for noted in self._noted):
            return None
        found = self._attention.readings
        return QuestionReadings(found.last.cpu(), found.largest.cpu())


@dataclass(slots=True, eq=False)
class WatchedRun:
    """A run of rows of one prompt in the step under way.

    Attributes:
        blocks: the prompt's pages in order.
        rows: of the prompt.
        question: takes what the rows attend; None where that is not noted.
        shares: takes what they attend of chunks; None where that is not noted.
        place: the first of its rows in the batch, once that is known.
        attended: where the rows that it attends lie in pages, once that is known.
        failed: whether something could not be noted.
    """

    blocks: Sequence[int]
    rows: Rows
    question: NotedQuestion | None = None
    shares: NotedShares | None = None
    place: int | None = field(default=None, init=False)
    attended: RowPlaces | None = field(default=None, init=False)
    failed: bool = field(default=False, init=False)


class QuestionNotes:
    """Watches the attention layers of one worker's model, and what the model returns.

    No error in here reaches the forward: a run is marked as failed.

    Args:
        model: vLLM's.
        layers: its attention layers in order.
        pages: their pages.
        block_size: rows of vLLM's page.
    """

    def __init__(self, model: Any, layers: Sequence[Any], pages: Callable[[], Pages], block_size: int) -> None:
        self._model, self._pages, self._block_size = model, pages, block_size
        self._runs: Sequence[WatchedRun] = ()
        self._hidden: Tensor | None = None
        # The layers of a step share their metadata.
        self._located: Any = None
        self.layers = len(layers)
        self._ends = [internals.watch_attention(layer, self._noting(number)) for number, layer in enumerate(layers)]
        self._ends.append(model.register_forward_hook(self._keep_hidden).remove)

    def close(self) -> None:
        """Watch nothing any more."""
        for end in self._ends:
            end()
        self._ends.clear()

    def begin_step(self, runs: Sequence[WatchedRun]) -> None:
        """Watch some runs of rows in the next forward."""
        self._runs, self._hidden, self._located = tuple(runs), None, None

    def end_step(self) -> None:
        """Let go of what the forward made."""
        self._runs, self._hidden, self._located = (), None, None

    @torch.inference_mode()
    def last_logits(self, run: WatchedRun) -> Tensor | None:
        """Return the logits of a run's last row [vocab] float32; None where it was not seen in the forward.

        All workers of a model have to ask for the same runs in the same order.
        """
        if self._hidden is None:
            return None
        seen = run.place is not None and not run.failed
        row = 0 if run.place is None else run.place + run.rows[1] - run.rows[0] - 1
        logits = self._model.compute_logits(self._hidden[row : row + 1])
        return logits[0].float() if seen and logits is not None else None

    def _keep_hidden(self, model: Any, given: Any, made: Any) -> None:
        hidden = made[0] if isinstance(made, tuple) else made
        if self._runs and isinstance(hidden, Tensor):
            self._hidden = hidden

    def _noting(self, layer: int) -> Callable[[Tensor, float, Any], None]:
        def note(queries: Tensor, scale: float, metadata: Any) -> None:
            for run in self._runs:
                if run.failed or (run.place is not None and run.question is None and run.shares is None):
                    continue
                try:
                    self._note(layer, run, queries, scale, metadata)
                except Exception as error:
                    # The request is computed plainly; nothing else in the batch may suffer.
                    run.failed = True
                    expected = isinstance(error, EmblemaError)
                    _log.warning("emblema: what a question attends is not known: %s", error, exc_info=not expected)

        return note

    def _note(self, layer: int, run: WatchedRun, queries: Tensor, scale: float, metadata: Any) -> None:
        pages = self._pages()
        if run.place is None:
            if self._located is None:
                self._located = internals.rows_in_batch(metadata, self._block_size)
            run.place = self._located(run.blocks, run.rows)
        start, stop = run.rows
        own = queries[run.place : run.place + stop - start].transpose(0, 1)

        def read_keys() -> Tensor:
            if run.attended is None:
                run.attended = pages.locate(pages.slots(run.blocks, stop))
            return pages.read_keys(layer, run.attended)

        if run.shares is not None:
            run.shares.note(layer, run.rows, own, read_keys, scale)
        if run.question is None:
            return
        keys = read_keys()
        numbers = torch.arange(stop, device=own.device)
        step = max(1, min(BLOCK, MOST_WEIGHTS // (own.shape[0] * stop)))
        for first in range(start, stop, step):
            last = min(first + step, stop)
            mask = torch.zeros(last - first, stop, device=own.device)
            mask[numbers[None] > numbers[first:last, None]] = float("-inf")
            run.question.add(layer, first, attention_weights(own[:, first - start : last - start], keys, mask, scale))
