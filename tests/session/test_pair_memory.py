"""The memory of pairs: learnt from what is linked, served, bounded, kept over a restart, gone with what it was of."""

import time
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
import torch

from benchmarks.tasks import Episode, generate
from emblema import Engine, Policy, Store, slid
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.kv.pairs import ChunkPairs
from emblema.link.policy.fidelity import divergence
from emblema.link.policy.policy import Lane
from emblema.link.prompt import ChunkPart, Prompt, RowState, TextPart
from emblema.session import pair_memory
from emblema.session.pair_memories import PairMemories
from emblema.session.pair_memory import PairMemory, PairSettings
from emblema.session.pair_rows import names_all
from emblema.store.keys import ArtifactKey, ArtifactKind

QUESTION = "what is in this picture ?"
ALL_ROWS = PairSettings(noted_rows=100_000, basis_rows=(100, 1000, 8000))
LEARNS = Policy(canary=0, sightings=15, learning_share=None)


@pytest.fixture(scope="module")
def items() -> list[Episode]:
    """Items whose pages are those of two of the task's."""
    drawn = list(generate("maps", 11, 8))
    joined = zip(drawn[::2], drawn[1::2], strict=True)
    return [replace(one, pages=(*one.pages, *other.pages)) for one, other in joined]


def engine_on(reference: Engine, store: Store | None = None, settings: PairSettings = ALL_ROWS) -> Engine:
    own = Engine(reference.adapter.model, reference.processor, store=store, policy=LEARNS)
    PairMemories.of_store(own.store.parent).of(own.store, own.adapter, own.adapter.fingerprint, settings)
    return own


def memory(own: Engine) -> PairMemory:
    return own.policy_runtime.pairs()


def add(own: Engine, item: Episode) -> list[Chunk]:
    chunks = [own.add(page.image()) for page in item.pages]
    return [chunk for chunk in chunks if isinstance(chunk, Chunk)]


def pairs_key(own: Engine, chunk: Chunk, *before: Chunk) -> ArtifactKey:
    names = tuple(other.id for other in before)
    return ArtifactKey(own.adapter.fingerprint, chunk.id, names, ArtifactKind.PAIRS)


def learnt(reference: Engine, item: Episode, store: Store | None = None) -> tuple[Engine, list[Chunk]]:
    """An engine that computed the pictures of an item in full, in two orders."""
    own = engine_on(reference, store)
    chunks = add(own, item)
    own.prefill([*chunks, QUESTION], "full")
    own.prefill([*reversed(chunks), QUESTION], "full")
    memory(own).settle()
    return own, chunks


@pytest.fixture
def small(reference: Engine, items: list[Episode]) -> Iterator[tuple[Engine, list[Chunk]]]:
    own, chunks = learnt(reference, items[0])
    yield own, chunks
    own.close()


def test_what_was_learnt_restores_what_blind_rows_lack(small: tuple[Engine, list[Chunk]]) -> None:
    own, chunks = small
    first, second, *rest = chunks
    # Another combination than any that was computed.
    parts = [slid(second), *rest, first, QUESTION]
    full = own.prefill(parts, "full").logits
    blind, pair, again = (own.prefill(parts, name) for name in ("blind", "pair", "pair+query-3%"))
    assert divergence(full, pair.logits) < 0.5 * divergence(full, blind.logits)
    assert divergence(full, again.logits) < 0.1 * divergence(full, blind.logits)
    assert pair.usage.computed_tokens == blind.usage.computed_tokens and pair.usage.patched_tokens > 0
    assert again.usage.margin is not None and blind.usage.patched_tokens == 0


@pytest.mark.slow
def test_it_gets_better_with_what_was_seen(reference: Engine, items: list[Episode]) -> None:
    """A small library, other pages in another order each time."""
    own = engine_on(reference)
    pages = [chunk for item in items[:2] for chunk in add(own, item)]
    generator, lacking = torch.Generator().manual_seed(4), []
    for _ in range(24):
        parts = [*(pages[int(index)] for index in torch.randperm(len(pages), generator=generator)[:5]), QUESTION]
        own.policy_runtime.policy = Policy.quiet()
        full, blind, pair = (own.prefill(parts, name).kv for name in ("full", "blind", "pair"))
        lacking.append(distance(pair, full) / distance(blind, full))
        own.policy_runtime.policy = LEARNS
        own.prefill(parts, "full")
    early, late = sum(lacking[:4]) / 4, sum(lacking[-8:]) / 8
    assert late < 0.7 < 0.9 < early
    own.close()


