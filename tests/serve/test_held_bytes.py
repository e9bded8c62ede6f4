"""Bytes that requests hold are bounded, and given back however a request ends."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from emblema.errors import BusyError
from emblema.serve.faults import ServeError
from emblema.serve.held_bytes import BODY_COPIES, ByteBounds, HeldBytes

MB = 2**20
BOUNDS = ByteBounds(request=100 * MB, tenant=200 * MB, server=300 * MB)


@pytest.fixture
def held() -> Iterator[HeldBytes]:
    made = HeldBytes(BOUNDS)
    yield made
    assert made.total == 0, "all is given back"


def test_a_request_has_a_bound_of_its_own(held: HeldBytes) -> None:
    with held.open("a") as holding:
        holding.take_decoded(60 * MB)
        with pytest.raises(ServeError) as refused:
            holding.take_decoded(41 * MB)
        assert refused.value.status == 413 and held.total == 60 * MB
        holding.take_body(MB)
        assert held.total == (60 + BODY_COPIES) * MB
        holding.drop_decoded()
        assert held.total == BODY_COPIES * MB


def test_a_tenant_and_the_server_have_bounds(held: HeldBytes) -> None:
    requests = [held.open(owner) for owner in ("a", "a", "a", "b", "b")]
    for holding in requests[:2]:
        holding.take_decoded(100 * MB)
    with pytest.raises(BusyError):
        requests[2].take_decoded(1)
    requests[3].take_decoded(100 * MB)
    with pytest.raises(BusyError):
        requests[4].take_decoded(1)
    requests[4].take_body(30 * MB)
    with pytest.raises(BusyError):
        requests[3].take_body(4 * MB)
    with requests[0]:
        pass
    requests[4].take_decoded(99 * MB)
    for holding in requests[1:]:
        with holding:
            pass


def test_what_has_ended_takes_nothing_more(held: HeldBytes) -> None:
    """A picture that is being decoded when its client leaves."""
    with held.open("a") as holding:
        holding.take_decoded(MB)
    with pytest.raises(ServeError):
        holding.take_decoded(MB)
    with pytest.raises(ServeError):
        holding.take_body(MB)


def test_reading_waits_for_room_and_counts_for_what_it_found(held: HeldBytes) -> None:
    async def read() -> None:
        first = [held.open("a") for _ in range(3)]
        for holding in first:
            await holding.begin()
        fourth, other = held.open("a"), held.open("b")
        waiting = asyncio.ensure_future(fourth.begin())
        await asyncio.sleep(0.01)
        assert not waiting.done(), "three of 64 MiB are all that fit"
        async with asyncio.timeout(5):
            await other.begin()
        first[0].take_decoded(5 * MB)
        first[0].settle()
        async with asyncio.timeout(5):
            await waiting
        left = asyncio.ensure_future(held.open("a").begin())
        await asyncio.sleep(0.01)
        left.cancel()
        for holding in (*first, fourth, other):
            with holding:
                pass

    asyncio.run(read())


def test_no_order_of_requests_leaves_one_waiting_or_a_byte_behind(held: HeldBytes) -> None:
    rng = random.Random(3)

    async def request(owner: str) -> None:
        with held.open(owner) as holding:
            holding.take_body(rng.randrange(MB // 10))
            await holding.begin()
            await asyncio.sleep(rng.random() * 0.002)
            for _ in range(rng.randrange(3)):
                holding.take_decoded(rng.randrange(20 * MB))
            holding.settle()
            await asyncio.sleep(rng.random() * 0.002)
            if rng.random() < 0.5:
                holding.drop_decoded()

    async def use() -> None:
        tasks = [asyncio.ensure_future(request(rng.choice("abcd"))) for _ in range(300)]
        for task in rng.sample(tasks, 50):
            await asyncio.sleep(0.0003)
            task.cancel()
        async with asyncio.timeout(20):
            done = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(outcome is None for outcome in done) > 200
        assert held.total == 0

    asyncio.run(use())
