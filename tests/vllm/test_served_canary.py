"""The canary inside vLLM: what it measures is what the answers show, a lane that it finds bad is closed, and no page
stays behind.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from emblema import Engine
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.link.lanes import Lane
from emblema.link.policy.fidelity import LaneReport, divergence
from emblema.served.idle_time import IdleTime
from emblema.store.identity import request_salt
from emblema.vllm.shadow_runs import ShadowRuns
from tests.vllm import ranks

ALWAYS = {"canary": 1.0, "canary_rows": 1e9}
AUTO = {"strategy": "auto"}
UNNOTICED = {"capture": False}
"""A request that leaves nothing to be compared."""
FULL = {"strategy": "full", **UNNOTICED}
NOISE = 1e-6
"""Nats by which the first decimals of float32 logits differ."""


@pytest.fixture
def serve(bench, subject, tmp_path) -> Callable[..., Any]:
    return lambda **more: bench.serve(
        subject.folder, tmp_path / "store", subject.vocabulary, "auto", extra=ALWAYS, **more
    )


@pytest.fixture
def served(serve) -> Any:
    return serve()


def ask(served: Any, given: Any, options: dict[str, Any] = AUTO, **more: Any) -> Any:
    """Ask alone, and let the server do what it does in idle time."""
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, options, **more)
    served.settle()
    return answer


def learn(served: Any, given: Any, **more: Any) -> None:
    """Have a prompt's pictures stored, and patches of them formed."""
    for _ in range(2):
        ask(served, given, {"strategy": "auto"}, **more)


def begin(served: Any, given: Any) -> None:
    """Ask, and step until the comparison has pages."""
    served.forget_prefixes()
    served.ask(given.token_ids, given.pictures, AUTO)
    step_until(served, lambda: served.canary.running)


def step_until(served: Any, reached: Callable[[], bool]) -> None:
    core = served.llm.llm_engine.engine_core.engine_core
    for _ in range(2000):
        if reached():
            return
        core.step_fn()
    pytest.fail("it is never so")


def measured(served: Any, salt: bytes = b"") -> dict[Lane, LaneReport]:
    """What a tenant's ledger says, by lane, once all that was compared is written."""
    found: dict[Lane, LaneReport] = {}
    done = threading.Event()

    def look() -> None:
        found.update({line.lane: line for line in served.planner.maker._ledgers.of(salt).reports()})
        done.set()

    served.planner.maker.do(look)
    assert done.wait(60)
    return found


