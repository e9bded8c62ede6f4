"""What must not happen: rows of one in the answers of others, a server that ends, or an answer from rows not read."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.kv.layout import LayerRows
from emblema.store import Store
from emblema.store.identity import request_salt
from tests.sglang.engine_process import EngineError
from tests.vllm.models import Subject

ATTEMPTS = 5


@pytest.fixture(scope="module")
def subject(subjects) -> Subject:
    return subjects("qwen2.5-vl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("store")


FURTHER = (pytest.param(name, marks=pytest.mark.slow) for name in ("overlapping", "one after another"))


@pytest.fixture(scope="module", params=["chunks of 32", *FURTHER])
def served(request, serve: Callable[..., Any], subject: Subject, folder: Path) -> Any:
    more = {
        "chunks of 32": {"chunked_prefill_size": 32, "page_size": 1},
        "overlapping": {"disable_overlap_schedule": False, "chunked_prefill_size": 64},
    }.get(request.param, {})
    return serve(subject, folder, **more)


def test_a_plain_request_is_stock_sglangs(served: Any, subject: Subject) -> None:
    """The prompt before and after linked ones on it, with whatever they left in the radix tree."""
    given = subject.prompt(3, seed=90)
    before = served.ask(given, {"strategy": "full", "capture": False}, tokens=4)
    served.forget_prefixes()
    served.learn(given)
    for strategy in ("blind", "mpic-4", "blind"):
        linked = served.ask(given, {"strategy": strategy}, tokens=4)
        assert linked.report["linked_tokens"] > 0
        after = served.ask(given, {"strategy": "full"}, tokens=4)
        served.forget_prefixes()
        assert torch.equal(after.logits, before.logits) and after.tokens == before.tokens
        assert not torch.equal(linked.logits, before.logits)


def test_linked_prompts_are_the_same_in_chunks(served: Any, subject: Subject) -> None:
    """Pictures are cut by the chunks' bounds; the embedded engine's answers are those of one forward."""
    from emblema import Engine

    given = subject.prompt(3, seed=91)
    served.learn(given)
    engine = Engine.load(subject.folder, anchor=None, dtype=torch.float32)
    for strategy in ("blind", "mpic-4"):
        answer = served.ask(given, {"strategy": strategy})
        parts = given.parts([engine.add(picture) for picture in given.pictures])
        wanted = torch.log_softmax(engine.prefill(parts, strategy, template=False).logits, -1)
        assert float((answer.logits - wanted).abs().max()) <= 2e-5 and answer.report["linked_tokens"] > 0


def test_several_at_once(served: Any, subject: Subject) -> None:
    given = [subject.prompt(count, seed=80 + count) for count in (1, 3, 2)]
    options = [{"strategy": name} for name in ("mpic-4", "blind", "full")]
    alone = []
    for prompt, own in zip(given, options, strict=True):
        served.learn(prompt)
        alone.append(served.ask(prompt, own, tokens=5))
        served.forget_prefixes()
    together = served.ask_all(given, options, tokens=5)
    served.forget_prefixes()
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens and one.report["linked_tokens"] == other.report["linked_tokens"]
        assert float((one.logits - other.logits).abs().max()) <= 1e-5


def test_two_tenants(served: Any, subject: Subject) -> None:
    given = subject.prompt(1, seed=92)
    served.learn(given, cache_salt="one")
    own, other = (
        served.ask(given, {"strategy": "blind", "capture": False}, cache_salt=name) for name in ("one", "two")
    )
    assert own.report["linked_tokens"] > 0 and other.report["linked_tokens"] == 0


def test_a_request_for_log_probabilities_of_its_prompt_is_computed(served: Any, subject: Subject) -> None:
    given = subject.prompt(1, seed=61)
    served.learn(given)
    plain = served.ask(given, {"strategy": "full"})
    served.forget_prefixes()
    assert served.ask(given, {"strategy": "blind"}).report["linked_tokens"] > 0
    told = served.ask(given, {"strategy": "blind"}, logprob_start_len=0)
    reason = "log-probabilities of its prompt need every row computed"
    assert (told.report["strategy"], told.report["remark"]) == ("plain", reason)
    assert told.report["media_tokens"] > 0 and float((told.logits - plain.logits).abs().max()) <= 1e-5
    assert served.log().count(f"emblema: a request is computed plainly: {reason}") == 1


def test_a_reply_says_what_was_done_also_in_the_last_part_of_a_stream(served: Any, subject: Subject) -> None:
    given = subject.prompt(2, seed=62)
    served.learn(given)
    answer = served.ask(given, {"strategy": "blind"}, tokens=4)
    assert answer.cached == answer.report["linked_tokens"] == answer.report["media_tokens"]
    served.forget_prefixes()
    last = served.engine.call("stream", **served.body(given, {"strategy": "blind"}, tokens=4))["meta_info"]
    (report,) = (report for report in last["emblema"] if report)
    assert report == answer.report and last["cached_tokens"] == answer.cached
    served.forget_prefixes()
    read = served.ask(given, {"strategy": "query-12%"})
    assert read.report["strategy"] == "plain" and "the plugin for SGLang has none" in read.report["remark"]


@pytest.mark.parametrize("options", ["blind", {"strategi": 1}, {"margin": 7}, {"strategy": "no-such"}])
def test_wrong_options_are_the_clients_error(served: Any, subject: Subject, options: Any) -> None:
    for pictures in (0, 1):
        with pytest.raises(EngineError, match="ValueError.*(emblema|margin|strategy)"):
            served.ask(subject.prompt(pictures, seed=63), options)


def test_aborts(served: Any, subject: Subject) -> None:
    """At any moment: while a request is planned, staged, prefilled, decoded. SGLang looks for lost slots when idle."""
    given = subject.prompt(2, seed=94)
    served.learn(given)
    for place, seconds in enumerate((0.0, 0.01, 0.03, 0.1, 0.3)):
        asked = served.engine.begin(
            "generate", **served.body(given, {"strategy": "blind"}, 300), rid=f"aborted {place}"
        )
        time.sleep(seconds)
        served.engine.call("abort", rid=f"aborted {place}")
        asked.exception(60)
    served.forget_prefixes()
    answer = served.ask(given, {"strategy": "blind"})
    assert answer.report["linked_tokens"] > 0


@pytest.mark.slow
def test_a_retracted_request_takes_its_rows_again(serve: Callable[..., Any], subject: Subject, tmp_path: Path) -> None:
    """SGLang's own test of retraction: every third step it takes the slots of a decoding request, if there is another.

    With a radix tree it would find its prompt there again.
    """
    served = serve(subject, tmp_path, environment={"SGLANG_TEST_RETRACT": "1"}, disable_radix_cache=True)
    given, linked = subject.prompt(3, seed=99), {"strategy": "mpic-4"}
    served.learn(given)
    alone = served.ask(given, linked, tokens=12)
    # One alone is never retracted.
    assert len(alone.reports) == 1 and "#retracted_reqs: 1" not in served.log()
    for attempt in range(ATTEMPTS):
        # The one that has fewer tokens is retracted; on a busy machine the other may have ended before this one begins.
        name, other = f"beside {attempt}", subject.prompt(1, seed=98)
        beside = served.engine.begin("generate", **served.body(other, linked, 1500), rid=name)
        answer = served.ask(given, linked, tokens=12)
        served.engine.call("abort", rid=name)
        beside.exception(60)
        assert answer.tokens == alone.tokens and float((answer.logits - alone.logits).abs().max()) <= 1e-5
        if len(answer.reports) > 1:
            break
    assert len(answer.reports) > 1 and "#retracted_reqs: 1" in served.log()
    assert all(report["linked_tokens"] == alone.report["linked_tokens"] > 0 for report in answer.reports)


def with_store(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change what a tenant has, as another process."""
    store = Store(folder)
    change(store.tenant(request_salt("vanishing")))
    store.flush()
    store.close()


