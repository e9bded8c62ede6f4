"""Linking pays in a server where it saves so many rows for each run, and for each forward of a second pass."""

from dataclasses import replace

import pytest

from emblema.link.policy.expectations import Costs
from emblema.link.prompt import Prompt, Rows
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.row_threshold import RowThreshold
from tests.vllm.requests import SPEC, TOKENS, request


def threshold(rows: int, unsure: float = 0.0, captures: bool = True) -> Costs:
    return RowThreshold(rows, lambda prompt: unsure, captures)


@pytest.fixture
def prompt() -> Prompt:
    return build_prompt(request(*"abcd"), ChunkStubs(SPEC))


@pytest.mark.parametrize(
    ("runs", "ready", "pays"),
    [
        ([], 0, False),
        ([(2, 102)], 0, True),
        ([(2, 101)], 0, False),
        ([(2, 162), (170, 210)], 0, True),
        ([(2, 162), (170, 209)], 0, False),
        ([(2, 162), (170, 270)], 162, True),
        ([(2, 162), (170, 270)], 171, False),
    ],
)
def test_each_run_saves_so_many_rows_on_average_beside_those_of_the_prefix_cache(
    runs: list[Rows], ready: int, pays: bool
) -> None:
    assert RowThreshold(100, lambda prompt: 0.0).runs_pay(runs, ready) == pays


def test_a_second_pass_saves_so_many_rows_for_each_of_its_forwards(prompt: Prompt) -> None:
    rows, question = 4 * TOKENS, prompt.question_rows[1] - prompt.question_rows[0]
    saved = rows * 3 // 4 - question
    assert threshold(saved // 2).second_pass_pays(prompt, rows, 0.25)
    assert not threshold(saved // 2 + 1).second_pass_pays(prompt, rows, 0.25)
    assert not threshold(saved // 2, unsure=0.1).second_pass_pays(prompt, rows, 0.25), "some answers do not stand"


def test_new_chunks_are_computed_in_a_forward_more_and_are_at_most_as_many_rows_as_are_known(prompt: Prompt) -> None:
    chunks = [chunk for _, chunk in prompt.chunk_segments]
    rows, question = 4 * TOKENS, prompt.question_rows[1] - prompt.question_rows[0]
    most = (rows * 3 // 4 - question - TOKENS) // 3
    assert threshold(most).capturing_pays(prompt, rows, 0.25, chunks[:1], 3 * TOKENS)
    assert not threshold(most + 1).capturing_pays(prompt, rows, 0.25, chunks[:1], 3 * TOKENS)
    assert threshold(0).capturing_pays(prompt, rows, 0.25, chunks[:2], 2 * TOKENS)
    assert not threshold(0).capturing_pays(prompt, rows, 0.25, chunks[:3], TOKENS)
    assert not threshold(0, captures=False).capturing_pays(prompt, rows, 0.25, chunks[:1], 3 * TOKENS)


def test_zero_rows_link_whatever_may_be(prompt: Prompt) -> None:
    assert threshold(0, unsure=1.0).second_pass_pays(prompt, 1, 1.0) and threshold(0).taking_pays(prompt, [(0, 1)])


def test_a_prompt_that_is_gone_on_from_leaves_a_prefix_that_is_worth_its_rows(prompt: Prompt) -> None:
    rows, question = 4 * TOKENS, prompt.question_rows[1] - prompt.question_rows[0]
    for continued in (0.0, 0.5, 0.7):
        saved = int(rows * (0.75 - continued)) - question
        costs = RowThreshold(saved // 2, lambda prompt: 0.0, continued=lambda prompt, share=continued: share)
        assert costs.second_pass_pays(prompt, rows, 0.25)
        assert not replace(costs, rows=saved // 2 + 1).second_pass_pays(prompt, rows, 0.25)
    always = RowThreshold(1, lambda prompt: 0.0, continued=lambda prompt: 0.9)
    assert not always.second_pass_pays(prompt, rows, 0.25)
