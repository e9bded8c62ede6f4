"""Attention of runs: what SGLang's own function works out for the same batch, with the runs' own queries alone."""

import importlib.util
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emblema.sglang import run_attention
from emblema.sglang.run_attention import Run, RunAttention, attend_runs

HEADS, WIDTH, SLOTS, ROWS = 4, 16, 256, 96


def pool(key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values, and the slots of three requests' rows."""
    generator = torch.Generator().manual_seed(key_heads)
    shape = (SLOTS, key_heads, WIDTH)
    slots = torch.stack([torch.randperm(SLOTS, generator=generator)[:ROWS] for _ in range(3)])
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator), slots.to(torch.int32)


def queries_of(runs: list[Run]) -> Tensor:
    generator = torch.Generator().manual_seed(len(runs))
    return torch.randn(sum(run.stop - run.start for run in runs), HEADS, WIDTH, generator=generator)


def by_row(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, runs: list[Run]) -> Tensor:
    """The same, one row at a time, in float64."""
    wide = HEADS // keys.shape[1]
    places = [(run.request, row) for run in runs for row in range(run.start, run.stop)]
    made = []
    for own, (request, row) in zip(query.double(), places, strict=True):
        slots = table[request, : row + 1]
        seen, said = (part[slots].double().repeat_interleave(wide, 1) for part in (keys, values))
        scores = torch.einsum("hw,shw->hs", own, seen) * 0.2
        made.append(torch.einsum("hs,shw->hw", scores.softmax(-1), said))
    return torch.stack(made)


@st.composite
def batches(draw: st.DrawFn) -> list[Run]:
    """Runs of one to three requests."""
    runs: list[Run] = []
    for request in draw(st.lists(st.integers(0, 2), unique=True, min_size=1, max_size=3)):
        cuts = sorted(draw(st.lists(st.integers(0, ROWS), unique=True, min_size=2, max_size=8)))
        pairs = zip(cuts[::2], cuts[1::2], strict=False)
        runs += [Run(request, start, stop) for start, stop in pairs]
    return runs


@settings(deadline=None, max_examples=15)
@given(batches(), st.sampled_from([1, 2, 4]))
def test_each_row_attends_its_request_up_to_itself(runs: list[Run], key_heads: int) -> None:
    keys, values, table = pool(key_heads)
    query = queries_of(runs)
    made = attend_runs(query, torch.empty_like(query), keys, values, table, runs, 0.2)
    torch.testing.assert_close(made.double(), by_row(query, keys, values, table, runs), atol=2e-6, rtol=0)


def arguments(runs: list[Run], key_heads: int, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What SGLang's function is given for runs."""
    keys, values, table = pool(key_heads)
    query = queries_of(runs)
    starts, stops = torch.tensor([run.start for run in runs]), torch.tensor([run.stop for run in runs])
    owners = torch.tensor([run.request for run in runs])
    given = (query, torch.empty_like(query), keys, values, table, owners, stops, starts, stops - starts, None)
    gqa = key_heads != HEADS
    usual = {"scaling": 0.2, "enable_gqa": gqa, "causal": True, "is_cross_attn": False, "sliding_window_size": None}
    return given, usual | named


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed")
@settings(deadline=None, max_examples=15)
@given(batches(), st.sampled_from([1, 2, 4]))
def test_it_is_sglang_s_own_for_the_same_batch(runs: list[Run], key_heads: int) -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    stock, backend = TorchNativeAttnBackend._run_sdpa_forward_extend, object.__new__(TorchNativeAttnBackend)
    given, named = arguments(runs, key_heads)
    wanted = stock(backend, *given, **named).clone()
    attention = RunAttention()
    with attention.of_runs():
        made = attention.attend(stock, backend, *given, **named)
    torch.testing.assert_close(made, wanted, atol=2e-6, rtol=0)


def test_only_the_runs_queries_are_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int]] = []
    kernel = run_attention.scaled_dot_product_attention

    def counted(query: Tensor, keys: Tensor, *given: Any, **named: Any) -> Tensor:
        shapes.append((query.shape[2], keys.shape[2]))
        return kernel(query, keys, *given, **named)

    monkeypatch.setattr(run_attention, "scaled_dot_product_attention", counted)
    runs = [Run(0, 0, 3), Run(0, 40, 44), Run(2, 10, 11), Run(2, 95, 96)]
    keys, values, table = pool(2)
    query = queries_of(runs)
    attend_runs(query, torch.empty_like(query), keys, values, table, runs, None)
    assert shapes == [(3, 3), (4, 44), (1, 11), (1, 96)]


@pytest.mark.parametrize(
    "other", [{}, {"causal": False}, {"is_cross_attn": True}, {"sliding_window_size": 8}], ids=lambda other: str(other)
)
def test_what_is_not_of_runs_keeps_sglang_s_own(other: dict[str, Any]) -> None:
    seen: list[Any] = []
    stocks = torch.ones(1)

    def stock(*given: Any, **named: Any) -> Tensor:
        seen.append((len(given), given[0], named))
        return stocks

    given, named = arguments([Run(0, 4, 9)], 2, **other)
    attention = RunAttention()
    with attention.of_runs() if other else nullcontext():
        assert attention.attend(stock, "backend", *given, **named) is stocks
    assert seen == [(11, "backend", named)]


def test_a_forward_that_fails_ends_the_runs() -> None:
    attention, stocks = RunAttention(), torch.ones(1)
    with pytest.raises(ValueError, match="failed"), attention.of_runs():
        raise ValueError("failed")
    given, named = arguments([Run(0, 4, 9)], 2)
    assert attention.attend(lambda *_, **__: stocks, "backend", *given, **named) is stocks
