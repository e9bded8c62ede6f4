"""Media that come with a prompt: computed where they stand, added once they come again, then linked.

The last tests are about a conversation that slides, sent whole at each turn.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.tasks import Episode, generate
from benchmarks.tasks.episodes import Plan, make_episode
from benchmarks.window.arms import counted_rows
from emblema import AsyncEngine, Engine, Policy, Store
from emblema.errors import MediaError, ModelError, PromptError
from emblema.kv.chunk import Encoded, EncodedChunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows
from emblema.link.prompt import RowState
from emblema.session.requests import Prefill
from tests.engine.engines import AT_ONCE

QUESTION = "what colour is under the tent ?"
FORMS = replace(AT_ONCE, canary=0)


def engine_on(reference: Engine, policy: Policy = FORMS, store: Store | None = None) -> Engine:
    return Engine(reference.adapter.model, reference.processor, store=store, policy=policy, anchor=())


def put(own: Engine, episode: Episode, strategy: str = "auto") -> tuple[Prefill, float, float]:
    """The episode's pictures as they are before a question; rows computed until the answer, and after it."""
    own.defer_idle(True)
    own.forget_prompts()
    with counted_rows(own.adapter) as counter:
        prefill = own.prefill([*(page.image() for page in episode.pages), QUESTION], strategy)
        before = counter.rows
        own.settle()
    return prefill, before, counter.rows - before


def test_pictures_are_computed_in_place_then_added_and_then_linked(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference)
    pages = [reference.add(page.image()) for page in episode.pages]
    full = reference.prefill([*pages, QUESTION], "full")
    count, tokens = len(episode.pages), full.prompt.tokens

    first, before, after = put(own, episode)
    assert (before, after) == (tokens, 0), "what comes once costs what a prefill costs"
    assert torch.equal(first.logits, full.logits) and first.usage.lane == "auto:full"
    assert own.store.ids() == [] and own.policy_runtime.statistics.forming.formed == 0

    second, before, after = put(own, episode)
    assert (before, after) == (tokens, 66 * count), "what comes again is prefilled alone, after the answer"
    assert torch.equal(second.logits, full.logits) and len(own.store.ids()) == count
    brought = own.policy_runtime.statistics.inline_media
    assert (brought.seen, brought.made, brought.rows, brought.dropped) == (2 * count, count, 66 * count, 0)
    assert own.policy_runtime.statistics.forming.formed == count and own.policy_runtime.statistics.forming.refused == 0

    third, before, after = put(own, episode)
    assert third.usage.lane == "auto:patch" and (before, after) == (tokens - 66 * count, 0)
    assert int(third.logits.argmax()) == int(full.logits.argmax())


def test_the_patch_is_the_one_that_a_forward_forms(reference: Engine, episode: Episode) -> None:
    own, other = engine_on(reference, replace(FORMS, rank=16)), engine_on(reference, replace(FORMS, rank=16))
    put(own, episode)
    put(own, episode)
    pages = [other.add(page.image()) for page in episode.pages]
    other.prefill([*pages, QUESTION], "patch-16")
    key = ArtifactKey(own.adapter.fingerprint, pages[1].id, (pages[0].id,))
    one, two = own.store.find_patch(key), other.store.find_patch(key)
    assert one is not None and two is not None and one.rank == two.rank == 16
    for left, right in zip(one.layers[1:], two.layers[1:], strict=True):
        assert left is not None and right is not None
        assert torch.allclose(left.values.dense(1), right.values.dense(1), atol=1e-3)
    for page in pages:
        for left, right in zip(own.store.get(page.id).rows, page.rows, strict=True):
            assert torch.equal(left.keys, right.keys) and torch.equal(left.values, right.values)


def test_other_strategies_add_first_as_they_did(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference)
    _, before, _ = put(own, episode, "blind")
    assert len(own.store.ids()) == len(episode.pages) and before > 66 * len(episode.pages)
    assert put(own, episode)[0].usage.lane == "auto:full" and own.policy_runtime.statistics.inline_media.seen == 0


