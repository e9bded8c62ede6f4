"""Forwards that are spared: those of one row that is known, and no others."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from emblema.vllm.spared_rows import SparedRows

KNOWN = torch.ones(1, 4)


class Model(nn.Module):
    """Counts its forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, positions: Tensor) -> Tensor:
        self.count += 1
        return torch.zeros(positions.shape[-1], 4)


def step(new: dict[str, tuple[int, int]], running: dict[str, tuple[int, int]] | None = None) -> Any:
    """A step of requests, by their first rows and how many they have of them."""
    held = running or {}
    counts = {name: count for name, (_, count) in (new | held).items()}
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=row) for name, (row, _) in new.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(held), num_computed_tokens=[row for row, _ in held.values()]
        ),
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
    )


def made(model: Model, spared: SparedRows, output: Any, ended: tuple[str, ...] = ()) -> Tensor:
    spares = spared.begin_step(output, ended)
    found: Tensor = model(torch.zeros(output.total_num_scheduled_tokens))
    assert torch.equal(found, KNOWN) == spares
    return found


def test_a_known_row_alone_in_its_step_is_not_computed_again() -> None:
    model = Model()
    spared = SparedRows(model)
    spared.keep("a", 7, KNOWN)
    assert torch.equal(made(model, spared, step({"a": (7, 1)})), KNOWN) and model.count == 0
    # Once.
    assert not made(model, spared, step({"a": (7, 1)})).any() and model.count == 1


def test_rows_beside_others_and_other_rows_are_computed() -> None:
    model = Model()
    spared = SparedRows(model)
    for output in (
        step({"a": (7, 1), "b": (0, 1)}),
        step({"a": (7, 1)}, {"b": (12, 1)}),
        step({"a": (6, 2)}),
        step({}, {"a": (8, 1)}),
        step({"b": (7, 1)}),
    ):
        spared.keep("a", 7, KNOWN)
        assert not made(model, spared, output).any()
        # It was computed, or is not in the step yet.
        later = made(model, spared, step({"a": (7, 1)}))
        assert bool(later.any()) == ("a" not in output.num_scheduled_tokens)


def test_what_has_ended_is_forgotten_and_steps_without_rows_are_nobody_s() -> None:
    model = Model()
    spared = SparedRows(model)
    spared.keep("a", 7, KNOWN)
    assert not spared.begin_step(step({}), ())
    assert not spared.begin_step(step({}), ("a",))
    assert not made(model, spared, step({"a": (7, 1)})).any()
