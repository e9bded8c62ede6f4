"""Positions against the families' stock functions where those are right, and against the rule where they are not."""

from typing import Any

import pytest
import torch

from emblema.models.positions import Grid, chunk_positions, grid_positions, plain_positions
from tests import families as matrix


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v"])
def test_joint_positions_equal_stock(name: str) -> None:
    item = matrix.loaded(name)
    prompt, _, pictures, _ = matrix.joint(item)
    arguments = item.case.stock(item.bundle, item.model.config, pictures, prompt.token_ids)
    stock, _ = item.model.model.get_rope_index(
        prompt.token_ids[None], arguments["mm_token_type_ids"], image_grid_thw=arguments["image_grid_thw"]
    )
    assert torch.equal(prompt.positions, stock[:, 0])


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_omni_joint_positions_equal_stock(name: str) -> None:
    item = matrix.loaded(name)
    prompt, _, pictures, _ = matrix.joint(item)
    arguments: dict[str, Any] = item.case.stock(item.bundle, item.model.config, pictures, prompt.token_ids)
    stock, _ = item.model.get_rope_index(
        prompt.token_ids[None], image_grid_thw=arguments["image_grid_thw"], attention_mask=arguments["attention_mask"]
    )
    assert torch.equal(prompt.positions, stock[:, 0].long())


def test_text_runs_straight_on() -> None:
    assert torch.equal(plain_positions(3, 3, 5), torch.tensor([[5, 6, 7]] * 3))
    positions, span = chunk_positions(4, 1)
    assert (positions.tolist(), span) == ([[0, 1, 2, 3]], 4)


def test_text_after_a_grid_starts_one_past_its_largest_position() -> None:
    wide, span = chunk_positions(1 + 8 + 1, 3, (Grid(1, 1, 2, 4),))
    assert wide[:, -1].tolist() == [5, 5, 5]
    assert span == 6
    # A long video: the time axis is the longest, and the stock function would restart inside it.
    long, span = chunk_positions(1 + 40 + 2, 3, (Grid(1, 10, 2, 2, interval=4.0),))
    assert int(long[0, 40]) == 1 + 36
    assert long[:, 41].tolist() == [38, 38, 38]
    assert span == 40


def test_several_grids_with_text_between() -> None:
    positions, span = chunk_positions(2 + 4 + 1 + 4 + 1, 3, (Grid(7, 1, 2, 2), Grid(2, 1, 2, 2)))
    assert positions[1].tolist() == [0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6, 7]
    assert span == 8


@pytest.mark.parametrize(
    ("interval", "frames"), [(1 / 3, [0, 0, 0, 1, 1, 1, 2]), (0.5, [0, 0, 1, 1, 2]), (50, [0, 50])]
)
def test_any_frame_rate(interval: float, frames: list[int]) -> None:
    assert grid_positions(Grid(0, len(frames), 1, 1, interval))[0].tolist() == frames
