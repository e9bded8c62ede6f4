"""The lane `query` of `auto`, admission by sightings, and `keep`: what a first, a second and a third request cost."""

import asyncio
import math
from collections.abc import Iterator
from itertools import permutations

import pytest

from benchmarks.tasks import Episode, generate
from emblema import AsyncEngine, Engine, Policy, Store, slid
from emblema.errors import StrategyError
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.query import QueryStrategy
from emblema.session.requests import Prefill
from tests.engine.engines import added

QUESTION = "what colour is under the tent ?"
OTHER = "which colour lies under the boat ?"


def engine_on(reference: Engine, salt: bytes = b"", store: Store | None = None, **bounds: float | None) -> Engine:
    policy = Policy(**{"canary": 0, "forming_seconds": None, "query_share": 0.12, **bounds})  # type: ignore[arg-type]
    # Without an anchor no page is exact, so that all of them have the lane that is tested.
    return Engine(reference.adapter.model, reference.processor, store=store, salt=salt, policy=policy, anchor=())


def chosen(prefill: Prefill) -> set[int]:
    return {row for rows in prefill.trace.selected for row in rows}


@pytest.fixture
def own(reference: Engine) -> Iterator[Engine]:
    with engine_on(reference) as made:
        yield made


def test_a_first_request_reads_a_second_is_computed_and_a_third_takes(own: Engine, episode: Episode) -> None:
    pages = added(own, episode)
    rows = sum(page.tokens for page in pages)
    first = own.prefill([*pages, QUESTION])
    assert first.usage.lane == "auto:query" and first.usage.fallback is None
    assert first.usage.margin is not None and first.usage.margin >= 0.5
    again = first.plan.recomputation
    assert again is not None and first.usage.repeated_tokens == again.question_rows
    assert again.budget == math.ceil(0.12 * rows) == len(chosen(first))
    assert first.usage.cached_tokens == rows - again.budget
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == 0, "nothing is kept of a first sighting"
    second = own.prefill([*pages, OTHER])
    assert second.usage.lane == "auto:full" and second.usage.margin is None and second.usage.repeated_tokens == 0
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == len(pages)
    third = own.prefill([*pages, QUESTION])
    assert third.usage.lane == "auto:prefix" and third.usage.cached_tokens >= rows
    own.forget_prompts()
    assert own.prefill([*pages, QUESTION]).usage.lane == "auto:patch"


def test_another_order_is_another_combination(own: Engine, episode: Episode) -> None:
    pages = added(own, episode)
    for order in (pages, pages[::-1]):
        first, second = (own.prefill([*order, QUESTION]).usage.lane for _ in range(2))
        assert "query" in first and "full" in second


def test_an_unsure_answer_is_computed_in_full_and_said(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference, margin=1.0)
    pages = added(own, episode)
    reply = own.generate([*pages, QUESTION])
    full = reference.generate([*added(reference, episode), QUESTION], "full")
    assert reply.token_ids == full.token_ids and reply.text == full.text
    usage = reply.usage
    assert usage.fallback is not None and "computed in full" in usage.fallback
    assert usage.lane == "prefix" and usage.computed_tokens == usage.prompt_tokens
    assert usage.margin is not None and f"{usage.margin:.2f}" in usage.fallback and usage.margin < 1
    rows = sum(page.tokens for page in pages)
    text = usage.prompt_tokens - rows
    # The first attempt: text, 12 % of the pages' rows, and the question twice.
    assert text + math.ceil(0.12 * rows) < usage.repeated_tokens <= 2 * text + math.ceil(0.12 * rows)
    # What was computed in full serves the next request.
    assert own.prefill([*pages, OTHER]).usage.lane == "auto:prefix"


def test_the_margin_that_decides_is_the_policys(reference: Engine, episode: Episode) -> None:
    pages = added(own := engine_on(reference, margin=0.0), episode)
    margin = own.prefill([*pages, QUESTION]).usage.margin
    assert margin is not None
    for least, lane in ((max(0.0, margin - 1e-4), "auto:query"), (min(1.0, margin + 1e-4), "prefix")):
        other = engine_on(reference, margin=least)
        assert other.prefill([*added(other, episode), QUESTION]).usage.lane == lane


def test_rows_are_chosen_anew_for_every_question(own: Engine, episode: Episode) -> None:
    pages, strategy = added(own, episode), QueryStrategy(0.12, least_margin=None)
    texts = [question.text for question in episode.questions][:4]
    choices = [frozenset(chosen(own.prefill([*pages, text], strategy))) for text in texts]
    assert len(set(choices)) == len(set(texts)) > 1
    assert choices[0] == chosen(own.prefill([*pages, texts[0]], strategy)), "nothing is left of another's choice"


