"""vLLM's connector interface for KV: chunks in pages, and counters of them and of encoder outputs.

vLLM makes a connector twice: on the scheduler's side, where it asks the planner, and on a worker's, with its pages.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger

from emblema.errors import EmblemaError, UnsupportedModelError
from emblema.served.captures import CaptureQueue
from emblema.served.model_spec import ModelSpec, anchor_of, checkpoint_folder, files_fingerprint, model_spec_of
from emblema.served.request_report import report_line
from emblema.served.settings import PluginSettings
from emblema.served.shards import ShardStore
from emblema.served.work_thread import log_failure
from emblema.store import Store
from emblema.store.settings import StoreSettings
from emblema.vllm import attention, internals
from emblema.vllm.captures import PageCaptures
from emblema.vllm.encoder_connector import encoder_connector, encoder_output, hand_over
from emblema.vllm.kv_worker import KVWorker
from emblema.vllm.link_runs import LinkRuns
from emblema.vllm.media_digests import MediaDigests
from emblema.vllm.metrics import share_names
from emblema.vllm.packed_rows import PackedForward
from emblema.vllm.pages import Pages
from emblema.vllm.planner import RequestPlanner
from emblema.vllm.prompt_counts import LinkedCounters, LinkedStats, PromptCounts, StoreMeter, joined
from emblema.vllm.prompt_loads import PromptLoads
from emblema.vllm.prompt_rows import PromptRows
from emblema.vllm.question_runs import QuestionRuns
from emblema.vllm.serving import WORKER
from emblema.vllm.side_rows import CaptureRuns
from emblema.vllm.start_costs import NEVER, StartCosts, measure_costs, placing
from emblema.vllm.step_metadata import StepMetadata, WorkerReport
from emblema.vllm.step_rewriter import StepRewriter

_log = init_logger("vllm.emblema")
PLANNER_BYTES = 256 * 2**20
"""Memory for patches that the planner looks at; it reads no rows."""


@dataclass
class StepMessage(KVConnectorMetadata):
    """A step's work, as vLLM passes it from the scheduler to the worker."""

    step: StepMetadata


@dataclass(slots=True)
class ReportMessage(KVConnectorWorkerMetadata):
    """What workers have done, as vLLM passes it to the scheduler."""

    report: WorkerReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "ReportMessage":
        assert isinstance(other, ReportMessage)
        return ReportMessage(self.report.joined(other.report))


@dataclass
class CostMessage(KVConnectorHandshakeMetadata):
    """What a worker measured, as vLLM passes it to the scheduler at the server's start; None where it did not."""

    costs: StartCosts | None


