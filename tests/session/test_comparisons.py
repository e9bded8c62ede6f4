"""Comparisons of a small share: they close a lane that is bad, open it when it is good again, and are kept."""

import asyncio
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.tasks import Episode
from emblema import AsyncEngine, Engine, Policy, Store, slid
from emblema.errors import StrategyError
from emblema.kv.chunk import Chunk
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.link.lanes import Lane
from emblema.link.policy.samples import divergence
from emblema.session.fidelity_logs import read_all
from tests.engine.engines import AT_ONCE, added
from tests.threads import await_end, started_threads

QUESTION = "what colour is under the tent ?"
"""It is read from the map alone."""
ALWAYS = replace(AT_ONCE, canary=1, canary_rows=math.inf)


def engine_on(reference: Engine, store: object = None, policy: Policy = ALWAYS, salt: bytes = b"") -> Engine:
    return Engine(reference.adapter.model, reference.processor, store=store, policy=policy, salt=salt, anchor=())  # type: ignore[arg-type]


def spoil(own: Engine, pages: list[Chunk]) -> None:
    """Every stored patch of the pages becomes noise of the size of the rows."""
    generator = torch.Generator().manual_seed(1)

    def noise(factors: Factors) -> Factors:
        return Factors(3 * torch.randn(factors.left.shape, generator=generator), factors.right)

    for page in pages:
        for key in own.store.artifact_keys(page.id):
            patch = own.store.find_patch(key)
            assert patch is not None
            bad = [None if one is None else LayerPatch(noise(one.keys), noise(one.values)) for one in patch.layers]
            assert own.store.put_artifact(key, Patch(tuple(bad)))


def binding(episode: Episode) -> str:
    """A question of the episode that the legends and the map answer together."""
    return next(one.text for one in episode.questions if len(one.pages) == len(episode.pages))


def ask(own: Engine, pages: list[Chunk], question: str = QUESTION) -> str:
    own.forget_prompts()
    lane = own.generate([*pages, question]).usage.lane
    own.settle()
    return lane


def test_a_linked_prompt_is_compared_with_re_prefill(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference)
    pages = added(own, episode)
    assert ask(own, pages) == "auto:full"
    full = own.prefill([*pages, QUESTION], "full")
    own.settle()
    own.forget_prompts()
    linked = own.prefill([*pages, QUESTION])
    assert linked.usage.lane == "auto:patch"
    line = next(one for one in own.policy_runtime.lane_reports if one.lane is Lane.PATCH)
    assert line.open and line.samples == 1 and line.agreement == 1 and line.kind == "image"
    assert line.kl == pytest.approx(divergence(full.logits, linked.logits), rel=0.2, abs=1e-9)
    counted = own.policy_runtime.statistics.canary
    assert counted.checks == counted.linked == 1 and counted.rows == full.usage.prompt_tokens
    assert counted.exact >= 2 and counted.trials == 0, "no lane is closed"


def test_a_prompt_whose_first_page_slid_away_is_compared_in_the_same_setting(
    reference: Engine, episode: Episode
) -> None:
    own, question = engine_on(reference), binding(episode)
    pages = added(own, episode)
    parts = [slid(pages[0]), *pages[1:], question]
    own.prefill(parts)
    own.settle()
    full = reference.prefill([slid(added(reference, episode)[0]), *pages[1:], question], "full")
    own.forget_prompts()
    linked = own.prefill(parts)
    assert linked.usage.lane == "auto:patch"
    line = next(one for one in own.policy_runtime.lane_reports if one.lane is Lane.PATCH)
    assert line.kl == pytest.approx(divergence(full.logits, linked.logits), rel=1e-3, abs=1e-9)


def test_a_check_says_that_the_lane_and_full_prefill_disagree(reference: Engine, episode: Episode) -> None:
    """What is kept of a spoilt patch is what the two prefills say when they are asked side by side."""
    own, question = engine_on(reference, policy=replace(ALWAYS, forming=False)), binding(episode)
    pages = added(own, episode)
    teacher = engine_on(reference, own.store.parent)
    ask(teacher, pages, question)
    spoil(own, pages)
    own.forget_prompts()
    full, linked = (reference.prefill([*pages, question], "full"), own.prefill([*pages, question]))
    assert linked.usage.lane == "auto:patch" and int(full.logits.argmax()) != int(linked.logits.argmax())
    own.idle()
    line = next(one for one in own.policy_runtime.lane_reports if one.lane is Lane.PATCH)
    left, right = (torch.softmax(logits.double(), 0) for logits in (full.logits, linked.logits))
    assert line.samples == 1 and line.agreement == 0
    assert line.kl == pytest.approx(float((left * (left / right).log()).sum()), rel=1e-3)


@pytest.mark.nightly
def test_a_bad_lane_is_closed_formed_again_and_opens_again(reference: Engine, episode: Episode) -> None:
    own, question = engine_on(reference), binding(episode)
    pages = added(own, episode)
    ask(own, pages, question)
    assert ask(own, pages, question) == "auto:patch"
    spoil(own, pages)
    lanes = [ask(own, pages, question) for _ in range(12)]
    assert lanes[0] == "auto:patch" and "auto:full" in lanes, "not by one item, and not never"
    assert not own.policy_runtime.trusts("image", "patch")
    assert lanes.index("auto:full") == 2, "one answer alone never closes a lane, and two that differ do"
    # What is computed is formed again, and then tried after the answers: the lane has become good.
    later: list[str] = []
    while not own.policy_runtime.trusts("image", Lane.PATCH) and len(later) < 400:
        later.append(ask(own, pages, question))
    assert set(later) == {"auto:full"} and own.policy_runtime.trusts("image", Lane.PATCH)
    later += [ask(own, pages, question) for _ in range(4)]
    assert later[-1] == "auto:patch"
    changes = sum(one != other for one, other in zip(lanes + later, (lanes + later)[1:], strict=False))
    assert changes == 2, "closed once, opened once"
    assert own.policy_runtime.statistics.canary.turned == 2


