"""Packed rows as the runs that they are, for vLLM's attention kernel for CPUs.

To the kernel a batch is requests, of each of which some rows follow one another. Runs of one prompt's rows are as many
requests on the same pages: each row attends what it has to, in the kernel's one call, and no pages are copied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from vllm import _custom_ops, envs
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

from emblema.errors import EmblemaError
from emblema.link.prompt import Rows


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
    """Return what a batch's metadata say once some of its requests are split; None for another kernel's metadata.

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