def test_what_was_encoded_is_a_part_of_any_prompt(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    own = engine_on(reference, Policy.quiet())
    pieces = [own.encode(page.image()) for page in episode.pages]
    pages = [reference.add(page.image()) for page in episode.pages]
    full = reference.prefill([*pages, QUESTION], "full")
    for strategy in ("auto", "blind", "patch-25%"):
        own.forget_prompts()
        with counted_rows(own.adapter) as counter:
            prefill = own.prefill([pieces[0], *(one[0] for one in pieces[1:]), QUESTION], strategy)
        assert counter.rows == full.prompt.tokens and own.store.ids() == []
        assert torch.equal(prefill.logits, full.logits)
    stored = own.add(pieces[0][0])
    assert [part.state for _, part in _parts(own.prompt([pieces[0], pieces[1], QUESTION]))] == [
        RowState.CANONICAL,
        RowState.MISSING,
    ]
    assert stored.id == pieces[0][0].id
    path = tmp_path / "map.png"
    episode.pages[1].image().save(path)
    message = {"role": "user", "content": [path, {"type": "image", "image": episode.pages[0].image()}, QUESTION]}
    for given in ([path, QUESTION], [message]):
        own.forget_prompts()
        assert RowState.MISSING in [part.state for _, part in _parts(own.prefill(given).prompt)]
    stranger = EncodedChunk(pieces[0][0].id, "image", "0" * 64, pieces[0][0].encoded)
    with pytest.raises(ModelError, match="another model"):
        own.prefill([stranger, QUESTION])
    with pytest.raises(MediaError):
        own.prefill([tmp_path / "nothing.png", QUESTION])
    with pytest.raises(PromptError, match=r"engine\.encode"):
        own.prefill([3.5, QUESTION])  # type: ignore[list-item]


def _parts(prompt: object) -> list[tuple[object, object]]:
    return [(one, one.part) for one, _ in prompt.chunk_segments]  # type: ignore[attr-defined]


def test_one_picture_twice_is_encoded_once_and_came_once(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference)
    image = episode.pages[0].image()
    prefill = own.prefill([image, image, QUESTION])
    (_, one), (_, other) = _parts(prefill.prompt)
    assert one.chunk is other.chunk and own.policy_runtime.statistics.inline_media.seen == 1  # type: ignore[attr-defined]
    assert own.store.ids() == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", [replace(FORMS, inline_media_rows=0), replace(FORMS, forming=False),
                                    replace(FORMS, forming_bytes=1000)])  # fmt: skip
def test_what_the_policy_does_not_allow_is_left_as_it_comes(
    reference: Engine, episode: Episode, policy: Policy
) -> None:
    own = engine_on(reference, policy)
    after = [put(own, episode)[2] for _ in range(4)]
    assert sum(after) <= policy.inline_media_rows * 66 * len(episode.pages)
    if policy.inline_media_rows == 0 or not policy.forming:
        assert after == [0] * 4 and own.store.ids() == []


def test_the_share_of_rows_is_kept_to(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference, replace(FORMS, inline_media_rows=0.2))
    rows, brought = 0.0, []
    for _ in range(6):
        _, before, after = put(own, episode)
        rows += before
        brought.append(after)
        assert sum(brought) <= 0.2 * rows
    assert sum(brought) == 66 * len(episode.pages) and own.policy_runtime.statistics.inline_media.dropped > 0


