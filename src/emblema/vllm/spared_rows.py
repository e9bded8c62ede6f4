"""The last row of a prompt that was read, where a step computes nothing else: the second pass has computed it already.

vLLM asks for that row once more, as no connector can hand a token over. Its keys and values are in their pages, and
what the model made of it was kept, so the forward of such a step is spared.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from vllm.v1.core.sched.output import SchedulerOutput

from emblema.vllm.step_rewriter import starts_of


class SparedRows:
    """Returns what is known in place of one worker's forwards; no other forward is touched.

    Workers that share a model run every forward together, so this is for one that has the whole model.

    Args:
        model: vLLM's.
    """

    def __init__(self, model: Any) -> None:
        self._stock: Callable[..., Any] = model.forward
        # What the model made of a request's last row [1, width], with the row's number; and that of this step's row.
        self._known: dict[str, tuple[int, Tensor]] = {}
        self._given: Tensor | None = None
        model.forward = self._forward

    def keep(self, request_id: str, row: int, hidden: Tensor) -> None:
        """Keep what the model made of the last row of a request's prompt [1, width]."""
        self._known[request_id] = row, hidden

    def begin_step(self, output: SchedulerOutput, ended: Iterable[str]) -> bool:
        """Return whether the forward of a step is spared; what was kept of its requests is used now, or not at all.

        Args:
            output: the step, as the model's runner sees it.
            ended: requests that have ended.
        """
        counts = output.num_scheduled_tokens
        kept = {name: self._known.pop(name, None) for name in (*counts, *ended)} if self._known else {}
        self._given = None
        if output.total_num_scheduled_tokens == 1:
            (name,) = counts
            row, hidden = kept.get(name) or (-1, None)
            if row == starts_of(output)[name]:
                self._given = hidden
        return self._given is not None

    def _forward(self, *args: Any, **named: Any) -> Any:
        given, self._given = self._given, None
        return self._stock(*args, **named) if given is None else given
