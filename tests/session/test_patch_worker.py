"""Patches formed after the answers, from rows that were computed in context anyway."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tasks import Episode
from emblema import Engine, Policy, Store, slid
from emblema.kv.chunk import Chunk
from emblema.kv.patch import Patch
from emblema.link.executor import LinkedTable
from emblema.link.prompt import ChunkPart, Prompt
from emblema.session.linker import Linker
from emblema.session.patch_worker import PatchJob, PatchWorker
from emblema.session.requests import LinkRequest
from tests.engine.engines import AT_ONCE, added, largest_error, linker_on, pictures, prompt_of, text
from tests.families import NAMES
from tests.threads import await_end, started_threads

QUESTION = "what colour is under the tent ?"
WHOLE = replace(AT_ONCE, rank=60_000, canary=0)


def engine_on(reference: Engine, store: object, policy: Policy = AT_ONCE) -> Engine:
    return Engine(reference.adapter.model, reference.processor, store=store, policy=policy, anchor=())  # type: ignore[arg-type]


def matrix(name: str, policy: Policy = WHOLE, count: int = 3) -> tuple[Linker, list[Chunk]]:
    """A linker with a policy runtime on a tiny random model, its store to itself, and pictures in it."""
    store = Store().tenant()
    chunks = [store.put(replace(chunk, rows=tuple(chunk.rows))) for chunk in pictures(name, count)]
    return linker_on(name, store, policy), chunks


def settle(linker: Linker) -> None:
    assert linker.policy_runtime.patch_worker.settle(30)


def full_of(name: str, linker: Linker, prompt: Prompt) -> LinkedTable:
    """Re-prefill, which leaves neither a patch nor a prefix behind."""
    linked = linker_on(name, linker.store).link(LinkRequest(prompt, "full")).linked
    linker.forget_prompts()
    return linked


def asked(name: str, chunks: list[Chunk], start: int = 3, gone: int = 0) -> Prompt:
    parts = [ChunkPart(chunk, slid=index < gone) for index, chunk in enumerate(chunks)]
    return prompt_of(name, [text(start, 1), *parts, text(4, 2)])


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_patches_of_full_rank_make_the_second_use_exact(name: str, gone: int) -> None:
    """On every family, with all pictures there and with the first of them slid away."""
    linker, chunks = matrix(name)
    prompt = asked(name, chunks, gone=gone)
    full = full_of(name, linker, prompt)
    first = linker.link(LinkRequest(prompt, "auto"))
    assert first.usage.forming_tokens == 0 and first.plan.strategy == "auto:full"
    assert largest_error(first.linked.logits, full.logits) <= 1e-4
    settle(linker)
    linker.forget_prompts()
    second = linker.link(LinkRequest(prompt, "auto"))
    assert second.plan.strategy == "auto:patch" and second.usage.forming_tokens == 0
    assert second.linked.trace.computed == 7
    assert largest_error(second.linked.logits, full.logits) <= 1e-4
    moved = linker.link(LinkRequest(asked(name, chunks, start=9, gone=gone), "auto"))
    assert moved.plan.strategy == "auto:patch", "the key holds neither the text in front nor the positions"


@pytest.mark.parametrize("name", NAMES)
def test_another_order_is_computed_and_its_patch_of_full_rank_is_exact(name: str) -> None:
    linker, chunks = matrix(name)
    linker.link(LinkRequest(asked(name, chunks), "auto"))
    settle(linker)
    other = asked(name, [chunks[1], chunks[0], chunks[2]])
    full = full_of(name, linker, other)
    changed = linker.link(LinkRequest(other, "auto"))
    assert [one.lane for one in changed.plan.decisions] == ["full"] * 3
    assert largest_error(changed.linked.logits, full.logits) <= 1e-4
    settle(linker)
    linker.forget_prompts()
    again = linker.link(LinkRequest(other, "auto"))
    assert again.plan.strategy == "auto:patch"
    assert largest_error(again.linked.logits, full.logits) <= 1e-4


def test_the_second_use_is_linked_and_answers_the_same(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference, None)
    pages = added(own, episode)
    for question in (QUESTION, "which colour lies under the boat ?"):
        own.forget_prompts()
        full = reference.generate([*added(reference, episode), question], "full")
        reply = own.generate([*pages, question])
        assert reply.usage.forming_tokens == 0 and reply.text == full.text
        own.settle()
    assert reply.usage.lane == "auto:patch" and reply.usage.cached_tokens == 66 * len(pages)
    assert reply.plan.decisions and all("known" in one.reason for one in reply.plan.decisions)
    held = own.policy_runtime.statistics.forming
    assert held.formed == len(pages) and held.queued == held.failed == held.dropped == 0 and held.seconds > 0


@pytest.mark.parametrize("strategy", ["full", "prefix"])
def test_whatever_is_prefilled_in_full_forms(reference: Engine, episode: Episode, strategy: str) -> None:
    own = engine_on(reference, None)
    pages = added(own, episode)
    own.prefill([*pages, QUESTION], strategy)
    own.settle()
    own.forget_prompts()
    assert own.prefill([*pages, QUESTION]).usage.lane == "auto:patch"
    own.prefill([*pages, QUESTION], strategy)
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == len(pages), "what is known is not formed again"
    for named in ("blind", "mpic-all", "cacheblend-15"):
        own.prefill([slid(pages[0]), *pages[1:], *pages[:1], QUESTION], named)
    own.settle()
    assert own.policy_runtime.statistics.forming.formed == len(pages), "rows that are not exact form nothing"


def test_what_was_formed_outlives_the_engine(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    with engine_on(reference, tmp_path / "kept") as own:
        own.prefill([*added(own, episode), QUESTION])
    with engine_on(reference, tmp_path / "kept") as own:
        assert own.prefill([*added(own, episode), QUESTION]).usage.lane == "auto:patch"


class Slow(PatchWorker):
    """Forming that waits until it is let go, and fails on demand."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.go = threading.Event()
        self.error = error


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    worker = Slow()
    plain = PatchJob.form

    def form(job: PatchJob) -> Patch:
        worker.go.wait(30)
        if worker.error is not None:
            raise worker.error
        return plain(job)

    monkeypatch.setattr(PatchJob, "form", form)
    return worker


