"""Prompts that are linked, carried out by a worker beside the rows that vLLM scheduled.

vLLM takes a linked prompt, up to its last taken row, for KV that is on its way from elsewhere: its request waits, with
pages. Meanwhile the worker writes the taken rows into these pages and computes those between them, each run of rows as
a virtual request: same prompt, same pages, and as many computed rows as come before the run. Every layer writes the
whole batch's rows before attention reads pages, so all rows attend all rows before them.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emblema.link.prompt import Rows
from emblema.vllm.prompt_loads import HandOver, PromptLoads, StagedPrompts
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
    """The linked prompts of one worker.

    Args:
        staged, hand_over: see `PromptLoads`.
        agree: returns which of some facts are so on all workers.
    """

    def __init__(
        self, staged: StagedPrompts, hand_over: HandOver | None, agree: Callable[[list[bool]], list[bool]]
    ) -> None:
        super().__init__(staged, hand_over)
        self._agree = agree

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
                shown = [each for each in linked.order.prompt.features if each.start < end and start < each.stop]
                lacking = [each.name for each in shown if each.name not in encoded and each.name not in given]
                given.update(lacking)
                made.append(self._run(linked, (start, end), lacking))
                rows, slots = rows - (end - start), slots - 1
        return made

    def _run(self, linked: LinkedPrompt, rows: Rows, lacking: Sequence[str]) -> SideRun:
        """Return some rows as a run; pictures that the runner lacks are encoded, or handed over."""
        self._count += 1
        hand_over = self._hand_over
        staged = [hand_over is not None and name in linked.encodings for name in lacking]
        # All workers run the encoder together or not at all.
        staged = self._agree(staged) if staged else staged
        if hand_over is not None:
            for name in (name for name, here in zip(lacking, staged, strict=True) if here):
                hand_over(name, linked.encodings[name])
        linked.encoded.update(lacking)
        wanted = {name for name, here in zip(lacking, staged, strict=True) if not here}
        prompt, name = linked.order.prompt, f"{linked.order.request_id}\0gap-{self._count}"
        encode = tuple(index for index, each in enumerate(prompt.features) if each.name in wanted)
        return SideRun(prompt, name, rows[0], rows[1] - rows[0], encode)

    def settle(self) -> None:
        for linked in list(self._under_way.values()):
            if not linked.left:
                self._end(linked, failed=linked.lost)

    def _end(self, made: LinkedPrompt, failed: bool) -> None:
        super()._end(made, failed)
        self._unneeded |= made.encoded

    def take_results(self) -> tuple[set[str], set[str]]:
        # A step without rows has no forward; a prompt of which nothing is computed is ready all the same.
        self.settle()
        return super().take_results()
