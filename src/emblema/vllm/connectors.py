"""vLLM's connector interfaces: chunks in pages, encoder outputs, and counters of both.

vLLM makes each connector twice: beside the scheduler, where it asks the planner, and beside the pages of a worker.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.ec_transfer import get_ec_transfer, has_ec_transfer
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata, ECConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from emblema.errors import EmblemaError, UnsupportedModelError
from emblema.store import Store
from emblema.store.settings import StoreSettings
from emblema.vllm import internals
from emblema.vllm.kv_worker import KVWorker
from emblema.vllm.model_spec import ModelSpec, files_fingerprint, model_spec_of
from emblema.vllm.pages import Pages
from emblema.vllm.planner import RequestPlanner
from emblema.vllm.plugin import PluginSettings
from emblema.vllm.prompt_counts import LinkedCounters, LinkedStats, PromptCounts, StoreMeter, joined
from emblema.vllm.step_costs import StepCosts
from emblema.vllm.step_metadata import StepMetadata

PLANNER_BYTES = 256 * 2**20
"""Memory for patches that the planner looks at; it reads no rows."""


@dataclass
class StepMessage(KVConnectorMetadata):
    """A step's work, as vLLM passes it from the scheduler to the worker."""

    step: StepMetadata


@dataclass
class EncoderOutputs(ECConnectorMetadata):
    """Encoder outputs of one step, by vLLM's digest of the picture."""

    outputs: dict[str, Tensor] = field(default_factory=dict)


