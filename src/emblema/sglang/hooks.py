"""The plugin beside SGLang's scheduler: requests are held until they are planned, and steps are linked."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from blake3 import blake3

from emblema.errors import EmblemaError
from emblema.link.plan import LinkPlan, RowSource
from emblema.served.captures import CaptureQueue
from emblema.served.keeping import PieceKeeper
from emblema.served.model_spec import ModelSpec, anchor_of, checkpoint_folder, files_fingerprint, model_spec_of
from emblema.served.request_report import PREFIX_HAS_IT
from emblema.served.settings import PluginSettings
from emblema.served.shards import ShardStore
from emblema.sglang.linked_forward import LinkedForward
from emblema.sglang.request_links import RequestLink, RequestLinks
from emblema.sglang.requests import describe_request, marked_key, options_of, refuse, solo_media
from emblema.sglang.run_attention import RunAttention
from emblema.store import Store
from emblema.store.settings import StoreSettings

_log = logging.getLogger(__name__)
ENGINE = "sglang-1"
"""The engine, and the version of how its chunks are captured."""
LANES = "leading, patch; auto links whatever the policy allows"
HELD_PAUSE = 0.0005
"""Seconds between two looks at requests that are planned while nothing else is to be done."""
_TAKEN = "emblema 2026-11 sglang taken rows 1"


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that waits to be queued.

    Attributes:
        request: SGLang's `Req`.
        link: its link.
        queue: has SGLang queue it.
    """

    request: Any
    link: RequestLink
    queue: Callable[[], None]


class SchedulerHooks:
    """What SGLang calls around its own methods, one scheduler a process.

    Args:
        settings: of the plugin.
        attention: that of runs.
    """

    def __init__(self, settings: PluginSettings, attention: RunAttention) -> None:
        self._settings, self._attention = settings, attention
        self._links: RequestLinks | None = None
        self._forward: LinkedForward | None = None
        self._captures: CaptureQueue | None = None
        self._held: OrderedDict[str, HeldRequest] = OrderedDict()

    def start(self, result: None, scheduler: Any, *given: Any, **named: Any) -> None:
        """Open the store, once the scheduler is made; where the server is unfit, everything is computed plainly."""
        try:
            runner = scheduler.tp_worker.model_runner
            refusal = unfit(scheduler, runner)
            if refusal is not None:
                raise EmblemaError(refusal)
            spec = _model_spec(scheduler, runner)
            place = StoreSettings(device=spec.device)
            store = Store(self._settings.store, device_bytes=self._settings.memory, settings=place)
            keeper = PieceKeeper(spec, ShardStore(store))
            self._captures = CaptureQueue(solo_media, spec.anchor) if self._settings.capture else None
            links = RequestLinks(spec, store, self._settings)
            self._forward = LinkedForward(
                runner, scheduler.token_to_kv_pool_allocator, spec, links, keeper, self._captures, self._attention
            )
            self._links = links
            _log.info("emblema: %s %s is linked by lanes %s", spec.version, spec.fingerprint[:8], LANES)
        except (EmblemaError, OSError) as error:
            _log.warning("emblema: nothing is linked or kept by this server: %s", error)

    # requests

    def hold(self, queue: Callable[..., None], scheduler: Any, request: Any, *given: Any, **named: Any) -> None:
        """Hold a request with pictures until it is planned; SGLang queues others at once, and answers wrong options."""
        links = self._links
        if request.finished_reason is None:
            try:
                options_of(request)
            except EmblemaError as error:
                refuse(request, str(error))
                queue(scheduler, request, *given, **named)
                return
        media = request.multimodal_inputs
        if links is None or media is None or not media.mm_items or request.finished_reason is not None:
            queue(scheduler, request, *given, **named)
            return
        if self._captures is not None and not scheduler.is_fully_idle():
            self._captures.idle_time.arrive(time.monotonic())
        try:
            link = links.begin(request.rid, describe_request(request))
        except Exception:
            # No error may end the server.
            _log.exception("emblema: a request is computed plainly, as it could not be read")
            queue(scheduler, request, *given, **named)
            return
        self._held[request.rid] = HeldRequest(request, link, lambda: queue(scheduler, request, *given, **named))

    def release(self, scheduler: Any, *given: Any, **named: Any) -> None:
        """Have SGLang queue the requests that are planned, in order."""
        links = self._links
        for name, held in list(self._held.items()) if links is not None else ():
            if links is not None and links.is_ready(name, held.link):
                self._queue(scheduler, name, held)

    def release_all(self, scheduler: Any, abort: Any, *given: Any, **named: Any) -> None:
        """Have SGLang queue all requests that an abort may mean, so that it finds them, and let go of their rows."""

        def meant(name: str) -> bool:
            return bool(abort.abort_all or name.startswith(abort.rid))

        if self._links is not None:
            self._links.abandon(meant)
        for name in [name for name in self._held if meant(name)]:
            self._held.pop(name).queue()

    def _queue(self, scheduler: Any, name: str, held: HeldRequest) -> None:
        del self._held[name]
        plan, request = held.link.plan, held.request
        if plan is not None and plan.cached.spans and not request.is_retracted:
            taken = sum(stop - start for start, stop in plan.cached.spans)
            if prefix_rows(scheduler, request) >= taken:
                plan.decline(PREFIX_HAS_IT)
        if plan is not None and plan.cached.private_from(0) is not None:
            # Its rows are approximate: only a prompt that takes the same finds them.
            request.extra_key = marked_key(request, taken_digest(plan.plan))
        held.queue()

    # steps

    def forward(self, stock: Callable[..., Any], runner: Any, batch: Any, *given: Any, **named: Any) -> Any:
        """Run a step of the model, linked."""
        if self._forward is None or runner is not self._forward.runner:
            return stock(runner, batch, *given, **named)
        return self._forward(stock, batch, *given, **named)

    def spend_idle_moment(self, idle: Callable[..., None], scheduler: Any, *given: Any, **named: Any) -> None:
        """Let held requests be planned, or capture what waits for that, before SGLang may sleep until the next one."""
        if self._held:
            # The threads that plan and stage need the interpreter, which a turning loop would keep.
            time.sleep(HELD_PAUSE)
            return
        # Memory that was given back to the device has no slots.
        there = self._forward is not None and scheduler.is_fully_idle() and not scheduler.weight_updater.offload_tags
        if there and self._forward is not None and self._forward.capture(idle=True):
            return
        idle(scheduler, *given, **named)

    # weights

    def stop(self, *given: Any, **named: Any) -> None:
        """Link and keep nothing from here on: weights are changed in place, and what is stored is of others."""
        if self._links is None:
            return
        _log.warning("emblema: weights are changed in place: nothing is linked or kept by this server from here on")
        self._links = self._forward = self._captures = None
        while self._held:
            _, held = self._held.popitem(last=False)
            held.queue()