def free(served: Any) -> int:
    return int(served.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def embedded(engine: Engine, given: Any) -> Callable[[str], torch.Tensor]:
    chunks = [engine.add(picture) for picture in given.pictures]
    return lambda strategy: engine.prefill(given.parts(chunks), strategy, template=False).logits


def spoil(served: Any) -> int:
    """Every stored patch becomes noise, several times what breaks the bound; return how many there were."""
    store, generator, spoilt = served.store.tenant(), torch.Generator().manual_seed(1), 0

    def noise(factors: Factors) -> Factors:
        # Directions of its own: those of a deficit that is zero may be zero.
        right = torch.nn.functional.normalize(torch.randn(factors.right.shape, generator=generator), dim=1)
        return Factors(12 * torch.randn(factors.left.shape, generator=generator), right)

    for chunk in store.ids():
        for key in store.artifact_keys(chunk):
            patch = store.find_patch(key)
            bad = [None if one is None else LayerPatch(noise(one.keys), noise(one.values)) for one in patch.layers]
            spoilt += store.put_artifact(key, Patch(tuple(bad)))
    return spoilt


@pytest.mark.cells
def test_what_is_measured_is_what_answers_show_and_the_embedded_engine_says(
    served, subject, engine, record_property
) -> None:
    given, unused = subject.prompt(3, seed=1), free(served)
    learn(served, given)
    plain, linked = ask(served, given, FULL), ask(served, given)
    assert linked.report["strategy"] == "auto:patch" and linked.report["linked_tokens"] > 0
    lines, wanted = measured(served), embedded(engine, given)
    line = lines[Lane.PATCH]
    assert line.measured == 1 and line.open
    record_property("patch", line.kl)
    assert line.kl == pytest.approx(divergence(wanted("full"), wanted("patch-25%")), rel=1e-2, abs=NOISE)
    assert lines[Lane.PATCH].kl == pytest.approx(divergence(plain.logits, linked.logits), rel=1e-3, abs=NOISE)
    assert torch.equal(ask(served, given, FULL).logits, plain.logits)
    assert free(served) == unused and measured(served)[Lane.PATCH].measured == 1


def test_a_lane_that_is_found_bad_is_closed_and_a_fresh_server_keeps_it_so(serve, subject) -> None:
    served, given = serve(), subject.prompt(3, seed=2)
    learn(served, given)
    plain = ask(served, given, FULL)
    assert spoil(served) > 0
    served.kv_worker.keeper.drain()
    answers = [ask(served, given) for _ in range(6)]
    linked = [answer.report["linked_tokens"] > 0 for answer in answers]
    assert linked[:2] == [True] * 2 and not linked[-1], "not by one item, and not never"
    assert torch.equal(answers[-1].logits, plain.logits)
    line = measured(served)[Lane.PATCH]
    assert not line.open and line.kl > 0.05
    served = serve()
    assert ask(served, given).report["linked_tokens"] == 0 and not measured(served)[Lane.PATCH].open


@pytest.mark.nightly
def test_nothing_is_compared_without_a_quiet_moment(served, subject, monkeypatch) -> None:
    given = subject.prompt(3, seed=3)
    learn(served, given)
    with monkeypatch.context() as patch:
        patch.setattr(IdleTime, "captures", lambda own, now, idle: 0)
        served.forget_prefixes()
        assert served.ask(given.token_ids, given.pictures, AUTO).report["linked_tokens"] > 0
        for _ in range(20):
            served.llm.llm_engine.engine_core.engine_core.step_fn()
        assert Lane.PATCH not in measured(served) and served.canary.waiting and not served.canary.running
    served.settle()
    assert measured(served)[Lane.PATCH].measured == 1


@pytest.mark.nightly
def test_tenants_measure_for_themselves(served, subject) -> None:
    given = subject.prompt(2, seed=4)
    learn(served, given, salt="alice")
    ask(served, given, salt="alice")
    assert Lane.PATCH in measured(served, request_salt("alice"))
    assert not measured(served) and not measured(served, request_salt("bob"))


def end_by_sleep(served: Any) -> None:
    worker = served.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    worker.sleep()
    served.settle()
    worker.wake_up()


def end_by_weights(served: Any) -> None:
    served.kv_worker.stop("a test has it stop")


def end_by_need(served: Any) -> None:
    served.canary.give_up()


@pytest.mark.nightly
@pytest.mark.cells
@pytest.mark.parametrize("end", [end_by_sleep, end_by_weights, end_by_need])
def test_a_comparison_that_ends_early_gives_its_pages_back(serve, subject, end) -> None:
    served = serve(max_num_batched_tokens=24)
    given, unused = subject.prompt(3, seed=5), free(served)
    learn(served, given)
    plain = ask(served, given, FULL)
    begin(served, given)
    assert free(served) < unused
    end(served)
    served.settle()
    assert free(served) == unused and not served.canary.running and not served.canary.waiting
    assert Lane.PATCH not in measured(served)
    assert torch.equal(ask(served, given, FULL).logits, plain.logits)
    if end is not end_by_weights:
        ask(served, given)
        assert measured(served)[Lane.PATCH].measured == 1 and free(served) == unused


@pytest.mark.nightly
@pytest.mark.cells
def test_a_request_that_needs_the_pages_gets_them(serve, subject) -> None:
    page = 2 * 32 * 2 * 32 * 3 * 4
    served = serve(kv_cache_memory_bytes=15 * page, max_model_len=448, max_num_batched_tokens=24, max_num_seqs=8)
    given, large = subject.prompt(3, seed=6), subject.prompt(6, seed=7, lead=60)
    learn(served, given)
    plain = ask(served, large, FULL)
    begin(served, given)
    assert free(served) < -(-plain.report["prompt_tokens"] // 32)
    answer = served.ask(large.token_ids, large.pictures, FULL)
    assert torch.equal(answer.logits, plain.logits) and not served.canary.running
    served.settle()
    assert Lane.PATCH not in measured(served)


@pytest.mark.nightly
@pytest.mark.cells
def test_a_plain_request_beside_a_comparison_is_plain(serve, subject) -> None:
    served = serve(max_num_batched_tokens=24)
    given, other = subject.prompt(3, seed=8), subject.prompt(2, seed=9)
    learn(served, given)
    plain = ask(served, other, FULL, tokens=4)
    begin(served, given)
    served.forget_prefixes()
    beside = served.ask(other.token_ids, other.pictures, FULL, tokens=4)
    assert torch.equal(beside.logits, plain.logits) and beside.tokens == plain.tokens
    served.llm.llm_engine.reset_encoder_cache()
    served.settle()
    assert measured(served)[Lane.PATCH].measured == 1


@pytest.mark.cells
def test_an_answer_that_was_read_is_compared_by_what_was_noted(served, subject) -> None:
    given = subject.prompt(4, seed=10)
    learn(served, given)
    order, unused = given.only(2, 0, 3, 1), free(served)
    # Whatever its margin is, it stands.
    answer = ask(served, order, {"strategy": "auto", "margin": 0})
    plain = ask(served, order, FULL)
    assert "query" in answer.report["strategy"] and answer.report["linked_tokens"] > 0
    line = measured(served)[Lane.QUERY]
    assert line.measured == 1
    assert line.kl == pytest.approx(divergence(plain.logits, answer.logits), rel=1e-3, abs=NOISE)
    assert free(served) == unused


@pytest.mark.nightly
def test_what_fails_while_it_is_compared_is_nobodys_loss(served, subject, monkeypatch) -> None:
    given, unused = subject.prompt(3, seed=11), free(served)
    learn(served, given)

    def fail(*given: Any) -> None:
        raise ValueError("a test has it fail")

    with monkeypatch.context() as patch:
        patch.setattr(ShadowRuns, "_place", fail)
        ask(served, given)
    assert Lane.PATCH not in measured(served) and free(served) == unused
    ask(served, given)
    assert measured(served)[Lane.PATCH].measured == 1


@pytest.mark.nightly
def test_two_workers_compare_together_or_not_at_all(serve, subject) -> None:
    served = serve(tensor_parallel_size=2, distributed_executor_backend="mp", max_num_batched_tokens=96)
    given, unused = subject.prompt(3, seed=13), free(served)
    learn(served, given)
    plain = ask(served, given, FULL)
    for fail, rank in ((ranks.fail_writes, 1), (ranks.fail_notes, 0), (ranks.fail_notes, 1)):
        served.forget_prefixes()
        assert served.ask(given.token_ids, given.pictures, AUTO).report["linked_tokens"] > 0
        served.on_ranks(fail, rank)
        served.settle()
        served.on_ranks(fail, -1)
        assert Lane.PATCH not in measured(served) and free(served) == unused
    linked = ask(served, given)
    line = measured(served)[Lane.PATCH]
    assert line.measured == 1 and free(served) == unused
    assert line.kl == pytest.approx(divergence(plain.logits, linked.logits), rel=1e-3, abs=NOISE)
    assert torch.equal(ask(served, given, FULL).logits, plain.logits)