@pytest.mark.slow
def test_a_restarted_server_reads_what_it_takes(serve: Callable[..., Any], subject: Subject, tmp_path: Path) -> None:
    """Rows of zeros change the answer; what is deleted, or whose file is gone, is computed."""
    given = [subject.prompt(2, seed=number) for number in (93, 95, 97)]
    served = serve(subject, tmp_path)
    salted = {"cache_salt": "vanishing"}
    names = [served.learn(prompt, **salted)["pieces"]["chunks"] for prompt in given]
    plain = [served.ask(prompt, {"strategy": "full"}, **salted) for prompt in given]
    served.forget_prefixes()
    linked = [served.ask(prompt, {"strategy": "blind"}, **salted) for prompt in given]
    assert all(answer.report["linked_tokens"] > 0 for answer in linked)

    def clear(tenant: Any) -> None:
        with tenant.lease(names[0]) as lease:
            rows = {name: tuple(lease.rows[name]) for name in names[0]}
        for name in names[0]:
            chunk = tenant.find(name)
            tenant.delete(name)
            zeros = tuple(LayerRows(layer.keys, torch.zeros_like(layer.values)) for layer in rows[name])
            tenant.put(replace(chunk, rows=zeros))

    served.close()
    with_store(tmp_path, clear)
    served = serve(subject, tmp_path)
    blind = {"strategy": "blind", "capture": False}
    zeroed = served.ask(given[0], blind, **salted)
    assert zeroed.report["linked_tokens"] == linked[0].report["linked_tokens"]
    assert float((zeroed.logits - linked[0].logits).abs().max()) > 0.01
    with_store(tmp_path, lambda tenant: [tenant.delete(name) for name in names[1]])
    deleted = served.ask(given[1], blind, **salted)
    for path in tmp_path.rglob("*"):
        path.unlink() if path.is_file() else None
    gone = served.ask(given[2], blind, **salted)
    for answer, own in ((deleted, plain[1]), (gone, plain[2])):
        assert answer.report["linked_tokens"] == 0 and torch.equal(answer.logits, own.logits)


