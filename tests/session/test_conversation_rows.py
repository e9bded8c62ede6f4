"""Rows of a conversation in stateless requests: asked for, recognised by ids, the same as a window's."""

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.tasks.episodes import Plan, make_episode
from emblema import Engine, Policy, Store
from emblema.errors import PromptError
from emblema.session.new_media import CONVERSATIONS

QUESTION = "what colour is under the tent ?"
ROWS = 66
"""Of one picture."""


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [page.image() for page in make_episode(np.random.default_rng(12), Plan("LM" * 4, 8, (2,) * 4, 8, ())).pages]


def engine_on(reference: Engine, **options: object) -> Engine:
    return Engine(reference.adapter.model, reference.processor, policy=Policy.quiet(), **options)


def test_a_slid_conversation_takes_its_rows(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    own.prefill([*pictures[:4], QUESTION], survivors="keep")
    later = own.prefill([*pictures[1:5], QUESTION], survivors="keep")
    assert later.usage.lane == "auto:survivor"
    assert later.usage.cached_tokens >= 3 * ROWS
    # Pictures 1 to 3 are survivors; the new one was computed after them.
    again = own.prefill([*pictures[1:5], QUESTION], survivors="keep")
    assert again.usage.cached_tokens >= 4 * ROWS


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
    spoilt, *whole = conversation.values()
    spoilt.piece.rows[0].values[0, 3, 1] = float("nan")
    broken = own.prefill([*pictures[1:4], QUESTION], survivors="keep")
    assert not broken.usage.finite and broken.usage.lane == "full"
    again = own.prefill([*pictures[1:4], QUESTION], survivors="keep")
    assert again.usage.finite and again.usage.cached_tokens >= 3 * ROWS
    kept = list(next(reversed(own.session.conversations._conversations.values())).values())
    assert kept[0] is not spoilt and kept[1:] == whole, "what is whole stays as it was written"


def test_conversations_are_bounded(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    rng = np.random.default_rng(5)
    for _ in range(CONVERSATIONS + 3):
        noise = Image.fromarray(rng.integers(0, 255, (224, 224, 3), dtype=np.uint8))
        own.prefill([noise, QUESTION], survivors="keep")
    kept = own.session.conversations
    assert len(kept._conversations) == CONVERSATIONS
    assert kept.bytes == CONVERSATIONS * ROWS * own.session.row_bytes


def test_another_choice_is_refused(reference: Engine, pictures: list[Image.Image]) -> None:
    with pytest.raises(PromptError, match="drop or keep"):
        reference.prefill([pictures[0], QUESTION], survivors="yes")  # type: ignore[arg-type]