@pytest.mark.slow
@pytest.mark.parametrize(("share", "rows"), [(0.01, 0.05), (0.1, 0.05), (0.1, math.inf), (0.5, 1.0), (0.0, 1.0)])
def test_the_share_and_the_rows_are_kept_to(reference: Engine, episode: Episode, share: float, rows: float) -> None:
    policy = replace(AT_ONCE, canary=share, learning=0, canary_rows=rows)
    own = engine_on(reference, policy=policy)
    pages = added(own, episode)[:2]
    own.prefill([*pages, QUESTION])
    own.settle()
    for _ in range(60 if rows >= 1 else 20):
        own.forget_prompts()
        own.prefill([*pages, QUESTION])
        seen = own.policy_runtime.statistics.canary
        assert seen.checks <= share * seen.linked and seen.trials <= share * seen.exact
        assert seen.rows + seen.trial_rows <= rows * seen.computed or seen.rows + seen.trial_rows == 0
    if share >= 0.1 and rows >= 1:
        assert seen.checks >= 1


def test_a_chunk_deleted_meanwhile_is_not_compared(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference)
    pages = added(own, episode)
    ask(own, pages)
    own.defer_idle(True)
    ask_lane = own.generate([*pages, QUESTION], "prefix").usage.lane
    assert ask_lane == "prefix"
    own.idle()
    own.forget_prompts()
    before = own.policy_runtime.statistics.canary
    assert own.generate([*pages, QUESTION]).usage.lane == "auto:patch" and own.policy_runtime.waiting
    own.store.delete(pages[0].id)
    own.idle()
    after = own.policy_runtime.statistics.canary
    assert (after.checks, after.skipped) == (before.checks, before.skipped + 1) and not own.policy_runtime.waiting
    assert pages[0].id not in own.store, "the comparison brought nothing back"


def test_a_request_has_bounds_of_its_own(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference, policy=replace(AT_ONCE, canary=0))
    pages = added(own, episode)
    ask(own, pages)
    own.forget_prompts()
    strict = replace(AT_ONCE, alpha=0)
    assert own.generate([*pages, QUESTION], policy=strict).usage.lane == "auto:full"
    own.forget_prompts()
    assert own.prefill([*pages, QUESTION], policy=strict).usage.lane == "auto:full"
    own.forget_prompts()
    assert own.prefill([*pages, QUESTION]).usage.lane == "auto:patch"
    with pytest.raises(StrategyError, match="only auto"):
        own.generate([*pages, QUESTION], "blind", policy=strict)
    assert own.policy_runtime.statistics.canary.checks == 0


def test_measurements_outlive_the_engine_and_are_the_tenants(
    reference: Engine, episode: Episode, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    with Store(folder) as store:
        own, other = (engine_on(reference, store, salt=salt) for salt in (b"alice", b"bob"))
        for _ in range(8):
            own.policy_runtime.record("image", "patch", 0.4, False)
        own.policy_runtime.set_plateau(16)
        assert not own.policy_runtime.trusts("image", "patch") and other.policy_runtime.trusts("image", "patch")
        assert own.on(store.tenant(b"alice")).policy_runtime.lane_reports == own.policy_runtime.lane_reports
        owner = own.store.owner
    assert list(read_all(folder)) == [owner]
    with Store(folder) as store:
        assert not engine_on(reference, store, salt=b"alice").policy_runtime.trusts("image", "patch")
        assert engine_on(reference, store, salt=b"bob").policy_runtime.trusts("image", "patch")
        own = engine_on(reference, store, salt=b"alice")
        own.prefill([*added(own, episode), QUESTION])
        own.settle()
        ranks = {
            patch.rank for page in added(own, episode) for key in own.store.artifact_keys(page.id)
            if (patch := own.store.find_patch(key)) is not None
        }  # fmt: skip
        assert ranks == {16}, "the plateau that was measured"


def test_the_async_engine_compares_when_nobody_waits(episode: Episode) -> None:
    compared: list[tuple[str, int]] = []

    async def use() -> None:
        async with await AsyncEngine.load("reference", policy=ALWAYS, anchor=()) as own:
            pages = [await own.add(page.image()) for page in episode.pages]
            await own.generate([*pages, QUESTION])
            await own.run(lambda one: one.settle())
            plain = own.engine.idle

            def idle() -> None:
                compared.append((threading.current_thread().name, own.scheduler.running))
                plain()

            own.engine.idle = idle  # type: ignore[method-assign]
            await own.run(lambda one: one.forget_prompts())
            replies = await asyncio.gather(*(own.generate([*pages, QUESTION]) for _ in range(4)))
            assert {reply.usage.lane for reply in replies} == {"auto:patch"}
            for _ in range(1200):
                if own.engine.policy_runtime.statistics.canary.checks:
                    break
                await asyncio.sleep(0.05)
            assert own.engine.policy_runtime.statistics.canary.checks == 1, "one at a time, after all that came at once"
            with pytest.raises(StrategyError):
                await own.generate([*pages, QUESTION], "blind", policy=ALWAYS)

    asyncio.run(use())
    assert len(compared) == 1 and compared[0][0].startswith("emblema") and compared[0][1] == 0


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    with started_threads() as started:
        yield
        await_end(started, lambda name: name.startswith("emblema-"))
