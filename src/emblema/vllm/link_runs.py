"""Prompts that are linked, carried out by a worker beside the rows that vLLM scheduled.

vLLM takes a linked prompt, up to its last taken row, for KV that is on its way from elsewhere: its request waits, with
pages. Meanwhile the worker writes the taken rows into these pages and computes those between them, each run of rows as
a virtual request: same prompt, same pages, and as many computed rows as come before the run. Every layer writes the
whole batch's rows before attention reads pages, so all rows attend all rows before them.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emblema.link.prompt import Rows
from emblema.vllm.prompt_loads import PromptLoads
from emblema.vllm.side_rows import SideRun
from emblema.vllm.step_metadata import LinkOrder, StepMetadata


@dataclass(slots=True, eq=False)
class LinkedPrompt:
    """A prompt that is being linked.

    Attributes:
        order: what is linked.
        left: rows that are not computed yet, in order.
        encodings: what the encoder made of its pictures, by their names in the order, as far as it is staged.
        encoded: names of its pictures that the runner has.
        lost: whether its rows could not be written; what is computed goes on as the other workers' does.
    """

    order: LinkOrder
    left: list[Rows]
    encodings: dict[str, Tensor] = field(default_factory=dict)
    encoded: set[str] = field(default_factory=set)
    lost: bool = False


class LinkRuns(PromptLoads[LinkedPrompt]):
    """The linked prompts of one worker; arguments as of `PromptLoads`."""

    def begin_step(self, step: StepMetadata) -> None:
        for order in step.links:
            linked = self._under_way[order.request_id] = LinkedPrompt(order, list(order.computed))
            self._guarded(linked, self._write)

    @torch.inference_mode()
    def _write(self, linked: LinkedPrompt) -> None:
        """Write the rows that a prompt takes."""
        order = linked.order
        linked.encodings = self._staged.take(order.request_id, order.prompt, order.taken)

    def runs(self, rows: int, slots: int, encoded: Container[str]) -> Sequence[SideRun]:
        made: list[SideRun] = []
        given: set[str] = set()
        for linked in self._under_way.values():
            while linked.left and rows > 0 and slots > 0:
                start, stop = linked.left[0]
                end = min(stop, start + rows)
                if end < stop:
                    linked.left[0] = (end, stop)
                else:
                    del linked.left[0]
                made.append(self._run(linked, (start, end), encoded, given))
                rows, slots = rows - (end - start), slots - 1
        return made

    def settle(self) -> None:
        for linked in list(self._under_way.values()):
            if not linked.left:
                self._end(linked, failed=linked.lost)

    def take_results(self) -> tuple[set[str], set[str]]:
        # A step without rows has no forward; a prompt of which nothing is computed is ready all the same.
        self.settle()
        return super().take_results()
