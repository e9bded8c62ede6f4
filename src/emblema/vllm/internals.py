"""vLLM's private names, as they are in 0.32; `docs/vllm.md` lists them all."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import MLAAttention
from vllm.multimodal.inputs import PlaceholderRange
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import NewRequestData

from emblema.errors import EmblemaError
from emblema.kv.chunk import Chunk
from emblema.link.prompt import Rows
from emblema.plugin.request_plan import MediaItem, ServedRequest
from emblema.vllm.captures import CaptureRequest
from emblema.vllm.pages import LayerPages, PageCodes
from emblema.vllm.shown_media import ShownMedia


def describe_request(request: Any, shown: ShownMedia) -> ServedRequest:
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
    parameters = request.kv_transfer_params or {}
    options = parameters.get("emblema")
    return ServedRequest(
        tuple(request.prompt_token_ids or ()),
        items,
        request.cache_salt,
        options if isinstance(options, dict) else {},
        _refusal(request, items),
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


def _place_in(chunk: Chunk, place: PlaceholderRange) -> PlaceholderRange:
    """Return where a picture or clip stands in its own chunk; time stamps may come before what the encoder fills."""
    before = 0 if place.is_embed is None else int(place.is_embed.to(torch.uint8).argmax())
    moved: PlaceholderRange = replace(place, offset=int(chunk.encoded.visual.to(torch.uint8).argmax()) - before)
    return moved


def solo_feature(capture: CaptureRequest) -> Any:
    """Return a request's picture as it is given to the model alone: at its place in its chunk.

    It has a name of its own: what vLLM's caches hold under the name that a client gave is not kept.
    """
    feature = capture.shown_by.source.mm_features[capture.item.index]
    place = _place_in(capture.capture.chunk, feature.mm_position)
    return replace(feature, identifier=capture.capture.identifier, mm_position=place)


def count_cached(request: Any, linked: int) -> None:
    """Have a reply report linked rows as cached, beside those that the prefix cache had."""
    stats = request.prefill_stats
    if stats is not None and request.num_preemptions == 0:
        stats.set(request.num_prompt_tokens, stats.num_local_cached_tokens, linked)


def layer_pages(config: Any, name: str) -> LayerPages:
    """Return the pages of a layer of the model, by the name of its cache, as the layer's own forward uses them.

    Raises:
        EmblemaError: the attention backend keeps them in a form that the plugin does not know.
    """
    layer = config.compilation_config.static_forward_context[name]
    cache, blocks = layer.kv_cache, config.cache_config.num_gpu_blocks
    if not hasattr(layer.impl, "do_kv_cache_update") or not blocks or cache.shape[0] % blocks:
        raise EmblemaError(f"the attention backend of {name} keeps its pages in a form that the plugin does not know")
    write = partial(_write_latents if isinstance(layer, MLAAttention) else _write_heads, layer, cache)
    size = config.cache_config.block_size // (cache.shape[0] // blocks)
    kind = page_kind(config)
    if kind == config.model_config.dtype:
        return LayerPages(cache, size, write)
    if layer._k_scale.numel() > 1 or layer._v_scale.numel() > 1:
        raise EmblemaError(f"the pages of {name} have a scale for each head; the plugin knows one for each layer")
    return LayerPages(cache, size, write, PageCodes(kind, layer._k_scale_float, layer._v_scale_float))


def _write_heads(layer: Any, cache: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write rows [tokens, heads, width] at slots [tokens] of a layer's pages, as its own forward does."""
    layer.impl.do_kv_cache_update(layer, keys, values, cache, slots)


def _write_latents(layer: Any, cache: Tensor, latents: Tensor, keys: Tensor, slots: Tensor) -> None:
    """The same for latents and rotary keys (MLA), each of one head."""
    given = latents.squeeze(1), keys, cache, slots, layer.kv_cache_dtype, layer._k_scale
    layer.impl.do_kv_cache_update(*given)


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


