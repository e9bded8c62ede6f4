"""Two workers that share the heads: linked prompts are the embedded engine's, and a rank's loss is everybody's."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import Engine
from emblema.models.names import bundled_folder
from emblema.served import captures
from emblema.served.shards import shard_ids
from emblema.session.requests import LinkRequest
from emblema.store import Store
from emblema.vllm import readings
from emblema.vllm.planner import RequestPlanner
from tests.vllm import ranks
from tests.vllm.plans import Read
from tests.vllm.test_served_exact import TOLERANCE, error, reference

pytestmark = pytest.mark.nightly
CHUNK = 96
"""Tokens a step, so that a prompt of three pictures takes two."""
PATIENCE = 60.0
SERVER = ("--tensor-parallel-size", "2", "--distributed-executor-backend", "mp")


def split(workers: int) -> dict[str, Any]:
    return {"tensor_parallel_size": workers, "distributed_executor_backend": "mp", "max_num_batched_tokens": CHUNK}


@dataclass
class Split:
    """A model on several workers, and in the embedded engine.

    Attributes:
        workers: how many.
        store: the folder that all use.
        stock: what they say without the plugin.
        apart: how far that is from transformers.
    """

    subject: Any
    workers: int
    served: Any
    store: Path
    engine: Engine
    given: Any
    stock: Tensor
    apart: float

    def ask(self, strategy: str, **more: Any) -> Any:
        """Ask with empty caches of vLLM's; no answer may take more than a minute."""
        self.served.forget_prefixes()
        self.served.llm.llm_engine.reset_encoder_cache()
        began = time.monotonic()
        answer = self.served.ask(self.given.token_ids, self.given.pictures, {"strategy": strategy, **more})
        assert time.monotonic() - began < PATIENCE
        return answer

    def wanted(self, strategy: str) -> Tensor:
        return reference(self.engine, self.given)(strategy)

    def kept(self) -> list[str]:
        """Ids of this model's chunks that have all their shares in the folder."""
        with Store(self.store) as store:
            here = set(store.tenant().ids())
        return [id for id in here if set(shard_ids(id, self.workers)) <= here]

    def capture(self) -> list[str]:
        """Have all chunks stored on all ranks. That a test's rank has lost one is found when it is wanted."""
        for strategy in ("blind", "full"):
            self.ask(strategy)
            self.served.settle()
        here = self.kept()
        assert len(here) == len(self.given.pictures)
        return here

    def lose(self, rank: int) -> Callable[[], None]:
        here = self.capture()

        def run() -> None:
            assert sum(self.served.on_ranks(ranks.lose, here, rank)) == len(here)

        return run


def started(subject: Any, workers: int, bench: Any, store: Path, stock: Tensor, given: Any) -> Split:
    served = bench.serve(subject.folder, store, subject.vocabulary, **split(workers))
    engine = Engine.load(subject.folder, anchor=None, dtype=torch.float32)
    apart = float((stock - reference(engine, given)("full")).abs().max())
    return Split(subject, workers, served, store, engine, given, stock, apart)


@pytest.fixture(scope="module")
def module_patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def two(
    bench: Any, subjects: Any, tmp_path_factory: pytest.TempPathFactory, module_patch: pytest.MonkeyPatch
) -> Iterator[Split]:
    """Two workers on a folder that a server with one has used before."""
    module_patch.setattr(captures, "RECAPTURE_SECONDS", 0.0)
    subject, store = subjects("qwen2.5-vl"), tmp_path_factory.mktemp("store")
    given = subject.prompt(3, seed=3)
    one = bench.serve(subject.folder, store, subject.vocabulary)
    stock = one.ask(given.token_ids, given.pictures).logits
    one.settle()
    linked = one.ask(given.token_ids, given.pictures, {"strategy": "blind"}, salt=None)
    assert linked.report["stored"], "this server has its chunks"
    yield started(subject, 2, bench, store, stock, given)
    bench.close()


def test_a_store_of_one_worker_is_not_read_by_two(two: Split) -> None:
    answer = two.ask("blind", capture=False)
    assert answer.report["linked_tokens"] == 0 and not answer.report["stored"]
    assert error(answer, two.stock) <= TOLERANCE