def prefix_rows(scheduler: Any, request: Any) -> int:
    """Return how many rows of a request SGLang's prefix cache has."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    key = RadixKey(request.origin_input_ids, request.extra_key, cache_salt=request.cache_salt)
    return int(scheduler.tree_cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len)


def taken_digest(plan: LinkPlan) -> str:
    """Return a digest of what a plan takes: prompts that begin alike and take the same have the same rows."""
    digest = blake3(derive_key_context=_TAKEN)
    for part in plan.ranges:
        if part.source is RowSource.TAKEN:
            written = repr((part.start, part.stop, part.layers, part.origin, part.patch)).encode()
            digest.update(len(written).to_bytes(8, "little") + written)
    return str(digest.hexdigest())


def unfit(scheduler: Any, runner: Any) -> str | None:
    """Return why a server cannot link; None if it can."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.models.transformers import MultiModalMixin

    options = scheduler.server_args
    for name, most in (("tp_size", 1), ("pp_size", 1), ("dp_size", 1), ("attn_cp_size", 1), ("dcp_size", 1)):
        if int(getattr(options, name, 1) or 1) > most:
            return f"{name} is {getattr(options, name)}: what its workers take and keep is not agreed between them"
    if options.speculative_algorithm is not None:
        return f"{options.speculative_algorithm} drafts from rows that are not there where others are taken"
    if str(options.disaggregation_mode) != "null":
        return "prefill and decode are disaggregated, so that rows leave this server"
    if getattr(options, "enable_two_batch_overlap", False):
        return "two halves of a batch overlap, which is not known to keep a prompt's runs together"
    if getattr(options, "enable_hierarchical_cache", False):
        return "its hierarchical cache would keep approximate rows in slower tiers"
    if isinstance(runner.model, MultiModalMixin):
        return "SGLang has no such model of its own, and transformers' forward wants all rows of a picture in one step"
    pool = runner.token_to_kv_pool
    if type(pool) is not MHATokenToKVPool:
        return f"its pool of rows is a {type(pool).__name__}; rows are written into MHATokenToKVPool alone"
    if pool.store_dtype != pool.dtype or pool.dtype != runner.dtype:
        return f"its pool keeps {pool.dtype}, the model computes {runner.dtype}"
    return None


def _model_spec(scheduler: Any, runner: Any) -> ModelSpec:
    model, options = scheduler.model_config, scheduler.server_args
    folder = checkpoint_folder(options.model_path, options.revision)
    extra = f"{options.load_format} {options.quantization}"
    fingerprint = files_fingerprint(folder, model.hf_config, extra)
    heads = model.get_num_kv_heads(1)
    anchor, place = anchor_of(folder, model.hf_config), torch.device(runner.device)
    return model_spec_of(model.hf_config, fingerprint, heads, model.dtype, place, engine=ENGINE, anchor=anchor)
