"""What cannot be relocated is refused, with the layer's name and the reason."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from emblema.errors import ModelError, UnsupportedModelError
from emblema.models.adapter import Adapter
from emblema.models.families import families, family_of
from emblema.models.families.refused import REFUSED
from emblema.models.selfcheck import selfcheck
from tests import families as matrix

TEXT = {key: value for key, value in matrix.LLAMA.items() if key != "model_type"}


def llava(text: dict[str, Any]) -> Any:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig(text_config=text, vision_config=matrix.CLIP, image_token_id=matrix.token("<image>"))
    return LlavaForConditionalGeneration(config).eval()


def test_states_of_other_kinds_are_refused_by_name() -> None:
    """Qwen3-Next's projections hold several things in one: its layers are not told apart."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    text = {
        **TEXT, "head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    }  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"layers\.0 is a linear attention layer: it keeps a state"):
        Adapter(Qwen3NextForCausalLM(Qwen3NextConfig(**text)))


def test_embeddings_of_ids_that_a_forward_cannot_be_given_are_refused() -> None:
    model, _ = matrix.CASES["llava"].build(0)
    model.get_decoder().config.hidden_size_per_layer_input = 8
    with pytest.raises(UnsupportedModelError, match=r"layers\.0 and all later layers add an embedding of each token"):
        Adapter(model)


@pytest.mark.parametrize("kind", ["kimi_linear", "nemotron_h"])
def test_states_of_text_models_are_refused_by_name(kind: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    text = {key: value for key, value in TEXT.items() if key not in ("num_hidden_layers", "rope_theta")}
    if kind == "kimi_linear":
        text |= {
            "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "linear_head_dim": 8,
            "linear_num_heads": 2, "mlp_layer_types": ["dense"] * 2, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8, "v_head_dim": 8,
        }  # fmt: skip
    else:
        text |= {
            "layers_block_type": ["linear_attention", "mlp", "full_attention"], "mamba_num_heads": 4,
            "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "head_dim": 16,
        }  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **text)).eval()
    with pytest.raises(UnsupportedModelError, match=r"layers\.0 is a linear attention layer: it keeps a state"):
        Adapter(model)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_tables_that_change_with_length_are_refused(kind: str) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 4096}
    with pytest.raises(UnsupportedModelError, match=rf"{kind} rotary tables.*layers\.0"):
        Adapter(llava({**matrix.LLAMA, "rope_parameters": rope}))


@pytest.mark.parametrize("name", ["ministral3", "mistral_small4"])
def test_a_prompt_ends_where_queries_are_scaled(name: str) -> None:
    """Beyond, deeper rows are others than a chunk's that was prefilled from position 0."""
    item = matrix.loaded(name)
    adapter = item.adapter
    assert adapter.context_length == 8192
    assert selfcheck(adapter).passed
    chunk = adapter.encode_text(matrix.words(24))
    within, beyond = (adapter.prefill(chunk, shift)[0] for shift in (8192 - 24, 8192))
    rows, _ = adapter.prefill(chunk)
    values = [layers[-1].keys if name == "mistral_small4" else layers[-1].values for layers in (rows, within, beyond)]
    largest = float(values[0].abs().max())
    assert float((values[1] - values[0]).abs().max()) < 3e-4 * largest
    assert float((values[2] - values[0]).abs().max()) > 3e-3 * largest