def reading_data(request: Any, blocks: tuple[list[int], ...]) -> tuple[NewRequestData, dict[str, str]]:
    """Return a request as the runner is given virtual ones of it, and vLLM's names of its pictures by their own.

    The pictures have names of their own, so that what is put into the encoder cache for them is nobody else's.
    """
    return _request_data(request, blocks, request.request_id, list(request.prompt_token_ids))


def shadow_data(request: Any, blocks: tuple[int, ...], name: str) -> tuple[NewRequestData, dict[str, str]]:
    """Return an answered request as `reading_data` does, under another name, with a token more than it had.

    A prompt that is not complete gives no token.
    """
    return _request_data(request, (list(blocks),), name, [*request.prompt_token_ids, 0])


def media_bytes(request: Any) -> int:
    """Return how many bytes the encoder is given of a request's media."""
    elements = [element.data for feature in request.mm_features if feature.data for element in feature.data.values()]
    return sum(int(data.nbytes) for data in elements if isinstance(data, Tensor))


def _request_data(
    request: Any, blocks: tuple[list[int], ...], name: str, tokens: list[int]
) -> tuple[NewRequestData, dict[str, str]]:
    features = [
        replace(feature, identifier=f"{name}\0picture-{index}") for index, feature in enumerate(request.mm_features)
    ]
    data = NewRequestData(
        req_id=name,
        prompt_token_ids=tokens,
        mm_features=features,
        sampling_params=None,
        pooling_params=None,
        block_ids=tuple(list(group) for group in blocks),
        num_computed_tokens=0,
        lora_request=None,
        prefill_token_ids=tokens,
    )
    named = zip(features, request.mm_features, strict=True)
    return data, {own.identifier: feature.identifier for own, feature in named}


def unfit_to_read(config: Any) -> str | None:
    """Return why no plan with a second pass can be carried out on a server of this configuration; None if it can."""
    if page_kind(config) != config.model_config.dtype:
        return "pages of 8 bits were not tried with it"
    if config.model_config.is_mm_prefix_lm:
        return "rows of a picture attend rows behind them"
    return unfit_to_compare(config)


def unfit_to_compare(config: Any) -> str | None:
    """Return why the logits of prompts that nobody asked for are not known here; None if they are."""
    if config.compilation_config.cudagraph_mode.mixed_mode() == CUDAGraphMode.FULL:
        return "whole forwards are replayed as graphs here, so that nothing tells what a question attends"
    if config.parallel_config.pipeline_parallel_size > 1:
        return "the model's layers are split over several workers here"
    if steps_together(config):
        return "engines step together here, and its rows would run in steps that the scheduler left empty"
    if config.parallel_config.use_ubatching:
        return "batches are split here"
    if config.ec_transfer_config is None:
        return "the server has no EmblemaEncoderConnector"
    if config.model_config.use_mla:
        return "the model keeps latents, of which nothing tells here what a question attends"
    return None


def add_to_attention(layer: Any, add: Callable[[Any, Any, int, float], None]) -> Callable[[], None]:
    """Have a function write into the output of each forward of an attention layer; return what ends that.

    It is given the queries and the output, each of heads side by side or one after another, how many heads there are,
    and the scale of queries' products with keys. Where a whole forward is replayed as a graph, it is not called.
    """
    impl = layer.impl
    stock = impl.forward

    def forward(
        own: Any, query: Tensor, key: Any, value: Any, cache: Any, metadata: Any, output: Any, *rest: Any, **more: Any
    ) -> Any:
        result = stock(own, query, key, value, cache, metadata, output, *rest, **more)
        if metadata is not None:
            add(query, output, impl.num_heads, float(impl.scale))
        return result

    impl.forward = forward

    def end() -> None:
        del impl.forward

    return end


def unlike_attention(layer: Any) -> str | None:
    """Return what a layer does beside attending all rows before by their products with queries; None if nothing."""
    told = {
        "weights that fall with distance": getattr(layer.impl, "alibi_slopes", None) is not None,
        "a bound on scores": bool(getattr(layer.impl, "logits_soft_cap", None)),
        "a sliding window": layer.sliding_window is not None,
        "sinks": layer.has_sink,
    }
    found = [what for what, here in told.items() if here]
    return f"its attention has {' and '.join(found)}" if found else None


