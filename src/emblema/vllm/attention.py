"""vLLM's attention and its model's forward, as the plugin reads and changes them: pages, metadata, hooks, positions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops, envs
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

from emblema.errors import EmblemaError
from emblema.link.prompt import Rows
from emblema.vllm.internals import page_kind, vllm_feature
from emblema.vllm.pages import LayerPages, PageCodes
from emblema.vllm.step_metadata import SidePrompt


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


def layer_index(name: str) -> int:
    """Return the number of the decoder layer in a cache's name."""
    from vllm.model_executor.models.utils import extract_layer_index

    return int(extract_layer_index(name))


def add_to_attention(layer: Any, add: Callable[[Any, Any, int, float], None]) -> None:
    """Have a function write into the output of each forward of an attention layer.

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

    def of(self, prompt: SidePrompt) -> Tensor:
        """Return the positions of a prompt [axes, rows] or [rows] int64."""
        if self._stock is None:
            return torch.arange(len(prompt.token_ids))
        positions: Tensor = self._stock(prompt.token_ids, [vllm_feature(each) for each in prompt.features])[0]
        self._axes = len(positions)
        return positions

    def begin_step(self, packed: Sequence[Sequence[int]]) -> None:
        """Take the lists of tokens that are packed prompts of the next step."""
        self._packed = list(packed)

    def _positions(self, tokens: Sequence[int], features: Sequence[Any]) -> Any:
        if any(tokens is packed for packed in self._packed):
            return torch.zeros(self._axes, len(tokens), dtype=torch.int64), 0
        return self._stock(tokens, features)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class PromptRuns:
    """Rows of one prompt in a batch.

    Attributes:
        blocks: the prompt's pages in order.
        runs: of its rows, in order.
    """

    blocks: Sequence[int]
    runs: Sequence[Rows]


def in_runs(metadata: Any, layer: Any, prompts: Mapping[int, PromptRuns]) -> dict[str, Any] | None:
    """Return what a batch's metadata say once some of its requests are split; None for another kernel than vLLM's own
    for CPUs.

    To the kernel a batch is requests, of each of which some rows follow one another. Runs of one prompt's rows are as
    many requests on the same pages: each row attends what it has to, in one call, and no pages are copied.

    Args:
        metadata: of the batch.
        layer: any attention layer of the model.
        prompts: what the requests stand for, by their first rows in the batch.

    Raises:
        EmblemaError: the batch has such a request with other pages, or lacks it.
    """
    if not isinstance(metadata, CPUAttentionMetadata):
        return None
    offsets, ends, table = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist(), metadata.block_table
    counts: list[int] = []
    seen: list[int] = []
    owners: list[int] = []
    split = 0
    for index, (first, last, end) in enumerate(zip(offsets, offsets[1:], ends, strict=False)):
        prompt = prompts.get(first) if last > first else None
        runs: Sequence[Rows] = ((end - (last - first), end),)
        if prompt is not None:
            runs, split = prompt.runs, split + 1
            pages = list(prompt.blocks)
            if table[index, : len(pages)].tolist() != pages:
                raise EmblemaError("a packed prompt's pages are not all in the batch")
        for start, stop in runs:
            counts.append(stop - start)
            seen.append(stop)
            owners.append(index)
    starts = list(accumulate(counts, initial=0))
    if split < len(prompts) or starts[-1] != offsets[-1]:
        raise EmblemaError("packed rows are not those of the batch")
    lengths = torch.tensor(seen, dtype=metadata.seq_lens.dtype)
    bounds = torch.tensor(starts, dtype=metadata.query_start_loc.dtype)
    impl = layer.impl
    return {
        "query_start_loc": bounds,
        "seq_lens": lengths,
        "block_table": table[owners],
        "max_query_len": max(counts),
        "max_seq_len": max(seen),
        "scheduler_metadata": _custom_ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(seen),
            num_heads=impl.num_heads,
            num_kv_heads=impl.num_kv_heads,
            head_dim=impl.head_size,
            seq_lens=lengths,
            dtype=layer.kv_cache.dtype,
            query_start_loc=bounds,
            causal=metadata.causal,
            sliding_window_size=-1,
            isa=layer.isa,
            enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
            kv_cache_dtype=impl.kv_cache_dtype,
        ),
    }