def test_a_picture_deleted_meanwhile_is_not_made(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference)
    put(own, episode)
    own.forget_prompts()
    prefill = own.prefill([*(page.image() for page in episode.pages), QUESTION])
    dead = prefill.prompt.chunk_segments[0][1].id
    assert own.policy_runtime.waiting
    own.store.delete(dead)
    own.settle()
    assert dead not in own.store and own.policy_runtime.statistics.inline_media.dropped == 1
    assert len(own.store.ids()) == len(episode.pages) - 1
    assert own.policy_runtime.statistics.forming.formed == 0, "all of them had seen it"
    # Asked for again it is wanted again: it is made at once.
    own.prefill([episode.pages[0].image(), QUESTION])
    assert dead in own.store


def test_a_deletion_wins_over_a_chunk_under_way(
    reference: Engine, episode: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = engine_on(reference)
    put(own, episode)
    own.forget_prompts()
    prefill = own.prefill([*(page.image() for page in episode.pages), QUESTION])
    dead = prefill.prompt.chunk_segments[-1][1].id
    capture = own.adapter.capture

    def deleting(encoded: Encoded) -> KVRows:
        rows = capture(encoded)
        own.store.delete(dead)
        return rows

    monkeypatch.setattr(own.adapter, "capture", deleting)
    own.settle()
    assert dead not in own.store and len(own.store.ids()) == len(episode.pages) - 1
    assert own.policy_runtime.statistics.inline_media.dropped == 1


def test_a_picture_that_was_never_added_can_be_deleted_from_what_is_remembered(
    reference: Engine, episode: Episode
) -> None:
    own = engine_on(reference)
    parts = [episode.pages[0].image(), QUESTION]
    first = own.prefill(parts)
    dead = first.prompt.chunk_segments[0][1].id
    assert own.prefill(parts).usage.lane == "auto:prefix"
    own.store.delete(dead)
    assert own.prefill(parts).usage.lane != "auto:prefix"


def test_a_conversation_goes_on_from_its_prefix(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference)
    content = [
        *({"type": "image", "image": page.image()} for page in episode.pages),
        {"type": "text", "text": QUESTION},
    ]
    turns = [{"role": "user", "content": content}]
    first = own.generate(turns, max_new_tokens=3)
    assert first.usage.lane == "auto:full"
    turns += [{"role": "assistant", "content": first.text or "red"}, {"role": "user", "content": QUESTION}]
    second = own.generate(turns, max_new_tokens=3)
    assert "prefix" in second.usage.lane and second.usage.computed_tokens < 66
    assert len(own.store.ids()) == len(episode.pages), "and need not be encoded a third time"
    own.store.delete(own.store.ids()[0])
    assert "prefix" not in own.generate(turns, max_new_tokens=3).usage.lane


def test_the_async_engine_adds_when_nobody_waits(episode: Episode) -> None:
    async def use() -> None:
        async with await AsyncEngine.load("reference", policy=FORMS, anchor=()) as own:
            images = [page.image() for page in episode.pages]
            for _ in range(2):
                await own.run(lambda one: one.forget_prompts())
                await own.generate([*images, QUESTION], max_new_tokens=2)
            for _ in range(1200):
                if own.engine.policy_runtime.statistics.inline_media.made:
                    break
                await asyncio.sleep(0.05)
            await own.run(lambda one: one.settle())
            await own.run(lambda one: one.forget_prompts())
            assert (await own.generate([*images, QUESTION], max_new_tokens=2)).usage.lane == "auto:patch"

    asyncio.run(use())


def test_pictures_of_a_prompt_to_be_kept_are_kept_the_first_time(reference: Engine, episode: Episode) -> None:
    with engine_on(reference, Policy(canary=0, forming_seconds=None)) as own:
        parts = [*(page.image() for page in episode.pages), QUESTION]
        first = own.prefill(parts, keep=True)
        own.idle()
        own.settle()
        assert first.usage.lane == "auto:full" and first.usage.captured_tokens == 0
        statistics = own.policy_runtime.statistics
        assert statistics.inline_media.made == statistics.forming.formed == len(episode.pages)
        assert len(own.store.ids()) == len(episode.pages)
        own.forget_prompts()
        second = own.prefill(["here are two pages .", *parts])
        assert second.usage.lane == "auto:patch"
        # Others are still computed in their place, and nothing is kept of them.
        other = generate("maps", 77, 1)
        own.prefill([*(page.image() for page in next(iter(other)).pages), QUESTION])
        own.idle()
        assert own.policy_runtime.statistics.inline_media.made == len(episode.pages)


WINDOW = 6
ROWS = 66
"""Of one picture."""


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    plan = Plan("LM" * 6, 8, (2,) * 6, 8, ())
    return [page.image() for page in make_episode(np.random.default_rng(11), plan).pages]


def sliding_on(reference: Engine, store: Store | None = None, **bounds: float) -> Engine:
    """An engine on which a second pass pays for a conversation that slides; its pictures are never alike."""
    usual = {"canary": 0, "query_share": 0.12, "changed": 0}
    return engine_on(reference, Policy(**{**usual, **bounds}), store)  # type: ignore[arg-type]


def talk(own: Engine, pictures: Sequence[Image.Image], turns: int) -> list[Prefill]:
    return [own.prefill([*pictures[turn : turn + WINDOW], QUESTION]) for turn in range(turns)]


def test_a_new_picture_is_prefilled_alone_and_the_rest_taken(reference: Engine, pictures: list[Image.Image]) -> None:
    # The margin asks for nothing: this test is about rows.
    own = sliding_on(reference, margin=0.0)
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
    own, other = sliding_on(reference), sliding_on(reference)
    for turn, prefill in enumerate(talk(own, pictures, 6)):
        full = other.prefill([*pictures[turn : turn + WINDOW], QUESTION], "full")
        assert int(prefill.logits.argmax()) == int(full.logits.argmax())


def test_a_conversation_that_grows_takes_its_prefix(reference: Engine, pictures: list[Image.Image]) -> None:
    own = sliding_on(reference)
    for count in range(1, 5):
        prefill = own.prefill([*pictures[:count], QUESTION])
        assert prefill.usage.captured_tokens == 0 and prefill.plan.exact
    assert prefill.usage.cached_tokens >= 3 * ROWS


def test_all_new_pictures_are_computed_in_place(reference: Engine, pictures: list[Image.Image]) -> None:
    own = sliding_on(reference)
    for start in (0, 6):
        prefill = own.prefill([*pictures[start : start + 6], QUESTION])
        assert prefill.usage.captured_tokens == prefill.usage.repeated_tokens == 0
        # The opening's two rows are an exact prefix from the second conversation on.
        assert prefill.usage.computed_tokens >= prefill.prompt.tokens - 2


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"query_share": 0.0}, {"forming": False}])
def test_it_can_be_turned_off(reference: Engine, pictures: list[Image.Image], bounds: dict[str, float]) -> None:
    own = sliding_on(reference, **bounds)
    assert all(turn.usage.captured_tokens == 0 for turn in talk(own, pictures, 4))


def test_a_deleted_new_picture_is_computed_and_not_kept(reference: Engine, pictures: list[Image.Image]) -> None:
    own = sliding_on(reference, margin=0.0)
    talk(own, pictures, 3)
    new_picture = own.add(pictures[8])
    own.store.delete(new_picture.id)
    # What was deleted and comes again is wanted again: it is built like any other picture.
    prefill = own.prefill([*pictures[3:9], QUESTION])
    assert new_picture.id in own.store
    assert bool(torch.isfinite(prefill.logits).all())


def test_tenants_do_not_know_each_others_pictures(reference: Engine, pictures: list[Image.Image]) -> None:
    with Store() as store:
        first = Engine(reference.adapter.model, reference.processor, store=store, salt=b"one", anchor=())
        second = Engine(reference.adapter.model, reference.processor, store=store, salt=b"two", anchor=())
        talk(first, pictures, 4)
        assert talk(second, pictures[3:], 1)[0].usage.lane == "auto:full"