def test_auto_chooses_as_the_strategy_does(reference: Engine, episode: Episode) -> None:
    one, other = engine_on(reference), engine_on(reference)
    auto = one.prefill([*added(one, episode), QUESTION])
    named = other.prefill([*added(other, episode), QUESTION], "query-12%")
    assert chosen(auto) == chosen(named) and auto.usage.margin == pytest.approx(named.usage.margin)


def test_a_tiny_prompt_is_computed(own: Engine) -> None:
    passages = [own.add(text=f"the {name} stands on red") for name in ("tent", "boat")]
    prefill = own.prefill([*passages, QUESTION])
    assert prefill.usage.lane == "auto:full"
    assert all("second pass would cost" in decision.reason for decision in prefill.plan.decisions)


def test_what_one_tenant_met_is_new_to_another(reference: Engine, episode: Episode) -> None:
    with Store() as store:
        shared = added(engine_on(reference, store=store.shared), episode)
        alice, bob = (engine_on(reference, salt, store) for salt in (b"alice", b"bob"))
        assert alice.prefill([*shared, QUESTION]).usage.lane == "auto:query"
        assert alice.prefill([*shared, QUESTION]).usage.lane == "auto:full"
        assert bob.prefill([*shared, QUESTION]).usage.lane == "auto:query"
        alice.settle()
        assert bob.store.statistics.patches == 0 < alice.store.statistics.patches


def test_keep_computes_in_full_and_keeps_at_once(own: Engine, episode: Episode) -> None:
    pages = added(own, episode)
    first = own.prefill([*pages, QUESTION], keep=True)
    assert first.usage.lane == "auto:full" and first.usage.margin is None
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == len(pages)
    assert own.prefill([*pages, OTHER]).usage.lane == "auto:prefix"
    own.forget_prompts()
    assert own.generate([*pages, OTHER], keep=True).usage.lane == "auto:patch"


OPENED = "here are two pages ."


@pytest.mark.parametrize("question", [QUESTION, OTHER], ids=["the same prompt", "another question"])
def test_keep_keeps_what_an_exact_prefix_answers(own: Engine, episode: Episode, question: str) -> None:
    pages = added(own, episode)
    own.prefill([*pages, question], policy=Policy(query_share=0, canary=0))
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == 0, "nothing is kept of a first sighting"
    kept = own.prefill([*pages, QUESTION], keep=True)
    assert kept.usage.lane == "auto:prefix"
    own.settle()
    moved = own.prefill([OPENED, *pages, QUESTION])
    assert moved.usage.lane == "auto:patch" and moved.usage.patched_tokens == sum(page.tokens for page in pages)


def test_keep_keeps_pictures_that_come_with_a_prompt_whose_prefix_is_known(own: Engine, episode: Episode) -> None:
    pages = [page.image() for page in episode.pages]
    assert own.prefill([*pages, QUESTION]).usage.lane == "auto:full"
    assert own.prefill([*pages, QUESTION], keep=True).usage.lane == "auto:prefix"
    own.settle()
    assert own.prefill([OPENED, *pages, QUESTION]).usage.lane == "auto:patch"


def test_parts_are_made_ready_though_a_prompt_began_with_them(own: Engine, episode: Episode) -> None:
    pages = added(own, episode)
    own.prefill([*pages, QUESTION], "full")
    made = own.warm(pages)
    assert len(made.pieces) == 2 * len(pages), "a chunk and a patch each"
    assert own.prefill([OPENED, *pages, QUESTION]).usage.lane == "auto:patch"


def test_a_patch_that_holds_too_little_is_not_formed_for_every_turn(reference: Engine, episode: Episode) -> None:
    with engine_on(reference, rank=None, kept=1.0) as own:
        pages = added(own, episode)
        for _ in range(4):
            own.prefill([*pages, QUESTION], keep=True)
            own.settle()
        forming = own.policy_runtime.statistics.forming
        assert (forming.formed, forming.refused) == (0, len(pages))


@pytest.mark.slow
@pytest.mark.parametrize("talks", [True, False], ids=["talks", "single questions"])
def test_where_prompts_are_gone_on_from_a_new_one_is_computed_and_leaves_its_prefix(
    own: Engine, episode: Episode, talks: bool
) -> None:
    orders = [*permutations([*added(own, episode), *added(own, next(iter(generate("maps", 77, 1))))], 3)]
    for pages in orders[:22]:
        own.prefill([*pages, QUESTION])
        if talks:
            own.prefill([*pages, QUESTION, "the meadow", OTHER])
    new = orders[-1]
    first = own.prefill([*new, QUESTION]).usage
    assert (first.margin is None) == talks, first.lane
    later = own.prefill([*new, QUESTION, "the meadow", OTHER]).usage
    rows = sum(page.tokens for page in new)
    assert (later.lane == "auto:prefix" and later.cached_tokens >= rows) == talks


