"""Query states against the model's own attention weights, and the model left as it was."""

import threading

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.errors import PromptError
from emblema.kv.layout import LayerLayout
from emblema.kv.rotation import PhaseBook, rotate
from emblema.models.adapter import Adapter
from emblema.models.attention import NAME
from emblema.models.queries import key_states, queries
from emblema.models.token_inputs import token_inputs
from tests.families import CASES, loaded, words


def placed(states: Tensor, layout: LayerLayout, book: PhaseBook) -> Tensor:
    """Position-free states set at their positions: the rotated band is at the end of latent rows, else where it is."""
    band = layout.rotary
    if band is None:
        return states
    if layout.kind == "latent":
        rank = layout.keys[1]
        return torch.cat((states[..., :rank], rotate(states[..., rank:], band, book(band))), dim=-1)
    return rotate(states, band, book(band))


def own_weights(adapter: Adapter, ids: Tensor) -> list[Tensor]:
    """Each layer's attention weights [heads, tokens, tokens] as the model's eager attention hands them out."""
    positions = torch.arange(len(ids))
    config = adapter.config
    before = config._attn_implementation
    config._attn_implementation = "eager"
    try:
        with torch.inference_mode():
            output = adapter.decoder(
                inputs_embeds=adapter.embed(ids)[None],
                position_ids=positions[None] if adapter.axes == 1 else positions.expand(adapter.axes, 1, -1),
                output_attentions=True,
                use_cache=False,
                **token_inputs(adapter.decoder, ids[None]),
            )
    finally:
        config._attn_implementation = before
    return [weights[0].float() for weights in output.attentions]


@pytest.mark.parametrize("name", CASES)
def test_products_are_the_models_own_attention(name: str) -> None:
    model, _ = CASES[name].build(1)
    adapter = Adapter(model)
    ids = words(9, seed=3)
    found = queries(adapter, ids)
    attended = [index for index, layout in enumerate(adapter.layouts) if layout.kind in ("heads", "latent")]
    encoded = adapter.encode_text(ids)
    rows = adapter.capture(encoded)
    book = PhaseBook(adapter.tables, encoded.positions)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    expected = own_weights(adapter, ids)
    # The last layers may attend rows of others, and have none to be matched with.
    shared = len(adapter.layers) - len(adapter.layouts)
    assert len(expected) == len(attended) + shared and len(found) == len(adapter.layouts)
    for layer, own in zip(attended, expected[: len(attended)], strict=True):
        layout = adapter.layouts[layer]
        states, keys = found[layer], key_states(adapter, encoded, rows, layer)
        keys = keys.repeat_interleave(states.shape[0] // keys.shape[0], dim=0)
        logits = placed(states, layout, book) @ placed(keys, layout, book).transpose(1, 2)
        weights = logits.masked_fill(~causal, float("-inf")).softmax(-1)
        assert torch.allclose(weights, own, atol=2e-4), (layer, (weights - own).abs().max())


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3", "kimi_k25"])
def test_states_do_not_depend_on_where_the_text_stands(name: str) -> None:
    adapter = loaded(name).adapter
    # The first layer sees nothing but the token itself.
    first, second = (queries(adapter, ids)[0][:, -1] for ids in ([70], [90, 91, 92, 93, 94, 95, 70]))
    assert torch.allclose(first, second, atol=1e-5 * float(first.abs().max()))


def test_nothing_is_left_on_the_model() -> None:
    adapter = loaded("qwen2_5_vl").adapter
    ids = words(6)
    before = (adapter.config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS) - {NAME}, adapter.fingerprint)
    _, hidden = adapter.prefill(adapter.encode_text(ids))
    queries(adapter, ids)
    assert (adapter.config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS) - {NAME}, adapter.fingerprint) == before
    assert torch.equal(adapter.prefill(adapter.encode_text(ids))[1], hidden)


def test_nothing_is_left_when_the_forward_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Adapter(CASES["llava"].build(2)[0])
    before = (adapter.config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS) - {NAME})

    def fail(*_: object, **__: object) -> Tensor:
        assert adapter.config._attn_implementation != before[0]
        raise MemoryError

    monkeypatch.setattr(adapter, "forward", fail)
    with pytest.raises(MemoryError):
        queries(adapter, [70, 71])
    assert (adapter.config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS) - {NAME}) == before


def test_two_models_in_two_threads() -> None:
    adapters = [loaded("llava").adapter, loaded("qwen3_vl").adapter]
    ids = words(12)
    alone = [queries(adapter, ids) for adapter in adapters]
    wrong: list[object] = []

    def ask(index: int) -> None:
        for _ in range(20):
            found = queries(adapters[index], ids)
            if not all(map(torch.equal, found, alone[index])):
                wrong.append(index)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("name", ["kimi_k25"])
def test_latent_queries_need_a_plain_weight(name: str) -> None:
    model, _ = CASES[name].build(4)
    adapter = Adapter(model)
    attention = adapter.layers[1].self_attn
    plain = attention.kv_b_proj

    class Packed(torch.nn.Module):
        """A projection without a weight of its own, as quantisation makes them."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = plain

        def forward(self, hidden: Tensor) -> Tensor:
            return self.inner(hidden)

    attention.kv_b_proj = Packed()
    ids = words(4)
    encoded = adapter.encode_text(ids)
    found = [
        torch.equal(states, key_states(adapter, encoded, adapter.capture(encoded), layer))
        for layer, states in enumerate(queries(adapter, ids))
    ]
    assert found == [False, True, False], "the text's own keys stand in"


def test_an_empty_query_and_strange_tokens_are_refused() -> None:
    adapter = loaded("llava").adapter
    with pytest.raises(PromptError, match="empty"):
        queries(adapter, [])
    with pytest.raises(PromptError, match="vocabulary"):
        queries(adapter, [10**6])


@pytest.mark.slow
def test_a_model_that_another_thread_notes_is_not_disturbed() -> None:
    """Blocks of threads may end in any order: each thread is told its own queries, and nothing is left."""
    adapter = loaded("llava").adapter
    before = adapter.config._attn_implementation
    prompts = [words(12), words(9, seed=2)]
    alone = [queries(adapter, ids) for ids in prompts]
    plain = adapter.prefill(adapter.encode_text(prompts[0]))[1]
    wrong: list[object] = []

    def ask(index: int) -> None:
        for _ in range(60):
            found = queries(adapter, prompts[index])
            if not all(map(torch.equal, found, alone[index])):
                wrong.append(index)
            if not torch.equal(adapter.prefill(adapter.encode_text(prompts[0]))[1], plain):
                wrong.append("plain")

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and adapter.config._attn_implementation == before
