"""Prepared pictures: counts, markers, options, limits, and whole processors where they import."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.errors import MediaError, ModelError
from emblema.models.families import families
from emblema.models.load import load_model, load_processor
from emblema.models.prepare import Preparer
from tests import families as matrix

CASES = list(matrix.CASES)
SIZES = [(1, 1), (3, 40), (28, 28), (29, 57), (120, 40), (333, 217), (31, 200)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_placeholders_fit_the_encoder(name: str, size: tuple[int, int]) -> None:
    """Own expansion gives as many placeholders as the encoder gives features, for any size; or one clear error."""
    item = matrix.loaded(name)
    try:
        prepared = item.preparer.image(matrix.picture(*size))
    except MediaError as error:
        assert f"{size[0]}x{size[1]}" in str(error)
        assert size in ((1, 1), (3, 40))
        return
    encoded = item.adapter.encode(prepared)
    assert encoded.embeds.shape == (encoded.tokens, item.adapter.hidden_size)
    assert encoded.positions.shape == (item.adapter.axes, encoded.tokens)
    assert encoded.span == int(encoded.positions.max()) + 1


def test_a_picture_wider_than_a_window_that_it_does_not_heed_is_refused() -> None:
    item = matrix.loaded("gemma4_unified")
    config = copy.deepcopy(item.model.config)
    config.text_config.sliding_window = 14
    preparer = Preparer(item.bundle, config)
    preparer.image(matrix.picture(32, 24))
    with pytest.raises(MediaError, match="16 tokens.*window of 14.*max_soft_tokens"):
        preparer.image(matrix.picture(32, 32))


@pytest.mark.parametrize("name", CASES)
def test_markers_stand_at_both_ends(name: str) -> None:
    item = matrix.loaded(name)
    ids = item.preparer.image(matrix.picture(56, 56)).token_ids.tolist()
    start, end = item.preparer.markers("image")
    assert ids[: len(start)] == start
    assert ids[len(ids) - len(end) :] == end


@pytest.mark.parametrize("name", CASES)
def test_options_are_plain_data(name: str) -> None:
    options = matrix.loaded(name).preparer.options
    assert json.loads(json.dumps(options)) == options
    assert options["family"] == matrix.loaded(name).adapter.family


def test_options_follow_the_image_processor() -> None:
    item = matrix.loaded("qwen2_5_vl")
    other = Preparer(matrix.Bundle(matrix.tokenizer(), matrix.qwen_images(14)), item.model.config)
    assert other.options != item.preparer.options


def test_colour_modes_are_converted() -> None:
    item = matrix.loaded("qwen2_5_vl")
    for mode in ("L", "RGBA", "P", "CMYK", "1"):
        item.preparer.image(matrix.picture(40, 30).convert(mode))


def test_a_processor_without_parts_is_refused() -> None:
    config = matrix.loaded("llava").model.config
    with pytest.raises(ModelError, match="no tokenizer"):
        Preparer(object(), config)
    with pytest.raises(ModelError, match="without an image processor"):
        Preparer(matrix.Bundle(matrix.tokenizer()), config).image(matrix.picture(28, 28))


def test_families_are_listed() -> None:
    listed = families()
    assert {"Qwen2.5-VL", "LLaVA", "Gemma 3", "Kimi K2.5"} <= {family.name for family in listed}
    kinds = [kind for family in listed for kind in family.model_types]
    assert len(kinds) == len(set(kinds))


def folder(path: Path, name: str) -> Any:
    """A checkpoint folder as the hub has them: model, tokenizer with template, image processor."""
    item = matrix.loaded(name)
    item.model.save_pretrained(path)
    matrix.tokenizer().save_pretrained(path)
    item.bundle.image_processor.save_pretrained(path)
    (path / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return item


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3"])
def test_load_from_a_folder(name: str, tmp_path: Path) -> None:
    item = folder(tmp_path, name)
    model, processor = load_model(tmp_path)
    assert type(model) is type(item.model)
    preparer = Preparer(processor, model.config)
    assert "messages" in (preparer.chat_template or "")
    # A size that needs no resizing: where torchvision is, its form of the image processor is loaded, and resizes
    # differently.
    picture = matrix.picture(28, 28)
    ours, theirs = preparer.image(picture), item.preparer.image(picture)
    assert torch.equal(ours.token_ids, theirs.token_ids)
    assert torch.allclose(ours.features["pixel_values"], theirs.features["pixel_values"], atol=1e-5)


def test_a_full_processor_works_like_its_parts() -> None:
    from transformers import LlavaProcessor

    item = matrix.loaded("llava")
    processor = LlavaProcessor(item.bundle.image_processor, matrix.tokenizer(), patch_size=7)
    preparer = Preparer(processor, item.model.config)
    assert torch.equal(
        preparer.image(matrix.picture(40, 30)).token_ids, item.preparer.image(matrix.picture(40, 30)).token_ids
    )


def test_auto_processor_where_it_imports(tmp_path: Path) -> None:
    matrix.require_torchvision()
    from transformers import Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    item = matrix.loaded("qwen2_5_vl")
    options: dict[str, Any] = {"patch_size": 7, "merge_size": 2, "temporal_patch_size": 2}
    options["size"] = dict(item.bundle.image_processor.size)
    video = Qwen2VLVideoProcessor(**options)
    full = Qwen2_5_VLProcessor(Qwen2VLImageProcessor(**options), matrix.tokenizer(), video)
    item.model.save_pretrained(tmp_path)
    full.save_pretrained(tmp_path)
    processor = load_processor(str(tmp_path))
    assert type(processor).__name__ == "Qwen2_5_VLProcessor"
    prepared = Preparer(processor, item.model.config).image(matrix.picture(42, 28))
    text = "<|vision_start|><|image_pad|><|vision_end|>"
    stock = full(images=[matrix.picture(42, 28)], text=[text], return_tensors="pt")
    assert prepared.token_ids.tolist() == stock["input_ids"][0].tolist()
    assert torch.equal(prepared.features["pixel_values"], stock["pixel_values"])


@pytest.mark.parametrize(("name", "told"), [(".", "Could not load the model"), ("missing", "no such folder")])
def test_nothing_to_load_is_one_clear_error(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=told):
        load_model(tmp_path / name)
