"""However a batch is cut into runs, each row keeps its position and slot, and each request its last run."""

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.prompt import Rows
from emblema.sglang.batch_rewriter import may_rewrite, rewrite_batch, share_runs


def batch_of(bounds: list[Rows]) -> Any:
    """An extend step of requests whose rows of the step have these bounds; all numbers tell what they belong to."""
    starts, lengths = [start for start, _ in bounds], [stop - start for start, stop in bounds]
    rows = torch.cat([torch.arange(start, stop) + 1000 * index for index, (start, stop) in enumerate(bounds)])
    whole = torch.tensor([stop for _, stop in bounds])
    none = ("out_cache_loc_virtual", "mm_token_modalities", "req_pool_indices_cpu", "global_num_token_non_padded",
            "top_logprobs_nums", "token_ids_logprobs", "mm_inputs", "lora_ids")  # fmt: skip
    return SimpleNamespace(
        **dict.fromkeys(none),
        batch_size=len(bounds),
        input_ids=rows,
        positions=rows + 10,
        out_cache_loc=rows + 20,
        mrope_positions=torch.stack([rows, rows + 1, rows + 2]),
        req_pool_indices=torch.arange(len(bounds)) + 5,
        seq_lens=whole,
        seq_lens_cpu=whole,
        orig_seq_lens=whole.to(torch.int32),
        extend_seq_lens=torch.tensor(lengths, dtype=torch.int32),
        extend_prefix_lens=torch.tensor(starts, dtype=torch.int32),
        extend_start_loc=torch.zeros(len(bounds), dtype=torch.int32),
        extend_seq_lens_cpu=lengths,
        extend_prefix_lens_cpu=starts,
        extend_logprob_start_lens_cpu=list(lengths),
        rids=[f"request {index}" for index in range(len(bounds))],
        return_logprob=True,
        capture_hidden_mode=None,
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Rows], list[tuple[Rows, ...]]]:
    bounds, runs = [], []
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, 9))
        stop = start + draw(st.integers(1, 12))
        inner = draw(st.lists(st.integers(start, stop - 1), unique=True, max_size=6).map(sorted))
        cuts = [*inner, stop] if len(inner) % 2 else [*inner, stop - 1, stop]
        pairs = [(first, last) for first, last in zip(cuts[::2], cuts[1::2], strict=True) if first < last]
        bounds.append((start, stop))
        runs.append(tuple(pairs) if pairs and pairs[-1][1] == stop else ((stop - 1, stop),))
    return bounds, runs


@given(steps())
def test_rows_keep_what_is_theirs(step: tuple[list[Rows], list[tuple[Rows, ...]]]) -> None:
    bounds, runs = step
    batch = batch_of(bounds)
    made = rewrite_batch(batch, runs)
    flat = [(index, run) for index, own in enumerate(runs) for run in own]
    rows = torch.cat([torch.arange(*run) + 1000 * index for index, run in flat])
    new = made.batch
    assert torch.equal(new.input_ids, rows) and torch.equal(new.positions, rows + 10)
    assert torch.equal(new.out_cache_loc, rows + 20) and torch.equal(new.mrope_positions[2], rows + 2)
    assert new.req_pool_indices.tolist() == [index + 5 for index, _ in flat]
    assert new.seq_lens.tolist() == [stop for _, (_, stop) in flat] and new.seq_lens_sum == sum(new.seq_lens.tolist())
    lengths = [stop - start for _, (start, stop) in flat]
    assert new.extend_seq_lens.tolist() == new.extend_seq_lens_cpu == lengths == new.extend_logprob_start_lens_cpu
    assert new.extend_start_loc.tolist() == [sum(lengths[:place]) for place in range(len(lengths))]
    assert new.batch_size == len(flat) and new.extend_num_tokens == len(rows)
    assert [new.rids[place] for place in made.last.tolist()] == batch.rids
    logits = SimpleNamespace(next_token_logits=torch.arange(len(flat))[:, None], hidden_states=None)
    made.restore(SimpleNamespace(logits_output=logits))
    assert [flat[place][1][1] for place in logits.next_token_logits[:, 0].tolist()] == [stop for _, stop in bounds]
    # The step itself is left as it was.
    assert batch.batch_size == len(bounds) and len(batch.input_ids) == sum(stop - start for start, stop in bounds)


@given(steps(), st.integers(0, 6))
def test_no_forward_has_more_sequences_than_places(step: tuple[list[Rows], list[tuple[Rows, ...]]], more: int) -> None:
    bounds, runs = step
    places = len(runs) + more
    parts = share_runs(runs, places)
    assert all(0 < sum(map(len, part)) <= places for part in parts)
    for index, own in enumerate(runs):
        # Each run once and in order, the last in the last forward.
        assert tuple(run for part in parts for run in part[index]) == own and parts[-1][index][-1] == own[-1]
    assert len(parts) == 1 or sum(map(len, parts[-1])) == places
    rows = [rewrite_batch(batch_of(bounds), part, part is parts[-1]).batch.input_ids for part in parts]
    whole = rewrite_batch(batch_of(bounds), runs).batch.input_ids
    assert torch.equal(torch.cat(rows).sort().values, whole.sort().values)


def test_a_batch_that_needs_logits_of_its_prompts_is_left() -> None:
    batch = batch_of([(0, 4), (2, 5)])
    assert may_rewrite(batch)
    batch.extend_logprob_start_lens_cpu = [4, 1]
    assert not may_rewrite(batch)
    batch.return_logprob = False
    assert may_rewrite(batch)
    batch.capture_hidden_mode = SimpleNamespace(is_full=lambda: True)
    assert not may_rewrite(batch)
