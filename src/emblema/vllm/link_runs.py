"""Prompts that are linked, carried out by a worker beside the rows that vLLM scheduled.

vLLM takes a linked prompt, up to its last taken row, for KV that is on its way from elsewhere: its request waits, with
pages. Meanwhile the worker writes the taken rows into these pages and computes those between them, each run of rows as
a virtual request: same prompt, same pages, and as many computed rows as come before the run. Every layer writes the
whole batch's rows before attention reads pages, so all rows attend all rows before them.
"""

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.link.prompt import Rows
from emblema.vllm.side_rows import SideRun, StagedPrompts
from emblema.vllm.step_metadata import LinkOrder, StepMetadata

_log = logging.getLogger(__name__)


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


class LinkRuns:
    """The linked prompts of one worker, as `PromptLoads`.

    Args:
        staged: has the rows that they take.
        hand_over: gives an encoder output to the runner before this step's forward; None where nothing takes it.
        agree: returns which of some facts are so on all workers.
    """

    def __init__(
        self,
        staged: StagedPrompts,
        hand_over: Callable[[str, Tensor], None] | None,
        agree: Callable[[list[bool]], list[bool]],
    ) -> None:
        self._staged, self._hand_over, self._agree = staged, hand_over, agree
        self._under_way: dict[str, LinkedPrompt] = {}
        self._count = 0
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._unneeded: set[str] = set()

    def begin_step(self, step: StepMetadata, ended: Iterable[str]) -> None:
        for order in step.links:
            linked = self._under_way[order.request_id] = LinkedPrompt(order, list(order.computed))
            self._write(linked)
        for name in ended:
            if name in self._under_way:
                # Its pages are kept until this is said.
                self._end(self._under_way[name])

    @torch.inference_mode()
    def _write(self, linked: LinkedPrompt) -> None:
        """Write the rows that a prompt takes; what fails is a loss, and the request is computed."""
        order = linked.order
        try:
            linked.encodings = self._staged.take(order.request_id, order.prompt, order.taken)
        except Exception as error:
            linked.lost = True
            expected = isinstance(error, EmblemaError)
            _log.warning("emblema: a prompt is computed plainly: %s", error, exc_info=not expected)

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
                self._end(linked)

    def _end(self, linked: LinkedPrompt) -> None:
        name = linked.order.request_id
        del self._under_way[name]
        self._unneeded |= linked.encoded
        self._finished.add(name)
        if linked.lost:
            self._failed.add(name)

    def finish_step(self) -> Iterable[str]:
        """Return the names of pictures whose encoder outputs no prompt needs any more."""
        unneeded, self._unneeded = self._unneeded, set()
        return unneeded

    def take_results(self) -> tuple[set[str], set[str]]:
        # A step without rows has no forward; a prompt of which nothing is computed is ready all the same.
        self.settle()
        finished, failed = self._finished, self._failed
        self._finished, self._failed = set(), set()
        return finished, failed
