"""Methods of the papers against plain implementations of them that share no code with the executor."""

from collections.abc import Sequence

import pytest
import torch

from emblema.link.prompt import ChunkPart, Prompt
from emblema.link.strategies.registry import parse
from emblema.link.strategies.vlcache import VLCache
from emblema.session.requests import LinkRequest, Prefill
from emblema.store.store import Store
from tests.engine.engines import engine, largest_error, linker_on, pictures, prompt_of, text, two_pages
from tests.link.plain import PlainDecoder

models = pytest.mark.parametrize("name", ["llava", "deepseek_vl", "qwen2_5_vl"])
settings = pytest.mark.parametrize("setting", ["visible", "slid"])


def prompt_for(name: str, setting: str) -> Prompt:
    """Text and three pictures; slid: the first has gone from the window."""
    first, second, third = (ChunkPart(chunk) for chunk in pictures(name, 3, seed=3))
    if setting == "slid":
        first = ChunkPart(first.chunk, slid=True)
    return prompt_of(name, [text(5), first, text(3, 1), second, third, text(4, 2)])


def link(name: str, prompt: Prompt, strategy: str) -> Prefill:
    store = Store().tenant()
    for _, chunk in prompt.chunk_segments:
        store.put(chunk)
    outcome = linker_on(name, store).link(LinkRequest(prompt, strategy))
    assert outcome.usage.fallback is None
    return outcome


def decoder(name: str) -> PlainDecoder:
    return PlainDecoder(engine(name).adapter.model)


@models
@settings
@torch.inference_mode()
def test_the_plain_decoder_is_the_model(name: str, setting: str) -> None:
    """With every row chosen it is re-prefill, so that what it says of the methods counts."""
    prompt = prompt_for(name, setting)
    full = link(name, prompt, "full").linked.logits
    assert largest_error(decoder(name).mpic(prompt, 10_000), full) <= 1e-4


@models
@settings
@pytest.mark.parametrize("strategy", ["mpic-1", "mpic-3"])
@torch.inference_mode()
def test_mpic(name: str, setting: str, strategy: str) -> None:
    prompt = prompt_for(name, setting)
    plain = decoder(name).mpic(prompt, int(strategy.split("-")[1]))
    assert largest_error(link(name, prompt, strategy).linked.logits, plain) <= 1e-4


@models
@settings
@torch.inference_mode()
def test_full_reuse(name: str, setting: str) -> None:
    prompt = prompt_for(name, setting)
    plain = decoder(name).full_reuse(prompt)
    assert largest_error(link(name, prompt, "full-reuse").linked.logits, plain) <= 1e-4


@models
@settings
@pytest.mark.parametrize("strategy", ["cacheblend-10", "cacheblend-40"])
@torch.inference_mode()
def test_cacheblend(name: str, setting: str, strategy: str) -> None:
    prompt = prompt_for(name, setting)
    plain, chosen = decoder(name).cacheblend(prompt, float(strategy.removeprefix("cacheblend-")))
    linked = link(name, prompt, strategy).linked
    assert linked.trace.selected == (tuple(chosen),)
    assert largest_error(linked.logits, plain) <= 1e-4


@models
@settings
@pytest.mark.parametrize("strategy", ["vlcache-20", "vlcache-60", "vlcache-20-uniform", "epic-3", "sink"])
@torch.inference_mode()
def test_first_rows(name: str, setting: str, strategy: str) -> None:
    prompt = prompt_for(name, setting)
    method = parse(strategy)
    layers = len(engine(name).adapter.layouts)
    given = method.counts if isinstance(method, VLCache) else None
    first = 3 if strategy == "epic-3" else 4

    def counts(tokens: int) -> Sequence[int]:
        return (first,) * layers if given is None else given(tokens, layers)

    assert largest_error(link(name, prompt, strategy).linked.logits, decoder(name).falling(prompt, counts)) <= 1e-4


@models
@torch.inference_mode()
def test_the_methods_differ(name: str) -> None:
    """What the checks above tell apart: no two methods, and not the two forms of one, come to the same logits."""
    prompt = two_pages(name)
    names = ["full", "mpic-2", "full-reuse", "cacheblend-20", "blind"]
    logits = [link(name, prompt, one).linked.logits for one in names]
    for index, one in enumerate(logits):
        assert all(largest_error(one, other) > 1e-3 for other in logits[:index])
