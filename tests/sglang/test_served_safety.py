"""What must not happen: rows of one in the answers of others, a server that ends, or an answer from rows not read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.kv.layout import LayerRows
from emblema.store import Store
from emblema.store.identity import request_salt
from tests.vllm.models import Subject


@pytest.fixture(scope="module")
def subject(subjects) -> Subject:
    return subjects("qwen2.5-vl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module", params=["one after another", "chunks of 32", "overlapping"])
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
    engine = Engine.load(subject.folder, dtype=torch.float32)
    for strategy in ("blind", "mpic-4"):
        answer = served.ask(given, {"strategy": strategy})
        parts = given.parts([engine.add(picture) for picture in given.pictures])
        wanted = torch.log_softmax(engine.prefill(parts, strategy, template=False).logits, -1)
        assert float((answer.logits - wanted).abs().max()) <= 2e-5 and answer.report["linked_tokens"] > 0


def test_two_tenants(served: Any, subject: Subject) -> None:
    given = subject.prompt(1, seed=92)
    served.learn(given, cache_salt="one")
    own, other = (
        served.ask(given, {"strategy": "blind", "capture": False}, cache_salt=name) for name in ("one", "two")
    )
    assert own.report["linked_tokens"] > 0 and other.report["linked_tokens"] == 0


def test_a_vanishing_store(served: Any, subject: Subject, folder: Path) -> None:
    given = subject.prompt(2, seed=93)
    plain = served.ask(given, {"strategy": "full"})
    report = served.learn(given, cache_salt="vanishing")
    linked = served.ask(given, {"strategy": "blind"}, cache_salt="vanishing")
    with_store(folder, lambda tenant: [tenant.delete(name) for name in report["pieces"]["chunks"]])
    served.forget_prefixes()
    gone = served.ask(given, {"strategy": "blind", "capture": False}, cache_salt="vanishing")
    assert linked.report["linked_tokens"] > 0 and gone.report["linked_tokens"] == 0
    assert torch.equal(gone.logits, plain.logits)


def with_store(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change what a tenant has, as another process."""
    store = Store(folder)
    change(store.tenant(request_salt("vanishing")))
    store.flush()
    store.close()


def test_an_abort(served: Any, subject: Subject) -> None:
    import asyncio

    given = subject.prompt(2, seed=94)
    served.learn(given)

    async def abort() -> None:
        body = served.body(given, {"strategy": "blind"}, 200) | {"rid": "aborted"}
        task = asyncio.ensure_future(served.engine.async_generate(**body))
        await asyncio.sleep(0.2)
        served.engine.abort_request("aborted")
        await asyncio.wait_for(task, 60)

    asyncio.get_event_loop().run_until_complete(abort())
    answer = served.ask(given, {"strategy": "blind"})
    assert answer.report["linked_tokens"] > 0


def test_rows_of_zeros_change_the_answer(serve: Callable[..., Any], subject: Subject, tmp_path: Path) -> None:
    """What is taken is read: a restarted server takes what the store has, whatever that is."""
    given = subject.prompt(2, seed=95)
    served = serve(subject, tmp_path)
    names = served.learn(given, cache_salt="vanishing")["pieces"]["chunks"]
    whole = served.ask(given, {"strategy": "blind"}, cache_salt="vanishing")

    def clear(tenant: Any) -> None:
        with tenant.lease(names) as lease:
            rows = {name: tuple(lease.rows[name]) for name in names}
        for name in names:
            chunk = tenant.find(name)
            tenant.delete(name)
            zeros = tuple(LayerRows(layer.keys, torch.zeros_like(layer.values)) for layer in rows[name])
            tenant.put(replace(chunk, rows=zeros))

    served.close()
    with_store(tmp_path, clear)
    served = serve(subject, tmp_path)
    zeroed = served.ask(given, {"strategy": "blind", "capture": False}, cache_salt="vanishing")
    assert zeroed.report["linked_tokens"] == whole.report["linked_tokens"] > 0
    assert float((zeroed.logits - whole.logits).abs().max()) > 0.01
