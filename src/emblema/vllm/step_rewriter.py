"""A step of vLLM's scheduler, rewritten before the model's runner sees it.

The scheduler schedules every row of a prompt. Here the rows that are taken from the store are written into the pages
and leave the step. What is left of a request between them are runs of computed rows: the last one is the request's own,
each other one is a *virtual request* in the same step: same prompt, same pages, and as many computed rows as come
before the run. Every layer writes the whole batch's rows before attention reads pages, so all rows attend all rows
before them, in one forward.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from emblema.link.prompt import Rows
from emblema.vllm.internals import RunnerRequests, ScheduledStep, virtual_request
from emblema.vllm.side_rows import SideRows, SideRun
from emblema.vllm.step_metadata import RowLoad, StepMetadata

WriteRows = Callable[[Sequence[RowLoad], Mapping[str, Sequence[int]]], bool]
"""Writes the rows that a step takes into requests' pages, on all workers or on none; returns whether it did."""


class StepRewriter:
    """Rewrites the steps of one worker, in their order.

    Args:
        second_runner: whether it is vLLM's second model runner, which keeps its own count of computed rows.
        write: see `WriteRows`.
        encodings: what is staged of what the encoder made, by request, under vLLM's names of the pictures.
        hand_over: gives an encoder output to the runner before this step's forward; None where nothing takes it.
        side: work that goes along with steps.
        agree: returns which of some facts are so on all workers.
    """

    def __init__(
        self,
        second_runner: bool,
        write: WriteRows,
        encodings: Callable[[str], Mapping[str, Tensor]],
        hand_over: Callable[[str, Tensor], None] | None,
        side: Sequence[SideRows],
        agree: Callable[[list[bool]], list[bool]] = list,
    ) -> None:
        self._requests, self._write = RunnerRequests(second_runner), write
        self._encodings, self._hand_over, self._side = encodings, hand_over, side
        self._agree = agree
        # Virtual requests of the step before, which end with it.
        self._ended: set[str] = set()
        # Names of pictures that the scheduler takes to be encoded, and whose encoding no row has needed yet.
        self._unencoded: set[str] = set()
        # Names of pictures that were encoded for side rows, and of those that are not needed any more.
        self._own: set[str] = set()
        self._unneeded: set[str] = set()

    def rewrite(self, output: Any, step: StepMetadata) -> Any:
        """Return a step of the scheduler (vLLM's `SchedulerOutput`) as the runner is to see it."""
        scheduled = ScheduledStep.of(output)
        self._requests.follow(output)
        self._unencoded.difference_update(scheduled.freed)
        loads = self._written(step, scheduled)
        ranges: dict[str, tuple[Rows, ...]] = {
            name: loads[name].computed if name in loads else ((start, start + count),)
            for name, (start, count) in scheduled.rows.items()
        }
        inputs = self._encoder_inputs(scheduled, ranges)
        rows = {name: count for name, (_, count) in scheduled.rows.items()}
        virtual: list[Any] = []
        added: dict[str, int] = {}
        own: dict[str, int] = {}
        for name in loads:
            *before, (own[name], stop) = ranges[name]
            rows[name] = stop - own[name]
            for number, (start, end) in enumerate(before):
                made = f"{name}\0gap-{number}"
                virtual.append(self._requests[name].virtual(made, start))
                added[made] = end - start
        for run in self._side_runs(step):
            virtual.append(virtual_request(run.prompt, run.name, run.start))
            added[run.name] = run.rows
            if run.features:
                inputs[run.name] = list(run.features)
        unneeded, self._unneeded = self._unneeded, set()
        ended, self._ended = self._ended, set(added)
        rows |= added
        return self._requests.rewritten(output, own, virtual, rows, inputs, ended, unneeded)

    def _written(self, step: StepMetadata, scheduled: ScheduledStep) -> dict[str, RowLoad]:
        """Write the rows that a step takes, and return what was written, by request."""
        blocks = {load.request_id: self._requests[load.request_id].blocks for load in step.loads}
        if not step.loads or scheduled.copies or not self._write(step.loads, blocks):
            return {}
        return {load.request_id: load for load in step.loads}

    def add_side(self, side: SideRows) -> None:
        """Have other work go along with steps, before what there is."""
        self._side = (side, *self._side)

    def finish_step(self) -> None:
        """Let side work take what the forward made."""
        for side in self._side:
            done = set(side.finish_step())
            self._unneeded |= done
            self._own -= done

    def forget_encodings(self) -> None:
        """Forget what the runner has, after vLLM emptied its encoder cache."""
        self._unencoded.clear()
        self._own.clear()

    def _encoder_inputs(self, step: ScheduledStep, ranges: Mapping[str, tuple[Rows, ...]]) -> dict[str, list[int]]:
        """Return which pictures are encoded: those of computed rows whose encoder output is neither here nor staged.

        The scheduler takes what it scheduled to be encoded, and so does not schedule it again. What was left out is
        encoded when a row needs it.
        """
        inputs: dict[str, list[int]] = {}
        given: set[str] = set()
        needed: list[tuple[str, int, str]] = []
        for name, runs in ranges.items():
            known, scheduled = self._requests.get(name), step.encoded.get(name, ())
            if known is None:
                if scheduled:
                    inputs[name] = list(scheduled)
                continue
            for index, (identifier, (first, last)) in enumerate(known.pictures):
                due = index in scheduled or identifier in self._unencoded
                if not due or identifier in given:
                    continue
                if not any(start < last and first < stop for start, stop in runs):
                    if index in scheduled:
                        self._unencoded.add(identifier)
                    continue
                needed.append((name, index, identifier))
                given.add(identifier)
                self._unencoded.discard(identifier)
        for name, index, identifier, output in self._staged_outputs(needed):
            if output is not None and self._hand_over is not None:
                self._hand_over(identifier, output)
            else:
                inputs.setdefault(name, []).append(index)
        return inputs

    def _staged_outputs(self, needed: Sequence[tuple[str, int, str]]) -> Iterator[tuple[str, int, str, Tensor | None]]:
        """Yield what is staged of pictures on all workers, which run the encoder together or not at all."""
        if not needed:
            return
        staged = {name: self._encodings(name) for name, _, _ in needed}
        here = self._agree([self._hand_over is not None and own in staged[name] for name, _, own in needed])
        for (name, index, identifier), found in zip(needed, here, strict=True):
            yield name, index, identifier, staged[name][identifier] if found else None

    def _side_runs(self, step: StepMetadata) -> list[SideRun]:
        rows, slots = step.side_rows, step.side_slots
        made: list[SideRun] = []
        for side in self._side:
            for run in side.runs(rows, slots, self._own):
                rows, slots = rows - run.rows, slots - 1
                self._own.update(run.prompt.features[index].name for index in run.features)
                made.append(run)
        return made
