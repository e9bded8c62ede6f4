"""What a server survives: small budgets, preemption, aborts, losses, tenants. No request gets approximate pages."""

import threading
from typing import Any

import pytest
import torch

from emblema import Engine
from emblema.served.staging import RowStager, StagedRows
from emblema.session.requests import LinkRequest
from emblema.vllm import planner as planner_module
from tests.vllm.plans import AfterPrefix

TOLERANCE = 1e-5


def wanted(engine: Engine, given: Any, strategy: str) -> torch.Tensor:
    parts = given.parts([engine.add(picture) for picture in given.pictures])
    return torch.log_softmax(engine.prefill(parts, strategy, template=False).logits, -1)


def learn(served: Any, given: Any) -> None:
    """Have every picture of a prompt stored."""
    served.ask(given.token_ids, given.pictures)
    served.settle()
    served.forget_prefixes()


def error(answer: Any, logits: torch.Tensor) -> float:
    return float((answer.logits - logits).abs().max())


def common(ids: list[int], given: Any, other: Any, engine: Engine) -> int:
    """Rows that two prompts have in common from the front."""
    theirs = engine.prompt(
        other.parts([engine.add(picture) for picture in other.pictures]), template=False
    ).token_ids.tolist()
    return next(row for row, (a, b) in enumerate(zip(ids, theirs, strict=False)) if a != b)


@pytest.fixture(scope="module")
def stepwise(bench, subject, tmp_path_factory) -> Any:
    """A server whose steps end within pictures."""
    return bench.serve(
        subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary, enable_chunked_prefill=True,
        max_num_batched_tokens=24, max_num_seqs=8,
    )  # fmt: skip


def test_a_step_too_small_for_a_prompt(stepwise, subject, engine) -> None:
    """Steps end within pictures, and two prompts have more runs of computed rows than the batch has places."""
    prompts = [subject.prompt(6, seed=10), subject.prompt(4, seed=11)]
    for given in prompts:
        learn(stepwise, given)
    for strategy in ("blind", "mpic-4"):
        answers = stepwise.ask_all([(prompt.token_ids, prompt.pictures) for prompt in prompts], {"strategy": strategy})
        for answer, given in zip(answers, prompts, strict=True):
            assert error(answer, wanted(engine, given, strategy)) <= TOLERANCE, strategy
            assert answer.report["linked_tokens"] == answer.cached > 0
        stepwise.forget_prefixes()


def test_an_abort_between_two_loads(stepwise, subject, engine) -> None:
    given = subject.prompt(6, seed=30)
    learn(stepwise, given)
    core = stepwise.llm.llm_engine
    prompt = {"prompt_token_ids": given.token_ids, "multi_modal_data": {"image": given.pictures}}
    core.add_request("gone", prompt, stepwise.params({"strategy": "blind"}))
    name = next(iter(stepwise.scheduler.requests))
    while stepwise.scheduler.requests[name].num_computed_tokens == 0:
        # Deferred until it is planned.
        core.step()
    assert (
        0 < stepwise.scheduler.requests[name].num_computed_tokens < stepwise.scheduler.requests[name].num_prompt_tokens
    )
    core.abort_request(["gone"])
    stepwise.settle()
    assert not stepwise.scheduler.requests and stepwise.planner.finish(name) is None
    assert error(stepwise.ask(given.token_ids, given.pictures), wanted(engine, given, "blind")) <= TOLERANCE
    assert stepwise.scheduler.kv_cache_manager.usage == 0


def test_a_capture_goes_on_where_the_encoder_cache_is_emptied_meanwhile(stepwise, subject) -> None:
    given, before = subject.prompt(1, seed=46), len(stepwise.store.tenant())
    stepwise.ask(given.token_ids, given.pictures)
    core, captures = stepwise.llm.llm_engine.engine_core.engine_core, stepwise.captures
    while not captures.running:
        core.step_fn()
    stepwise.llm.llm_engine.reset_encoder_cache()
    stepwise.settle()
    assert not captures.running and stepwise.scheduler.kv_cache_manager.usage == 0
    assert len(stepwise.store.tenant()) == before + 1