@pytest.mark.slow
def test_plain_requests_have_the_bits_of_sglang_without_the_plugin(
    serve: Callable[..., Any], subject: Subject, tmp_path: Path
) -> None:
    """Before linked ones on the same prompts, after them, and after weights are changed in place: those end linking."""
    given = [subject.prompt(1, seed=88), subject.prompt(3, seed=89)]
    stock = serve(subject, None)
    wanted = [stock.ask(prompt, tokens=4) for prompt in given]
    assert not wanted[0].reports and "emblema: " not in stock.log()
    served = serve(subject, tmp_path)

    def hold(strategy: str) -> None:
        for prompt, own in zip(given, wanted, strict=True):
            answer = served.ask(prompt, {"strategy": strategy}, tokens=4)
            assert answer.report.get("linked_tokens", 0) == 0
            assert torch.equal(answer.logits, own.logits) and answer.tokens == own.tokens
        served.forget_prefixes()

    hold("full")
    for prompt, own in zip(given, wanted, strict=True):
        served.learn(prompt)
        linked = served.ask(prompt, {"strategy": "blind"}, tokens=4)
        assert linked.report["linked_tokens"] > 0 and not torch.equal(linked.logits, own.logits)
    served.forget_prefixes()
    hold("full")
    # The same weights, which SGLang does not know.
    assert served.engine.call("update_weights", folder=str(subject.folder))
    kept = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    hold("blind")
    assert served.ask(subject.prompt(1, seed=87)).report == {}
    assert served.log().count("nothing is linked or kept by this server from here on") == 1
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == kept
