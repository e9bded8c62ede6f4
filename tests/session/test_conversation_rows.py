"""Rows of a conversation in stateless requests: asked for, recognised by ids, the same as a window's."""

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.tasks.episodes import Plan, make_episode
from emblema import Engine, Policy, Store
from emblema.errors import PromptError
from emblema.link.kept_rows import SHORTEST
from emblema.link.plan import RowSource
from emblema.link.strategies.query import QueryStrategy
from emblema.session.conversation_rows import CONVERSATIONS

QUESTION = "what colour is under the tent ?"
ROWS = 66
"""Of one picture."""


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [page.image() for page in make_episode(np.random.default_rng(12), Plan("LM" * 4, 8, (2,) * 4, 8, ())).pages]


def engine_on(reference: Engine, survivor_share: float = 0.0, **options: object) -> Engine:
    policy = replace(Policy.quiet(), survivor_share=survivor_share)
    return Engine(reference.adapter.model, reference.processor, policy=policy, **options)


def test_a_slid_conversation_takes_its_rows(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    own.prefill([*pictures[:4], QUESTION], survivors="keep")
    later = own.prefill([*pictures[1:5], QUESTION], survivors="keep")
    assert later.usage.lane == "auto:survivor"
    assert later.usage.cached_tokens >= 3 * ROWS
    # Pictures 1 to 3 are survivors; the new one was computed after them.
    again = own.prefill([*pictures[1:5], QUESTION], survivors="keep")
    assert again.usage.cached_tokens >= 4 * ROWS


def test_some_rows_are_computed_again_by_default(reference: Engine, pictures: list[Image.Image]) -> None:
    share = Policy().survivor_share
    own = engine_on(reference, share)
    own.prefill([*pictures[:4], QUESTION], survivors="keep")
    for shown, left in (([1, 2, 3, 4], True), ([1, 2, 3, 4, 5], False), ([2, 3, 4, 5, 6], True)):
        found = own.prefill([*(pictures[place] for place in shown), QUESTION], survivors="keep")
        again, kept = found.plan.recomputation, len(shown) - 1
        assert (again is not None) == left
        chosen = 0 if again is None else again.budget
        assert chosen == ceil(share * kept * ROWS) * left and found.usage.cached_tokens >= kept * ROWS - chosen


def test_it_is_what_a_window_gives(reference: Engine, pictures: list[Image.Image]) -> None:
    own, other = engine_on(reference), engine_on(reference)
    own.prefill([*pictures[:3], QUESTION], survivors="keep")
    with other.window() as window:
        for picture in pictures[:3]:
            window.append(picture)
        window.ask(QUESTION, max_new_tokens=1)
        window.slide()
        window.append(pictures[3])
        expected = window.prefill(QUESTION)
    found = own.prefill([*pictures[1:4], QUESTION], survivors="keep")
    assert torch.allclose(found.logits, expected.logits, atol=1e-4)


TOLD = ["look at the map .", "the tent is on it .", "now look at the next one ."]


def conversation(pictures: list[Image.Image], shown: list[int]) -> list[dict[str, Any]]:
    """The turns of a conversation that still shows some of its pictures."""
    turns: list[dict[str, Any]] = []
    for place, picture in enumerate(pictures):
        content: list[dict[str, Any]] = [{"type": "text", "text": TOLD[place % 3]}]
        content += [{"type": "image", "image": picture}] if place in shown else []
        turns.append({"role": "user", "content": [*content, {"type": "text", "text": QUESTION}]})
        turns.append({"role": "assistant", "content": "meadow"})
    return turns[:-1]


@pytest.mark.parametrize("drops", [[[0], [0, 1], [0, 1, 2]], [[1], [1, 3]], [[0, 2], [0, 2, 3]], [[], []]])
def test_texts_are_taken_too(reference: Engine, pictures: list[Image.Image], drops: list[list[int]]) -> None:
    """Of a conversation whose pictures leave, what is new is computed, and no more."""
    own, first = engine_on(reference), 4
    before = own.prefill(conversation(pictures[:first], [0, 1, 2, 3]), survivors="keep").usage.prompt_tokens
    for turn, gone in enumerate(drops):
        now = first + turn + 1
        shown = [place for place in range(now) if place not in gone]
        usage = own.prefill(conversation(pictures[:now], shown), survivors="keep").usage
        left = len(gone) - (len(drops[turn - 1]) if turn else 0)
        new = usage.prompt_tokens - before + left * ROWS
        # A few tokens of the template around what is new are computed with it.
        assert new <= usage.computed_tokens <= new + 3 * SHORTEST
        before = usage.prompt_tokens


def test_texts_around_the_same_pictures_are_exact(reference: Engine, pictures: list[Image.Image]) -> None:
    own, other = engine_on(reference), engine_on(reference)
    own.prefill(conversation(pictures[:3], [0, 1, 2]), survivors="keep")
    longer = conversation(pictures[:4], [0, 1, 2, 3])
    found, full = own.prefill(longer, survivors="keep"), other.prefill(longer, "full")
    assert found.usage.cached_tokens > 3 * ROWS + 20
    assert torch.allclose(found.logits, full.logits, atol=1e-4)


def test_a_second_pass_brings_kept_rows_closer(reference: Engine, pictures: list[Image.Image]) -> None:
    """The more of them it computes again, the less of what has left is in them."""
    whole = engine_on(reference).prefill([*pictures[1:5], QUESTION], "full").logits

    def error(strategy: Any) -> float:
        own = engine_on(reference)
        own.prefill([*pictures[:4], QUESTION], survivors="keep")
        found = own.prefill([*pictures[1:5], QUESTION], strategy, survivors="keep")
        return float((found.logits - whole).abs().max())

    none, some, every = error("auto"), error(QueryStrategy(0.25, None)), error(QueryStrategy(1.0, None))
    assert none > 0.1 and some < none and every < none / 8


def test_what_a_second_pass_corrects_stays_so(reference: Engine, pictures: list[Image.Image]) -> None:
    whole = engine_on(reference).prefill([*pictures[1:6], QUESTION], "full").logits

    def error(share: float) -> float:
        own = engine_on(reference, share)
        own.prefill([*pictures[:4], QUESTION], survivors="keep")
        own.prefill([*pictures[1:5], QUESTION], survivors="keep")
        later = own.prefill([*pictures[1:6], QUESTION], survivors="keep")
        assert later.plan.recomputation is None
        return float((later.logits - whole).abs().max())

    assert error(1.0) < error(0.0) / 4


def test_another_text_is_computed(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    asked = [pictures[0], "look at the map . the tent is on it .", pictures[1], QUESTION]
    own.prefill(asked, survivors="keep")
    asked[1] = "the tent is on it . look at the map ."
    found = own.prefill(asked, survivors="keep")
    full = engine_on(reference).prefill(asked, "full")
    text = next(rows for rows in found.plan.ranges if rows.source is RowSource.COMPUTED)
    assert text.rows > 5 and found.usage.lane == "auto:survivor+settled" or found.usage.lane == "auto:settled"
    assert torch.equal(found.prompt.token_ids, full.prompt.token_ids)


def test_by_default_nothing_of_the_past_is_taken(reference: Engine, pictures: list[Image.Image]) -> None:
    own, other = engine_on(reference), engine_on(reference)
    own.prefill([*pictures[:4], QUESTION], survivors="keep")
    plain = own.prefill([*pictures[1:5], QUESTION])
    full = other.prefill([*pictures[1:5], QUESTION], "full")
    assert torch.allclose(plain.logits, full.logits, atol=1e-4)
    exact = own.prefill([*pictures[1:5], QUESTION], "full", survivors="keep")
    assert torch.allclose(exact.logits, full.logits, atol=1e-4)


def test_what_is_deleted_is_forgotten_with_all_that_absorbed_it(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    chunks = [own.add(picture) for picture in pictures[:4]]
    own.prefill([*chunks, QUESTION], survivors="keep")
    own.store.delete(chunks[0].id)
    later = own.prefill([*chunks[1:], QUESTION], survivors="keep")
    assert "survivor" not in later.usage.lane


def test_what_left_before_it_was_deleted_is_forgotten_too(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    chunks = [own.add(picture) for picture in pictures[:5]]
    own.prefill([*chunks[:4], QUESTION], survivors="keep")
    own.prefill([*chunks[1:5], QUESTION], survivors="keep")
    own.store.delete(chunks[0].id)
    later = own.prefill([*chunks[1:5], QUESTION], survivors="keep")
    assert "survivor" not in later.usage.lane and "settled" not in later.usage.lane


def test_tenants_and_other_conversations_have_their_own(reference: Engine, pictures: list[Image.Image]) -> None:
    with Store() as store:
        first, second = (engine_on(reference, store=store, salt=salt) for salt in (b"one", b"two"))
        first.prefill([*pictures[:4], QUESTION], survivors="keep")
        other = second.prefill([*pictures[1:5], QUESTION], survivors="keep")
        assert "survivor" not in other.usage.lane
    own = engine_on(reference)
    own.prefill([*pictures[:3], QUESTION], survivors="keep")
    own.prefill([*pictures[4:7], QUESTION], survivors="keep")
    assert own.prefill([*pictures[1:4], QUESTION], survivors="keep").usage.lane == "auto:survivor"


def test_rows_that_are_not_finite_are_computed_anew_once(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    own.prefill([*pictures[:4], QUESTION], survivors="keep")
    own.prefill([*pictures[1:4], QUESTION], survivors="keep")
    conversation = next(reversed(own.session.conversations._conversations.values()))
    spoilt, *whole = conversation.pictures.values()
    spoilt.piece.rows[0].values[0, 3, 1] = float("nan")
    broken = own.prefill([*pictures[1:4], QUESTION], survivors="keep")
    assert not broken.usage.finite and broken.usage.lane == "full"
    again = own.prefill([*pictures[1:4], QUESTION], survivors="keep")
    assert again.usage.finite and again.usage.cached_tokens >= 3 * ROWS
    kept = list(next(reversed(own.session.conversations._conversations.values())).pictures.values())
    assert kept[0] is not spoilt and kept[1:] == whole, "what is whole stays as it was written"


def test_conversations_are_bounded(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    rng = np.random.default_rng(5)
    for _ in range(CONVERSATIONS + 3):
        noise = Image.fromarray(rng.integers(0, 255, (224, 224, 3), dtype=np.uint8))
        own.prefill([noise, QUESTION], survivors="keep")
    kept = own.session.conversations
    assert len(kept._conversations) == CONVERSATIONS
    rows = own.prefill([noise, QUESTION], "full").usage.prompt_tokens
    assert kept.bytes == CONVERSATIONS * rows * own.session.row_bytes


def test_another_choice_is_refused(reference: Engine, pictures: list[Image.Image]) -> None:
    with pytest.raises(PromptError, match="drop or keep"):
        reference.prefill([pictures[0], QUESTION], survivors="yes")  # type: ignore[arg-type]
