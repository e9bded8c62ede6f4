"""vLLM's scheduler, with gaps between rows that are taken. With `internals` the only file that knows private names.

A hole cannot be said through vLLM's connector interface, which counts a prefix. So the connector claims everything up
to the end of the last hole that a step can reach, vLLM schedules the rest, and for each gap between holes a *virtual
request* is added to the same step: same prompt, same pages, its computed rows ending where the gap begins. Every layer
writes the whole batch's rows before attention reads pages, so all rows see all rows before them, in one forward.
"""

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from emblema.errors import EmblemaError
from emblema.vllm.desk import Desk, Step
from emblema.vllm.encodings import EmblemaEncoderConnector
from emblema.vllm.internals import NATIVE_GAPS, asked_of, gap_request, private_from, solo_request

CAPTURES_AT_ONCE = 4
PLANNED_AHEAD = 16


class LinkingScheduler(Scheduler):
    """vLLM's scheduler with gaps: `--scheduler-cls emblema.vllm.LinkingScheduler`.

    The connector beside it claims rows; see `Desk`, which both share.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._active = self.max_num_scheduled_tokens = 0
        self.desk: Desk | None = None
        super().__init__(*args, **kwargs)
        self.desk = getattr(self.connector, "desk", None)
        self._desk.hide = self.hide
        self._encodings = self.ec_connector if isinstance(self.ec_connector, EmblemaEncoderConnector) else None
        if self._encodings is not None:
            self._encodings.find, self._encodings.count = self._desk.encoding, self._desk.handed

    @property
    def max_num_active_reqs(self) -> int:
        """Fewer than set while gaps take places of requests in this step."""
        step = None if self.desk is None else self.desk.step
        return self._active if step is None else min(self._active, self.max_num_running_reqs - step.used)

    @max_num_active_reqs.setter
    def max_num_active_reqs(self, value: int) -> None:
        self._active = value

    @property
    def _desk(self) -> Desk:
        if self.desk is None:
            raise EmblemaError("LinkingScheduler needs the connector EmblemaConnector: set --kv-transfer-config too.")
        return self.desk

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        desk, whole = self._desk, self.max_num_scheduled_tokens
        needed = 0
        for request in self.running:
            if desk.before_hole(request.request_id, request.num_computed_tokens):
                needed += desk.needed(request.request_id, request.num_computed_tokens)
        for request in islice(self.waiting, PLANNED_AHEAD):
            if desk.link(request.request_id, partial(asked_of, request)) is not None:
                needed += desk.needed(request.request_id, 0)
        reserve = min(needed, whole // 2)
        desk.step = Step(reserve, lambda: self.max_num_running_reqs - len(self.running))
        desk.pending = None
        before = self._jump(desk.step)
        self.max_num_scheduled_tokens = whole - reserve
        try:
            output = super().schedule(*args, **kwargs)
            for name, row in before.items():
                request = self.requests.get(name)
                if name not in output.num_scheduled_tokens and request in self.running:
                    request.num_computed_tokens = row
            self._add_gaps(output, desk.step)
        finally:
            self.max_num_scheduled_tokens = whole
            desk.step = None
        return output

    def _jump(self, step: Step) -> dict[str, int]:
        """Put running requests that stand before a hole behind the last one within reach; their rows before."""
        before = {}
        for request in self.running:
            name, row = request.request_id, request.num_computed_tokens
            claimed = self._desk.claim(name, row, 0) if self._desk.before_hole(name, row) else None
            if claimed is not None:
                self.hide(request, row)
                step.take(name, claimed)
                before[name] = row
                request.num_computed_tokens = claimed.stop
        return before

    def hide(self, request: Any, computed: int) -> None:
        """Before pages are named: those that will hold what plain prefill would not give get names of their own."""
        link = self._desk.links.get(request.request_id)
        row = None if link is None else link.private_from(computed)
        if row is not None:
            private_from(request, row, self.hash_block_size)

    def _try_schedule_encoder_inputs(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int, encoder_compute_budget: int, **kwargs: Any
    ) -> tuple[list[int], int, int, list[int], list[int]]:
        """Stop before a hole; and have what gaps need of the encoder beside what the request's own rows need."""
        desk = self._desk
        name, room = request.request_id, desk.room(request.request_id, num_computed_tokens)
        if room is not None:
            num_new_tokens = min(num_new_tokens, room)
        if self._encodings is not None:
            self._encodings.asking = name
        result = super()._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, encoder_compute_budget, **kwargs
        )
        claimed = None if desk.step is None else desk.step.claims.get(name)
        if claimed is None and desk.pending is not None and desk.pending[0] == name:
            claimed = desk.pending[1]
        if claimed is None or claimed.stop != num_computed_tokens or result[1] == 0:
            return result
        inputs, rows, budget, loaded, twice = result
        embeds = sum(request.get_num_encoder_embeds(index) for index in (*inputs, *loaded))
        held = {request.mm_features[index].identifier for index in (*inputs, *loaded)}
        for index, feature in enumerate(request.mm_features):
            place = feature.mm_position
            if not any(place.offset < stop and start < place.offset + place.length for start, stop in claimed.gaps):
                continue
            if index in inputs or index in loaded or index in twice:
                continue
            if feature.identifier in held:
                twice = [*twice, index]
            elif not self.encoder_cache_manager.check_and_update_cache(request, index):
                if not self.encoder_cache_manager.can_allocate(request, index, budget, embeds):
                    desk.fewer(name)
                    return [], 0, encoder_compute_budget, [], []
                size = request.get_num_encoder_embeds(index)
                if self._encodings is not None and self._encodings.has_cache_item(feature.identifier):
                    loaded = [*loaded, index]
                else:
                    inputs, budget = [*inputs, index], budget - size
                held.add(feature.identifier)
                embeds += size
        return inputs, rows, budget, loaded, twice

    def _add_gaps(self, output: SchedulerOutput, step: Step) -> None:
        for name, claimed in step.claims.items():
            if name not in output.num_scheduled_tokens:
                continue
            request = self.requests[name]
            output.has_sync_kv_loads = True
            for index, data in enumerate(output.scheduled_new_reqs):
                if data.req_id == name:
                    # vLLM leaves out the pictures in front; gaps, and rows whose load fails, need them.
                    output.scheduled_new_reqs[index] = replace(data, mm_features=request.mm_features)
            self._correct(request)
            for number, (start, stop) in enumerate(() if NATIVE_GAPS else claimed.gaps):
                data = gap_request(request, number, start, self.kv_cache_manager.get_block_ids(name))
                output.scheduled_new_reqs.append(data)
                output.num_scheduled_tokens[data.req_id] = stop - start
                output.total_num_scheduled_tokens += stop - start
                # It has done its part when the step has run.
                self.finished_req_ids.add(data.req_id)

    def _correct(self, request: Any) -> None:
        """Count rows of gaps as computed, and holes of a later step as cached."""
        stats = request.prefill_stats
        if stats is None or request.num_preemptions > 0:
            return
        link = self._desk.links.get(request.request_id)
        stats.set(request.num_prompt_tokens, stats.num_local_cached_tokens, 0 if link is None else link.claimed)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        gone = model_runner_output.kv_connector_output
        bad = set() if gone is None else set(gone.invalid_block_ids or ())
        if bad:
            for request in self.running:
                if bad.intersection(self.kv_cache_manager.get_block_ids(request.request_id)[0]):
                    self._desk.failed(request.request_id)
                    self._correct(request)
        own = set(self._desk.capturing)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for part in outputs.values():
            part.outputs = [one for one in part.outputs if one.request_id not in own]
        self._capture()
        return outputs

    def _capture(self) -> None:
        """In idle moments, prefill alone what requests showed and the store has not."""
        desk = self._desk
        if self.waiting or desk.capturing or any(request.is_prefill_chunk for request in self.running):
            return
        for wish in desk.next_wishes(CAPTURES_AT_ONCE):
            request = solo_request(wish)
            desk.capturing[request.request_id] = wish
            self.add_request(request)