def with_worker(
    reference: Engine, worker: PatchWorker, policy: Policy, salt: bytes = b"", store: Store | None = None
) -> Engine:
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("emblema.engine.engine.PatchWorker", lambda: worker)
        return Engine(reference.adapter.model, reference.processor, store=store, salt=salt, policy=policy, anchor=())


def test_an_answer_never_waits_and_what_does_not_fit_is_dropped(
    reference: Engine, episode: Episode, slow: Slow
) -> None:
    own = with_worker(reference, slow, AT_ONCE)
    pages = added(own, episode)
    own.prefill([*pages, QUESTION])
    one = reference.adapter.layouts[0].features * len(reference.adapter.layouts) * 66 * 4
    small = with_worker(reference, slow, replace(AT_ONCE, forming_bytes=one * len(pages) + one // 2))
    small.prefill([*reversed(added(small, episode)), QUESTION])
    assert slow.statistics.dropped == len(pages), "the queue is full"
    assert slow.statistics.formed == 0 and slow.statistics.queued == len(pages)
    own.forget_prompts()
    again = own.prefill([*pages, QUESTION])
    assert again.usage.lane == "auto:full" and slow.statistics.queued == len(pages), "each once"
    slow.go.set()
    own.settle()
    assert slow.statistics.formed == len(pages) and slow.statistics.queued == 0


def test_forming_keeps_to_its_seconds(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference, None, replace(AT_ONCE, forming_seconds=0))
    own.prefill([*added(own, episode), QUESTION])
    own.settle()
    assert own.policy_runtime.statistics.forming.dropped == len(episode.pages)
    off = engine_on(reference, None, replace(AT_ONCE, forming=False))
    off.prefill([*added(off, episode), QUESTION])
    off.settle()
    assert off.policy_runtime.statistics.forming.dropped == off.policy_runtime.statistics.forming.formed == 0


def test_a_chunk_deleted_meanwhile_gets_no_patch(reference: Engine, episode: Episode, slow: Slow) -> None:
    own = with_worker(reference, slow, AT_ONCE)
    pages = added(own, episode)
    own.prefill([*pages, QUESTION])
    own.store.delete(pages[1].id)
    slow.go.set()
    own.settle()
    assert slow.statistics.refused + slow.statistics.lost == len(pages) - 1
    assert own.store.statistics.patches == 1 and own.store.artifact_keys(pages[1].id) == []


def test_an_error_is_logged_and_ends_nothing(
    reference: Engine, episode: Episode, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    slow.error = ZeroDivisionError("on purpose")
    slow.go.set()
    own = with_worker(reference, slow, AT_ONCE)
    pages = added(own, episode)
    own.prefill([*pages, QUESTION])
    own.settle()
    assert slow.statistics.failed == len(pages) and "on purpose" in caplog.text
    slow.error = None
    own.forget_prompts()
    own.prefill([*pages, QUESTION])
    own.settle()
    assert slow.statistics.formed == len(pages)


def test_a_patch_is_its_tenants(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    with Store(tmp_path / "kept") as store:
        administrator = engine_on(reference, store.shared)
        shared = added(administrator, episode)
        alice = Engine(
            reference.adapter.model, reference.processor, store=store, salt=b"alice", policy=AT_ONCE, anchor=()
        )
        bob = alice.on(store.tenant(b"bob"))
        alice.prefill([*shared, QUESTION])
        alice.settle()
        assert alice.store.statistics.patches == len(shared)
        assert bob.store.statistics.patches == administrator.store.statistics.patches == 0
        assert bob.prefill([*shared, QUESTION]).usage.lane == "auto:full"
        bob.close()
        assert bob.store.statistics.patches == len(shared), "closing a tenant's engine finishes what is its own"
        assert alice.prefill([*reversed(shared), QUESTION]).usage.lane.startswith("auto:")
        alice.settle()
        assert alice.store.statistics.patches > len(shared), "and ends nothing for others"


def test_closed_engines_form_no_more(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference, None)
    pages = added(own, episode)
    own.close()
    own.prefill([*pages, QUESTION])
    assert (
        own.policy_runtime.statistics.forming.dropped == len(pages)
        and own.policy_runtime.statistics.forming.queued == 0
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_queue_of_its_own(reference: Engine, episode: Episode, slow: Slow) -> None:
    """The child's work is not the parent's, whose thread did not come along."""
    own = with_worker(reference, slow, AT_ONCE)
    own.prefill([*added(own, episode), QUESTION])
    child = os.fork()
    if child == 0:
        held = slow.statistics
        os._exit(0 if held.queued == 0 and slow.settle(5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert slow.statistics.queued == len(episode.pages)
    slow.go.set()
    own.settle()
    assert slow.statistics.formed == len(episode.pages)


def test_a_dropped_engine_ends_its_thread(reference: Engine, episode: Episode) -> None:
    own = engine_on(reference, None)
    own.prefill([*added(own, episode), QUESTION])
    del own


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    with started_threads() as started:
        yield
        await_end(started, lambda name: name == "emblema-forming")
