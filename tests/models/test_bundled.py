"""The bundled models: what their folders hold, what KV each has, and that the engine runs them as stock does."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers.cache_utils import Cache

from benchmarks.models import NAMES, model_folder, model_source
from benchmarks.tasks import generate
from benchmarks.tasks.episodes import EPISODE_PLANS
from benchmarks.tasks.streams import STREAM_KINDS
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk
from emblema.models.load import load_model
from emblema.models.names import BUNDLED, bundled_folder
from tests.families import typed
from training.streams.measure import measured

FAMILIES = {"reference": "Qwen2.5-VL", "reference-deepstack": "Qwen3-VL"}
FAMILIES |= {"reference-mla": "Kimi K2.5", "reference-stream": "Qwen2.5-VL", "reference-hybrid": "Qwen3.5"}
STREAM = "reference-stream"
LIMIT = 5 * 10**6

STATES = pytest.mark.skipif(not hasattr(Cache, "get_recurrent_state"), reason="states need transformers 5.23")
HYBRID = pytest.param("reference-hybrid", marks=STATES)

bundled = pytest.mark.parametrize("name", [HYBRID if name == "reference-hybrid" else name for name in NAMES])


@cache
def engine(name: str) -> Engine:
    return Engine.load(model_source(name))


def pages(name: str) -> list[Chunk]:
    """A legend, or two, and a map."""
    episode = next(iter(generate("maps", 5, 1)))
    added = [engine(name).add(page.image()) for page in episode.pages]
    return [chunk for chunk in added if isinstance(chunk, Chunk)]


def answered(one: Engine, kind: str) -> tuple[int, int]:
    """Right answers to the questions of a kind in three episodes, and how many were asked."""
    right = asked = 0
    for episode in generate("maps", 5, 3):
        chunks = [one.add(page.image()) for page in episode.pages]
        for question in (each for each in episode.questions if each.kind == kind):
            right, asked = right + (one.generate([*chunks, question.text]).text == question.answer), asked + 1
    return right, asked


@bundled
def test_the_folder(name: str) -> None:
    folder = model_folder(name)
    assert (folder / "model.safetensors").stat().st_size <= LIMIT
    card = (folder / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^  - emblema/([\w-]+)$", card.split("---")[1], re.MULTILINE)
    assert set(listed) <= ({f"stream-{kind}" for kind in STREAM_KINDS} if name == STREAM else set(EPISODE_PLANS))
    assert name == STREAM or "maps" in listed
    assert f"# {name}" in card or "reference model" in card
    assert (folder / "measured.json").exists()
    model, _ = load_model(folder)
    assert all(parameter.isfinite().all() and parameter.dtype == torch.float32 for parameter in model.parameters())
    assert 1.9e6 < sum(parameter.numel() for parameter in model.parameters()) < 2.5e6


@pytest.mark.slow
@bundled
def test_the_family_and_its_check(name: str) -> None:
    one = engine(name)
    assert one.adapter.family == FAMILIES[name]
    assert one.selfcheck.passed


@STATES
def test_every_model_splits_text_alike() -> None:
    """The hybrid too, for whose type transformers would take another tokenizer than its file says."""
    text = "<|im_start|>user\nOn which land does the moon stand ? 12 xyzzy<|im_end|>"
    tokenizers = [engine(name).template.tokenizer for name in NAMES if name != "reference-mla"]
    assert len({tuple(tokenizer(text)["input_ids"]) for tokenizer in tokenizers}) == 1
    assert "<unk>" in tokenizers[0].convert_ids_to_tokens(tokenizers[0](text)["input_ids"])


def test_what_each_cache_holds() -> None:
    configs = {name: engine(name).adapter.model.config for name in ("reference-deepstack", "reference-mla")}
    stacked, latent = (configs[f"reference-{name}"] for name in ("deepstack", "mla"))
    assert stacked.text_config.num_attention_heads == 2 * stacked.text_config.num_key_value_heads
    assert stacked.vision_config.deepstack_visual_indexes == [0, 1]
    assert latent.text_config.kv_lora_rank == 128
    assert latent.text_config.n_routed_experts == 4


@STATES
def test_three_layers_of_four_of_the_hybrid_keep_a_state() -> None:
    kinds = [layout.kind for layout in engine("reference-hybrid").adapter.layouts]
    assert kinds == [*["linear"] * 3, "heads"] * 2


@bundled
def test_a_picture_is_sixty_four_tokens_or_more(name: str) -> None:
    assert all(chunk.tokens >= 64 for chunk in pages(name))


@bundled
def test_every_row_computed_is_the_stock_forward(name: str) -> None:
    one = engine(name)
    episode = next(iter(generate("maps", 5, 1)))
    prefill = one.prefill([*pages(name), episode.questions[0].text], "full")
    prepared = [one.template.preparer.image(page.image()) for page in episode.pages]
    features = {key: torch.cat([piece.features[key] for piece in prepared]) for key in prepared[0].features}
    config = one.adapter.model.config
    if one.adapter.family.startswith("Qwen"):
        features["mm_token_type_ids"] = typed(prefill.token_ids, config.image_token_id, config.video_token_id)
    with torch.inference_mode():
        stock = one.adapter.model(input_ids=prefill.token_ids[None], use_cache=False, **features).logits[0, -1]
    assert float((prefill.logits - stock).abs().max()) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reference", "reference-deepstack", "reference-mla", HYBRID])
@pytest.mark.parametrize("kind", ["colour", "land"])
def test_questions_are_answered_with_words(name: str, kind: str) -> None:
    right, asked = answered(engine(name), kind)
    assert right >= 0.9 * asked


@pytest.mark.slow
def test_questions_about_a_stream_are_answered() -> None:
    """Sixty-four frames a stream through the training forward, which is held to the stock one."""
    model, _ = load_model(STREAM)
    figures = measured(model, [64], 6, (None,))["64"]["full"]["all"]
    assert figures["accuracy"] >= 0.85


@pytest.mark.slow
def test_features_added_after_the_first_layer_tell_lands_apart() -> None:
    """Deepstack: without them legends say nothing, and only colours can be answered."""
    model, processor = load_model(model_folder("reference-deepstack"))
    for merger in model.model.visual.deepstack_merger_list:
        merger.register_forward_hook(lambda module, given, output: torch.zeros_like(output))
    right, asked = answered(Engine(model, processor), "land")
    assert right <= 0.5 * asked
    right, asked = answered(Engine(model, processor), "colour")
    assert right >= 0.9 * asked


def test_every_bundled_name_is_a_folder_of_the_package() -> None:
    assert all((bundled_folder(name) / "config.json").is_file() for name in BUNDLED)
    assert Path(bundled_folder("reference")).name == "reference"
