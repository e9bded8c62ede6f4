"""Methods that only comparisons need, against plain implementations of them and against what defines them."""

import pytest
import torch

from benchmarks.fidelity.ablations import ABLATIONS, Basis, DeepReprefill, pooled_directions, share_of_layers
from benchmarks.fidelity.linking import Linking
from emblema.errors import StrategyError
from emblema.kv.patch import form_patch
from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table, deficits_of
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.registry import parse
from tests.engine.engines import engine, largest_error, two_pages
from tests.link.plain import PlainDecoder
from tests.link.test_strategies_plain import prompt_for

models = pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
settings = pytest.mark.parametrize("setting", ["visible", "slid"])


def logits(name: str, prompt: Prompt, strategy: str | Strategy) -> torch.Tensor:
    wanted = parse(strategy, ABLATIONS) if isinstance(strategy, str) else strategy
    return Linking(Executor(engine(name).adapter), [prompt], {}).logits([wanted])[0]


@models
@settings
@torch.inference_mode()
def test_methods_are_what_their_papers_say(name: str, setting: str) -> None:
    prompt, plain = prompt_for(name, setting), PlainDecoder(engine(name).adapter.model)
    expected = {
        "lowrank-k-3": plain.lowrank_keys(prompt, 3),
        "reprefill-deep-30": plain.reprefill_deep(prompt, 2),
        "reprefill-deep-60": plain.reprefill_deep(prompt, 1),
        "cacheblend2-10": plain.cacheblend(prompt, 10, two_steps=True)[0],
        "cacheblend2-40": plain.cacheblend(prompt, 40, two_steps=True)[0],
    }
    for strategy, wanted in expected.items():
        assert largest_error(logits(name, prompt, strategy), wanted) <= 1e-4, strategy


@pytest.mark.parametrize("name", ["llava", "gemma3", "kimi_k25", "qwen3_vl"])
def test_the_limits_are_re_prefill_and_blind_reuse(name: str) -> None:
    prompt = two_pages(name)
    exact, blind = (logits(name, prompt, parse(strategy)) for strategy in ("full", "blind"))
    for strategy, limit in (
        ("reprefill-deep-100", exact),
        ("reprefill-shallow-100", exact),
        ("lowrank-k-60000", blind),
    ):
        assert largest_error(logits(name, prompt, strategy), limit) <= 1e-4, strategy
    assert largest_error(blind, exact) > 1e-2


def test_a_basis_of_the_items_own_deficits_is_re_prefill_and_one_of_others_is_not() -> None:
    prompt, executor = two_pages("llava"), Executor(engine("llava").adapter)
    adapter = executor.adapter
    table, layers = conditioned_table(executor, prompt), range(len(adapter.layouts))
    deficits = [
        deficits_of(adapter, table, prompt, segment, chunk.rows, layers) for segment, chunk in prompt.chunk_segments
    ]
    pool = pooled_directions([form_patch(each, 60_000, torch.float32) for each in deficits])
    for keys, values in pool:
        for directions in (keys, values):
            assert torch.allclose(directions @ directions.T, torch.eye(len(directions)), atol=1e-4)

    def under(rank: int) -> torch.Tensor:
        return Linking(executor, [prompt], {}, pool).logits([Basis(rank)])[0]

    exact = logits("llava", prompt, parse("full"))
    assert largest_error(under(60_000), exact) <= 1e-4 < largest_error(under(1), exact)
    with pytest.raises(StrategyError, match="other items"):
        logits("llava", prompt, "basis-4")


def test_a_share_of_layers_is_the_nearest_whole_number_and_names_are_kept() -> None:
    assert [share_of_layers(percent, 8) for percent in (0.1, 50, 56, 57, 100)] == [1, 4, 4, 5, 8]
    for name in ("basis-16", "lowrank-k-64", "reprefill-deep-75", "reprefill-shallow-12.5", "cacheblend2-15"):
        assert parse(name, ABLATIONS).name == name
    for name in ("basis-0", "lowrank-k-70000", "reprefill-deep-100.1", "cacheblend2-0"):
        with pytest.raises(StrategyError, match="must be"):
            parse(name, ABLATIONS)


def test_a_chunk_that_stands_twice_is_refused() -> None:
    prompt = two_pages("llava")
    parts = [segment.part for segment in (*prompt.segments, *prompt.segments)]
    with pytest.raises(StrategyError, match="twice"):
        logits("llava", Prompt.of(parts, prompt.axes), DeepReprefill(50))
