"""One owner: the model is left as found, and engines that share it do not disturb each other."""

import random
import threading

import pytest
import torch
from torch import nn

from emblema.engine.engine import Engine
from emblema.link.strategies.registry import parse
from tests.engine.engines import engine
from tests.families import CASES, loaded, picture, words

STRATEGIES = ("full", "prefix", "blind", "patch-4", "patch-25%", "patch-4-deep", "auto")


def tree(model: nn.Module) -> dict[str, object]:
    """All that a request could change: modules, their attributes, parameters and buffers with their contents."""
    found: dict[str, object] = {}
    for name, module in model.named_modules():
        found[name] = type(module)
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers"):
                found[f"{name}.{key}"] = {k: None if v is None else (id(v), v._version) for k, v in value.items()}
            elif isinstance(value, dict):
                found[f"{name}.{key}"] = tuple(value)
            else:
                found[f"{name}.{key}"] = value if isinstance(value, int | float | str | None) else id(value)
    return found


def sums(model: nn.Module) -> dict[str, float]:
    return {name: float(tensor.double().abs().sum()) for name, tensor in model.state_dict().items()}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("qwen2_5_vl", 200),
        *(pytest.param(name, 200, marks=pytest.mark.nightly) for name in ("qwen3_vl", "gemma3", "kimi_k25")),
        pytest.param("qwen2_5_vl", 1000, marks=pytest.mark.nightly),
    ],
)
def test_hundreds_of_mixed_requests_leave_the_model_as_it_was(name: str, requests: int) -> None:
    item = loaded(name)
    own = Engine(item.model, item.bundle)
    before, weights = tree(item.model), sums(item.model)
    rng = random.Random(0)
    chunks = [own.add(picture(*item.case.sizes[index % 2], seed=index)) for index in range(4)]
    for request in range(requests):
        if request % 100 == 0:
            own.add(picture(*item.case.sizes[0], seed=100 + request))
        parts = [words(rng.randint(1, 4), rng.randrange(9)).tolist()]
        parts += rng.sample(chunks, rng.randint(0, 3))
        parts += [words(3, rng.randrange(9)).tolist()]
        own.prefill(parts, rng.choice(STRATEGIES), template=False)
    assert tree(item.model) == before
    assert sums(item.model) == weights


@pytest.mark.slow
def test_two_engines_on_one_model_from_two_threads() -> None:
    item = loaded("qwen2_5_vl")
    engines = [Engine(item.model, item.bundle, salt=salt) for salt in (b"one", b"two")]
    prompts = []
    for index, own in enumerate(engines):
        chunks = [own.add(picture(*item.case.sizes[n % 2], seed=10 * index + n)) for n in range(3)]
        prompts.append([words(4 + index, index).tolist(), *chunks, words(3, index).tolist()])
    alone = [
        [own.prefill(prompt, name, template=False).logits for name in STRATEGIES]
        for own, prompt in zip(engines, prompts, strict=True)
    ]
    wrong: list[str] = []

    def work(index: int) -> None:
        for turn in range(60):
            place = turn % len(STRATEGIES)
            logits = engines[index].prefill(prompts[index], STRATEGIES[place], template=False).logits
            if not torch.allclose(logits, alone[index][place], atol=1e-5):
                wrong.append(f"engine {index}, {STRATEGIES[place]}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", [name for name in CASES if name != "kimi_k25_yarn"])
def test_decoding_goes_on_as_the_stock_generate(name: str) -> None:
    """Greedy tokens after `full` are those of the model's own generate."""
    from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
    from tests.families import joint

    item = loaded(name)
    stock_prompt, _, images, _ = joint(item)
    ids = stock_prompt.token_ids
    arguments = {"attention_mask": torch.ones_like(ids)[None]}
    arguments |= item.case.stock(item.bundle, item.model.config, images, ids)
    with torch.inference_mode():
        stock = item.model.generate(
            input_ids=ids[None], **arguments,
            max_new_tokens=10, min_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0,
        )[0, len(ids) :].tolist()  # fmt: skip
    chunks = [engine(name).add(image) for image in images]
    first, second = stock_prompt.starts[1], stock_prompt.starts[3]
    parts = [ids[:first].tolist(), chunks[0], ids[first + chunks[0].tokens : second].tolist(), chunks[1]]
    parts.append(ids[second + chunks[1].tokens :].tolist())
    prefill = engine(name).prefill(parts, parse("full"), template=False)
    tokens = decode(
        engine(name).adapter,
        DecodeStart.after(prefill.prompt, prefill.linked),
        Sampler(Sampling(max_new_tokens=10)),
        (),
    )
    assert list(tokens) == stock
