"""A bundled model's tokenizer for SGLang: markers stay together, all else is decoded as by the model's own."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from emblema.models.names import BUNDLED, bundled_folder
from emblema.sglang.bundled_tokenizer import write_tokenizer

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.mark.parametrize("model", BUNDLED)
def test_only_markers_are_decoded_otherwise(model: str, tmp_path: Path) -> None:
    for _ in range(2):
        write_tokenizer(model, tmp_path / model)
    assert not list((tmp_path / model).glob("*.safetensors"))
    own, made = (AutoTokenizer.from_pretrained(folder) for folder in (bundled_folder(model), tmp_path / model))
    text = f"{PICTURE} which mark is in a2 ? {PICTURE}{PICTURE} pink"
    ids = made(text).input_ids
    assert ids == own(text).input_ids == made(made.decode(ids)).input_ids
    assert PICTURE not in own.decode(ids) and made.decode(ids).count(PICTURE) == 3
    shown = set(made(f"{PICTURE}<|video_pad|>").input_ids)
    words = [token for token in range(len(own)) if token not in shown]
    assert made.decode(words) == own.decode(words)
    assert [made.decode([token]) for token in words] == [own.decode([token]) for token in words]
