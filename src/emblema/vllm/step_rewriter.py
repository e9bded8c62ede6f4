"""A step of vLLM's scheduler, rewritten before the model's runner sees it.

The scheduler schedules every row of a prompt. Here the rows that are taken from the store are written into the pages
and leave the step. What is left of a request between them are runs of computed rows: the last one is the request's own,
each other one is a *virtual request* in the same step: same prompt, same pages, and as many computed rows as come
before the run. Every layer writes the whole batch's rows before attention reads pages, so all rows attend all rows
before them, in one forward.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from emblema.link.prompt import Rows
from emblema.vllm.side_rows import SideRows, SideRun, virtual_request
from emblema.vllm.step_costs import StepWork
from emblema.vllm.step_metadata import RowLoad, StepMetadata

WriteRows = Callable[[Sequence[RowLoad], Mapping[str, Sequence[int]]], bool]
"""Writes the rows that a step takes into requests' pages, on all workers or on none; returns whether it did."""


@dataclass(slots=True)
class KnownRequest:
    """A request with pictures that the runner has: its data as they were sent last, and its pages since."""

    data: NewRequestData
    blocks: list[list[int]]


@dataclass(frozen=True, slots=True)
class RewrittenStep:
    """A step as the runner gets it, and what it does."""

    output: SchedulerOutput
    work: StepWork


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
        self._second_runner, self._write = second_runner, write
        self._encodings, self._hand_over, self._side = encodings, hand_over, side
        self._agree = agree
        self._known: dict[str, KnownRequest] = {}
        # Virtual requests of the step before, which end with it.
        self._ended: set[str] = set()
        # Names of pictures that the scheduler takes to be encoded, and whose encoding no row has needed yet.
        self._unencoded: set[str] = set()
        # Names of pictures that were encoded for side rows, and of those that are not needed any more.
        self._own: set[str] = set()
        self._unneeded: set[str] = set()

    def rewrite(self, output: SchedulerOutput, step: StepMetadata) -> RewrittenStep:
        """Return the step as the runner is to see it."""
        self._follow(output)
        loads = {load.request_id: load for load in step.loads}
        if loads and (output.kv_cache_block_copies or not self._write(step.loads, self._blocks_of(loads))):
            # Pages are copied at the beginning of a step, over what was written before.
            loads = {}
        starts = starts_of(output)
        ranges: dict[str, tuple[Rows, ...]] = {
            name: loads[name].computed if name in loads else ((starts[name], starts[name] + count),)
            for name, count in output.num_scheduled_tokens.items()
        }
        inputs = self._encoder_inputs(output, loads, ranges)
        rows = dict(output.num_scheduled_tokens)
        virtual: list[NewRequestData] = []
        own: dict[str, int] = {}
        for name in loads:
            *before, (own[name], stop) = ranges[name]
            rows[name] = stop - own[name]
            for number, (start, end) in enumerate(before):
                made = virtual_request(self._shown(name), f"{name}\0gap-{number}", start)
                virtual.append(made)
                rows[made.req_id] = end - start
        side = self._side_runs(step)
        for run in side:
            virtual.append(run.data)
            rows[run.data.req_id] = run.rows
            if run.features:
                inputs[run.data.req_id] = list(run.features)
        unneeded, self._unneeded = self._unneeded, set()
        new, cached = self._requests(output, own)
        rewritten = replace(
            output,
            scheduled_new_reqs=[*new, *virtual],
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=rows,
            total_num_scheduled_tokens=sum(rows.values()),
            scheduled_encoder_inputs=inputs,
            finished_req_ids=output.finished_req_ids | self._ended,
            free_encoder_mm_hashes=[*output.free_encoder_mm_hashes, *sorted(unneeded)],
        )
        self._ended = {data.req_id for data in virtual}
        taken = sum(stop - start for load in loads.values() for start, stop in load.taken)
        taken += sum(stop - start for order in step.readings for start, stop in order.taken)
        work = StepWork(sum(rows.values()), len(new) + len(virtual), len(loads) + len(step.readings), taken)
        return RewrittenStep(rewritten, work)

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

    def _follow(self, output: SchedulerOutput) -> None:
        """Keep the data and pages of requests with pictures, as the runner does."""
        # A request that was preempted may come back without its data.
        for name in output.finished_req_ids:
            self._known.pop(name, None)
        self._unencoded.difference_update(output.free_encoder_mm_hashes)
        for data in output.scheduled_new_reqs:
            if data.mm_features:
                self._known[data.req_id] = KnownRequest(data, [list(group) for group in data.block_ids])
        cached = output.scheduled_cached_reqs
        for name, added in zip(cached.req_ids, cached.new_block_ids, strict=True):
            known = self._known.get(name)
            if known is None or added is None:
                continue
            for group, blocks in zip(known.blocks, added, strict=True):
                if name in cached.resumed_req_ids:
                    group.clear()
                group.extend(blocks)

    def pages_of(self, name: str) -> Sequence[int]:
        """Return the pages of a request with pictures that the runner has."""
        return self._known[name].blocks[0]

    def _blocks_of(self, names: Iterable[str]) -> dict[str, Sequence[int]]:
        return {name: self.pages_of(name) for name in names}

    def _shown(self, name: str) -> NewRequestData:
        """Return a request's data with the pages that it has by now."""
        known = self._known[name]
        return replace(known.data, block_ids=tuple(list(group) for group in known.blocks))

    def _requests(
        self, output: SchedulerOutput, own: Mapping[str, int]
    ) -> tuple[list[NewRequestData], CachedRequestData]:
        """Return the step's new and cached requests, those in `own` with that row as their first to be computed."""
        new = [
            replace(data, num_computed_tokens=own.get(data.req_id, data.num_computed_tokens))
            for data in output.scheduled_new_reqs
        ]
        cached = output.scheduled_cached_reqs
        moved = {name for name in cached.req_ids if name in own}
        if not moved:
            return new, cached
        if not self._second_runner:
            counts = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
            return new, replace(cached, num_computed_tokens=[own.get(name, row) for name, row in counts])
        # The second runner counts computed rows on the device, so the request is shown to it as a new one.
        new += [replace(self._shown(name), num_computed_tokens=own[name]) for name in cached.req_ids if name in moved]
        kept = [index for index, name in enumerate(cached.req_ids) if name not in moved]

        def of_kept(values: list[Any]) -> list[Any]:
            return [values[index] for index in kept] if values else values

        return new, replace(
            cached,
            req_ids=of_kept(cached.req_ids),
            resumed_req_ids=cached.resumed_req_ids - moved,
            new_token_ids=of_kept(cached.new_token_ids),
            new_block_ids=of_kept(cached.new_block_ids),
            num_computed_tokens=of_kept(cached.num_computed_tokens),
            num_output_tokens=of_kept(cached.num_output_tokens),
        )

    def _encoder_inputs(
        self, output: SchedulerOutput, loads: Mapping[str, RowLoad], ranges: Mapping[str, tuple[Rows, ...]]
    ) -> dict[str, list[int]]:
        """Return which pictures are encoded: those of computed rows whose encoder output is neither here nor staged.

        The scheduler takes what it scheduled to be encoded, and so does not schedule it again. What was left out is
        encoded when a row needs it.
        """
        inputs: dict[str, list[int]] = {}
        given: set[str] = set()
        needed: list[tuple[str, int, str]] = []
        for name, runs in ranges.items():
            known, scheduled = self._known.get(name), output.scheduled_encoder_inputs.get(name, [])
            if known is None:
                if scheduled:
                    inputs[name] = scheduled
                continue
            for index, feature in enumerate(known.data.mm_features):
                first = feature.mm_position.offset
                last = first + feature.mm_position.length
                identifier = feature.identifier
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
                self._own.update(run.data.mm_features[index].identifier for index in run.features)
                made.append(run)
        return made


def starts_of(output: SchedulerOutput) -> dict[str, int]:
    """Return the first row of each request that a step computes."""
    cached = output.scheduled_cached_reqs
    starts = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
    return starts | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
