"""A conversation that slides, sent whole at each turn: its new pictures are prefilled alone, the others taken."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.tasks.episodes import Plan, make_episode
from emblema import Engine, Policy, Store
from emblema.session.requests import Prefill

QUESTION = "what colour is under the tent ?"
WINDOW = 6
ROWS = 66
"""Of one picture."""


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    plan = Plan("LM" * 6, 8, (2,) * 6, 8, ())
    return [page.image() for page in make_episode(np.random.default_rng(11), plan).pages]


def engine_on(reference: Engine, store: Store | None = None, **bounds: float) -> Engine:
    policy = Policy(**{"canary": 0, "query_share": 0.12, **bounds})  # type: ignore[arg-type]
    return Engine(reference.adapter.model, reference.processor, store=store, policy=policy, anchor=())


def talk(own: Engine, pictures: Sequence[Image.Image], turns: int) -> list[Prefill]:
    return [own.prefill([*pictures[turn : turn + WINDOW], QUESTION]) for turn in range(turns)]


def test_a_newcomer_is_prefilled_alone_and_the_rest_taken(reference: Engine, pictures: list[Image.Image]) -> None:
    # The margin asks for nothing: this test is about rows.
    own = engine_on(reference, margin=0.0)
    turns = talk(own, pictures, 6)
    # Nothing is known in the first turn; in the second five pictures came again, and are kept after the answer. The
    # third finds the second's new one unknown beside its own.
    assert [turn.usage.captured_tokens for turn in turns] == [0, 0, 2 * ROWS, *[ROWS] * 3]
    assert [turn.usage.lane for turn in turns[:2]] == ["auto:full"] * 2
    for turn in turns[2:]:
        assert turn.usage.lane == "auto:query"
        question = turn.plan.recomputation
        assert question is not None
        assert turn.usage.repeated_tokens == question.question_rows
        assert turn.trace.computed <= turn.prompt.tokens - WINDOW * ROWS + 0.12 * WINDOW * ROWS + 1


@pytest.mark.slow
def test_the_answers_are_those_of_a_full_prefill(reference: Engine, pictures: list[Image.Image]) -> None:
    own, other = engine_on(reference), engine_on(reference)
    for turn, prefill in enumerate(talk(own, pictures, 6)):
        full = other.prefill([*pictures[turn : turn + WINDOW], QUESTION], "full")
        assert int(prefill.logits.argmax()) == int(full.logits.argmax())


def test_a_conversation_that_grows_takes_its_prefix(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    for count in range(1, 5):
        prefill = own.prefill([*pictures[:count], QUESTION])
        assert prefill.usage.captured_tokens == 0 and prefill.plan.exact
    assert prefill.usage.cached_tokens >= 3 * ROWS


def test_all_new_pictures_are_computed_in_place(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference)
    for start in (0, 6):
        prefill = own.prefill([*pictures[start : start + 6], QUESTION])
        assert prefill.usage.captured_tokens == prefill.usage.repeated_tokens == 0
        # The opening's two rows are an exact prefix from the second conversation on.
        assert prefill.usage.computed_tokens >= prefill.prompt.tokens - 2


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"query_share": 0.0}, {"forming": False}])
def test_it_can_be_turned_off(reference: Engine, pictures: list[Image.Image], bounds: dict[str, float]) -> None:
    own = engine_on(reference, **bounds)
    assert all(turn.usage.captured_tokens == 0 for turn in talk(own, pictures, 4))


def test_a_deleted_newcomer_is_computed_and_not_kept(reference: Engine, pictures: list[Image.Image]) -> None:
    own = engine_on(reference, margin=0.0)
    talk(own, pictures, 3)
    newcomer = own.add(pictures[8])
    own.store.delete(newcomer.id)
    # What was deleted and comes again is wanted again: it is built like any other picture.
    prefill = own.prefill([*pictures[3:9], QUESTION])
    assert newcomer.id in own.store
    assert bool(torch.isfinite(prefill.logits).all())


def test_tenants_do_not_know_each_others_pictures(reference: Engine, pictures: list[Image.Image]) -> None:
    with Store() as store:
        first = Engine(reference.adapter.model, reference.processor, store=store, salt=b"one", anchor=())
        second = Engine(reference.adapter.model, reference.processor, store=store, salt=b"two", anchor=())
        talk(first, pictures, 4)
        assert talk(second, pictures[3:], 1)[0].usage.lane == "auto:full"
