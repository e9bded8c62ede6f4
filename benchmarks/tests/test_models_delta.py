"""A model as a delta: factors survive the file, add up where they should, and `reference-lists` is one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.models.delta import FILE, LISTS, add_delta, load_lists, read_delta, write_delta
from emblema.engine.engine import Engine
from emblema.errors import ModelError


def factors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(6, 2, generator=generator), torch.randn(2, 5, generator=generator)


def test_a_file_gives_back_the_factors_to_eight_bits(tmp_path: Path) -> None:
    write_delta({"weight": factors()}, tmp_path)
    for found, own in zip(read_delta(tmp_path)["weight"], factors(), strict=True):
        assert torch.allclose(found, own, atol=float(own.abs().max()) / 127)


def test_the_product_is_added_to_the_weight_of_its_name_and_shape() -> None:
    model, (left, right) = nn.Linear(5, 6), factors()
    before, bias = model.weight.detach().clone(), model.bias.detach().clone()
    add_delta(model, {"weight": (left, right)})
    assert torch.allclose(model.weight - before, left @ right, atol=1e-6) and torch.equal(model.bias, bias)
    for name in ("other", "weight"):
        with pytest.raises(ModelError, match=name):
            add_delta(nn.Linear(4, 6), {name: (left, right)})


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a file of tensors")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ModelError, match="delta"):
            read_delta(folder)


def test_reference_lists_is_a_small_file_beside_reference_and_answers_otherwise() -> None:
    assert (LISTS / FILE).stat().st_size < 130_000
    question = "which lands have a tent ?"
    with Engine(*load_lists()) as engine, Engine.load("reference") as plain:
        logits = [one.prefill([question], "full").logits for one in (engine, plain)]
    assert float((logits[0] - logits[1]).abs().max()) > 0.1
