"""The fields of vLLM's requests, scheduled steps and configuration: no other file reads them.

What reads its attention and its model's forward is in `attention`. Its interfaces' methods are overridden in
`connectors`, `encoder_connector` and `worker`. `vllm_names` says whether the installed vLLM has all of them.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.multimodal.inputs import PlaceholderRange
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

from emblema.errors import EmblemaError
from emblema.served.captures import ChunkCapture
from emblema.served.request_options import read_options
from emblema.served.requests import MediaItem, ServedRequest
from emblema.vllm.media_digests import MediaDigests
from emblema.vllm.step_metadata import PlacedFeature, SidePrompt


def describe_request(request: Any, shown: MediaDigests) -> ServedRequest:
    """Return what the plugin needs to know of vLLM's request."""
    places = [shown.place(feature) for feature in request.mm_features]
    items = tuple(
        MediaItem(
            index,
            feature.modality,
            feature.identifier,
            feature.mm_position.offset,
            feature.mm_position.length,
            place.grid(feature.modality),
            seconds=place.seconds,
            runs=_runs(feature.mm_position),
        )
        for index, (feature, place) in enumerate(zip(request.mm_features, places, strict=True))
    )
    options: Mapping[str, Any] = {}
    refusal = _refusal(request, items)
    try:
        options = read_options((request.kv_transfer_params or {}).get("emblema"))
    except EmblemaError as error:
        refusal = refusal or str(error)
    return ServedRequest(
        tuple(request.prompt_token_ids or ()),
        items,
        request.cache_salt,
        options,
        refusal,
        request,
        partial(shown.digests, request.mm_features),
    )


def _runs(place: PlaceholderRange) -> tuple[tuple[int, int], ...]:
    """Return the rows of an item that the encoder fills, as runs; none where it fills all."""
    if place.is_embed is None or bool(place.is_embed.all()):
        return ()
    edges = torch.diff(place.is_embed.to(torch.int8), prepend=torch.zeros(1), append=torch.zeros(1))
    starts, stops = ((edges == step).nonzero().flatten().tolist() for step in (1, -1))
    return tuple(zip(starts, stops, strict=True))


def _refusal(request: Any, items: Sequence[MediaItem]) -> str | None:
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
    other = next((item.kind for item in items if not _is_linked(item)), None)
    return None if other is None else f"media of the kind {other} are not linked in this model"


def _is_linked(item: MediaItem) -> bool:
    """Return whether media are of a kind that is linked: pictures, and videos that the model places on a grid."""
    return item.kind == "image" or (item.kind == "video" and item.grid is not None)


def rename_pages(request: Any, row: int, block_size: int) -> None:
    """Keep a request's pages out of the prefix cache, from the page that holds `row` on, as they are approximate.

    Pages before it keep their names, so that system prompts still hit; each later name is made from the one before.
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


def solo_feature(request: ServedRequest, item: MediaItem, capture: ChunkCapture) -> PlacedFeature:
    """Return a request's picture or clip as it is given to the model alone: at its place after the anchor.

    It has a name of its own: what vLLM's caches hold under the name that a client gave is not kept.
    """
    shown = placed_feature(request.source.mm_features[item.index], capture.identifier)
    # Time stamps may come before what the encoder fills.
    before = 0 if shown.filled is None else int(shown.filled.to(torch.uint8).argmax())
    first = len(capture.anchor) + int(capture.chunk.encoded.visual.to(torch.uint8).argmax())
    return replace(shown, start=first - before)


def external_rows(request: Any) -> int:
    """Return how many rows of a request count as given from outside."""
    stats = request.prefill_stats
    return 0 if stats is None else int(stats.num_external_cached_tokens)


def is_counted(request: Any) -> bool:
    """Return whether vLLM has counted a request's rows, as it does with the first token."""
    return request.prefill_stats is None


def count_given(request: Any, rows: int) -> bool:
    """Have rows that were given from outside count as cached, beside those that the prefix cache had.

    Returns:
        Whether they do: not once the rows are counted, nor after a preemption.
    """
    stats = request.prefill_stats
    if stats is None or request.num_preemptions:
        return False
    stats.set(request.num_prompt_tokens, stats.num_local_cached_tokens, rows)
    return True


