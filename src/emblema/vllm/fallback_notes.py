"""Prompts that vLLM computes in full because a reading was not sure of its answer: their rows teach pairs too."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from emblema.link.prompt import Rows
from emblema.vllm import internals
from emblema.vllm.pages import Pages
from emblema.vllm.pair_learner import NotedShares, PairLearner

MOST_EXPECTED = 64
"""Prompts that are waited for, at most; the oldest are not learnt from."""


class FallbackNotes:
    """Notes rows of such prompts as vLLM schedules them; for the model's thread of one worker.

    No error in here reaches the forward: nothing is learnt from that prompt.

    Args:
        learner: learns from them.
        layers: the model's attention layers in order.
        pages: of the worker.
        block_size: rows of vLLM's page.
    """

    def __init__(
        self, learner: PairLearner, layers: Sequence[Any], pages: Callable[[], Pages], block_size: int
    ) -> None:
        self._learner, self._pages, self._block_size = learner, pages, block_size
        self._expected: OrderedDict[str, NotedShares] = OrderedDict()
        # Prompts of the step under way, with their pages and rows.
        self._runs: list[tuple[str, NotedShares, Sequence[int], Rows]] = []
        self._ends = [
            internals.add_to_attention(layers[number], self._noting(number)) for number in learner.noted_layers
        ]

    def close(self) -> None:
        """Watch nothing any more."""
        for end in self._ends:
            end()
        self._ends.clear()

    def expect(self, request_id: str, noted: NotedShares) -> None:
        """Learn from a request when vLLM computes it."""
        self._expected[request_id] = noted
        while len(self._expected) > MOST_EXPECTED:
            self._expected.popitem(last=False)

    def begin_step(
        self, rows: Mapping[str, Rows], blocks: Callable[[str], Sequence[int]], ended: Iterable[str]
    ) -> None:
        """Watch a step.

        Args:
            rows: of the prompt, that the step computes of each request.
            blocks: returns a request's pages in order.
            ended: requests that have ended.
        """
        for name in ended:
            self._expected.pop(name, None)
        self._runs.clear()
        for name in self._expected.keys() & rows.keys():
            noted, run = self._expected[name], rows[name]
            with noted.guarded():
                if not noted.chosen:
                    noted.choose([(run[0], noted.prompt.tokens)])
                self._runs.append((name, noted, blocks(name), run))

    def settle(self) -> None:
        """Take what the forward made."""
        for name, noted, blocks, (_, stop) in self._runs:
            if stop >= noted.prompt.tokens:
                # What is learnt from makes room: this one may have left already.
                self._expected.pop(name, None)
                self._learner.take(noted, self._pages(), blocks)
        self._runs.clear()

    def _noting(self, layer: int) -> Callable[[Any, Any, int, float], None]:
        def note(queries: Any, output: Any, heads: int, scale: float) -> None:
            for _, noted, blocks, run in self._runs:
                with noted.guarded(), torch.inference_mode():
                    self._note(layer, noted, blocks, run, queries.view(queries.shape[0], heads, -1), scale)

        return note

    def _note(
        self, layer: int, noted: NotedShares, blocks: Sequence[int], run: Rows, queries: Tensor, scale: float
    ) -> None:
        pages, (start, stop) = self._pages(), run
        metadata, _ = internals.step_context()
        place = internals.rows_in_batch(metadata, self._block_size)(blocks, run)
        own = queries[place : place + stop - start].transpose(0, 1)
        keys = pages.read(layer, pages.locate_prompt(blocks, stop)).keys
        noted.note(layer, torch.arange(start, stop), own, keys, scale)
