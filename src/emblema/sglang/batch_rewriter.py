"""A batch of which some rows are computed: each run of them is a sequence of its own over its request's slots.

Each layer writes the whole batch's keys and values before its attention reads slots, so that what a run attends is
there whether it was taken, computed before or is computed beside it.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emblema.link.prompt import Rows
from emblema.served.captures import ChunkCapture


@dataclass(frozen=True, slots=True)
class RewrittenBatch:
    """Another `ForwardBatch` in a batch's place.

    Attributes:
        batch: it.
        last: [requests] the sequence with each request's last run, of those that have one here.
    """

    batch: Any
    last: Tensor

    def restore(self, output: Any) -> None:
        """Keep of the logits and states of all sequences those of the requests."""
        logits = output.logits_output
        logits.next_token_logits = logits.next_token_logits[self.last]
        if logits.hidden_states is not None:
            logits.hidden_states = logits.hidden_states[self.last]


def may_rewrite(batch: Any) -> bool:
    """Return whether requests of a batch need no more of the forward than their last rows' logits."""
    if batch.capture_hidden_mode is not None and batch.capture_hidden_mode.is_full():
        return False
    lengths = zip(batch.extend_logprob_start_lens_cpu or (), batch.extend_seq_lens_cpu, strict=False)
    return not batch.return_logprob or all(start >= length for start, length in lengths)


def share_runs(runs: Sequence[tuple[Rows, ...]], places: int) -> list[list[tuple[Rows, ...]]]:
    """Return runs shared out over forwards, one after another, so that none has more sequences than SGLang has places.

    A run attends what earlier ones of its request left in the pool, in whichever forward that was.

    Args:
        runs: for each request the rows to compute, in order; no more requests than places.
        places: sequences of a forward.

    Returns:
        for each forward the runs of each request. The last has every request's last run.
    """
    earlier = [(index, run) for index, own in enumerate(runs) for run in own[:-1]]
    before = max(0, len(earlier) - (places - len(runs)))
    parts = [earlier[start : min(start + places, before)] for start in range(0, before, places)]
    parts.append([*earlier[before:], *((index, own[-1]) for index, own in enumerate(runs))])
    return [[tuple(run for owner, run in part if owner == index) for index in range(len(runs))] for part in parts]


