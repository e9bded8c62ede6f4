"""Prompts as rows: tokens, positions, groups and what stands before what."""

import pytest
import torch
from hypothesis import given

from emblema.errors import PromptError
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from tests.link.pieces import chunk, prompts


@given(prompt=prompts())
def test_segments_tile_the_rows(prompt: Prompt) -> None:
    row = position = 0
    for segment in prompt.segments:
        assert (segment.start, segment.position) == (row, position)
        row, position = segment.stop, position + segment.part.tokens
    assert row == prompt.tokens == len(prompt.token_ids) == prompt.positions.shape[1] == len(prompt.groups)
    assert position == prompt.next_position
    assert torch.equal(prompt.positions[0], torch.arange(prompt.tokens))


def test_neighbouring_texts_are_one_and_empty_ones_nothing() -> None:
    prompt = Prompt.of([TextPart((1,)), TextPart(()), TextPart((2, 3)), ChunkPart(chunk(0, 3))], 1)
    assert [segment.part.tokens for segment in prompt.segments] == [3, 3]


def test_what_follows_a_chunk_stands_past_its_largest_coordinate() -> None:
    piece = chunk(0, 6)
    positions = torch.tensor([[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])
    object.__setattr__(piece.encoded, "positions", positions)
    object.__setattr__(piece.encoded, "span", 3)
    prompt = Prompt.of([TextPart((1, 2)), ChunkPart(piece), TextPart((3,))], 3)
    assert prompt.positions[:, 2:8].tolist() == (positions + 2).tolist()
    assert prompt.positions[:, 8].tolist() == [5, 5, 5] and prompt.next_position == 6


def test_each_chunk_has_groups_of_its_own() -> None:
    prompt = Prompt.of([ChunkPart(chunk(0, 2, groups=True)), TextPart((1,)), ChunkPart(chunk(0, 2, groups=True))], 1)
    assert prompt.groups.tolist() == [0, 0, -1, 1, 1]


def test_antecedents_are_in_order_with_repetitions_and_slid_ones() -> None:
    one, two = chunk(1, 2), chunk(2, 2)
    prompt = Prompt.of([ChunkPart(one, slid=True), ChunkPart(two), TextPart((1,)), ChunkPart(one), ChunkPart(two)], 1)
    assert prompt.antecedents(prompt.segments[-1]) == (one.id, two.id, one.id)
    assert prompt.slid_rows == ((0, 2),)


def test_a_prompt_may_not_end_with_what_is_gone() -> None:
    with pytest.raises(PromptError, match="slid"):
        Prompt.of([TextPart((1,)), ChunkPart(chunk(0, 3), slid=True)], 1)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(PromptError, match="empty"):
        Prompt.of([TextPart(())], 1)