def test_undeclared_query_scaling_is_caught_by_the_self_check() -> None:
    model, _ = matrix.CASES["llava"].build(0)
    decoder = model.get_decoder()

    def scale(module: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
        positions = keywords["position_ids"].float()
        factor = 1 + 0.5 * torch.log1p(positions // 500)
        keywords["hidden_states"] = keywords["hidden_states"]
        module.scaling = module.head_dim**-0.5 * float(factor.mean())
        return arguments, keywords

    decoder.layers[0].self_attn.register_forward_pre_hook(scale, with_kwargs=True)
    with pytest.raises(UnsupportedModelError, match=r"relocation by .*layers\.\d\.self_attn"):
        selfcheck(Adapter(model))


def test_keys_that_move_in_no_rotary_way_are_refused_by_name() -> None:
    model, _ = matrix.CASES["llava"].build(0)

    def bend(module: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
        cos, sin = keywords["position_embeddings"]
        keywords["position_embeddings"] = (cos * (1 + 0.2 * sin), sin)
        return arguments, keywords

    model.get_decoder().layers[1].self_attn.register_forward_pre_hook(bend, with_kwargs=True)
    with pytest.raises(UnsupportedModelError, match=r"language_model\.layers\.1 changes its keys"):
        Adapter(model)


@pytest.mark.parametrize("back", [False, True])
def test_a_table_cast_to_bfloat16_is_refused(back: bool) -> None:
    model, _ = matrix.CASES["qwen2_5_vl"].build(0)
    model = model.to(torch.bfloat16)
    if back:
        model = model.float()
    with pytest.raises(UnsupportedModelError, match=r"language_model\.rotary_emb\.inv_freq.*from_pretrained"):
        Adapter(model)


def test_powers_of_two_are_not_taken_for_a_cast() -> None:
    """A base of 256 gives frequencies that bfloat16 holds exactly; they betray nothing."""
    rope = {"rope_type": "default", "rope_theta": 256.0}
    assert Adapter(llava({**matrix.LLAMA, "rope_parameters": rope})).calibration.error < 1e-5


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3", "glm4v", "kimi_k25"])
def test_a_model_loaded_in_bfloat16_works(name: str, tmp_path: Path) -> None:
    """from_pretrained keeps the tables in float32; the calibration finds the same layout as in float32."""
    item = matrix.loaded(name)
    item.model.save_pretrained(tmp_path)
    model = type(item.model).from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    adapter = Adapter(model)
    assert adapter.dtype == torch.bfloat16
    assert adapter.layouts == item.adapter.layouts
    report = selfcheck(adapter)
    assert report.passed
    encoded = adapter.encode(item.preparer.image(matrix.picture(40, 30)))
    assert encoded.embeds.dtype == torch.bfloat16
    assert adapter.capture(encoded)[0].keys.dtype == torch.bfloat16


def test_unknown_families_are_refused_with_the_list() -> None:
    from transformers import VipLlavaConfig, VipLlavaForConditionalGeneration

    config = VipLlavaConfig(text_config=matrix.LLAMA, vision_config=matrix.CLIP, image_token_index=4)
    with pytest.raises(UnsupportedModelError, match="vipllava.*Qwen2.5-VL"):
        Adapter(VipLlavaForConditionalGeneration(config))


@pytest.mark.parametrize("kind", REFUSED)
def test_families_that_do_not_fit_are_refused_with_the_reason(kind: str) -> None:
    assert kind not in {name for family in families() for name in family.model_types}
    with pytest.raises(UnsupportedModelError, match=f"{kind}.*{re.escape(REFUSED[kind])}"):
        family_of(SimpleNamespace(model_type=kind))


def test_chunked_layers_are_refused_by_name() -> None:
    from transformers import Llama4Config, Llama4ForConditionalGeneration

    text = {**TEXT, "head_dim": 16, "num_local_experts": 2, "attention_chunk_size": 16, "intermediate_size_mlp": 96}
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 7, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32,
    }  # fmt: skip
    config = Llama4Config(text_config=text, vision_config=vision)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0 is a chunked attention layer"):
        Adapter(Llama4ForConditionalGeneration(config))


def test_other_attention_functions_are_refused() -> None:
    model, _ = matrix.CASES["llava"].build(0)
    model.get_decoder().config._attn_implementation = "flex_attention"
    with pytest.raises(ModelError, match="attn_implementation"):
        Adapter(model)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3", "kimi_k25"])
def test_eager_attention_gives_the_same(name: str) -> None:
    item = matrix.loaded(name)
    model, bundle = item.case.build(0)
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    prompt = matrix.joint(item)[0]
    _, logits = matrix.run_all(item.adapter, prompt)
    _, eager = matrix.run_all(Adapter(model), prompt)
    assert float((logits - eager).abs().max()) < 1e-4