class EmblemaConnector(KVConnectorBase_V1):
    """Chunks of pictures, taken anywhere in a prompt. See `docs/vllm.md`.

    Attributes:
        planner: beside the scheduler; None beside pages.
        kv_worker: beside pages, once they are known; None where nothing can be linked.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        transfer = vllm_config.kv_transfer_config
        settings = PluginSettings.read(transfer.kv_connector_extra_config)
        if transfer.kv_load_failure_policy != "recompute":
            raise EmblemaError('a lost chunk is computed again: set "kv_load_failure_policy": "recompute".')
        scheduling = role == KVConnectorRole.SCHEDULER
        refusal, spec = internals.unfit(vllm_config, kv_cache_config), None
        if refusal is None:
            try:
                # The scheduler's process leaves the accelerator alone.
                spec = _model_spec(vllm_config, "cpu" if scheduling else None)
            except UnsupportedModelError as error:
                refusal = str(error)
        self.planner: RequestPlanner | None = None
        self.kv_worker: KVWorker | None = None
        self._make_worker: Callable[[Callable[[ModelSpec], Pages]], KVWorker] | None = None
        self._meter: StoreMeter | None = None
        self._prompts = PromptCounts()
        self._digests = internals.MediaDigests()
        self._hash_block_size = 0
        self._blocks: Callable[[str], tuple[list[int], ...]] | None = None
        if scheduling:
            store = Store(settings.store, device_bytes=PLANNER_BYTES, settings=StoreSettings(device="cpu"))
            costs = StepCosts(bool(vllm_config.cache_config.enable_prefix_caching)) if settings.weigh else None
            self._meter = StoreMeter(store, bytes=False)
            self.planner = RequestPlanner(spec, store, settings.strategy, settings.capture, costs, refusal)
        elif spec is not None:
            placed = StoreSettings(device=spec.device)
            store = Store(settings.store, device_bytes=settings.memory or "auto", settings=placed)
            self._meter = StoreMeter(store, bytes=True)
            self._make_worker = partial(KVWorker, spec, store, vllm_config.cache_config.block_size, _encoder_output)

    # beside the pages

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        if self._make_worker is not None:
            self.kv_worker = self._make_worker(partial(_pages, self._config, kv_caches))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.kv_worker is not None:
            self.kv_worker.load(self._step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return at once: all layers are loaded before the forward."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: rows are read after the forward."""

    def wait_for_save(self) -> None:
        if self.kv_worker is not None:
            self.kv_worker.save(self._step)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self.kv_worker is None else self.kv_worker.take_failed()

    def shutdown(self) -> None:
        for side in (self.kv_worker, self.planner):
            if side is not None:
                side.close()

    @property
    def _step(self) -> StepMetadata:
        message = self._get_connector_metadata()
        return message.step if isinstance(message, StepMessage) else StepMetadata()

    # beside the scheduler

    def bind_scheduler(self, hash_block_size: int) -> RequestPlanner:
        """Take what names pages from the scheduler, and return the planner that both share.

        Args:
            hash_block_size: rows to which vLLM gives one name in its prefix cache.
        """
        self._hash_block_size = hash_block_size
        return self._planner

    @property
    def _planner(self) -> RequestPlanner:
        if self.planner is None:
            raise EmblemaError("this connector has no planner: it is beside a worker, not the scheduler")
        return self.planner

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        self._blocks = kv_cache_manager.get_block_ids

    def hide_pages(self, request: Any, ready: int) -> None:
        """Give a request's pages names of their own where they differ from plain prefill; before vLLM names them."""
        plan = self._planner.get(request.request_id)
        row = None if plan is None else plan.cached.private_from(ready)
        if row is not None:
            internals.rename_pages(request, row, self._hash_block_size)

    def prepare(self, request: Any) -> bool:
        """Return whether it is decided what a request takes; see `RequestPlanner.prepare`."""
        return self._planner.prepare(request.request_id, partial(internals.describe_request, request, self._digests))

    def on_new_request(self, request: Any) -> None:
        self._planner.announce(request.request_id, partial(internals.describe_request, request, self._digests))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if not self.prepare(request):
            return None, False
        claim = self._planner.reserve(request.request_id, num_computed_tokens)
        if claim is None:
            return 0, False
        self.hide_pages(request, num_computed_tokens)
        return claim.stop - num_computed_tokens, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._planner.step is not None:
            self._planner.step.confirm(num_external_tokens > 0)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        starts = {data.req_id: data.num_computed_tokens for data in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        scheduled = {name: (starts[name], count) for name, count in scheduler_output.num_scheduled_tokens.items()}
        return StepMessage(self._planner.step_metadata(scheduled, self._blocks_of))

    def _blocks_of(self, request_id: str) -> tuple[int, ...]:
        return () if self._blocks is None else tuple(self._blocks(request_id)[0])

    def get_kv_connector_stats(self) -> LinkedStats | None:
        told = {} if self._meter is None else self._meter.take()
        if self.planner is not None:
            return joined((asdict(self.planner.take_counts()), self._prompts.take(), told))
        dropped = 0 if self.kv_worker is None else self.kv_worker.take_dropped()
        return joined((told, {"dropped": dropped}))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> LinkedStats:
        return LinkedStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, Any]
    ) -> LinkedCounters:
        return LinkedCounters(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        # What is prefilled alone, or shown by the service itself, is nobody's prompt.
        plan, own = self._planner.get(request.request_id), request.request_id in self._planner.capturing
        report = self._planner.finish(request.request_id)
        if not own and "pieces" not in (report or {}):
            self._prompts.note(plan, report)
        return False, None if report is None else {"emblema": report}


def _model_spec(config: Any, device: str | None) -> ModelSpec:
    model, parallel = config.model_config, config.parallel_config
    folder = Path(model.model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(model.model, revision=model.revision, local_files_only=True))
    extra = f"{config.load_config.load_format} {model.quantization} seed {model.seed}"
    if (kind := internals.page_kind(config)) != model.dtype:
        extra += f" pages {kind}"
    fingerprint = files_fingerprint(folder, model.hf_config, extra)
    place = torch.device(device or config.device_config.device or "cpu")
    return model_spec_of(model.hf_config, fingerprint, model.get_num_kv_heads(parallel), model.dtype, place)


def _pages(config: Any, kv_caches: dict[str, Tensor], spec: ModelSpec) -> Pages:
    names = sorted(kv_caches, key=internals.layer_index)
    if len(names) != len(spec.layouts):
        raise EmblemaError(f"the server keeps rows of {len(names)} layers, the model has {len(spec.layouts)}")
    layers = [internals.layer_pages(config, name) for name in names]
    return Pages(layers, spec.layouts, config.cache_config.block_size, spec.dtype)


def _encoder_output(identifier: str) -> Tensor | None:
    connector = get_ec_transfer() if has_ec_transfer() else None
    return connector.outputs.get(identifier) if isinstance(connector, EmblemaEncoderConnector) else None


class EmblemaEncoderConnector(ECConnectorBase):
    """Stored encoder outputs, in place of running the encoder; needs `EmblemaConnector` and `LinkingScheduler`.

    A chunk is stored with its encoder output. Whether it may be used depends on the tenant, whom vLLM's interface does
    not name; so the scheduler says which request's pictures it schedules. The output itself goes along with the step,
    as vLLM has no other way to get one that was promised and is lost.

    Attributes:
        outputs: vLLM's encoder cache, beside the pages.
    """

    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        self.outputs: Mapping[str, Tensor] = {}
        self._device = torch.device(vllm_config.device_config.device or "cpu")
        self._planner: RequestPlanner | None = None
        self._request_id: str | None = None
        self._found: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {}

    # beside the scheduler

    def bind_planner(self, planner: RequestPlanner) -> None:
        """Take the planner, which knows what is stored for a request."""
        self._planner = planner

    def begin_request(self, request_id: str) -> None:
        """Look for the pictures of this request from now on."""
        self._request_id = request_id

    def has_cache_item(self, identifier: str) -> bool:
        if self._planner is None or self._request_id is None:
            return False
        output = self._planner.encoder_output(self._request_id, identifier)
        if output is not None:
            self._found[identifier] = output
        return output is not None

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        identifier = request.mm_features[index].identifier
        if self._planner is not None and identifier in self._found:
            self._sent[identifier] = self._found.pop(identifier)
            self._planner.count_encoding()

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        sent, self._sent = self._sent, {}
        self._found.clear()
        return EncoderOutputs(sent)

    # beside the pages

    def start_load_caches(self, encoder_cache: MutableMapping[str, Tensor], **kwargs: Any) -> None:
        self.outputs = encoder_cache
        message = self._get_connector_metadata()
        for identifier, output in message.outputs.items() if isinstance(message, EncoderOutputs) else ():
            if identifier not in encoder_cache:
                encoder_cache[identifier] = output.to(self._device)

    def save_caches(self, encoder_cache: Mapping[str, Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Do nothing: an output is stored with its chunk, when that is captured."""