def page_kind(config: Any) -> torch.dtype:
    """Return the kind of what a server's pages hold: the rows' own data type, or that of codes of 8 bits.

    Raises:
        EmblemaError: they are quantised in a way that the plugin does not know.
    """
    named, own = str(config.cache_config.cache_dtype), config.model_config.dtype
    if named in ("auto", str(own).removeprefix("torch.")):
        return own  # type: ignore[no-any-return]
    if named in ("fp8", "fp8_e4m3"):
        return current_platform.fp8_dtype()
    if named == "fp8_e5m2":
        return torch.float8_e5m2
    raise EmblemaError(f"its pages are quantised ({named})")


def loading(config: Any) -> str:
    """Return all that decides, beside a checkpoint's files and configuration, what rows a server makes."""
    model, shards = config.model_config, int(config.parallel_config.tensor_parallel_size)
    told = f"{config.load_config.load_format} {model.quantization} seed {model.seed}"
    if model.quantization_config is not None:
        # Weights may be quantised while they are loaded.
        told += f" by {model.quantization_config}"
    if (kind := page_kind(config)) != model.dtype:
        told += f" pages {kind}"
    return told + (f" tensor parallel {shards}" if shards > 1 else "")


class TensorRanks:
    """The workers that share a model's heads, seen from one of them; made in its process.

    Args:
        size: how many there are.

    Attributes:
        own: which of them this is.
    """

    def __init__(self, size: int) -> None:
        self._group: Any = None
        self.own = 0
        if size > 1:
            from vllm.distributed import get_tp_group

            self._group = get_tp_group()
            self.own = int(self._group.rank_in_group)

    def agree(self, facts: list[bool]) -> list[bool]:
        """Return which facts are so on all workers; each calls it at the same place of the same step."""
        if self._group is None:
            return facts
        votes = torch.tensor(facts, dtype=torch.int32)
        torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MIN, group=self._group.cpu_group)
        return [bool(vote) for vote in votes.tolist()]


def picture_names(request: Any, indices: Sequence[int]) -> list[str]:
    """Return vLLM's names of some of a request's pictures."""
    return [request.mm_features[index].identifier for index in indices]


def placed_feature(feature: Any, name: str) -> PlacedFeature:
    """Return media of a request under a name of their own."""
    place = feature.mm_position
    return PlacedFeature(name, place.offset, place.length, place.is_embed, feature.identifier, feature)


def vllm_feature(placed: PlacedFeature) -> Any:
    """Return media as the model's runner is given them, under their name and at their place."""
    position = PlaceholderRange(offset=placed.start, length=placed.rows, is_embed=placed.filled)
    return replace(placed.source, identifier=placed.name, mm_position=position)


def waiting_prompt(request: Any, blocks: Any) -> SidePrompt:
    """Return a request's prompt on the pages that vLLM allocated for it.

    Its pictures have names of their own, so that what is put into the encoder cache for them is nobody else's.
    """
    name = request.request_id
    features = (
        placed_feature(feature, f"{name}\0picture-{index}") for index, feature in enumerate(request.mm_features)
    )
    return SidePrompt(list(request.prompt_token_ids), tuple(features), tuple(blocks.get_block_ids()[0]))


def virtual_request(prompt: SidePrompt, name: str, start: int) -> NewRequestData:
    """Return a request of a prompt whose rows before `start` count as computed, for one step."""
    return NewRequestData(
        req_id=name,
        # The list itself, twice: one runner asks for positions by the first, the other by the second.
        prompt_token_ids=prompt.token_ids,
        mm_features=[vllm_feature(feature) for feature in prompt.features],
        sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
        pooling_params=None,
        block_ids=(list(prompt.blocks),),
        num_computed_tokens=start,
        lora_request=None,
        prefill_token_ids=prompt.token_ids,
    )


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step of vLLM's scheduler.

    Attributes:
        rows: by request, the first row that is computed and how many there are.
        encoded: by request, the numbers of its pictures that are to be encoded.
        freed: names of pictures whose encoder outputs are let go.
        ended, preempted: requests.
    """

    rows: dict[str, tuple[int, int]]
    encoded: Mapping[str, Sequence[int]]
    freed: Sequence[str]
    ended: Collection[str]
    preempted: set[str]

    @classmethod
    def of(cls, output: SchedulerOutput) -> "ScheduledStep":
        """Return what a scheduler's output says."""
        cached = output.scheduled_cached_reqs
        starts = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        rows = {name: (starts[name], count) for name, count in output.num_scheduled_tokens.items()}
        return cls(
            rows,
            output.scheduled_encoder_inputs,
            output.free_encoder_mm_hashes,
            output.finished_req_ids,
            (output.preempted_req_ids or set()) - rows.keys(),
        )