def distance(rows: KVRows, others: KVRows) -> float:
    """The squared distance of two tables, all layers together."""
    return sum(
        float((row.keys - other.keys).square().sum() + (row.values - other.values).square().sum())
        for row, other in zip(rows, others, strict=True)
    )


def test_nothing_is_known_before_there_is_a_basis_and_what_waited_is_learnt_then(
    reference: Engine, items: list[Episode]
) -> None:
    own = engine_on(reference, settings=PairSettings(noted_rows=40, basis_rows=(100, 1000, 8000)))
    first, second, *_ = add(own, items[0])
    for count in range(3):
        assert memory(own).basis is None and memory(own).find(pairs_key(own, second, first)) is None, count
        own.prefill([first, second, QUESTION], "full")
        memory(own).settle()
    found = memory(own).statistics
    assert memory(own).basis is not None and found.prompts == 3 and found.rows == 120
    assert 66 >= found.entries > 50, "all 120 rows were learnt from, some of them twice"


def test_rows_that_were_deleted_do_not_count_for_a_basis(reference: Engine, items: list[Episode]) -> None:
    own = engine_on(reference, settings=PairSettings(noted_rows=40, basis_rows=(100, 1000, 8000)))
    gone, kept = add(own, items[0])[:2], add(own, items[1])[:2]
    for _ in range(2):
        own.prefill([*gone, QUESTION], "full")
    memory(own).settle()
    own.store.delete(gone[0].id)
    own.prefill([*kept, QUESTION], "full")
    memory(own).settle()
    assert memory(own).statistics.bases == 0, "40 rows are left of 120"
    for _ in range(2):
        own.prefill([*kept, QUESTION], "full")
    memory(own).settle()
    basis = memory(own).basis
    assert basis is not None and basis.rank == 32 and memory(own).statistics.bases == 1
    own.close()