def rewrite_batch(batch: Any, runs: Sequence[tuple[Rows, ...]], ends: bool = True) -> RewrittenBatch:
    """Return a batch with some of its rows.

    Args:
        batch: SGLang's `ForwardBatch` of an extend step.
        runs: for each request the rows to compute, in order, as rows of its sequence; none if it has none here.
        ends: whether the last run of each is its last one, whose logits are wanted.
    """
    kept: list[Tensor] = []
    parents: list[int] = []
    starts: list[int] = []
    stops: list[int] = []
    last: list[int] = []
    offset = 0
    for index, own in enumerate(runs):
        first = offset - int(batch.extend_prefix_lens_cpu[index])
        for start, stop in own:
            kept.append(torch.arange(first + start, first + stop))
            parents.append(index)
            starts.append(start)
            stops.append(stop)
        if own:
            last.append(len(parents) - 1)
        offset += int(batch.extend_seq_lens_cpu[index])
    device = batch.input_ids.device
    rows, owners = torch.cat(kept).to(device), torch.tensor(parents, device=device)
    lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
    final = set(last) if ends else set()

    def like(numbers: list[int], given: Tensor) -> Tensor:
        return torch.tensor(numbers, dtype=given.dtype, device=given.device)

    def of_last(given: Sequence[Any] | None, other: Any) -> list[Any] | None:
        if given is None:
            return None
        return [given[parent] if place in final else other for place, parent in enumerate(parents)]

    made = copy.copy(batch)
    made.batch_size = len(parents)
    for name in ("input_ids", "positions", "out_cache_loc", "out_cache_loc_virtual", "mm_token_modalities"):
        whole = getattr(batch, name)
        setattr(made, name, None if whole is None else whole[rows])
    if batch.mrope_positions is not None:
        made.mrope_positions = batch.mrope_positions[:, rows]
    made.req_pool_indices = batch.req_pool_indices[owners]
    if batch.req_pool_indices_cpu is not None:
        made.req_pool_indices_cpu = batch.req_pool_indices_cpu[owners.cpu()]
    made.seq_lens = like(stops, batch.seq_lens)
    if batch.seq_lens_cpu is not None:
        made.seq_lens_cpu = like(stops, batch.seq_lens_cpu)
    if batch.orig_seq_lens is not None:
        made.orig_seq_lens = like(stops, batch.orig_seq_lens)
    made.seq_lens_sum = sum(stops)
    made.extend_num_tokens = sum(lengths)
    made.extend_seq_lens = like(lengths, batch.extend_seq_lens)
    made.extend_prefix_lens = like(starts, batch.extend_prefix_lens)
    made.extend_start_loc = like([sum(lengths[:place]) for place in range(len(lengths))], batch.extend_start_loc)
    made.extend_seq_lens_cpu, made.extend_prefix_lens_cpu = lengths, starts
    made.extend_logprob_start_lens_cpu = list(lengths)
    made.global_num_token_non_padded_cpu = sum(lengths)
    if batch.global_num_token_non_padded is not None:
        made.global_num_token_non_padded = torch.full_like(batch.global_num_token_non_padded, sum(lengths))
    made.top_logprobs_nums = of_last(batch.top_logprobs_nums, 0)
    made.token_ids_logprobs = of_last(batch.token_ids_logprobs, None)
    for name in ("mm_inputs", "rids", "lora_ids"):
        each = getattr(batch, name)
        setattr(made, name, None if each is None else [each[parent] for parent in parents])
    return RewrittenBatch(made, torch.tensor(last, device=device))


def solo_batch(wanted: ChunkCapture, row: int, slots: Tensor) -> Any:
    """Return a `ForwardBatch` that prefills a chunk alone, after the anchor.

    Args:
        wanted: the chunk.
        row: of `req_to_token`, which names the slots.
        slots: [tokens] int64, where the rows go.
    """
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

    device, tokens, media = slots.device, wanted.tokens, wanted.feature
    (item,) = media.mm_items
    ((start, last),) = item.offsets
    ids = torch.tensor(wanted.token_ids)
    ids[start : last + 1] = torch.tensor(item.padding_sequence(last + 1 - start), dtype=ids.dtype)
    places = wanted.positions.to(device)

    def whole(number: int, dtype: torch.dtype, place: torch.device = device) -> Tensor:
        return torch.tensor([number], dtype=dtype, device=place)

    return ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=1,
        input_ids=ids.to(device),
        req_pool_indices=whole(row, torch.int64),
        seq_lens=whole(tokens, torch.int64),
        out_cache_loc=slots,
        seq_lens_sum=tokens,
        orig_seq_lens=whole(tokens, torch.int32),
        seq_lens_cpu=whole(tokens, torch.int64, torch.device("cpu")),
        top_logprobs_nums=[0],
        token_ids_logprobs=[None],
        mm_inputs=[media],
        lora_ids=[None],
        rids=[f"emblema-{wanted.chunk.id[:16]}"],
        capture_hidden_mode=CaptureHiddenMode.NULL,
        positions=torch.arange(tokens, device=device),
        mrope_positions=places if len(places) == 3 else None,
        extend_num_tokens=tokens,
        extend_seq_lens=whole(tokens, torch.int32),
        extend_prefix_lens=whole(0, torch.int32),
        extend_start_loc=whole(0, torch.int32),
        extend_prefix_lens_cpu=[0],
        extend_seq_lens_cpu=[tokens],
        extend_logprob_start_lens_cpu=[tokens],
        global_num_token_non_padded_cpu=tokens,
    )
