"""A step of vLLM's scheduler, with what the worker computes beside it, before the model's runner sees it.

Rows beside a step are *virtual requests* of this one step, on pages of their own or of a request that waits. What the
scheduler scheduled stays as it is, but that pictures are not encoded whose encoder output is staged.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from emblema.vllm.internals import ScheduledStep, virtual_request, with_side_rows
from emblema.vllm.prompt_loads import PromptLoads
from emblema.vllm.side_rows import SideRows, SideRun
from emblema.vllm.step_metadata import StepMetadata


class StepRewriter:
    """Adds to the steps of one worker, in their order.

    Args:
        encodings: what is staged of what the encoder made, by request, under vLLM's names of the pictures.
        hand_over: gives an encoder output to the runner before this step's forward; None where nothing takes it.
        loads: prompts whose requests wait; they go before `side`. The caller may add some.
        side: other work that goes along with steps.
        agree: returns which of some facts are so on all workers.
    """

    def __init__(
        self,
        encodings: Callable[[str], Mapping[str, Tensor]],
        hand_over: Callable[[str, Tensor], None] | None,
        loads: Sequence[PromptLoads[Any]] = (),
        side: Sequence[SideRows] = (),
        agree: Callable[[list[bool]], list[bool]] = list,
    ) -> None:
        self._encodings, self._hand_over = encodings, hand_over
        self._loads, self._side, self._agree = loads, side, agree
        # Virtual requests of the step before, which end with it.
        self._ended: set[str] = set()
        # Names of pictures of side rows that the runner has, and of those that are not needed any more.
        self._own: set[str] = set()
        self._unneeded: set[str] = set()

    def rewrite(self, output: Any, step: StepMetadata) -> Any:
        """Return a step of the scheduler (vLLM's `SchedulerOutput`) as the runner is to see it."""
        inputs = self._encoder_inputs(ScheduledStep.of(output), step)
        runs = self._side_runs(step)
        inputs |= {run.name: list(run.features) for run in runs if run.features}
        virtual = [virtual_request(run.prompt, run.name, run.start) for run in runs]
        unneeded, self._unneeded = self._unneeded, set()
        ended, self._ended = self._ended, {run.name for run in runs}
        return with_side_rows(output, virtual, {run.name: run.rows for run in runs}, inputs, ended, unneeded)

    def finish_step(self) -> None:
        """Let side work take what the forward made."""
        for side in (*self._loads, *self._side):
            done = set(side.finish_step())
            self._unneeded |= done
            self._own -= done

    def forget_encodings(self) -> None:
        """Forget what the runner has, after vLLM emptied its encoder cache."""
        self._own.clear()

    def _encoder_inputs(self, scheduled: ScheduledStep, step: StepMetadata) -> dict[str, list[int]]:
        """Return which pictures are encoded of those that are scheduled to be; staged outputs are handed over."""
        inputs = {name: list(indices) for name, indices in scheduled.encoded.items()}
        hand_over = self._hand_over
        if hand_over is None or not step.encodings:
            return inputs
        staged = {name: self._encodings(name) for name in step.encodings}
        known = [(name, index, own) for name, pictures in step.encodings.items() for index, own in pictures]
        # The workers run the encoder together or not at all.
        here = self._agree([own in staged[name] for name, _, own in known])
        for name, index, own in (each for each, found in zip(known, here, strict=True) if found):
            hand_over(own, staged[name][own])
            inputs[name].remove(index)
        return {name: indices for name, indices in inputs.items() if indices}

    def _side_runs(self, step: StepMetadata) -> list[SideRun]:
        made: list[SideRun] = []

        def add(sides: Sequence[SideRows], rows: int, slots: int) -> None:
            for side in sides:
                for run in side.runs(rows, slots, self._own):
                    rows, slots = rows - run.rows, slots - 1
                    end = run.start + run.rows
                    self._own.update(
                        each.name for each in run.prompt.features if each.start < end and run.start < each.stop
                    )
                    made.append(run)

        add(self._loads, step.load_rows, step.load_slots)
        left = step.room - sum(run.rows for run in made)
        add(self._side, min(step.side_rows, left) if made else step.side_rows, step.side_slots - len(made))
        return made
