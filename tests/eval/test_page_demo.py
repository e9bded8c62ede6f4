"""The demo on pages: what stands on them fits, and questions are asked only where their pages are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from emblema.eval.demo import STRATEGIES, run_demo
from emblema.eval.demo_report import show
from emblema.eval.page_demo import ASKED, NAMES, ORDERS, QUESTIONS, TEXTS, PageMedia, draw_pages
from emblema.eval.pages import PAGE_TOKENS, TILE


def test_answers_stand_on_the_pages_that_a_question_needs() -> None:
    pages = dict(zip(NAMES, TEXTS, strict=True))
    for question in QUESTIONS:
        assert any(question.answer in pages[name] for name in question.pages)
        assert question.accepts(f" {question.answer}.") and not question.accepts(" Nobody.")
    assert all(len(text.split()) <= PAGE_TOKENS for text in TEXTS)


def test_only_what_the_pages_answer_is_asked() -> None:
    media = cast(Any, SimpleNamespace(files=NAMES))
    for order in ORDERS:
        there = {NAMES[index] for index in order.order}
        asked = PageMedia.questions(media, order)
        assert len(asked) == ASKED and all(set(question.pages) <= there for question in asked)
        assert any(question.multi_hop for question in asked)
    assert len(ORDERS[-1].order) < len(NAMES)


@pytest.mark.nightly
def test_the_real_model_reads_its_pages(tmp_path: Path) -> None:
    """Downloads and builds the model the first time."""
    console = Console(quiet=True)
    result = run_demo(
        console, "smollm2-135m", 1, "cpu", media=lambda engine: draw_pages(engine, tmp_path), situations=ORDERS
    )
    assert len(result.outcomes) == len(ORDERS) * ASKED * len(STRATEGIES)
    assert not result.broken
    assert all(answer.usage.prompt_tokens > PAGE_TOKENS * 3 for answer in result.of("full"))
    assert sum(answer.right for answer in result.of("full")) >= 0.7 * len(result.of("full"))
    assert all(picture.size == (8 * TILE, 8 * TILE) for _, picture in result.media.thumbnails())
    show(console, result)
