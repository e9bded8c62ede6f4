"""A model as a delta: factors survive the file, add up where they should, and `reference-lists` is one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.models.delta import FILE, LISTS, add_delta, load_lists, read_delta, write_delta
from emblema.engine.engine import Engine
from emblema.errors import ModelError

LARGEST = 130_000
"""Bytes of the file."""


def factors(rows: int = 6, columns: int = 5, rank: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, rank, generator=generator), torch.randn(rank, columns, generator=generator)


def test_a_file_gives_back_the_factors_to_eight_bits(tmp_path: Path) -> None:
    left, right = factors()
    write_delta({"weight": (left, right)}, tmp_path)
    found = read_delta(tmp_path)["weight"]
    assert torch.allclose(found[0], left, atol=float(left.abs().max()) / 127)
    assert torch.allclose(found[1], right, atol=float(right.abs().max()) / 127)


def test_the_product_is_added_to_the_weight_of_its_name() -> None:
    model = nn.Linear(5, 6)
    before, bias = model.weight.detach().clone(), model.bias.detach().clone()
    left, right = factors()
    add_delta(model, {"weight": (left, right)})
    assert torch.allclose(model.weight - before, left @ right, atol=1e-6) and torch.equal(model.bias, bias)


@pytest.mark.parametrize("name", ["other", "weight"])
def test_another_models_factors_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match=name):
        add_delta(nn.Linear(4, 6), {name: factors()})


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a file of tensors")
    with pytest.raises(ModelError, match="delta"):
        read_delta(tmp_path)
    with pytest.raises(ModelError, match="delta"):
        read_delta(tmp_path / "nowhere")


def test_reference_lists_is_a_small_file_beside_reference_and_answers_otherwise() -> None:
    assert (LISTS / FILE).stat().st_size < LARGEST
    question = "which lands have a tent ?"
    with Engine(*load_lists()) as engine, Engine.load("reference") as plain:
        logits = [one.prefill([question], "full").logits for one in (engine, plain)]
    assert float((logits[0] - logits[1]).abs().max()) > 0.1