def test_a_page_in_a_new_combination_is_read_and_what_comes_again_whole_is_computed(
    own: Engine, episode: Episode
) -> None:
    pages, (new, *_) = added(own, episode), added(own, next(iter(generate("maps", 77, 1))))
    assert own.prefill([*pages, QUESTION]).usage.lane == "auto:query"
    assert own.prefill([*pages, new, QUESTION]).usage.lane == "auto:query"
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == 0
    # A whole prompt that comes again is computed, and leaves its prefix and patches.
    assert own.prefill([*pages, new, OTHER]).usage.lane == "auto:full"
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == len(pages) + 1
    assert own.prefill([*pages, new, QUESTION]).usage.lane == "auto:prefix"
    own.forget_prompts()
    assert own.prefill([*pages, new, QUESTION]).usage.lane == "auto:patch"


def test_keep_is_the_requests_alone_and_goes_with_its_bounds(own: Engine, episode: Episode) -> None:
    pages = added(own, episode)
    assert own.generate([*pages, QUESTION], keep=True, policy=Policy(rank=8)).usage.lane == "auto:full"
    own.settle()
    keys = [key for page in pages for key in own.store.artifact_keys(page.id)]
    assert {patch.rank for key in keys if (patch := own.store.find_patch(key))} == {8}
    assert own.prefill([*reversed(pages), QUESTION]).usage.lane.startswith("auto:query"), "not kept"
    keeping = Policy(max_kl=0.1, sightings=1, query_share=0, inline_media_at_once=True)
    assert Policy(max_kl=0.1).keeping() == keeping
    assert own.prefill([pages[1], pages[0], QUESTION], Auto(Policy(rank=8)), keep=True).usage.lane == "auto:full"
    with pytest.raises(StrategyError, match=r"keep was given with .full."):
        own.generate([*pages, QUESTION], "full", keep=True)


def test_a_requests_policy_counts_where_its_answer_was_computed_after_all(own: Engine, episode: Episode) -> None:
    """Forming, too, is up to the request: nothing is formed of a prompt that asked for that, sure or not."""
    pages = added(own, episode)
    for _ in range(3):
        own.forget_prompts()
        own.prefill([*pages, QUESTION], policy=Policy(margin=1.0, forming=False))
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == 0


def test_the_async_engine_keeps_as_well(episode: Episode) -> None:
    async def use() -> list[str]:
        async with await AsyncEngine.load("reference", policy=Policy(canary=0, forming_seconds=None), anchor=()) as own:
            pages = [await own.add(page.image()) for page in episode.pages]
            first = await own.generate([*pages, QUESTION], keep=True)
            await own.run(lambda engine: engine.settle())
            await own.run(lambda engine: engine.forget_prompts())
            return [first.usage.lane, (await own.prefill([*pages, OTHER], keep=True)).usage.lane]

    assert asyncio.run(use()) == ["auto:full", "auto:patch"]


KNOWN_WRONG = (
    (1009, "what does green stand for ?"),
    (1010, "what land is grey ?"),
    (1004, "on which land does the ladder stand ?"),
)
"""Seeds and questions about legends that have left: the study's only wrong answers among those that stood."""


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "question"), KNOWN_WRONG)
def test_a_known_failure_an_answer_about_a_legend_that_has_left_may_stand_and_be_wrong(
    reference: Engine, seed: int, question: str
) -> None:
    """What the other pages kept of it in context is in few rows; the margin does not see that they were not read.

    The reply says the margin all the same. Where such an answer has become full prefill's, take it out of the list.
    """
    found = [
        (episode, gone)
        for episode in generate("maps", seed, 4)
        for gone in range(1, len(episode.pages))
        if question in [one.text for one in episode.questions]
    ]
    wrong = 0
    for episode, gone in found:
        own = engine_on(reference, margin=0.5)
        pages = added(own, episode)
        parts = [*(slid(page) for page in pages[:gone]), *pages[gone:], question]
        read = own.prefill(parts, "query-12%")
        if read.usage.lane != "query-12%":
            continue
        assert read.usage.margin is not None and read.usage.margin >= 0.5 and read.usage.fallback is None
        own.forget_prompts()
        wrong += int(read.logits.argmax()) != int(own.prefill(parts, "full").logits.argmax())
    assert wrong >= 1