def step_context() -> tuple[Any, list[Tensor]]:
    """Return the attention metadata of the forward under way, and the tensors [tokens] of slots that it writes to.

    Raises:
        EmblemaError: the forward has none, or several.
    """
    context = get_forward_context()
    if not isinstance(context.attn_metadata, dict) or not isinstance(context.slot_mapping, dict):
        raise EmblemaError("this forward's attention metadata are not those of one batch")
    slots = {tensor.data_ptr(): tensor for tensor in context.slot_mapping.values()}
    return next(iter(context.attn_metadata.values())), list(slots.values())


def change_metadata(changes: Callable[[Any], dict[str, Any] | None]) -> bool:
    """Have the attention metadata of the forward under way say something else; return whether they do.

    Args:
        changes: returns what of them is to be changed, by name; None where they are to stay as they are.
    """
    held = {id(each): each for each in get_forward_context().attn_metadata.values()}
    made = [(each, changes(each)) for each in held.values()]
    if any(told is None for _, told in made):
        return False
    for each, told in made:
        for name, value in (told or {}).items():
            setattr(each, name, value)
    return True


def rows_in_batch(metadata: Any, block_size: int) -> Callable[[Sequence[int], Rows], int]:
    """Return a function that finds a virtual request in the batch, by its pages and its rows of the prompt.

    It returns the first of the request's rows in the batch. The page of its last row is no other request's.

    Raises:
        EmblemaError: no such rows are in the batch, or the backend's metadata do not say.
    """
    try:
        offsets, ends = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
        table = metadata.block_table
    except AttributeError as error:
        raise EmblemaError(f"the attention backend does not say where a request's rows are: {error}") from error
    places: dict[Rows, list[int]] = {}
    for index, (first, last, end) in enumerate(zip(offsets, offsets[1:], ends, strict=False)):
        places.setdefault((end - (last - first), end), []).append(index)

    def place(blocks: Sequence[int], rows: Rows) -> int:
        page = (rows[1] - 1) // block_size
        for index in places.get(rows, ()):
            if int(table[index, page]) == blocks[page]:
                return int(offsets[index])
        raise EmblemaError(f"rows {rows[0]} to {rows[1]} of a prompt are not in the batch")

    return place


class PromptPositions:
    """Positions of prompts, as vLLM's model says; prompts that are packed get theirs later, and zeros here.

    Args:
        model: vLLM's.
    """

    def __init__(self, model: Any) -> None:
        self._stock = getattr(model, "get_mrope_input_positions", None)
        self._axes = 0
        self._packed: list[Sequence[int]] = []
        if self._stock is not None:
            model.get_mrope_input_positions = self._positions

    def of(self, tokens: Sequence[int], features: Sequence[Any]) -> Tensor:
        """Return the positions of a prompt [axes, rows] or [rows] int64."""
        if self._stock is None:
            return torch.arange(len(tokens))
        positions: Tensor = self._stock(tokens, list(features))[0]
        self._axes = len(positions)
        return positions

    def begin_step(self, packed: Sequence[Sequence[int]]) -> None:
        """Take the lists of tokens that are packed prompts of the next step."""
        self._packed = list(packed)

    def _positions(self, tokens: Sequence[int], features: Sequence[Any]) -> Any:
        if any(tokens is packed for packed in self._packed):
            return torch.zeros(self._axes, len(tokens), dtype=torch.int64), 0
        return self._stock(tokens, features)  # type: ignore[misc]


def layer_index(name: str) -> int:
    """Return the number of the decoder layer in a cache's name."""
    from vllm.model_executor.models.utils import extract_layer_index

    return int(extract_layer_index(name))


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
    if config.quant_config is not None:
        return "the weights are quantised; such a model has not been tried"
    media = config.model_config.multimodal_config
    if media is not None and media.video_pruning_rate:
        return "tokens of videos are left out (video_pruning_rate)"
    if not config.cache_config.enable_prefix_caching and (media is None or not media.mm_processor_cache_gb):
        return "pictures have no digest without prefix caching or a processor cache"
    return None
