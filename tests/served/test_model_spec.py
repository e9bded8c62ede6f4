"""The geometry of a served model, from its configuration alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.models import model_folder
from emblema.errors import UnsupportedModelError
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.rotation import PhaseBook, place
from emblema.served.model_spec import ModelSpec, anchor_of, model_spec_of
from tests.vllm.models import LATENTS, TEXT

CPU = torch.device("cpu")


def spec_of(kind: str, device: torch.device = CPU, kv_heads: int = 1, **text: Any) -> ModelSpec:
    """The spec of a LLaVA-OneVision with a decoder of some kind."""
    from transformers import LlavaOnevisionConfig

    config = LlavaOnevisionConfig(text_config={"model_type": kind, "vocab_size": 64, **TEXT, **text})
    return model_spec_of(config, "f" * 64, kv_heads, torch.float32, device)


def test_a_rank_keeps_its_share_of_heads() -> None:
    for layout in spec_of("qwen2", kv_heads=1).layouts:
        assert (layout.kind, layout.keys, layout.values) == ("heads", (1, 32), (1, 32))


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_a_rank_keeps_whole_latents_and_their_rotary_keys_as_vllm_turns_them(kind: str) -> None:
    """vLLM pairs neighbours in both; transformers sorts those of the second by halves."""
    own = {"rope_interleave": True} if kind == "deepseek_v3" else {}
    spec = spec_of(kind, **LATENTS, **own)
    for layout in spec.layouts:
        assert (layout.kind, layout.keys, layout.values) == ("latent", (1, 512), (1, 64))
        assert layout.rotary is not None and layout.rotary.pairing == "pairs"
        assert layout.rotary.frequencies == tuple(range(32))


@pytest.mark.parametrize("kind", ["qwen2", "deepseek_v2"])
def test_rows_captured_after_the_anchor_become_canonical(kind: str) -> None:
    """Their positions are counted from the chunk; the rest of each row is as it was."""
    spec = replace(spec_of(kind, **(LATENTS if kind == "deepseek_v2" else {})), anchor=(5, 6, 7))
    torch.manual_seed(0)
    free = tuple(
        LayerRows(*(torch.randn(heads, 9, width) for heads, width in (layout.keys, layout.values)))
        for layout in spec.layouts
    )
    positions = torch.arange(9).expand(spec.axes, -1)

    def placed(first: int) -> KVRows:
        target = PhaseBook(spec.tables, positions + first)
        return tuple(
            place(rows, layout, target, torch.float32) for rows, layout in zip(free, spec.layouts, strict=True)
        )

    for own, wanted in zip(spec.canonical(placed(3), positions), placed(0), strict=True):
        torch.testing.assert_close(own.keys, wanted.keys)
        torch.testing.assert_close(own.values, wanted.values)
    captured = placed(0)
    assert replace(spec, anchor=()).canonical(captured, positions) is captured


def test_the_anchor_is_what_the_chat_template_begins_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from transformers import AutoConfig, AutoTokenizer

    folder = model_folder("reference")
    config = AutoConfig.from_pretrained(folder)
    found = anchor_of(folder, config)
    assert list(found) == AutoTokenizer.from_pretrained(folder)("<|im_start|>user\n").input_ids
    config.get_text_config().vocab_size = max(found)
    assert anchor_of(folder, config) == (), "it has no embedding"
    with caplog.at_level("WARNING"):
        assert anchor_of(tmp_path, config) == (), "there is no tokenizer"
    assert "prefilled after nothing" in caplog.text


def test_latents_of_other_decoders_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from emblema.served import model_spec

    monkeypatch.setattr(model_spec, "LATENT_DECODERS", ("deepseek_v3",))
    with pytest.raises(UnsupportedModelError, match="deepseek_v2"):
        spec_of("deepseek_v2", **LATENTS)


def test_the_device_has_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tensors name it, which are compared with it; `meta` stands for a GPU."""
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    assert spec_of("qwen2", torch.device("meta")).device == torch.device("meta", 3)
    assert spec_of("qwen2", torch.device("meta", 1)).device == torch.device("meta", 1)
    assert spec_of("qwen2").device == CPU


def test_a_spec_for_another_device_leaves_this_ones_tables_where_they_are() -> None:
    spec = spec_of("qwen2")
    other = spec.on(torch.device("meta"))
    assert spec.on(CPU) is spec and other.device.type == "meta"
    for one, table in ((spec, CPU), (other, torch.device("meta"))):
        places = {buffer.device for each in one.tables.values() for buffer in each.rotary.buffers()}
        assert places == {table}


def test_scaled_queries_are_refused() -> None:
    rope = {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512,
        "llama_4_scaling_beta": 0.1,
    }  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="scales its queries by position"):
        spec_of("ministral3", rope_parameters=rope)
