"""The attention of runs of rows on a CPU: each run's own queries over its request's rows of the pool.

SGLang's torch-native backend gives a sequence a query for each of its rows, of which only those of its new ones are
used: for the runs of a linked prompt that is more than the whole prompt's attention costs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of a request in a batch.

    Attributes:
        request: its row of `req_to_token`.
        start: the first, as a row of the request.
        stop: the row after the last.
    """

    request: int
    start: int
    stop: int


class RunAttention:
    """Takes the place of the torch-native backend's function in extend steps of runs; other steps keep SGLang's own."""

    def __init__(self) -> None:
        self._of_runs = False

    @contextmanager
    def of_runs(self) -> Iterator[None]:
        """Attend each run with its own queries, in the forwards within."""
        self._of_runs = True
        try:
            yield
        finally:
            self._of_runs = False

    def attend(
        self,
        stock: Callable[..., Tensor],
        backend: Any,
        query: Tensor,
        output: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        req_to_token: Tensor,
        req_pool_indices: Tensor,
        seq_lens: Tensor,
        extend_prefix_lens: Tensor,
        extend_seq_lens: Tensor,
        encoder_lens: Tensor | None = None,
        **named: Any,
    ) -> Tensor:
        """Return what SGLang's function `stock` does; the arguments are its own.

        Attention over an encoder, without a causal mask or within a window is left to it.
        """
        window = named.get("sliding_window_size")
        causal = named.get("causal") and not named.get("is_cross_attn") and (window is None or window < 0)
        if not self._of_runs or query.device.type != "cpu" or encoder_lens is not None or not causal:
            return stock(
                backend, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens,
                extend_prefix_lens, extend_seq_lens, encoder_lens, **named,
            )  # fmt: skip
        bounds = (req_pool_indices.tolist(), extend_prefix_lens.tolist(), seq_lens.tolist())
        runs = [Run(*numbers) for numbers in zip(*bounds, strict=True)]
        return attend_runs(query, output, k_cache, v_cache, req_to_token, runs, named.get("scaling"))


def attend_runs(
    query: Tensor, output: Tensor, keys: Tensor, values: Tensor, table: Tensor, runs: list[Run], scale: float | None
) -> Tensor:
    """Work out the attention of runs, each row over those of its request up to itself.

    Args:
        query: [rows, heads, width] of all runs, in order.
        output: [rows, heads, width of a value], which is written and returned.
        keys: [slots, key heads, width] of a layer's pool.
        values: [slots, key heads, width of a value] of it.
        table: [requests, rows] the slots of each request's rows.
        runs: of each request one after another.
        scale: of scores; None for one over the root of the width.
    """
    first = 0
    for request, group in groupby(runs, key=lambda run: run.request):
        own = list(group)
        slots = table[request, : max(run.stop for run in own)]
        # [heads, rows, width], of the queries' type.
        held = [part[slots].transpose(0, 1).to(query.dtype) for part in (keys, values)]
        for run in own:
            last = first + run.stop - run.start
            output[first:last] = _attended(query[first:last], held[0][:, : run.stop], held[1][:, : run.stop], scale)
            first = last
    return output


def _attended(query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
    """Return [rows, heads, width] what the last rows attend of all up to themselves."""
    rows, seen = query.shape[0], keys.shape[1]
    # The last row alone sees all; a run from the first row on has the kernel's own causal mask.
    mask = None if rows in (1, seen) else torch.ones(rows, seen, dtype=torch.bool).tril(seen - rows)
    out = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=rows == seen, scale=scale,
        enable_gqa=query.shape[1] != keys.shape[0],
    )  # fmt: skip
    return out[0].transpose(0, 1)