def test_auto_serves_pairs_once_each_was_met_often_enough(small: tuple[Engine, list[Chunk]]) -> None:
    own, chunks = small
    first, second, *rest = chunks
    other = [rest[0], second, first, *rest[1:]]
    assert not memory(own).knows(pairs_key(own, second, rest[0])), "met once, which is below 1.2 on average"
    plan = own.prefill([*other, QUESTION], "auto").plan
    assert Lane.PAIR not in {decision.lane for decision in plan.decisions}
    own.prefill([*other, QUESTION], "full")
    own.prefill([*reversed(other), QUESTION], "full")
    # No answer is too unsure to stand.
    unasked = own.policy_runtime.policy = replace(LEARNS, query_margin=0)
    plan = own.prefill([second, *rest[1:], rest[0], first, QUESTION], "auto").plan
    read = [decision for decision in plan.decisions if decision.lane is Lane.PAIR]
    first_chunk, *after = plan.decisions
    assert read == after and first_chunk.lane is Lane.QUERY, "only text is before the first"
    assert plan.recomputation is not None
    rows = sum(decision.stop - decision.start for decision in read)
    assert plan.recomputation.budget == ceil(0.03 * rows + 0.12 * chunks[0].tokens - 1e-6)
    own.policy_runtime.policy = replace(unasked, pair_share=0)
    plan = own.prefill([second, rest[0], *rest[1:], first, QUESTION], "auto").plan
    assert Lane.PAIR not in {decision.lane for decision in plan.decisions}


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["chunk", "antecedent", "witness"])
def test_pairs_go_with_all_that_they_may_hold_traces_of(
    gone: str, reference: Engine, items: list[Episode], tmp_path: Path
) -> None:
    own, chunks = learnt(reference, items[0], Store(tmp_path))
    target, before, witness = chunks[1], chunks[0], chunks[2]
    key = pairs_key(own, target, before)
    assert memory(own).find(key) is not None
    memory(own).flush()
    own.store.flush()
    stored = {
        chunk.id: own.store.find_artifact(ArtifactKey(key.model, chunk.id, kind=ArtifactKind.PAIR)) for chunk in chunks
    }
    assert all(isinstance(pairs, ChunkPairs) for pairs in stored.values())
    dropped = {"chunk": target, "antecedent": before, "witness": witness}[gone]
    own.store.delete(dropped.id)
    assert memory(own).find(key) is None
    assert memory(own).statistics.entries == 0, "all were learnt where the chunk was there"
    memory(own).flush()
    own.store.flush()
    assert not any(dropped.id.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    again = Store(tmp_path)
    later = engine_on(reference, again)
    assert memory(later).find(key) is None
    own.close()


def test_rows_that_wait_go_with_a_deleted_chunk(reference: Engine, items: list[Episode]) -> None:
    own = engine_on(reference)
    own.defer_idle(True)
    first, second, *rest = add(own, items[0])
    own.prefill([first, second, *rest, QUESTION], "full")
    assert memory(own).waiting
    own.store.delete(rest[0].id)
    assert not memory(own).waiting
    memory(own).settle()
    assert memory(own).statistics.prompts == 0
    own.close()


def test_tenants_do_not_see_each_others(reference: Engine, items: list[Episode]) -> None:
    own, chunks = learnt(reference, items[0])
    other = Engine(
        reference.adapter.model, reference.processor, store=own.store.parent.tenant(b"another"), policy=LEARNS
    )
    first, second, *_ = add(other, items[0])
    runtime = other.policy_runtime
    assert runtime.pairs() is not memory(own) and runtime.pairs().statistics.entries == 0
    key = ArtifactKey(own.adapter.fingerprint, second.id, (first.id,), ArtifactKind.PAIRS)
    assert runtime.pairs().find(key) is None
    # Even by the ids of the first tenant's chunks.
    assert memory(own).find(pairs_key(own, chunks[1], chunks[0])) is not None
    assert runtime.pairs().find(pairs_key(own, chunks[1], chunks[0])) is None
    own.close()


def test_pairs_outlast_a_restart_in_one_file_a_chunk(
    reference: Engine, items: list[Episode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    own, chunks = learnt(reference, items[0], store)
    own.store.flush()
    files = sum(path.is_file() for path in tmp_path.rglob("*.safetensors"))
    assert own.store.statistics.patches == 0, "nothing is written by a request"
    key = pairs_key(own, chunks[-1], *chunks[:-1])
    expected = memory(own).find(key)
    monkeypatch.setattr(pair_memory, "FLUSH_SECONDS", 0.0)
    time.sleep(0.001)
    own.idle()
    own.store.flush()
    assert own.store.statistics.patches == len(chunks)
    own.close()
    store.close()
    assert sum(path.is_file() for path in tmp_path.rglob("*.safetensors")) == files + len(chunks)
    with Store(tmp_path) as again:
        later = engine_on(reference, again)
        found = memory(later).find(key)
        assert expected is not None and found is not None
        for one, two in zip(expected.layers, found.layers, strict=True):
            assert one is not None and two is not None
            assert torch.equal(one.keys.left, two.keys.left) and torch.equal(one.values.right, two.values.right)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["pairs", "basis"])
def test_damaged_files_are_not_served(damaged: str, reference: Engine, items: list[Episode], tmp_path: Path) -> None:
    store = Store(tmp_path)
    own, chunks = learnt(reference, items[0], store)
    key = pairs_key(own, chunks[1], chunks[0])
    own.close()
    store.close()
    suffix = "*.basis" if damaged == "basis" else "*.safetensors"
    for path in tmp_path.rglob(suffix):
        content = bytearray(path.read_bytes())
        if damaged == "basis" or b"pairs.places" in content:
            content[-3] ^= 1
            path.chmod(0o600)
            path.write_bytes(content)
    with Store(tmp_path) as again:
        later = engine_on(reference, again)
        parts = [*add(later, items[0]), QUESTION]
        blind = later.prefill(parts, "blind")
        assert memory(later).find(key) is None
        assert torch.equal(later.prefill(parts, "pair").logits, blind.logits)


def test_bytes_keep_to_their_share(reference: Engine, items: list[Episode]) -> None:
    settings = PairSettings(noted_rows=100_000, basis_rows=(100, 1000, 8000), share=0.01)
    own = engine_on(reference, settings=settings)
    pages = [chunk for item in items[:2] for chunk in add(own, item)]
    for turn in range(4):
        own.prefill([*pages[turn:], *pages[:turn], QUESTION], "full")
    memory(own).settle()
    assert 0 < memory(own).statistics.bytes <= 0.01 * sum(chunk.bytes for chunk in pages)
    own.close()


def test_only_prompts_that_name_all_that_their_rows_hold_are_learnt_from(pages: list[Chunk]) -> None:
    def prompt(part: ChunkPart) -> Prompt:
        return Prompt.of([ChunkPart(pages[0]), part, TextPart((1, 2))], 1)

    assert names_all(prompt(ChunkPart(pages[1]))) and names_all(prompt(ChunkPart(pages[1], slid=True)))
    assert not names_all(prompt(ChunkPart(pages[1], state=RowState.WRITTEN)))
    assert not names_all(prompt(ChunkPart(pages[1], state=RowState.WRITTEN, survivor=True)))
    assert not names_all(prompt(ChunkPart(pages[1], source="")))


def test_other_weights_begin_with_nothing(small: tuple[Engine, list[Chunk]]) -> None:
    own, chunks = small
    other = PairMemories.of_store(own.store.parent).of(own.store, own.adapter, "other weights")
    assert other.basis is None and other.find(pairs_key(own, chunks[1], chunks[0])) is None
    assert memory(own).find(ArtifactKey("other weights", chunks[1].id, (chunks[0].id,), ArtifactKind.PAIRS)) is None


def test_nothing_is_learnt_where_nothing_may_be(reference: Engine, items: list[Episode]) -> None:
    for policy in (Policy.quiet(), Policy(canary=0, pair_share=0)):
        own = Engine(reference.adapter.model, reference.processor, policy=policy)
        prefill = own.prefill([*add(own, items[0]), QUESTION], "full")
        assert prefill.linked.shares is None and not memory(own).waiting
        own.close()


def test_pairs_that_are_known_are_learnt_from_less_often(
    small: tuple[Engine, list[Chunk]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, (first, second, *_) = small
    held, key = memory(own), pairs_key(own, second, first)
    unbounded = Policy(learning_share=None)
    for met, often in ((3, 1.0), (7, 1 / 2), (31, 1 / 8)):
        monkeypatch.setattr(held, "_met", lambda asked, met=met: met)
        samples = [held.next_sample([key], unbounded) for _ in range(64)]
        assert sum(sample is not None for sample in samples) == pytest.approx(64 * often, abs=1)
    # What has nothing before it teaches nothing.
    assert held.next_sample([pairs_key(own, first)], unbounded) is None


def test_learning_is_withheld_where_its_share_is_used_up(reference: Engine, items: list[Episode]) -> None:
    own = engine_on(reference)
    own.policy_runtime.policy = Policy(canary=0, sightings=15)
    pages = add(own, items[0])
    assert own.prefill([*pages, QUESTION], "full").linked.shares is not None
    own.idle()
    costs = own.policy_runtime.statistics.learning
    assert costs.answers == 1 and costs.answered > 0 and costs.learnt > 0 and costs.withheld == 0
    memory(own).budget.spend(1e6)
    assert own.prefill([*pages[::-1], QUESTION], "full").linked.shares is None
    assert own.policy_runtime.statistics.learning.withheld == 1
    assert own.policy_runtime.statistics.learning.learnt == pytest.approx(1e6 + costs.learnt, abs=0.01)
    # A tenant's debt is its own.
    other = own.on(own.store.parent.tenant(b"other"))
    assert other.prefill([*add(other, items[0]), QUESTION], "full").linked.shares is not None
    own.close()