@pytest.mark.parametrize("places", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_batch_with_fewer_places_than_a_prompt_has_runs(bench, subject, engine, tmp_path, places) -> None:
    served = bench.serve(subject.folder, tmp_path / "store", subject.vocabulary, max_num_seqs=places)
    large, small = subject.prompt(6, seed=10), subject.prompt(1, seed=12)
    learn(served, large)
    learn(served, small)
    answers = served.ask_all([(prompt.token_ids, prompt.pictures) for prompt in (large, small)], {"strategy": "blind"})
    for answer, given in zip(answers, (large, small), strict=True):
        assert answer.report["linked_tokens"] > 0
        assert error(answer, wanted(engine, given, "blind")) <= TOLERANCE


def test_preemption_in_a_tiny_pool(bench, subject, engine, tmp_path) -> None:
    page = 2 * 32 * 2 * 32 * 3 * 4
    served = bench.serve(
        subject.folder, tmp_path / "store", subject.vocabulary, kv_cache_memory_bytes=11 * page, max_model_len=256,
        enable_prefix_caching=True,
    )  # fmt: skip
    prompts = [subject.prompt(1, seed=20 + index) for index in range(3)]
    for given in prompts:
        learn(served, given)
    preempted: list[str] = []
    stock = served.scheduler._preempt_request
    served.scheduler._preempt_request = lambda request, *args, **kwargs: (
        preempted.append(request.request_id), stock(request, *args, **kwargs)
    )  # fmt: skip
    answers = served.ask_all(
        [(prompt.token_ids, prompt.pictures) for prompt in prompts], {"strategy": "blind"}, tokens=90
    )
    assert preempted, "the pool is to be too small"
    alone = [served.ask(prompt.token_ids, prompt.pictures, {"strategy": "blind"}, tokens=90) for prompt in prompts]
    for answer, again, given in zip(answers, alone, prompts, strict=True):
        assert error(answer, wanted(engine, given, "blind")) <= TOLERANCE
        assert answer.tokens == again.tokens


@pytest.mark.cells
def test_chunks_that_have_the_pages_of_a_request_are_finished_first(bench, subject, engine, tmp_path) -> None:
    page = 2 * 32 * 2 * 32 * 3 * 4
    served = bench.serve(
        subject.folder, tmp_path / "store", subject.vocabulary, kv_cache_memory_bytes=10 * page, max_model_len=256,
        max_num_batched_tokens=24, max_num_seqs=8,
    )  # fmt: skip
    first, second = subject.prompt(3, seed=33), subject.prompt(3, seed=34, lead=60)
    parts = second.parts([engine.add(picture) for picture in second.pictures])
    pages = -(-engine.prompt(parts, template=False).tokens // 32)
    served.ask(first.token_ids, first.pictures)
    while not served.captures.running:
        served.llm.llm_engine.step()
    assert served.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() < pages <= 9
    assert error(served.ask(second.token_ids, second.pictures), wanted(engine, second, "full")) <= TOLERANCE


def test_a_false_name_keeps_no_false_picture(bench, subject, engine, tmp_path) -> None:
    """A client may give a `uuid` for a picture, which vLLM takes for its digest."""
    shown, other = subject.prompt(2, seed=51), subject.prompt(2, seed=52)
    names = ["logo", "map"]
    served = bench.serve(subject.folder, tmp_path / "store", subject.vocabulary)
    served.ask(shown.token_ids, shown.pictures, names=names)
    served.settle()
    assert len(served.store.tenant()) == 2
    # Another server on the same store, whose own caches are empty.
    served = bench.serve(subject.folder, tmp_path / "store", subject.vocabulary)
    answer = served.ask(other.token_ids, other.pictures, names=names)
    assert answer.report["linked_tokens"] == 0
    assert error(answer, wanted(engine, other, "full")) <= TOLERANCE
    served.settle()
    served.forget_prefixes()
    linked = served.ask(other.token_ids, other.pictures)
    assert linked.report["linked_tokens"] > 0 and error(linked, wanted(engine, other, "blind")) <= TOLERANCE
    again = served.ask(shown.token_ids, shown.pictures)
    assert again.report["linked_tokens"] > 0 and error(again, wanted(engine, shown, "blind")) <= TOLERANCE


def test_nothing_is_kept_under_a_name_that_was_another_pictures(bench, subject, tmp_path) -> None:
    """Without a processor cache vLLM's encoder outputs go by the name: a second picture's rows would be the first's."""
    shown, other = subject.prompt(2, seed=53), subject.prompt(2, seed=54)
    served = bench.serve(subject.folder, tmp_path / "store", subject.vocabulary, mm_processor_cache_gb=0)
    served.ask(shown.token_ids, shown.pictures, names=["logo", "map"])
    served.settle()
    kept = set(served.store.tenant().ids())
    served.forget_prefixes()
    answer = served.ask(other.token_ids, other.pictures, {"strategy": "patch-4"}, names=["logo", "map"])
    served.settle()
    assert "was another's" in answer.report["remark"] and set(served.store.tenant().ids()) == kept and len(kept) == 2


def test_auto_computes_what_is_new_after_what_it_links(bench, subject, engine, tmp_path) -> None:
    """Without a second pass, which the encoder connector is needed for."""
    served = bench.serve(subject.folder, tmp_path / "store", subject.vocabulary, ec_transfer_config=None)
    given = subject.prompt(3, seed=63)
    known = given.only(0, 1)

    def ask(prompt: Any) -> Any:
        answer = served.ask(prompt.token_ids, prompt.pictures, {"strategy": "auto"})
        served.settle()
        served.forget_prefixes()
        return answer

    # A patch is formed at the second sighting of a chunk after the same ones, and serves from the third on.
    first, second, again = ask(known), ask(known), ask(known)
    for computed in (first, second):
        assert computed.report["linked_tokens"] == 0 and error(computed, wanted(engine, known, "full")) <= TOLERANCE
    assert again.report["strategy"] == "auto:patch" and again.report["linked_tokens"] == again.report["media_tokens"]
    mixed, mixed_again, whole = ask(given), ask(given), ask(given)
    assert mixed_again.report["strategy"] == mixed.report["strategy"]
    assert mixed.report["strategy"] == "auto:patch+full" and mixed.cached == again.report["media_tokens"]
    assert whole.report["strategy"] == "auto:patch" and whole.cached == whole.report["media_tokens"] > mixed.cached
    # The third picture's patch was formed of its rows after the first two, as they were linked.
    full, blind = wanted(engine, given, "full"), wanted(engine, given, "blind")
    assert error(whole, full) < error(whole, blind)


@pytest.fixture(scope="module")
def served(bench, subject, tmp_path_factory) -> Any:
    """A server for the tests behind those that have one of their own; each shows pictures of its own."""
    return bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)


def test_plain_pages_are_shared_and_a_hit_may_end_inside_a_picture(served, subject, engine) -> None:
    given = subject.prompt(3, seed=2, lead=20)
    learn(served, given)
    # Plain pages of the opening and the first pictures; the hit ends at a page's end, which lies within a picture.
    opening = type(given)(subject, [*given.texts[:2], subject.text(40, 99)], given.pictures[:2])
    served.ask(opening.token_ids, opening.pictures, {"strategy": "full"})
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    prompt = engine.prompt(given.parts([engine.add(picture) for picture in given.pictures]), template=False)
    hit = 32 * (common(prompt.token_ids.tolist(), given, opening, engine) // 32)
    inside = [segment for segment, _ in prompt.chunk_segments if segment.start < hit < segment.stop]
    assert inside, "the prompt is to be laid out so that a page ends inside a picture"
    logits = torch.log_softmax(engine.session.link(LinkRequest(prompt, AfterPrefix("blind", hit))).linked.logits, -1)
    assert error(answer, logits) <= TOLERANCE
    assert answer.cached == answer.report["linked_tokens"] + hit


def test_a_system_prompt_hits_vllms_own_prefix_cache(served, subject, engine) -> None:
    system = subject.text(70, 5)
    first, second = subject.prompt(2, seed=3), subject.prompt(2, seed=4)
    prompts = [
        type(prompt)(subject, [system + prompt.texts[0], *prompt.texts[1:]], prompt.pictures)
        for prompt in (first, second)
    ]
    for given in prompts:
        learn(served, given)
    served.ask(prompts[0].token_ids, prompts[0].pictures, {"strategy": "blind"})
    answer = served.ask(prompts[1].token_ids, prompts[1].pictures, {"strategy": "blind"})
    assert answer.cached == answer.report["linked_tokens"] + 64
    assert error(answer, wanted(engine, prompts[1], "blind")) <= TOLERANCE


def test_pictures_of_dense_requests_are_kept_once_it_is_quiet(served, subject, monkeypatch) -> None:
    monkeypatch.setattr("emblema.served.idle_time.DENSE_SECONDS", 600.0)
    prompts, before = [subject.prompt(2, seed=70 + number) for number in range(6)], len(served.store.tenant())
    served.ask_all([(given.token_ids, given.pictures) for given in prompts], {"strategy": "auto"}, tokens=3)
    captures = served.captures
    assert captures.waiting and not captures.running and served.scheduler.has_requests()
    monkeypatch.setattr("emblema.served.idle_time.DENSE_SECONDS", 0.1)
    served.settle()
    assert not captures.waiting and not served.scheduler.has_requests()
    assert len(served.store.tenant()) == before + 12
    # A request alone does not wait for that.
    last = subject.prompt(1, seed=80)
    served.ask(last.token_ids, last.pictures, {"strategy": "auto"})
    served.settle()
    assert len(served.store.tenant()) == before + 13


@pytest.mark.cells
def test_a_request_may_decline_to_be_kept(served, subject) -> None:
    given, before = subject.prompt(2, seed=81), set(served.store.tenant().ids())
    served.ask(given.token_ids, given.pictures, {"strategy": "auto", "capture": False})
    served.settle()
    assert set(served.store.tenant().ids()) == before and not served.captures.waiting


@pytest.mark.cells
def test_a_store_that_vanishes(served, subject, engine, monkeypatch) -> None:
    given = subject.prompt(3, seed=40)
    learn(served, given)
    assert served.ask(given.token_ids, given.pictures).report["linked_tokens"] > 0
    # Planned, and gone when the worker is to read it.
    view, planner = served.store.tenant(), served.planner
    stock = planner.step_metadata

    def late(*args: Any) -> Any:
        step = stock(*args)
        for order in step.stagings:
            for part in order.plan.ranges:
                if part.origin is not None:
                    view.delete(part.origin.chunk)
        return step

    with monkeypatch.context() as patched:
        patched.setattr(planner, "step_metadata", late)
        answer = served.ask(given.token_ids, given.pictures)
    assert answer.report["linked_tokens"] == answer.cached == 0 and "could not be loaded" in answer.report["remark"]
    assert error(answer, wanted(engine, given, "full")) <= TOLERANCE
    # Nothing wrong stays in vLLM's pages, and the chunks are made again.
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert error(plain, wanted(engine, given, "full")) <= TOLERANCE


def test_rows_that_vanish_once_they_are_staged_are_taken(served, subject, engine, monkeypatch) -> None:
    given = subject.prompt(3, seed=41)
    learn(served, given)
    view, planner = served.store.tenant(), served.planner
    stock = planner.step_metadata

    def late(*args: Any) -> Any:
        step = stock(*args)
        for chunk in view.ids() if step.links else ():
            view.delete(chunk)
        return step

    monkeypatch.setattr(planner, "step_metadata", late)
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert answer.report["linked_tokens"] > 0 and not view.ids()
    assert error(answer, wanted(engine, given, "blind")) <= TOLERANCE


@pytest.mark.cells
def test_rows_that_are_read_too_late_are_computed(served, subject, engine, monkeypatch) -> None:
    given = subject.prompt(3, seed=47)
    learn(served, given)
    reads, stock = threading.Event(), RowStager._read

    def late(*args: Any) -> Any:
        assert reads.wait(60)
        return stock(*args)

    with monkeypatch.context() as patched:
        patched.setattr(planner_module, "STAGING_SECONDS", 0.0)
        patched.setattr(RowStager, "_read", late)
        answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
        reads.set()
    assert answer.report["linked_tokens"] == 0 and answer.report["strategy"] == "plain"
    assert error(answer, wanted(engine, given, "full")) <= TOLERANCE
    served.forget_prefixes()
    again = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert again.report["linked_tokens"] > 0 and error(again, wanted(engine, given, "blind")) <= TOLERANCE


def test_rows_that_cannot_be_written_are_computed(served, subject, engine, monkeypatch) -> None:
    given = subject.prompt(3, seed=42)
    learn(served, given)

    def broken(*args: Any) -> None:
        raise OSError("no more memory")

    with monkeypatch.context() as patched:
        patched.setattr(StagedRows, "write", broken)
        # The report comes with the step's outcome, so the first token does not know of it yet.
        answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"}, tokens=2)
    assert answer.report["linked_tokens"] == 0 and "could not be loaded" in answer.report["remark"]
    assert error(answer, wanted(engine, given, "full")) <= TOLERANCE
    again = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert again.report["linked_tokens"] > 0 and error(again, wanted(engine, given, "blind")) <= TOLERANCE


def test_tenants_do_not_meet(served, subject, engine) -> None:
    given = subject.prompt(2, seed=50)
    served.ask(given.token_ids, given.pictures, salt="one")
    served.settle()
    served.forget_prefixes()
    ours = served.ask(given.token_ids, given.pictures, salt="one")
    theirs = served.ask(given.token_ids, given.pictures, {"capture": False}, salt="two")
    assert ours.report["linked_tokens"] > 0
    assert theirs.report["linked_tokens"] == theirs.cached == 0
    assert error(theirs, wanted(engine, given, "full")) <= TOLERANCE


@pytest.mark.parametrize(
    ("options", "more", "words"),
    [
        ({"strategy": "cacheblend-15"}, {}, "layer by layer"),
        ({"strategy": "vlcache-50"}, {}, "some layers"),
        ({"strategy": "full-reuse"}, {}, "several steps"),
        ({"strategy": "orbit-8"}, {}, "an orbit patch is not stored"),
        ({"strategy": "no-such"}, {}, "unknown strategy"),
        ({"strategy": 7}, {}, "give a name"),
        ({"strategi": "blind"}, {}, "strategi"),
    ],
)
def test_what_pages_cannot_do_is_computed_and_said(served, subject, engine, options, more, words) -> None:
    given = subject.prompt(2, seed=60)
    answer = served.ask(given.token_ids, given.pictures, options, **more)
    assert words in answer.report["remark"]
    assert error(answer, wanted(engine, given, "full")) <= TOLERANCE


def test_prompt_logprobs_are_computed_plainly(served, subject, engine) -> None:
    given = subject.prompt(2, seed=61)
    learn(served, given)
    answer = served.ask(given.token_ids, given.pictures, prompt_logprobs=1)
    assert "prompt_logprobs" in answer.report["remark"] and answer.report["linked_tokens"] == answer.cached == 0
    assert error(answer, wanted(engine, given, "full")) <= TOLERANCE


def test_nothing_is_taken_once_the_weights_have_changed(served, subject, engine) -> None:
    """The last test of this server: it keeps nothing from then on."""
    given, other = subject.prompt(2, seed=43), subject.prompt(2, seed=44)
    learn(served, given)
    before = len(served.store.tenant())
    worker = served.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    worker.sleep()
    served.ask(other.token_ids, other.pictures, {"strategy": "blind"})
    served.settle()
    assert len(served.store.tenant()) == before, "a worker that sleeps captures nothing"
    worker.wake_up()
    assert served.ask(given.token_ids, given.pictures, {"strategy": "blind"}).report["linked_tokens"] > 0
    worker.reload_weights()
    served.llm.llm_engine.reset_encoder_cache()
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert answer.report["linked_tokens"] == 0 and error(answer, wanted(engine, given, "full")) <= TOLERANCE
    new = subject.prompt(1, seed=45)
    served.ask(new.token_ids, new.pictures)
    served.settle()
    assert len(served.store.tenant()) == before and served.scheduler.kv_cache_manager.usage == 0
