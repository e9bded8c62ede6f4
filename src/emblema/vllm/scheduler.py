"""vLLM's scheduler, with rows computed between cached spans. It and `internals` alone know vLLM's private names.

vLLM's connector interface counts a prefix, so it has no way to name the rows between cached spans. The connector
therefore claims everything up to the end of the last cached span that a step can reach, and vLLM schedules the rest.
For each compute span in between a *virtual request* is added to the same step: same prompt, same pages, and as many
computed rows as come before the span. Every layer writes the whole batch's rows before attention reads pages, so all
rows attend all rows before them, in one forward.
"""

import time
from collections import deque
from dataclasses import replace
from itertools import islice
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from emblema.errors import EmblemaError
from emblema.vllm.connectors import EmblemaConnector, EmblemaEncoderConnector
from emblema.vllm.internals import solo_request, virtual_request
from emblema.vllm.planner import StepBudget
from emblema.vllm.spans import Claim
from emblema.vllm.step_costs import StepWork

CAPTURES_AT_ONCE = 4
CAPTURE_SHARE = 0.02
"""Share of the time in which pictures are prefilled alone while answers are decoded, or requests come densely."""
DENSE_REQUESTS, DENSE_SECONDS = 4, 0.5
"""Requests come densely where so many that were not alone arrived in so short a time."""
PRESSED_SECONDS = 2.0
"""For how long requests come densely before anything is captured beside them: a burst is over sooner."""
POLLING_SECONDS = 0.01
"""How long a step without work takes while captures wait for a quiet moment."""
PLANNED_AHEAD = 16