class EmblemaConnector(KVConnectorBase_V1, SupportsHMA):
    """Chunks of pictures, taken anywhere in a prompt; needs `EmblemaWorker`. See `docs/vllm.md`.

    Attributes:
        planner: on the scheduler's side; None on a worker's.
        captures: what is prefilled alone, on the scheduler's side.
        kv_worker: on a worker's side, once its pages are known; None where nothing can be linked.

    Raises:
        EmblemaError: the server's options do not fit the connector.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        settings = PluginSettings.read(vllm_config.kv_transfer_config.kv_connector_extra_config)
        if vllm_config.parallel_config.worker_cls != WORKER:
            raise EmblemaError(f"EmblemaConnector needs its own worker: set --worker-cls {WORKER} too.")
        self.planner: RequestPlanner | None = None
        self.kv_worker: KVWorker | None = None
        self._make_worker: Callable[[Callable[[ModelSpec], Pages]], KVWorker] | None = None
        self._meter: StoreMeter | None = None
        self._prompts = PromptCounts()
        self._shown = MediaDigests()
        self._blocks: Callable[[str], tuple[list[int], ...]] | None = None
        self._hash_block_size = 0
        # The scheduler's side: requests that have not ended, and those of them that have not been scheduled yet.
        self._requests: dict[str, Any] = {}
        self._waiting: set[str] = set()
        # Those of them whose pages have names of their own.
        self._private: set[str] = set()
        self._rows = PromptRows()
        self._running: set[str] = set()
        # Requests that wait for rows once they have pages, with the rows that the prefix cache has of them.
        self._to_load: dict[str, int] = {}
        # A worker's side.
        self._rewriter: StepRewriter | None = None
        self._agree: Callable[[list[bool]], list[bool]] = list
        self._loads: list[PromptLoads[Any]] = []
        self._capture_runs = CaptureRuns()
        self._asleep = False
        self._question_runs: QuestionRuns | None = None
        self._make_readings: Callable[[Any], QuestionRuns] | None = None
        self._measure_most = 0
        self._costs: StartCosts | None = None
        scheduling = role == KVConnectorRole.SCHEDULER
        refusal, spec = internals.unfit(vllm_config, kv_cache_config), None
        if refusal is None:
            try:
                # The scheduler's process leaves the accelerator alone.
                spec = _model_spec(vllm_config, "cpu" if scheduling else None)
            except UnsupportedModelError as error:
                refusal = str(error)
        self.captures = PageCaptures(
            CaptureQueue(
                internals.solo_feature,
                () if spec is None else spec.anchor,
                int(vllm_config.model_config.max_model_len),
            ),
            vllm_config.parallel_config.world_size,
            vllm_config.cache_config.block_size,
            vllm_config.scheduler_config.max_num_batched_tokens,
            settings.capture,
        )
        if scheduling:
            self._start_planner(settings, spec, refusal)
        elif spec is not None:
            self._start_worker(settings, spec)

    def _start_planner(self, settings: PluginSettings, spec: ModelSpec | None, refusal: str | None) -> None:
        """Make the scheduler's side; without a spec it has every prompt computed plainly."""
        config = self._config
        store = Store(settings.store, device_bytes=PLANNER_BYTES, settings=StoreSettings(device="cpu"))
        self._meter = StoreMeter(store, bytes=False)
        self.planner = RequestPlanner(
            spec,
            store,
            settings.strategy,
            settings.capture,
            config.scheduler_config.max_num_batched_tokens,
            config.scheduler_config.max_num_seqs,
            config.parallel_config.world_size,
            bool(config.cache_config.enable_prefix_caching),
            refusal,
            refusal or internals.unfit_to_read(config),
            measured=settings.measured,
        )
        if settings.least_rows is not None:
            self.planner.least_rows = settings.least_rows

    def _start_worker(self, settings: PluginSettings, spec: ModelSpec) -> None:
        """Make a worker's side, but for what needs its pages."""
        # Of the device's memory vLLM has what its operator gave it.
        placed = StoreSettings(device="cpu", pinned=spec.device.type == "cuda")
        store = Store(settings.store, device_bytes=settings.memory, settings=placed)
        ranks = internals.TensorRanks(spec.shards)
        # The ranks share a folder.
        self._meter = StoreMeter(store, bytes=ranks.own == 0)
        self._agree = ranks.agree
        size, shares = self._config.cache_config.block_size, ShardStore(store, ranks.own)
        self._make_worker = partial(KVWorker, spec, shares, size, encoder_output)
        if settings.least_rows is None:
            self._measure_most = int(self._config.scheduler_config.max_num_batched_tokens)

    # worker side

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        if self._make_worker is None:
            return
        worker = self.kv_worker = self._make_worker(partial(_pages, self._config, kv_caches))
        give_encoding = None if encoder_connector() is None else hand_over
        self._rewriter = StepRewriter(
            worker.encodings,
            give_encoding,
            self._loads,
            [self._capture_runs],
            self._agree,
        )
        layers = [
            self._config.compilation_config.static_forward_context[name]
            for name in sorted(kv_caches, key=attention.layer_index)
        ]

        def readings(model: Any) -> QuestionRuns:
            packing = PackedForward(model, layers, lambda: worker.pages, self._config.cache_config.block_size)
            positions = attention.PromptPositions(model)
            device, drop = worker.spec.device, worker.stager.drop
            return QuestionRuns(device, worker, drop, packing, positions, give_encoding, self._agree)

        self._loads.append(LinkRuns(worker, give_encoding, self._agree))
        self._make_readings = readings

    def measure(self, forward: Callable[[int], object]) -> None:
        """Measure what linking has to save, before any request is there, unless the operator says it.

        Args:
            forward: runs a forward of so many rows.
        """
        worker = self.kv_worker
        if worker is None or not self._measure_most:
            return
        try:
            place = placing(worker.spec, worker.pages, self._config.cache_config.block_size)
            self._costs = measure_costs(forward, place, self._measure_most, self._agree, worker.spec.device)
        except Exception as error:
            log_failure("what linking costs was not measured", error)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return None if self.kv_worker is None else CostMessage(self._costs)

    @contextmanager
    def rewrites(self, output: Any, step: StepMetadata, model: Callable[[], Any]) -> Iterator[Any]:
        """Have a step (`SchedulerOutput`) as the model's runner is to see it, for as long as the runner works on it.

        Args:
            output: the step.
            step: what the scheduler's side says of it.
            model: returns vLLM's.
        """
        if self.kv_worker is None or self._rewriter is None:
            yield output
            return
        self.kv_worker.begin_step(step)
        if self._asleep or self.kv_worker.stopped:
            self.kv_worker.give_up([*self._capture_runs.drop(), *step.captures])
        else:
            self._capture_runs.add(step.captures)
        if step.readings and self._question_runs is None and self._make_readings is not None:
            self._question_runs = self._make_readings(model())
            self._loads.append(self._question_runs)
        for load in self._loads:
            load.begin_step(step)
            load.leave(internals.ScheduledStep.of(output).ended)
        yield self._rewriter.rewrite(output, step)

    def give_up_captures(self, asleep: bool) -> None:
        """Prefill nothing alone while the worker sleeps; what is under way is given up."""
        self._asleep = asleep
        if self.kv_worker is not None:
            self.kv_worker.give_up(self._capture_runs.drop())

    def forget_encodings(self) -> None:
        """Forget what the runner's encoder cache had, as it was emptied."""
        if self._rewriter is not None:
            self._rewriter.forget_encodings()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Return at once: rows are written before the runner sees the step."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return at once: all layers are written before the forward."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: rows are read after the forward."""

    def wait_for_save(self) -> None:
        for load in self._loads:
            load.settle()
        message = self._get_connector_metadata()
        if self.kv_worker is not None and self._rewriter is not None and isinstance(message, StepMessage):
            self.kv_worker.save(message.step, self._capture_runs.finished)
            # The first runner calls this before it samples, the second one after that.
            self._rewriter.finish_step()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        finished: set[str] = set()
        failed: set[str] = set()
        for load in self._loads:
            ended, lost = load.take_results()
            finished |= ended
            failed |= lost
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    def build_connector_worker_meta(self) -> ReportMessage | None:
        report = None if self.kv_worker is None else self.kv_worker.take_report()
        if report is not None and self._question_runs is not None:
            report.questions, report.margins = self._question_runs.take_reports()
        return ReportMessage(report) if report else None

    def shutdown(self) -> None:
        for side in (self.kv_worker, self.planner):
            if side is not None:
                side.close()

    # scheduler side

    @property
    def _planner(self) -> RequestPlanner:
        if self.planner is None:
            raise EmblemaError("this connector has no planner: it is beside a worker, not the scheduler")
        return self.planner

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._blocks = kv_cache_manager.get_block_ids

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        # Rows to which vLLM gives one name in its prefix cache.
        self._hash_block_size = gpu_block_pool.hash_block_size
        self.captures.bind_pool(gpu_block_pool)

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Take what the workers measured at the server's start, and say what it links."""
        told = [each.costs for each in metadata.values() if isinstance(each, CostMessage)]
        costs = [each for each in told if each is not None]
        planner = self._planner
        if costs:
            planner.least_rows = max(each.least_rows for each in costs)
        if planner.spec is not None:
            _log.info("emblema: %s", self._describe(planner, costs))

    def _describe(self, planner: RequestPlanner, costs: list[StartCosts]) -> str:
        """Return one line on what this server links."""
        least = planner.least_rows
        rule = "never" if least >= NEVER else f"where each run of rows that is taken saves {least} rows or more"
        own = planner.spec
        how = f"measured: {costs[0]}" if costs else "given, or not measured"
        lanes = "leading, patch" if planner.second_pass is not None else "leading, patch, query"
        model = "" if own is None else f"{own.version} {own.fingerprint[:8]}"
        return f"{model} is linked by lanes {lanes}; auto links {rule} ({how})"

    def on_new_request(self, request: Any) -> None:
        if self._requests:
            self.captures.queue.idle_time.arrive(time.monotonic())
        self._requests[request.request_id] = request
        self._waiting.add(request.request_id)
        self._planner.announce(request.request_id, partial(internals.describe_request, request, self._shown))

    def _prepare(self, request: Any, ready: int) -> bool:
        """Return whether a request is planned; where it is not, wait for that a moment."""
        planner, name = self._planner, request.request_id
        describe = partial(internals.describe_request, request, self._shown)
        if planner.prepare(name, describe, ready):
            return True
        planner.await_plans(idle=len(self._requests) == len(self._waiting))
        return planner.prepare(name, describe, ready)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        planner, name = self._planner, request.request_id
        if not self._prepare(request, num_computed_tokens):
            return None, False
        plan = planner.get(name)
        row = None if plan is None else plan.cached.private_from(num_computed_tokens)
        if plan is not None and row is not None and request.num_preemptions and name not in self._private:
            # Another connector may have noted the names of its pages, as of exact ones.
            plan.decline("it was preempted before anything was linked")
        if not planner.admit(name, num_computed_tokens):
            return None, False
        row = None if plan is None else plan.cached.private_from(num_computed_tokens)
        if row is not None:
            # Before vLLM names the pages that it allocates.
            internals.rename_pages(request, row, self._hash_block_size)
            self._private.add(name)
        awaited = planner.awaited_rows(name, num_computed_tokens)
        if not awaited:
            # What others wait for came before.
            return (None, False) if planner.starving else (0, False)
        # The request waits, as for KV from elsewhere, and its rows run beside what is scheduled.
        self._to_load[name] = num_computed_tokens
        return awaited, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        ready = self._to_load.pop(request.request_id, None)
        if ready is not None and num_external_tokens > 0:
            self._rows.await_load(request)
            self._planner.begin_load(request.request_id, ready, internals.waiting_prompt(request, blocks))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        told = internals.ScheduledStep.of(scheduler_output)
        scheduled = told.rows
        self._running = (self._running - {*told.ended, *told.preempted}) | scheduled.keys()
        self._waiting -= scheduled.keys()
        self._waiting |= told.preempted & self._requests.keys()
        quiet, alone = not self._waiting, len(scheduled) == 1 and not self.captures.queue.idle_time.pressed
        encoded = {
            name: list(zip(indices, internals.picture_names(self._requests[name], indices), strict=True))
            for name, indices in told.encoded.items()
            if name in self._requests
        }
        self._planner.encoded.follow((own for pictures in encoded.values() for _, own in pictures), told.freed)
        staged = {name: self._planner.staged_pictures(name, pictures) for name, pictures in encoded.items()}
        step = self._planner.step_metadata(scheduled, self._blocks_of, quiet, alone)
        kept = [self._planner.kept_pictures(name, [own for _, own in each]) for name, each in encoded.items()]
        step = replace(
            step,
            encodings={name: pictures for name, pictures in staged.items() if pictures},
            kept_pictures=tuple(pair for pairs in kept for pair in pairs),
        )
        for name in scheduled:
            plan = self._planner.get(name)
            if name in self._requests:
                self._rows.follow(self._requests[name], plan)
            if plan is not None and name in self._requests:
                self.captures.capture(plan)
        for plan in self._planner.take_wanted():
            self.captures.capture(plan, urgent=True)
        slots = self._config.scheduler_config.max_num_seqs - len(self._running)
        step = self.captures.fill(step, scheduled, slots, not self._requests, bool(self._waiting), self._planner.reads)
        room = self._config.scheduler_config.max_num_batched_tokens - sum(count for _, count in scheduled.values())
        left = room - step.side_rows if self.captures.urgent else room
        rows, slots = self._planner.load_room(left, slots)
        return StepMessage(replace(step, load_rows=rows, load_slots=slots, room=room) if rows else step)

    def has_pending_push_work(self) -> bool:
        """Return whether anything is to be done in idle time; vLLM goes on stepping as long as it is."""
        return self.captures.pending

    def update_connector_output(self, connector_output: Any) -> None:
        message = connector_output.kv_connector_worker_meta
        if isinstance(message, ReportMessage):
            self._planner.note(message.report)
            self.captures.finish(message.report.captured)
        for name in connector_output.finished_recving or ():
            failed = name in connector_output.failed_recving
            self._planner.end_load(name, succeeded=not failed)
            if failed and name in self._requests:
                self._rows.fail_load(self._requests[name])

    def _blocks_of(self, request_id: str) -> tuple[int, ...]:
        return () if self._blocks is None else tuple(self._blocks(request_id)[0])

    def get_kv_connector_stats(self) -> LinkedStats | None:
        told = {} if self._meter is None else self._meter.take()
        if self.planner is not None:
            captured = {"extra_tokens": self.captures.take_rows()}
            return joined((asdict(self.planner.take_counts()), captured, self._prompts.take(), told))
        dropped = 0 if self.kv_worker is None else self.kv_worker.keeper.take_dropped()
        encodings = encoder_connector()
        handed = 0 if encodings is None else encodings.take_count()
        return joined((told, {"dropped": dropped, "encodings": handed}))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> LinkedStats:
        return LinkedStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, Any]
    ) -> LinkedCounters:
        share_names()
        return LinkedCounters(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether rows have to be handed on when a request ends: never."""
        return False

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        name = request.request_id
        self._requests.pop(name, None)
        self._to_load.pop(name, None)
        self._waiting.discard(name)
        self._private.discard(name)
        plan = self._planner.get(name)
        report = self._planner.finish(name)
        self._prompts.note_rows(self._rows.end(request))
        # What is shown by the service itself is nobody's prompt.
        if "pieces" not in (report or {}):
            self._prompts.note(plan, report)
            if report is not None:
                _log.info("emblema: %s", report_line(name, report))
        return False, None if report is None else {"emblema": report}


def _model_spec(config: Any, device: str | None) -> ModelSpec:
    model, parallel = config.model_config, config.parallel_config
    folder = checkpoint_folder(model.model, model.revision)
    shards = int(parallel.tensor_parallel_size)
    fingerprint = files_fingerprint(folder, model.hf_config, internals.loading(config))
    place = torch.device(device or config.device_config.device or "cpu")
    heads = model.get_num_kv_heads(parallel)
    anchor = anchor_of(folder, model.hf_config)
    return model_spec_of(model.hf_config, fingerprint, heads, model.dtype, place, shards, anchor=anchor)


def _pages(config: Any, kv_caches: dict[str, Tensor], spec: ModelSpec) -> Pages:
    names = sorted(kv_caches, key=attention.layer_index)
    if len(names) != len(spec.layouts):
        raise EmblemaError(f"the server keeps rows of {len(names)} layers, the model has {len(spec.layouts)}")
    layers = [attention.layer_pages(config, name) for name in names]
    return Pages(layers, spec.layouts, config.cache_config.block_size, spec.dtype)