def with_side_rows(
    output: SchedulerOutput,
    virtual: Sequence[NewRequestData],
    rows: Mapping[str, int],
    inputs: Mapping[str, list[int]],
    ended: Collection[str],
    freed: Collection[str],
) -> SchedulerOutput:
    """Return a step as the runner is to see it.

    Args:
        output: the scheduler's.
        virtual: requests that are added for this step.
        rows: how many rows each of them computes.
        inputs: numbers of the pictures that are encoded, by request.
        ended: virtual requests of the step before.
        freed: names of pictures whose encoder outputs nobody needs any more.
    """
    counts = output.num_scheduled_tokens | dict(rows)
    return replace(
        output,
        scheduled_new_reqs=[*output.scheduled_new_reqs, *virtual],
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_encoder_inputs=dict(inputs),
        finished_req_ids=output.finished_req_ids | set(ended),
        free_encoder_mm_hashes=[*output.free_encoder_mm_hashes, *sorted(freed)],
    )


def unfit_to_read(config: Any) -> str | None:
    """Return why no plan with a second pass can be carried out on a server of this configuration; None if it can."""
    if page_kind(config) != config.model_config.dtype:
        return "pages of 8 bits were not tried with it"
    if config.model_config.is_mm_prefix_lm:
        return "rows of a picture attend rows behind them"
    if config.compilation_config.cudagraph_mode.mixed_mode() == CUDAGraphMode.FULL:
        return "whole forwards are replayed as graphs here, so that nothing tells what a question attends"
    if config.parallel_config.pipeline_parallel_size > 1:
        return "the model's layers are split over several workers here"
    if config.parallel_config.use_ubatching:
        return "batches are split here"
    if config.ec_transfer_config is None:
        return "the server has no EmblemaEncoderConnector"
    if config.model_config.use_mla:
        return "the model keeps latents, of which nothing tells here what a question attends"
    return None


def steps_together(config: Any) -> bool:
    """Return whether this engine steps together with others: those of a model with experts, under data parallel.

    Engines of a dense model are independent; vLLM sets their own `data_parallel_size` to 1.
    """
    return int(config.parallel_config.data_parallel_size) > 1


def unfit(config: Any, kv_cache_config: Any) -> str | None:
    """Return why nothing can be linked on a server of this configuration; None if it can."""
    if config.speculative_config is not None:
        return "speculative decoding is on"
    parallel = config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        return "its layers are split over workers (pipeline parallel); split heads instead: --tensor-parallel-size"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return "rows of a prompt are split over workers (context parallel)"
    if steps_together(config):
        return "engines step together here, and rows would run in steps that the scheduler left empty"
    if len(kv_cache_config.kv_cache_groups) != 1:
        return "the model keeps rows of several kinds (sliding windows, or a recurrent state)"
    kind = type(kv_cache_config.kv_cache_groups[0].kv_cache_spec).__name__
    if kind not in ("FullAttentionSpec", "MLAAttentionSpec"):
        return f"its rows are kept as {kind}"
    try:
        coded = page_kind(config) != config.model_config.dtype
    except EmblemaError as error:
        return str(error)
    if coded and kind == "MLAAttentionSpec":
        return f"its latents are quantised ({config.cache_config.cache_dtype}), which has not been tried"
    media = config.model_config.multimodal_config
    if media is not None and media.video_pruning_rate:
        return "tokens of videos are left out (video_pruning_rate)"
    if not config.cache_config.enable_prefix_caching and (media is None or not media.mm_processor_cache_gb):
        return "pictures have no digest without prefix caching or a processor cache"
    return None