class LinkingScheduler(Scheduler):
    """vLLM's scheduler with compute spans: `--scheduler-cls emblema.vllm.LinkingScheduler`.

    Attributes:
        planner: shared with the connector, which claims rows of waiting requests.
    """

    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.connector, EmblemaConnector):
            raise EmblemaError("LinkingScheduler needs the connector EmblemaConnector: set --kv-transfer-config too.")
        self._linking: EmblemaConnector = self.connector
        self.planner = self._linking.bind_scheduler(self.hash_block_size)
        # What the step under way does, and when it began.
        self._work: StepWork | None = None
        self._began = 0.0
        # When captures began that are under way, and from when on there may be others beside answers.
        self._capture_began: float | None = None
        self._capture_from = 0.0
        # When clients' requests came last beside others, whether they come densely, and whether captures wait for that
        # to end.
        self._arrivals: deque[float] = deque(maxlen=DENSE_REQUESTS)
        self._pressed = self._put_off = False
        self._encoder_outputs = self.ec_connector if isinstance(self.ec_connector, EmblemaEncoderConnector) else None
        if self._encoder_outputs is not None:
            self._encoder_outputs.bind_planner(self.planner)

    @property
    def max_num_active_reqs(self) -> int:
        """The most requests in this step: fewer than set while compute spans take slots of the batch."""
        step = self.planner.step
        return self._active if step is None else min(self._active, self.max_num_running_reqs - step.used_slots)

    @max_num_active_reqs.setter
    def max_num_active_reqs(self, value: int) -> None:
        self._active = value

    def add_request(self, request: Any) -> None:
        # Who asks again once answered finds no other request here, however quickly that is.
        if request.request_id not in self.planner.capturing and len(self.requests) > len(self.planner.capturing):
            now = time.monotonic()
            if self._arrivals and now - self._arrivals[-1] >= DENSE_SECONDS:
                self._pressed = False
            self._arrivals.append(now)
        super().add_request(request)

    def has_requests(self) -> bool:
        return super().has_requests() or self._put_off

    def _look_at_arrivals(self, now: float) -> None:
        """Note whether clients' requests come densely, so that nothing else is to be done beside them."""
        dense = len(self._arrivals) == DENSE_REQUESTS and now - self._arrivals[0] < DENSE_SECONDS
        if dense and not self._pressed:
            self._capture_from = max(self._capture_from, now + PRESSED_SECONDS)
        self._pressed = dense

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        planner, whole = self.planner, self.max_num_scheduled_tokens
        if self._put_off and not self.running and not self.waiting:
            time.sleep(POLLING_SECONDS)
        self._look_at_arrivals(time.monotonic())
        planner.await_plans(idle=not self.running)
        needed = 0
        for request in self.running:
            plan = planner.get(request.request_id)
            if plan is not None and request.num_computed_tokens in plan.cached:
                needed += plan.cached.compute_rows(request.num_computed_tokens)
        for request in islice(self.waiting, PLANNED_AHEAD):
            plan = planner.get(request.request_id) if self._linking.prepare(request) else None
            needed += 0 if plan is None else plan.cached.compute_rows(0)
        reserve = min(needed, whole // 2)
        with planner.scheduling(reserve, self._free_slots, lambda: len(self.waiting), self._pressed) as step:
            before = self._skip_spans(step)
            self.max_num_scheduled_tokens = whole - reserve
            try:
                output = super().schedule(*args, **kwargs)
            finally:
                self.max_num_scheduled_tokens = whole
            for name, row in before.items():
                request = self.requests.get(name)
                if name not in output.num_scheduled_tokens and request in self.running:
                    request.num_computed_tokens = row
            for name, claim in step.claims.items():
                if name in output.num_scheduled_tokens:
                    self._add_virtual_requests(output, self.requests[name], claim)
            taken = [claim.cached_rows for claim in step.claims.values()]
        rows, requests = output.total_num_scheduled_tokens, len(output.scheduled_new_reqs)
        self._work = StepWork(rows, requests, len(taken), sum(taken))
        self._began = time.perf_counter()
        return output

    def _free_slots(self) -> int:
        return int(self.max_num_running_reqs - len(self.running))

    def _skip_spans(self, step: StepBudget) -> dict[str, int]:
        """Move running requests at a cached span past the last span within reach; return their rows before it."""
        before = {}
        for request in self.running:
            name, row = request.request_id, request.num_computed_tokens
            plan = self.planner.get(name)
            claim = step.skip(name, plan, row) if plan is not None and row in plan.cached else None
            if claim is not None:
                self._linking.hide_pages(request, row)
                before[name] = row
                request.num_computed_tokens = claim.stop
        return before

    def _try_schedule_encoder_inputs(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int, encoder_compute_budget: int, **kwargs: Any
    ) -> tuple[list[int], int, int, list[int], list[int]]:
        """Stop before a cached span, and add the pictures of compute spans to those of the request's own rows."""
        name, step = request.request_id, self.planner.step
        plan = self.planner.get(name)
        room = None if plan is None else plan.cached.rows_until(num_computed_tokens)
        if room is not None:
            num_new_tokens = min(num_new_tokens, room)
        if self._encoder_outputs is not None:
            self._encoder_outputs.begin_request(name)
        result = super()._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, encoder_compute_budget, **kwargs
        )
        claim = None if step is None else step.claim_of(name)
        if plan is None or claim is None or claim.stop != num_computed_tokens or result[1] == 0:
            return result
        inputs, rows, budget, loaded, twice = result
        embeds = sum(request.get_num_encoder_embeds(index) for index in (*inputs, *loaded))
        held = {request.mm_features[index].identifier for index in (*inputs, *loaded)}
        for index, feature in enumerate(request.mm_features):
            first, last = feature.mm_position.offset, feature.mm_position.offset + feature.mm_position.length
            needed = any(first < stop and start < last for start, stop in claim.compute_spans)
            if not needed or index in inputs or index in loaded or index in twice:
                continue
            if feature.identifier in held:
                twice = [*twice, index]
            elif not self.encoder_cache_manager.check_and_update_cache(request, index):
                if not self.encoder_cache_manager.can_allocate(request, index, budget, embeds):
                    plan.cached.skip_fewer()
                    return [], 0, encoder_compute_budget, [], []
                size = request.get_num_encoder_embeds(index)
                if self._encoder_outputs is not None and self._encoder_outputs.has_cache_item(feature.identifier):
                    loaded = [*loaded, index]
                else:
                    inputs, budget = [*inputs, index], budget - size
                held.add(feature.identifier)
                embeds += size
        return inputs, rows, budget, loaded, twice

    def _add_virtual_requests(self, output: SchedulerOutput, request: Any, claim: Claim) -> None:
        output.has_sync_kv_loads = True
        for index, data in enumerate(output.scheduled_new_reqs):
            if data.req_id == request.request_id:
                # vLLM leaves out pictures before its rows; compute spans, and rows whose load fails, need them.
                output.scheduled_new_reqs[index] = replace(data, mm_features=request.mm_features)
        self._correct_stats(request)
        for number, (start, stop) in enumerate(claim.compute_spans):
            blocks = self.kv_cache_manager.get_block_ids(request.request_id)
            data = virtual_request(request, number, start, blocks)
            output.scheduled_new_reqs.append(data)
            output.num_scheduled_tokens[data.req_id] = stop - start
            output.total_num_scheduled_tokens += stop - start
            # It is finished when the step has run.
            self.finished_req_ids.add(data.req_id)

    def _correct_stats(self, request: Any) -> None:
        """Count rows of compute spans as computed, and cached spans of a later step as cached."""
        stats = request.prefill_stats
        if stats is not None and request.num_preemptions == 0:
            plan = self.planner.get(request.request_id)
            stats.set(request.num_prompt_tokens, stats.num_local_cached_tokens, 0 if plan is None else plan.linked)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        transferred = model_runner_output.kv_connector_output
        lost = set() if transferred is None else set(transferred.invalid_block_ids or ())
        if lost:
            for request in self.running:
                plan = self.planner.get(request.request_id)
                if lost.intersection(self.kv_cache_manager.get_block_ids(request.request_id)[0]):
                    if plan is not None:
                        plan.fail()
                    self._correct_stats(request)
        if self.planner.costs is not None and self._work is not None:
            # Nothing else runs between a step's schedule and its outcome, as scheduling is not asynchronous here.
            self.planner.costs.observe_step(self._work, time.perf_counter() - self._began)
            self._work = None
        captures = set(self.planner.capturing)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for client in outputs.values():
            client.outputs = [output for output in client.outputs if output.request_id not in captures]
        self._capture()
        return outputs

    def _capture(self) -> None:
        """In quiet moments, prefill alone what requests showed and the store lacks; beside answers one at a time."""
        planner, now = self.planner, time.monotonic()
        self._put_off = False
        self._look_at_arrivals(now)
        if self._capture_began is not None and not planner.capturing:
            # A share of the time alone: whoever waits for a token waits for captures too.
            rest = (now - self._capture_began) * (1 / CAPTURE_SHARE - 1)
            self._capture_from = max(self._capture_from, now + rest)
            self._capture_began = None
        if self.waiting or planner.capturing or any(request.is_prefill_chunk for request in self.running):
            return
        quiet = not self.running and not self._pressed
        if not quiet and now < self._capture_from:
            # Without requests nothing but this would bring the engine here again.
            self._put_off = planner.captures_wait
            return
        for capture in planner.next_captures(CAPTURES_AT_ONCE if quiet else 1):
            self._capture_began = now
            request = solo_request(capture)
            planner.start_capture(request.request_id, capture)
            self.add_request(request)
