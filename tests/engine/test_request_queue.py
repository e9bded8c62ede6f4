"""What waits for a model: tenants take turns, and so do a tenant's calls and its requests."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from emblema.engine.generation import GenerateRequest, Generation
from emblema.engine.request_queue import ModelCall, RequestQueue, SchedulerLimits, WaitingItem
from emblema.session.decoding import Sampling


def waits(queue: RequestQueue, owner: str, kind: str, number: int) -> WaitingItem:
    """An item of a tenant that waits in the queue."""
    what: Any = ModelCall(lambda: None, Future())
    if kind == "request":
        what = Generation(GenerateRequest([f"{number}"], "full", Sampling()), lambda piece: None, rows=10)
    engine: Any = SimpleNamespace(store=SimpleNamespace(owner=owner))
    item = WaitingItem(engine, what)
    queue.put(item, 1.0)
    return item


def test_a_call_waits_for_one_request_and_each_tenant_has_its_turn() -> None:
    queue = RequestQueue(SchedulerLimits())
    requests = [waits(queue, "one", "request", number) for number in range(4)]
    calls = [waits(queue, "one", "call", number) for number in range(2)]
    other = waits(queue, "two", "request", 0)
    assert len(queue) == 7 and queue.generations == [*(each.what for each in requests), other.what]
    taken = [queue.take() for _ in range(7)]
    assert len(queue) == 0
    wanted = [requests[0], other, calls[0], requests[1], calls[1], requests[2], requests[3]]
    assert [id(each) for each in taken] == [id(each) for each in wanted]


def test_another_tenant_s_request_is_lent_though_its_call_waits() -> None:
    queue = RequestQueue(SchedulerLimits())
    mine, call = waits(queue, "one", "request", 0), waits(queue, "two", "call", 0)
    assert queue.take_other("one") is None
    theirs = waits(queue, "two", "request", 1)
    assert queue.take_other("one") is theirs and queue.take_other("one") is None
    queue.remove([mine.what])  # type: ignore[list-item]
    assert queue.take() is call and len(queue) == 0
