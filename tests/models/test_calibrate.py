"""Calibration on decoders of many makes with one vision model: layout, width, table, windows, layers without rope."""

from typing import Any

import pytest
import torch

from emblema.kv.layout import RotaryBand
from emblema.models import calibrate
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.selfcheck import selfcheck
from tests import families as matrix

HALF = tuple(range(8))
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 2048}

# name: text configuration, then slot, pairing, width of the first layer's band, and layers without one
DECODERS: dict[str, tuple[dict[str, Any], tuple[str, str, int], list[int]]] = {
    "llama3": ({"rope_parameters": LLAMA3}, ("keys", "half", 16), []),
    "yarn": ({"rope_parameters": YARN}, ("keys", "half", 16), []),
    "linear": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        ("keys", "half", 16),
        [],
    ),
    "smollm3": (
        {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layer_interval": 2},
        ("keys", "half", 16),
        [1, 3],
    ),
    "glm4": ({"model_type": "glm4", "head_dim": 16}, ("keys", "pairs", 8), []),
    "cohere2": (
        {"model_type": "cohere2", "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2}
        | {"num_hidden_layers": 4},
        ("keys", "pairs", 16),
        [1, 3],
    ),
    "ernie4_5": ({"model_type": "ernie4_5", "head_dim": 16}, ("keys", "pairs", 16), []),
    "phi3": ({"model_type": "phi3"}, ("keys", "half", 16), []),
    "stablelm": ({"model_type": "stablelm"}, ("keys", "half", 4), []),
    "gemma2": (
        {"model_type": "gemma2", "head_dim": 16, "sliding_window": 12, "query_pre_attn_scalar": 16},
        ("keys", "half", 16),
        [],
    ),
    "granite": (
        {"model_type": "granite", "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
        ("keys", "half", 16),
        [],
    ),
    "gpt_neox": ({"model_type": "gpt_neox"}, ("keys", "half", 4), []),
    "deepseek_v2": (
        {**matrix.MLA, "model_type": "deepseek_v2", "topk_method": "greedy", "n_group": 1},
        ("values", "pairs", 8),
        [],
    ),
    "deepseek_v3": (dict(matrix.MLA), ("values", "half", 8), []),
}


def behind_llava(text: dict[str, Any]) -> Any:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(0)
    config = LlavaConfig(text_config={**matrix.LLAMA, **text}, vision_config=matrix.CLIP, image_token_id=4)
    return matrix.sharpen(LlavaForConditionalGeneration(config), 0)


@pytest.mark.parametrize("name", list(DECODERS))
def test_layout_is_found(name: str) -> None:
    text, (slot, pairing, width), unplaced = DECODERS[name]
    adapter = Adapter(behind_llava(text))
    assert adapter.calibration.error < 1e-6
    band = adapter.layouts[0].rotary
    assert band is not None
    assert (band.slot, band.pairing, band.width) == (slot, pairing, width)
    assert [index for index, layout in enumerate(adapter.layouts) if layout.rotary is None] == unplaced
    assert selfcheck(adapter).passed


def test_windows_follow_layer_types() -> None:
    adapter = Adapter(behind_llava(DECODERS["cohere2"][0]))
    assert [layout.window for layout in adapter.layouts] == [12, None, 12, None]


def test_rows_leave_between_layers_of_a_decoder_that_scales_its_embeddings() -> None:
    """Granite multiplies embeddings inside its decoder's forward, which a loop over its layers would miss."""
    adapter = Adapter(behind_llava(DECODERS["granite"][0]))
    encoded = adapter.encode_text(matrix.words(6))
    table, hidden = adapter.table(6), adapter.prefill(encoded)[1]
    batch = RowBatch(encoded.embeds, encoded.positions, torch.arange(6), encoded.visual)
    table.allocate(torch.arange(6))
    last = adapter.forward(batch, table, narrow=lambda layer: torch.tensor([3, 5]) if layer == 1 else None)
    # The rows that left keep no rows of the last layers, which the others then do not attend.
    assert last.shape == (2, 64) and adapter.forward(batch, table).allclose(hidden, atol=1e-5)


def test_axes_of_m_rope_in_blocks_and_interleaved() -> None:
    blocked = matrix.loaded("qwen2_5_vl").adapter.layouts[0].rotary
    interleaved = matrix.loaded("qwen3_vl").adapter.layouts[0].rotary
    partial = matrix.loaded("glm4v").adapter.layouts[0].rotary
    assert blocked is not None and interleaved is not None and partial is not None
    assert blocked.axes == (0, 0, 1, 1, 1, 2, 2, 2)
    assert interleaved.axes == (0, 1, 2, 0, 1, 2, 0, 0)
    assert (partial.axes, partial.pairing, partial.width) == ((0, 0, 1, 2), "pairs", 8)


def test_one_table_per_layer_type() -> None:
    layouts = matrix.loaded("gemma3").adapter.layouts
    assert [layout.rotary.table for layout in layouts if layout.rotary] == ["sliding_attention", "full_attention"] * 2
    assert [layout.window for layout in layouts] == [12, None, 12, None]


def test_latent_cache() -> None:
    layout = matrix.loaded("kimi_k25").adapter.layouts[0]
    assert (layout.kind, layout.keys, layout.values) == ("latent", (1, 24), (1, 8))


def test_nothing_is_searched_after_a_band_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, assign = [], calibrate._assign

    def noted(rows: torch.Tensor, band: RotaryBand, *given: Any) -> RotaryBand:
        searched.append(band.pairing)
        return assign(rows, band, *given)

    monkeypatch.setattr(calibrate, "_assign", noted)
    adapter = Adapter(behind_llava(DECODERS["llama3"][0]))
    assert searched == ["half"] * len(adapter.layouts)
