"""vLLM's connector interface, and nothing more: the scheduler's side asks the desk, the pages' side has the hands."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.ec_transfer import get_ec_transfer, has_ec_transfer
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from emblema.errors import EmblemaError, UnsupportedModelError
from emblema.store import Store
from emblema.vllm import internals
from emblema.vllm.desk import Counts, Desk
from emblema.vllm.encodings import EmblemaEncoderConnector
from emblema.vllm.hands import Hands
from emblema.vllm.messages import Errand
from emblema.vllm.metrics import LinkedCounters, LinkedStats
from emblema.vllm.pages import Pages
from emblema.vllm.settings import Settings
from emblema.vllm.shape import Shape, files_fingerprint, shape_of

READER_BYTES = 256 * 2**20
"""Memory for patches that the scheduler's side looks at; it reads no rows."""


@dataclass
class Message(KVConnectorMetadata):
    """What goes from one side to the other with a step."""

    errand: Errand


class EmblemaConnector(KVConnectorBase_V1):
    """Chunks of pictures, taken anywhere in a prompt. See `docs/vllm.md`."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.config = vllm_config
        transfer = vllm_config.kv_transfer_config
        self.settings = Settings.of(transfer.kv_connector_extra_config)
        if transfer.kv_load_failure_policy != "recompute":
            raise EmblemaError('a lost chunk is computed again: set "kv_load_failure_policy": "recompute".')
        refusal, shape = internals.unfit(vllm_config, kv_cache_config), None
        if refusal is None:
            try:
                # The scheduler's process leaves the accelerator alone.
                shape = _shape(vllm_config, "cpu" if role == KVConnectorRole.SCHEDULER else None)
            except UnsupportedModelError as error:
                refusal = str(error)
        self.hands: Hands | None = None
        self.desk: Desk | None = None
        self._blocks: Callable[[str], tuple[list[int], ...]] | None = None
        if role == KVConnectorRole.SCHEDULER:
            store = Store(self.settings.store, device_bytes=READER_BYTES, device="cpu")
            self.desk = Desk(shape, self.settings, store, refusal)
        elif shape is not None:
            self._kept = Store(self.settings.store, device_bytes=self.settings.memory or "auto", device=shape.device)
            self._shape = shape

    # the pages' side

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        if hasattr(self, "_shape"):
            pages = partial(_pages, self.config, kv_caches, self._shape)
            self.hands = Hands(self._shape, self._kept, pages, self.config.cache_config.block_size, _encoder_output)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.hands is not None:
            self.hands.before(self._errand)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All layers are there before the forward."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Rows are read once the forward is over."""

    def wait_for_save(self) -> None:
        if self.hands is not None:
            self.hands.after(self._errand)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self.hands is None else self.hands.failed()

    def shutdown(self) -> None:
        if self.hands is not None:
            self.hands.close()
        if self.desk is not None:
            self.desk.store.close()

    @property
    def _errand(self) -> Errand:
        message = self._get_connector_metadata()
        return message.errand if isinstance(message, Message) else Errand()

    # the scheduler's side

    @property
    def _desk(self) -> Desk:
        if self.desk is None:
            raise EmblemaError("this connector does not stand beside a scheduler")
        return self.desk

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        self._blocks = kv_cache_manager.get_block_ids

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        desk = self._desk
        link = desk.link(request.request_id, partial(internals.asked_of, request))
        if link is None:
            return 0, False
        link.claimed = 0
        claimed = desk.claim(request.request_id, num_computed_tokens, 1)
        if claimed is None:
            return 0, False
        desk.hide(request, num_computed_tokens)
        desk.pending = (request.request_id, claimed)
        return claimed.stop - num_computed_tokens, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        desk = self._desk
        if num_external_tokens and desk.pending is not None and desk.step is not None:
            desk.step.take(*desk.pending)
        desk.pending = None

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        starts = {data.req_id: data.num_computed_tokens for data in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        scheduled = {name: (starts[name], count) for name, count in scheduler_output.num_scheduled_tokens.items()}
        return Message(self._desk.errand(scheduled, self._pages_of))

    def _pages_of(self, request: str) -> tuple[int, ...]:
        return () if self._blocks is None else tuple(self._blocks(request)[0])

    def get_kv_connector_stats(self) -> LinkedStats | None:
        if self.desk is None:
            return None
        found, self.desk.counts = self.desk.counts, Counts()
        return LinkedStats.of(found)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> LinkedStats:
        return LinkedStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, Any]
    ) -> LinkedCounters:
        return LinkedCounters(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        told = self._desk.finished(request.request_id)
        return False, None if told is None else {"emblema": told}


def _shape(config: Any, device: str | None) -> Shape:
    model, parallel = config.model_config, config.parallel_config
    extra = f"{config.load_config.load_format} {model.quantization} seed {model.seed}"
    fingerprint = files_fingerprint(_folder(model), model.hf_config, extra)
    place = torch.device(device or config.device_config.device or "cpu")
    return shape_of(model.hf_config, fingerprint, model.get_num_kv_heads(parallel), model.dtype, place)


def _folder(model: Any) -> Path:
    if Path(model.model).is_dir():
        return Path(model.model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model.model, revision=model.revision, local_files_only=True))


def _encoder_output(identifier: str) -> Tensor | None:
    """What vLLM's encoder cache holds of a picture, where the plugin's connector of it is there."""
    connector = get_ec_transfer() if has_ec_transfer() else None
    return connector.outputs.get(identifier) if isinstance(connector, EmblemaEncoderConnector) else None


def _pages(config: Any, kv_caches: dict[str, Tensor], shape: Shape) -> Pages:
    names = sorted(kv_caches, key=internals.layer_index)
    if len(names) != len(shape.layouts):
        raise EmblemaError(f"the server keeps rows of {len(names)} layers, the model has {len(shape.layouts)}")
    found = [internals.cache_of(config, name, kv_caches[name]) for name in names]
    writes = [
        lambda keys, values, slots, layer=layer, cache=cache: internals.write_rows(layer, cache, keys, values, slots)
        for layer, cache, _ in found
    ]
    caches = [(cache, axis) for _, cache, axis in found]
    return Pages(caches, writes, shape.layouts, config.cache_config.block_size)