def test_linked_prompts_agree(two: Split, record_property: Any) -> None:
    plain = two.ask("full")
    two.served.settle()
    assert error(plain, two.stock) <= TOLERANCE and len(two.kept()) == 3
    for strategy in ("blind", "mpic-4", "mpic-32"):
        two.served.on_ranks(ranks.computed)
        answer = two.ask(strategy)
        rows = two.served.on_ranks(ranks.computed)
        record_property(strategy, error(answer, two.wanted(strategy)))
        assert answer.report["linked_tokens"] > 0
        assert error(answer, two.wanted(strategy)) <= two.apart + TOLERANCE, strategy
        # A step that takes all its rows computes its last one in place of taking it.
        more = rows[0] - (answer.report["prompt_tokens"] - answer.report["linked_tokens"])
        assert rows[0] == rows[1] and more in (0, 1), strategy
        if strategy == "blind":
            assert error(answer, two.stock) > 300 * TOLERANCE
    assert error(two.ask("full"), plain.logits) == 0.0, "a plain request afterwards is what it was before"


def test_a_prompt_that_is_read_agrees(two: Split, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    two.capture()
    chosen: list[list[int]] = []
    choose = readings.chosen_rows

    def noted(again: Any, scores: Tensor) -> Tensor:
        rows = choose(again, scores)
        chosen.append(rows.tolist())
        return rows

    monkeypatch.setattr(readings, "chosen_rows", noted)
    two.served.on_ranks(ranks.computed)
    answer = two.ask("query-12%", margin=0)
    rows = two.served.on_ranks(ranks.computed)
    parts = two.given.parts([two.engine.add(picture) for picture in two.given.pictures])
    prompt = two.engine.prompt(parts, template=False)
    linked = two.engine.session.link(LinkRequest(prompt, Read("query-12%"))).linked
    assert chosen == [list(linked.trace.selected[-1])]
    wanted = torch.log_softmax(linked.logits, -1)
    record_property("query-12%", error(answer, wanted))
    assert answer.report["linked_tokens"] > 0 and error(answer, wanted) <= two.apart + TOLERANCE
    text, asked = sum(map(len, two.given.texts[:-1])), len(two.given.texts[-1])
    assert rows == [text + 2 * asked + len(chosen[0]) + 1] * 2
    unsure = two.ask("query-12%", margin=1)
    assert unsure.report["linked_tokens"] == 0 and error(unsure, two.ask("full").logits) == 0.0


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fail", [ranks.fail_notes, ranks.fail_writes])
def test_a_prompt_that_one_rank_cannot_read_is_computed_by_both(
    two: Split, rank: int, fail: Callable[[Any, int], None]
) -> None:
    two.capture()
    two.served.on_ranks(fail, rank)
    answer = two.ask("query-12%", margin=0)
    two.served.on_ranks(fail, -1)
    assert answer.report["linked_tokens"] == 0 and error(answer, two.stock) <= TOLERANCE
    assert two.ask("query-12%", margin=0).report["linked_tokens"] > 0


def test_patches_are_formed_on_each_rank(two: Split) -> None:
    two.capture()
    for _ in range(2):
        answer = two.ask("patch-4096")
        two.served.settle()
    assert answer.report["strategy"] == "patch-4096" and answer.report["linked_tokens"] > 0
    assert error(answer, two.stock) <= two.apart + TOLERANCE


def test_values_come_from_the_pages_of_each_rank(two: Split) -> None:
    two.capture()
    two.served.on_ranks(ranks.zero_values, True)
    zeroed = two.ask("blind")
    two.served.on_ranks(ranks.zero_values, False)
    assert error(zeroed, two.wanted("blind")) > 300 * TOLERANCE


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_before_planning_is_computed_by_both(two: Split, rank: int) -> None:
    """What only the second has lost is found out when its rows are staged; then it is captured again."""
    two.lose(rank)()
    answer = two.ask("blind", capture=False)
    assert answer.report["linked_tokens"] == 0 and error(answer, two.stock) <= TOLERANCE
    two.ask("full")
    two.served.settle()
    assert len(two.kept()) == 3, "made again"
    assert error(two.ask("blind"), two.wanted("blind")) <= two.apart + TOLERANCE


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_between_plan_and_staging_is_computed_by_both(
    two: Split, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose, order, calls = two.lose(rank), RequestPlanner._order, list[int]()

    def lost(own: RequestPlanner, *given: Any) -> bool:
        if not calls:
            lose()
        calls.append(1)
        return order(own, *given)

    monkeypatch.setattr(RequestPlanner, "_order", lost)
    answer = two.ask("blind", capture=False)
    assert answer.report["linked_tokens"] == 0 and error(answer, two.stock) <= TOLERANCE


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_after_staging_changes_nothing(two: Split, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is staged is held in memory until it is written."""
    lose, begin, calls = two.lose(rank), RequestPlanner.begin_load, list[int]()

    def lost(own: RequestPlanner, *given: Any) -> Any:
        calls.append(1)
        lose()
        return begin(own, *given)

    monkeypatch.setattr(RequestPlanner, "begin_load", lost)
    answer = two.ask("blind", capture=False)
    assert calls
    assert answer.report["linked_tokens"] > 0
    assert error(answer, two.wanted("blind")) <= two.apart + TOLERANCE


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_that_one_rank_cannot_write_are_computed_by_both(two: Split, rank: int) -> None:
    two.capture()
    two.served.on_ranks(ranks.fail_writes, rank)
    answer = two.ask("blind")
    two.served.on_ranks(ranks.fail_writes, -1)
    assert error(answer, two.stock) <= TOLERANCE
    assert error(two.ask("blind"), two.wanted("blind")) <= two.apart + TOLERANCE


@pytest.mark.parametrize("rank", [0, 1])
def test_an_encoding_that_one_rank_lacks_is_made_by_both(two: Split, rank: int) -> None:
    """The tower's heads are split too: a rank that ran it alone would wait for the other for ever."""
    two.capture()
    two.served.on_ranks(ranks.forget_encodings, rank)
    answer = two.ask("mpic-4")
    two.served.on_ranks(ranks.forget_encodings, -1)
    assert answer.report["linked_tokens"] > 0
    assert error(answer, two.wanted("mpic-4")) <= two.apart + TOLERANCE


def test_a_store_of_two_workers_is_not_read_by_one(two: Split, bench: Any) -> None:
    """The last test of these workers: it ends them."""
    subject, given = two.subject, two.subject.prompt(2, seed=8)
    plain = two.served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    two.served.settle()
    one = bench.serve(subject.folder, two.store, subject.vocabulary)
    answer = one.ask(given.token_ids, given.pictures, {"strategy": "blind", "capture": False})
    assert answer.report["linked_tokens"] == 0 and not answer.report["stored"]
    assert error(answer, plain.logits) <= two.apart + TOLERANCE


def test_more_workers_than_heads(bench: Any, subjects: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two of four workers keep the same head."""
    subject, store = subjects("qwen2.5-vl"), tmp_path_factory.mktemp("store")
    given = subject.prompt(3, seed=3)
    stock = bench.serve(subject.folder, None, subject.vocabulary, **split(4)).ask(given.token_ids, given.pictures)
    four = started(subject, 4, bench, store, stock.logits, given)
    four.capture()
    for strategy in ("blind", "mpic-4"):
        answer = four.ask(strategy)
        assert answer.report["linked_tokens"] > 0
        assert error(answer, four.wanted(strategy)) <= four.apart + TOLERANCE, strategy
    bench.close()


def test_a_server_s_caches_hold_every_share(bench: Any, tmp_path: Path) -> None:
    """A cache of two pictures: two chunks and their patches, of two workers each."""
    from tests.serve.engines import served

    bench.close()
    pages = sorted((bundled_folder("reference").parent / "demo").glob("map-*.png"))[:2]
    with served("vllm-serve", tmp_path, *SERVER) as running, running.http() as client:
        form = {"purpose": "user_data"}
        sent = [client.post("/v1/files", files={"file": (page.name, page.read_bytes())}, data=form) for page in pages]
        shown = [{"type": "file", "file": {"file_id": answer.json()["id"]}} for answer in sent]
        cache = client.post(
            "/v1/caches?wait=true", json={"content": [{"type": "text", "text": "Maps."}, *shown], "ttl": 600}
        )
        assert cache.status_code == 200, cache.text
        with Store(running.store) as store:
            chunks = store.tenant().ids()
            whole = [id for id in chunks if set(shard_ids(id, 2)) <= set(chunks)]
            assert store.disk is not None and len(whole) == 2 and len(chunks) == 4
            kept = list(store.disk.entries())
        assert cache.json()["bytes"] == sum(entry.bytes for entry in kept) and len(kept) in (4, 6, 8)
        question = {"role": "user", "content": [*shown, {"type": "text", "text": "what colour?"}]}
        body = {"model": "reference", "max_tokens": 2, "strategy": "blind", "messages": [question]}
        told = client.post("/v1/chat/completions", json=body).json()["kv_transfer_params"]["emblema"]
        assert told["linked_tokens"] == told["media_tokens"] > 0
