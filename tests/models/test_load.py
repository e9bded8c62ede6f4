"""Checkpoints that are whole load; every other is one clear error, and no weight is ever random."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from emblema.errors import EmblemaError, ModelError
from emblema.models.fingerprint import fingerprint
from emblema.models.load import load_model, load_parts
from tests import families as matrix


def llava(tied: bool) -> Any:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(0)
    config = LlavaConfig(
        text_config={**matrix.LLAMA, "tie_word_embeddings": tied}, vision_config=matrix.CLIP,
        image_token_id=matrix.token("<image>"), tie_word_embeddings=tied,
    )  # fmt: skip
    return LlavaForConditionalGeneration(config).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of a tiny model with tokenizer and image processor."""
    llava(tied=False).save_pretrained(tmp_path)
    matrix.tokenizer().save_pretrained(tmp_path)
    matrix.loaded("llava").bundle.image_processor.save_pretrained(tmp_path)
    return tmp_path


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def edit_config(folder: Path, **entries: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def refusal(folder: Path, device: Any = None) -> str:
    """The message, which has to be one line that names the model or device."""
    with pytest.raises(ModelError) as caught:
        load_model(folder, device=device)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize("tied", [True, False])
def test_saved_models_load_with_their_own_weights(folder: Path, tied: bool) -> None:
    saved = llava(tied)
    saved.save_pretrained(folder)
    model, _ = load_model(folder, device="cpu")
    assert not model.training
    assert fingerprint(model) == fingerprint(saved)
    output, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert (output.data_ptr() == table.data_ptr()) is tied


def test_missing_weights_are_named(folder: Path) -> None:
    names = sorted(load_file(folder / "model.safetensors"))
    edit_weights(folder, lambda weights: [weights.pop(name) for name in names if "multi_modal_projector" in name])
    message = refusal(folder)
    assert "lacks model.multi_modal_projector.linear_1.bias (weights missing: 4)" in message
    assert str(folder) in message


def test_an_untied_head_may_not_be_missing(folder: Path) -> None:
    edit_weights(folder, lambda weights: [weights.pop(name) for name in list(weights) if "lm_head" in name])
    assert "lacks lm_head.weight (weights missing: 1)" in refusal(folder)


def test_weights_of_another_shape_are_named(folder: Path) -> None:
    names = sorted(load_file(folder / "model.safetensors"))
    bias = next(name for name in names if name.endswith("multi_modal_projector.linear_1.bias"))
    edit_weights(folder, lambda weights: weights.update({bias: torch.zeros(5)}))
    message = refusal(folder)
    assert "multi_modal_projector.linear_1.bias has shape (5,), and not (64,)" in message
    assert "that do not fit: 1" in message


@pytest.mark.parametrize("kept", [0, 4, 1000, 100_000])
def test_truncated_weights(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert f"Could not load the model '{folder}'" in refusal(folder)


@pytest.mark.parametrize("device", ["nonsense", "meta", "", "ipu", "hpu", 3.5, "cuda:99"])
def test_devices_that_cannot_be_used(device: Any) -> None:
    with pytest.raises(ModelError, match="The device .* Give 'cpu'|The device 'meta' holds no weights") as caught:
        load_model("reference", device=device)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("architectures", [["AutoConfig"], ["is_torch_available"], ["PreTrainedModel"], [3]])
def test_architectures_that_are_no_models(folder: Path, architectures: list[Any]) -> None:
    edit_config(folder, architectures=architectures)
    refusal(folder)


def test_the_architecture_that_is_no_model_is_named(folder: Path) -> None:
    edit_config(folder, architectures=["AutoConfig"])
    assert "The architecture 'AutoConfig' in config.json is no model" in refusal(folder)


def test_an_architecture_of_another_kind_is_refused(folder: Path) -> None:
    edit_config(folder, architectures=["LlamaForCausalLM"])
    refusal(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"image_processor_type": "CLIPImageProcessor", "size": "big"}'])
def test_a_broken_image_processor(folder: Path, text: str) -> None:
    (folder / "preprocessor_config.json").write_text(text)
    with pytest.raises(ModelError, match="preprocessor_config.json") as caught:
        load_parts(str(folder))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": "1.0"}'])
def test_a_broken_tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="a tokenizer") as caught:
        load_parts(str(folder))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_broken_chat_template(folder: Path, text: str) -> None:
    (folder / "chat_template.json").write_text(text)
    with pytest.raises(ModelError, match="chat_template.json|a tokenizer"):
        load_parts(str(folder))


def test_a_device_and_a_map_of_devices_are_refused_together(folder: Path) -> None:
    with pytest.raises(ModelError, match="Both device and device_map are given"):
        load_model(folder, device="cpu", device_map="auto")
    with pytest.raises(ModelError, match="max_memory is given without device_map"):
        load_model(folder, max_memory={0: "10GiB"})


def test_a_map_without_accelerate_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(EmblemaError, match="pip install 'emblema\\[sharded\\]'"):
        load_model(folder, device_map="auto")


def test_a_map_of_one_device_is_that_device(folder: Path) -> None:
    model, _ = load_model(folder, device_map={"": "cpu"})
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}
    assert not model.training
