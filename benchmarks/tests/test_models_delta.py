"""A model as a delta: factors survive the file, add up where they should, and `reference-lists` fills in lists."""

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.long.answers import AnswerRun, linker_of
from benchmarks.long.measure import form_of
from benchmarks.models.delta import FILE, LISTS, add_delta, load_lists, read_delta, write_delta
from benchmarks.tasks import task_of
from benchmarks.tasks.prompts import pieces, question_prompt
from emblema.engine.engine import Engine
from emblema.errors import ModelError
from emblema.link.strategies.registry import parse

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


def filled_in(engine: Engine, seed: int, items: int) -> float:
    """Share of the entries that a model fills in rightly in fresh lists of lands, legends slid."""
    right = []
    for item in task_of("lists").items(seed, items):
        prompt = question_prompt(engine, item, 0, pieces(engine, item), "slid")
        form, wanted = form_of(engine, item.questions[0].answer)
        link = linker_of(engine.adapter, parse("full"), lambda key: None)
        answer, _ = AnswerRun(engine.adapter, prompt, link, form).first()
        right += [answer[place] == wanted[place] for place in form.own]
    return sum(right) / len(right)


def test_reference_lists_fills_in_lists_and_reference_does_not() -> None:
    assert (LISTS / FILE).stat().st_size < LARGEST
    model, processor = load_lists()
    with Engine(model, processor) as engine, Engine.load("reference") as plain:
        assert filled_in(engine, 41, 4) > 0.95
        assert filled_in(plain, 41, 2) < 0.2
