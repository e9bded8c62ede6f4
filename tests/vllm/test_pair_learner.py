"""What a worker learns of pairs: shares noted in any parts, rows within their room, nothing once it is stopped."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema.kv.host_copies import HostCopier
from emblema.kv.layout import LayerRows
from emblema.link.plan import LinkPlan
from emblema.link.policy.policy import Policy
from emblema.link.row_shares import noted_layers, owners_of
from emblema.link.taken_rows import ShareSample
from emblema.models.attention import AntecedentAttention, attention_weights
from emblema.plugin.request_plan import ChunkStubs, build_prompt
from emblema.plugin.staging import StagedRows, StagingOrder
from emblema.plugin.stored_pairs import StoredPairs
from emblema.session.pair_memory import PairSettings
from emblema.store import Store
from emblema.vllm import pair_learner
from emblema.vllm.pair_learner import NotedShares, PairLearner
from emblema.vllm.step_costs import StepWork
from emblema.vllm.waiting_rows import WaitingRows
from tests.vllm.requests import SPEC, put, request

LAYERS, CPU = len(SPEC.layouts), torch.device("cpu")
NOTED = LAYERS // 2
RUNS = [(10, 40), (310, 340), (620, 660)]
"""Rows of three pictures that a reading computes; those of the first have nothing before them."""
PROMPT = build_prompt(request("a", "b", "c"), ChunkStubs(SPEC))


def staged(worth: float = 1.0, strategy: str = "query-12%") -> StagedRows:
    order = StagingOrder(0, "1", b"", PROMPT, LinkPlan(strategy, PROMPT.tokens, LAYERS, ()), (), worth)
    return StagedRows(order, {}, {}, {}, ExitStack())


def noted(rows: int = 10_000) -> NotedShares:
    made = NotedShares(PROMPT, b"", ShareSample(rows), frozenset("abc"), noted_layers(LAYERS), CPU)
    made.choose(RUNS)
    return made


@pytest.fixture
def attended() -> tuple[Tensor, Tensor]:
    """Queries and keys of all rows, [heads, rows, width]."""
    torch.manual_seed(0)
    return torch.randn(4, PROMPT.tokens, 8), torch.randn(2, PROMPT.tokens, 8)


def note(own: NotedShares, attended: tuple[Tensor, Tensor], runs: list[tuple[int, int]], layers: range) -> None:
    queries, keys = attended
    for layer in layers:
        for start, stop in runs:
            own.note(layer, torch.arange(start, stop), queries[:, start:stop], keys[:, :stop], 0.3)


@pytest.mark.parametrize("runs", [RUNS, [(10, 40), (310, 325), (325, 340), (620, 621), (621, 660)]])
def test_shares_are_those_of_all_rows_at_once(attended: tuple[Tensor, Tensor], runs: list[tuple[int, int]]) -> None:
    own = noted()
    assert own.shares is None
    note(own, attended, runs, range(LAYERS))
    found, (queries, keys) = own.shares, attended
    rows = torch.cat([torch.arange(310, 340), torch.arange(620, 660)])
    owners = owners_of(PROMPT)
    mask = torch.where(torch.arange(PROMPT.tokens)[None] > rows[:, None], float("-inf"), 0.0)
    whole = AntecedentAttention(owners, owners[rows], 3)
    whole.add(NOTED, torch.arange(len(rows)), attention_weights(queries[:, rows], keys, mask, 0.3))
    assert found is not None and torch.equal(found.rows, rows)
    torch.testing.assert_close(found.mass, whole.mass, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.alone, whole.alone, atol=1e-6, rtol=0)
    assert float(found.mass[0, 0]) > 0 and float(found.mass[0, 1:].abs().sum()) == 0


def test_rows_that_were_not_seen_or_failed_leave_no_shares(attended: tuple[Tensor, Tensor]) -> None:
    own = noted()
    again = own.computed_plainly()
    assert not again.chosen and again.witnesses == {chunk.id for _, chunk in PROMPT.chunk_segments}
    note(own, attended, RUNS[:2], range(LAYERS))
    assert own.shares is None

    own = noted()
    own.note(NOTED, torch.arange(*RUNS[1]), attended[0][:, slice(*RUNS[1])], torch.empty(0, 0, 8), 0.3)
    note(own, attended, RUNS, range(LAYERS))
    assert own.shares is None


class CountedPages:
    """Pages of random rows."""

    def __init__(self) -> None:
        self.read_rows = 0

    def slots(self, blocks: Any, rows: int) -> Tensor:
        return torch.arange(rows)

    def locate(self, slots: Tensor) -> Tensor:
        return slots

    def read(self, layer: int, places: Tensor) -> LayerRows:
        self.read_rows += len(places)
        return LayerRows(torch.randn(2, len(places), 8), torch.randn(2, len(places), 8))


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[PairLearner]:
    with Store(tmp_path) as store:
        put(store, request("a", "b", "c"))
        store.flush()
        settings = PairSettings(basis_rows=(100, 1000, 8000), purity=0.0)
        made = PairLearner(store, SPEC, HostCopier(None), settings, Policy(learning_share=None))
        yield made
        made.close()


def take(learner: PairLearner, attended: tuple[Tensor, Tensor]) -> CountedPages:
    pages, own = CountedPages(), learner.begin(staged(), CPU)
    if own is not None:
        own.choose(RUNS)
        note(own, attended, RUNS, range(LAYERS))
        learner.take(own, pages, ())  # type: ignore[arg-type]
    return pages


def kept(learner: PairLearner) -> dict[str, list[int]]:
    """By chunk, how many prompts it was learnt from with each antecedent, as the folder has it."""
    store = learner._store
    found = StoredPairs(store, SPEC).find(store.tenant(), store.tenant().ids())
    return {chunk: pairs.prompts.tolist() for chunk, pairs in found.items()}


def test_what_is_computed_is_learnt_from_and_written(learner: PairLearner, attended: tuple[Tensor, Tensor]) -> None:
    first, second, third = (chunk.id for _, chunk in PROMPT.chunk_segments)
    for _ in range(3):
        assert take(learner, attended).read_rows == 70 * LAYERS
        learner.drain()
    # The basis was made of the first two prompts' rows.
    assert kept(learner) == {second: [3], third: [3, 3]} and learner.waiting.held == 0
    assert learner._memories[learner._store.tenant().owner].statistics.chunks == 0, "what is written is let go"


def test_rows_without_room_are_not_read(
    learner: PairLearner, attended: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner.waiting = WaitingRows(1)
    learner.waiting.take(1)
    assert take(learner, attended).read_rows == 0 and learner.waiting.take_dropped() == 1
    learner.waiting.leave(1)

    def broken(*given: Any) -> Any:
        raise RuntimeError("broken for the test")

    monkeypatch.setattr(CountedPages, "read", broken)
    take(learner, attended)
    monkeypatch.undo()
    monkeypatch.setattr(pair_learner, "noted_chunks", broken)
    take(learner, attended)
    learner.drain()
    assert learner.waiting.held == 0 and kept(learner) == {}


def test_what_teaches_nothing_is_not_noted(learner: PairLearner) -> None:
    assert learner.begin(staged(worth=0.0), CPU) is None
    assert learner.begin(staged(strategy="blind"), CPU) is None
    split = PairLearner(learner._store, replace(SPEC, shards=2), HostCopier(None))
    assert split.begin(staged(), CPU) is None
    split.close()
    assert learner.begin(staged(), CPU) is not None
    learner.stop()
    assert learner.begin(staged(), CPU) is None


def test_learning_keeps_to_its_share_of_answers(learner: PairLearner, attended: tuple[Tensor, Tensor]) -> None:
    learner._policy = Policy(learning_share=0.05, learning_ahead=1)
    assert learner.begin(staged(), CPU) is not None
    learner._sampler(b"").budget.spend(1.0)
    learner.observe_step(StepWork(200, 1, 0, 0), 9.0)
    learner.observe_step(StepWork(200, 1, 0, 0, read=100), 2.0)
    for count in range(3):
        assert learner.begin(staged(), CPU) is None, count
        learner.earn(b"", 500)
    learner.earn(b"", 500)
    assert learner.begin(staged(), CPU) is not None, "twenty seconds of answers for one of learning"


def test_nothing_is_learnt_on_credit_where_requests_wait(learner: PairLearner, attended: tuple[Tensor, Tensor]) -> None:
    learner._policy = Policy(learning_share=0.05, learning_ahead=512)
    learner.observe_step(StepWork(200, 1, 0, 0, read=100), 2.0)
    learner.earn(b"", 500)
    learner._sampler(b"").budget.spend(1.0)
    assert learner.begin(staged(), CPU, on_credit=False) is None
    assert learner.begin(staged(), CPU) is not None
    learner.earn(b"", 2000)
    assert learner.begin(staged(), CPU, on_credit=False) is not None, "that much was earned"


def test_two_servers_on_one_folder_come_to_one_basis(learner: PairLearner, attended: tuple[Tensor, Tensor]) -> None:
    assert learner._store.disk is not None
    with Store(learner._store.disk.path) as store:
        other = PairLearner(store, SPEC, HostCopier(None), learner.settings, learner._policy)
        # Both begin without a basis, and each makes one.
        for each in (other, learner, learner):
            take(each, attended)
            each.drain()
        take(other, attended)
        for each in (other, learner):
            each.drain()
        bases = {made.basis.id for own in (learner, other) for made in own._memories.values() if made.basis is not None}
        assert len(bases) == 1
        take(learner, attended)
        learner.drain()
        assert kept(learner) == kept(other) and kept(learner)
        other.close()
